"""Tag a training run with what its group adds to the operator; warn at the start if it adds nothing."""

import copy
import logging
import time
from collections.abc import Mapping
from typing import Any

from torch.utils.data import default_collate

from es_medical.diagnostics.actions import DIHEDRAL, probe
from es_medical.diagnostics.diagnosis import LITTLE, QUICK_STEPS, Diagnosis, Finding, diagnose, support_of
from es_medical.diagnostics.verdict import summary_line
from es_medical.engine.evaluator import Evaluator
from es_medical.groups import D4, FineRotations, Flips, Rotations, Shifts
from es_medical.losses import Loss
from es_medical.methods import METHODS
from es_medical.physics import MRI, CompressedSensing, MultiCoilMRI, Operator
from es_medical.physics.pixels import Pixels

logger = logging.getLogger(__name__)

NAMES: dict[type, str] = {
    Flips: "flips",
    D4: "d4",
    Shifts: "shifts",
    Rotations: "fine_rotations",
    FineRotations: "fine_rotations",
}
"""Names in `es_medical.diagnostics` of the groups used by bundles."""
LONGEST = 60.0  # longest time in seconds that a training waits for a diagnosis
ASK = "python -m es_medical.diagnose --config_file ..."


def diagnosis_tags(tester: Evaluator, loss: Loss, method: str) -> dict[str, str]:
    """Find what the group in use adds to a training's operator; warn if it is less than 1 % of n.

    No error here stops a training: its cause is logged.

    Args:
        tester: evaluator with the operator and the bundle's group.
        loss: loss of the training, with the transformations that it draws itself.
        method: name of the method.

    Returns:
        Tags diagnosis.group, .n, .rank, .rank_alone, .share, .gain, .usable (% of n) and .words; empty if no group is in use.
    """
    try:
        action = group_in_use(tester, loss, method)
        if action is None:
            return {}
        start = time.monotonic()
        physics = _operator(tester)
        if (wait := _expected(physics, action)) > LONGEST:
            logger.warning("the diagnosis of the operator is left out, it would take about %.0f s: %s", wait, ASK)
            return {}
        found = diagnose(physics, [action], support=support_of(physics), quick=True)
        seconds = time.monotonic() - start
    except Exception as error:
        logger.warning(
            "the diagnosis of the operator failed, the training goes on without it: %s: %s", type(error).__name__, error
        )
        return {}
    if action in found.refused:
        logger.warning("the diagnosis of the operator is left out: %s", found.refused[action])
        return {}
    _log_summary(found, action, loss, seconds)
    finding = found.of(action)
    return summary_tags(finding, found.alone) | {"diagnosis.words": summary_line(finding, found.alone)}


def summary_tags(finding: Finding, alone: Finding) -> dict[str, str]:
    """Return a finding as tags of an MLflow run; estimated ranks have their standard error."""
    n = alone.spectrum.n
    return {
        "diagnosis.group": finding.action,
        "diagnosis.n": str(n),
        "diagnosis.rank": _rank(finding),
        "diagnosis.rank_alone": _rank(alone),
        "diagnosis.share": f"{100 * finding.share:.2f} %",
        "diagnosis.gain": f"{100 * finding.gain:.2f} %",
        "diagnosis.usable": f"{100 * finding.usable:.2f} %",
        "diagnosis.method": finding.spectrum.method,
    }


def group_in_use(tester: Evaluator, loss: Loss, method: str) -> str | None:
    """Return the name of the set of transformations that a training uses; None if it uses none, or one not in `NAMES`.

    Those drawn by the loss (es_neq, rotations of a scanner, equivariant imaging) take precedence over the network's group.
    """
    loss = getattr(loss, "loss", loss)  # inside SeveralSplits
    group: Any = getattr(loss, "group", None) or getattr(loss, "transform", None)
    if group is None and (method not in METHODS or METHODS[method].equivariant):
        group = tester.equiv_group
    return NAMES.get(type(group))


def _operator(tester: Evaluator) -> Operator:
    """Copy A to the CPU; if each slice has its own, take that of the first test slice."""
    batch: Mapping[str, Any] = default_collate([tester.data_loader.dataset[0]])  # type: ignore[union-attr]
    return copy.deepcopy(tester.physics).cpu().of(batch)


def _expected(physics: Operator, action: str) -> float:
    """Estimate the seconds of a diagnosis from one product with A^T A; 0 if the spectrum has a closed form."""
    always, shifted = isinstance(physics, MRI | Pixels), isinstance(physics, MultiCoilMRI | CompressedSensing)
    if (always and action in DIHEDRAL) or ((always or shifted) and action == "shifts"):
        return 0.0
    x = probe(physics, seed=0)
    start = time.monotonic()
    y = physics.A(x)
    physics.A_adjoint(y)
    rows = y.numel() if action == "shifts" else 0  # without a closed form each row of A is back-projected
    return (time.monotonic() - start) * (rows + QUICK_STEPS * (1 + D4.order))


def _rank(finding: Finding) -> str:
    error = finding.spectrum.error
    return f"{finding.rank:.0f}" + (f" ± {error:.0f}" if error > 0 else "")


def _log_summary(found: Diagnosis, action: str, loss: Loss, seconds: float) -> None:
    """Log the summary; as a warning if the group adds little to a training on measurements alone."""
    finding = found.of(action)
    line = summary_line(finding, found.alone)
    if finding.usable - found.alone.usable < LITTLE and not loss.needs_image and found.alone.share < 1:
        logger.warning("%s; what would help: %s (%.1f s)", line, ASK, seconds)
    else:
        logger.info("%s (%.1f s)", line, seconds)
