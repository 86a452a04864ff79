from es_medical.groups.base import Group, Transform
from es_medical.groups.dihedral import D4, Flips
from es_medical.groups.interpolated import FineRotations
from es_medical.groups.rotations import Rotations, Turnable, TurnedElements
from es_medical.groups.shifts import Shifts

__all__ = ["D4", "FineRotations", "Flips", "Group", "Rotations", "Shifts", "Transform", "Turnable", "TurnedElements"]
