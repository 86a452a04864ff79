"""The report's other tables, of differences and of times, as text."""

from collections.abc import Sequence
from typing import NamedTuple

from es_medical.report.cells import DIGITS, Cell, duration
from es_medical.report.reading.timing import SHARE, Race
from es_medical.report.statistics import Difference


class Grid(NamedTuple):
    """A table of text with its title and what a reader must know of it."""

    title: str
    titles: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]


def difference_grid(found: Sequence[Difference]) -> Grid | None:
    """Lay out paired differences, None where there are none."""
    rows = tuple(tuple(Cell(text) for text in _difference(one)) for one in found)
    notes = (
        "Mean over test items of ES minus the other method on the same item, with the 95 % bootstrap interval (BCa, 9,999 "
        "resamples, fixed seed). Items are taken as independent; slices of one subject are not, so that with few subjects "
        "the intervals are too narrow.",
    )
    titles = ("ES minus", "score", "items", "difference", "95 % interval", "verdict", "unmatched items")
    return Grid("Paired differences", titles, rows, notes) if rows else None


def race_grid(found: Race | None) -> Grid | None:
    """Lay out how soon methods get there, None where no run has a validation curve."""
    if found is None:
        return None
    never = "not reached" if found.target is not None else ""
    rows = tuple(
        tuple(
            Cell(text)
            for text in (
                one.label,
                duration(one.seconds) if one.seconds is not None else never,
                "" if one.at_equal_time is None else f"{one.at_equal_time:.2f}",
                f"{one.best:.2f}",
                duration(one.total),
            )
        )
        for one in found.rows
    )
    titles = (
        "Method",
        f"time to {SHARE:.0%} of supervised's gain",
        f"PSNR after {duration(found.equal_time)} (dB)",
        "best PSNR (dB)",
        "whole training",
    )
    return Grid("Time to get there, on validation items", titles, rows, (_target(found), _TIME))


_TIME = (
    "Time is that of the training steps; validation is not counted. Between two validations the PSNR is interpolated. The "
    "third column compares all methods at the training time of the shortest training."
)


def _target(found: Race) -> str:
    if found.target is None or found.baseline is None:
        return "No target: it takes a supervised run and the baseline's PSNR on the validation items."
    share = f"{SHARE:.0%}".replace("%", " %")
    return f"Target {found.target:.2f} dB: the baseline's {found.baseline:.2f} dB and {share} of supervised's gain over it."


def _difference(one: Difference) -> tuple[str, ...]:
    digits, (mean, low, high) = DIGITS[one.name], one.interval
    ends = "" if low is None or high is None else f"{low:+.{digits}f} to {high:+.{digits}f}"
    counts = {"only ES": one.es_only, f"only {one.label}": one.other_only, "without a finite score": one.undefined}
    unmatched = ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "none"
    name = f"{one.name.upper()} (dB)" if one.name == "psnr" else one.name.upper()
    return one.label, name, str(one.n), f"{mean:+.{digits}f}" if one.n else "", ends, one.verdict, unmatched
