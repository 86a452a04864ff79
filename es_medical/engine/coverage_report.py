"""What a calibration tells: a table of coverage, and numbers for the run."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from es_medical.engine.results import print_table
from es_medical.uncertainty import Calibration, Coverage

logger = logging.getLogger(__name__)

Panels = Mapping[str, Mapping[str, Sequence[Coverage]]]
"""What is to be covered -> name of the interval -> its coverage at each level."""

PICTURE = "coverage.png"


def coverage_table(panels: Panels, levels: Sequence[float]) -> dict[str, list[str]]:
    """Lay coverage out: one row for each kind of truth and interval, one column for each level."""
    rows = [(truth, name, points) for truth, curves in panels.items() for name, points in curves.items()]
    table = {"covers": [truth for truth, _, _ in rows], "interval": [name for _, name, _ in rows]}
    for level in levels:
        table[f"{100 * level:g} %"] = [_cell(one) for _, _, points in rows for one in points if one.level == level]
    return table


def coverage_metrics(panels: Panels, level: float = 0.9) -> dict[str, float]:
    """Numbers for a run: the coverage of each kind of interval at one level, for example coverage_90/bootstrap.images."""
    return {
        f"coverage_{100 * level:g}/{name.replace(', ', '_')}.{truth.replace(' ', '_')}": one.share
        for truth, curves in panels.items()
        for name, points in curves.items()
        for one in points
        if one.level == level
    }


def print_coverage(table: Mapping[str, list[str]], calibration: Calibration, folder: Path) -> None:
    """Print the table, and what to make of it."""
    from rich.console import Console

    print_table(table, "Test slices whose error lies in its interval (95 % confidence, slices taken as independent)", 130)
    console = Console()
    console.width = max(console.width, 130)
    console.print(
        f"calibrated: 90 % of the errors are below {calibration.factor(0.9):.2f} times what the bootstrap predicts, by the "
        f"held-out measurements of {calibration.n} slices, which vouch for levels up to {100 * calibration.highest_level:.0f} %"
    )
    console.print(f"picture:  {folder / PICTURE}", soft_wrap=True)


def warn_of_other_slices(curves: Mapping[str, Sequence[Coverage]], level: float = 0.9) -> None:
    """Warn where held-out measurements of the test slices are covered too seldom or too often: no ground truth is needed.

    Too seldom or too often is a coverage whose 95 % confidence interval leaves out the level.
    """
    for name, points in curves.items():
        for one in points:
            if name == "bootstrap, calibrated" and one.level == level and not one.low <= level <= one.high:
                text = (
                    "%.0f %% intervals cover the held-out measurements of %d of %d test slices: validation slices are no "
                    "likeness of them; calibrate each slice by itself: --calibrate_by scan"
                )
                logger.warning(text, 100 * level, one.covered, one.n)


def _cell(one: Coverage) -> str:
    return f"{100 * one.share:.0f} % [{100 * one.low:.0f}, {100 * one.high:.0f}]"
