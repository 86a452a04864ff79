"""Tables as text, the same in every format; each format marks the best score and escapes text in its own way."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from es_medical.metrics.image import MAX_DB
from es_medical.report.methods import kind
from es_medical.report.reading.scores import SCORES, Score
from es_medical.report.reading.timing import SHARE, Race
from es_medical.report.statistics import Difference
from es_medical.report.tables import Row, Table

DIGITS = {"psnr": 2, "ssim": 4, "equiv": 2}
TITLES = {"psnr": "PSNR ↑", "ssim": "SSIM ↑", "equiv": "EQUIV ↑"}
EMPTY, MISSING = "N/A", "missing"


class Cell(NamedTuple):
    """Text of a cell; bold for the best score; the command that fills an empty cell."""

    text: str
    bold: bool = False
    command: str = ""


class Grid(NamedTuple):
    """A table of text.

    Attributes:
        title: what it shows.
        titles: titles of the columns; those of the paper's numbers begin with "paper".
        rows: rows of cells.
        notes: remarks below it.
        slug: name of its LaTeX file, "" for none.
        settings: what our numbers and the paper's were measured on, as sentences.
        rules: rows before which a rule is drawn.
        commands: commands that fill empty rows or points, with the labels of those that each one fills.
        data_command: command that makes the data, where there are no runs yet.
    """

    title: str
    titles: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...]
    slug: str = ""
    settings: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()
    commands: Mapping[str, Sequence[str]] = {}
    data_command: str = ""


def table_grid(table: Table) -> Grid:
    """Lay out a table; rules separate supervised, self-supervised and learning-free methods."""
    scores = [name for name in SCORES if any(name in row.scores or _paper(row, name) for row in table.rows)]
    titles = [TITLES[name] for name in scores]
    columns = ("Method", *titles, "Training", "Epochs", "s / epoch", *(f"paper {title}" for title in titles))
    paper = f"Paper: {table.theirs.setting}. Source: {table.theirs.source}." if table.theirs else "Paper: no such table."
    kinds = [kind(row.method) for row in table.rows]
    commands: dict[str, list[str]] = {}
    for row in table.rows:
        if row.command:
            commands.setdefault(row.command, []).append(row.label)
    return Grid(
        table.title,
        (*columns, "paper s / epoch", "paper epochs"),
        tuple(_cells(row, scores) for row in table.rows),
        table.notes,
        table.slug,
        (f"Ours: {table.ours}.", paper),
        frozenset(i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]),
        commands,
        table.data_command,
    )


def _cells(row: Row, scores: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells of a row; the first score of a row without a run has the command that fills it."""
    none = "" if row.command else EMPTY
    ours = [score_cell(row.scores.get(name), name, none) for name in scores]
    if row.command and ours:
        ours[0] = Cell(MISSING, command=row.command)
    took, paper = row.training, row.paper_training
    training = (duration(took.seconds), f"{took.epochs:g}", f"{took.seconds_per_epoch:.3g}") if took else 3 * (none,)
    durations = (f"{paper.seconds_per_epoch:g}", str(paper.epochs)) if paper else ("", "")
    return (Cell(row.label), *ours, *map(Cell, (*training, *(_paper(row, name) for name in scores), *durations)))


def _paper(row: Row, name: str) -> str:
    return str(getattr(row.paper, name).text) if row.paper else ""


def score_cell(score: Score | None, name: str, none: str = EMPTY) -> Cell:
    """Write mean ± standard deviation; ∞ is exact (logged as `MAX_DB` where infinite values can't be).

    >>> score_cell(Score(28.456, 2.971, 100), "psnr").text, score_cell(Score(float("inf"), None, 3), "equiv").text
    ('28.46 ± 2.97', '∞')
    """
    if score is None:
        return Cell(none)
    if score.mean in (MAX_DB, math.inf):
        return Cell("∞", score.best)
    deviation = "" if score.sd is None else f" ± {score.sd:.{DIGITS[name]}f}"
    exact = f" ({score.exact} of {score.n} ∞)" if score.exact else ""
    return Cell(f"{score.mean:.{DIGITS[name]}f}{deviation}{exact}", score.best)


def duration(seconds: float) -> str:
    """Write a duration in hours, minutes or seconds, with three digits.

    >>> duration(42), duration(150), duration(13800 * 24)
    ('42 s', '2.5 min', '92 h')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def difference_grid(found: Sequence[Difference]) -> Grid | None:
    """Lay out paired differences, None where there are none."""
    notes = (
        "Mean over test items of ES minus the other method on the same item, with the 95 % bootstrap interval (BCa, 9,999 "
        "resamples, fixed seed). Items are taken as independent; slices of one subject are not, so that with few subjects "
        "the intervals are too narrow.",
    )
    titles = ("ES minus", "score", "items", "difference", "95 % interval", "verdict", "unmatched items")
    return Grid("Paired differences", titles, tuple(map(_difference, found)), notes) if found else None


def _difference(one: Difference) -> tuple[Cell, ...]:
    digits, (mean, low, high) = DIGITS[one.name], one.interval
    ends = "" if low is None or high is None else f"{low:+.{digits}f} to {high:+.{digits}f}"
    counts = {"only ES": one.es_only, f"only {one.label}": one.other_only, "without a finite score": one.undefined}
    unmatched = ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "none"
    name = f"{one.name.upper()} (dB)" if one.name == "psnr" else one.name.upper()
    difference = f"{mean:+.{digits}f}" if one.n else ""
    return tuple(map(Cell, (one.label, name, str(one.n), difference, ends, one.verdict, unmatched)))


def race_grid(found: Race | None) -> Grid | None:
    """Lay out training times to the target, None where no run has a validation curve."""
    if found is None:
        return None
    never = "not reached" if found.target is not None else ""
    rows = (
        (
            one.label,
            duration(one.seconds) if one.seconds is not None else never,
            "" if one.at_equal_time is None else f"{one.at_equal_time:.2f}",
            f"{one.best:.2f}",
            duration(one.total),
        )
        for one in found.rows
    )
    titles = (f"time to {SHARE:.0%} of supervised's gain", f"PSNR after {duration(found.equal_time)} (dB)")
    return Grid(
        "Time to get there, on validation items",
        ("Method", *titles, "best PSNR (dB)", "whole training"),
        tuple(tuple(map(Cell, row)) for row in rows),
        (_target(found), _TIME),
    )


_TIME = (
    "Time is that of the training steps, those of a warm start included; validation is not counted. Between two validations "
    "the PSNR is interpolated. The third column compares all methods at the training time of the shortest training."
)


def _target(found: Race) -> str:
    if found.target is None or found.baseline is None:
        return "No target: it needs a supervised run and the baseline's PSNR on the validation items."
    share = f"{SHARE:.0%}".replace("%", " %")
    return f"Target {found.target:.2f} dB: the baseline's {found.baseline:.2f} dB and {share} of supervised's gain over it."
