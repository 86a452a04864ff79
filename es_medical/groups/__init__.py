from es_medical.groups.base import Group
from es_medical.groups.dihedral import D4, Flips

__all__ = ["D4", "Flips", "Group"]
