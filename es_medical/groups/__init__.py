from es_medical.groups.base import Group
from es_medical.groups.dihedral import D4, Flips
from es_medical.groups.rotations import Rotations, Turnable, TurnedElements

__all__ = ["D4", "Flips", "Group", "Rotations", "Turnable", "TurnedElements"]
