from es_medical.diagnostics.actions import ACTIONS
from es_medical.diagnostics.base import RANK_THRESHOLD, MeanGram
from es_medical.diagnostics.mean_gram import mean_gram
from es_medical.diagnostics.null_space import lost_energy, range_change, range_is_invariant
from es_medical.diagnostics.spectrum import Spectrum, spectrum

__all__ = [
    "ACTIONS",
    "RANK_THRESHOLD",
    "MeanGram",
    "Spectrum",
    "lost_energy",
    "mean_gram",
    "range_change",
    "range_is_invariant",
    "spectrum",
]
