"""Cells of tables as text, the same in every format; each format marks the best and escapes in its own way."""

import math
from typing import NamedTuple

from es_medical.metrics.image import MAX_DB
from es_medical.report.reading.scores import SCORES, Score
from es_medical.report.tables import Row, Table

DIGITS = {"psnr": 2, "ssim": 4, "equiv": 2}
TITLES = {"psnr": "PSNR ↑", "ssim": "SSIM ↑", "equiv": "EQUIV ↑"}
EMPTY = "N/A"


class Cell(NamedTuple):
    """Text of a cell; bold for the best."""

    text: str
    bold: bool = False


def settings(table: Table) -> tuple[str, str]:
    """What our numbers and the paper's were measured on, as two sentences."""
    paper = f"Paper: {table.theirs.setting}. Source: {table.theirs.source}." if table.theirs else "Paper: no such table."
    return f"Ours: {table.ours}.", paper


def header(table: Table) -> list[str]:
    """Titles of the columns: method, our scores, our training, the paper's scores and training."""
    ours = [TITLES[name] for name in columns(table)]
    theirs = [f"paper {TITLES[name]}" for name in columns(table)]
    return ["Method", *ours, "Training", "Epochs", "s / epoch", *theirs, "paper s / epoch", "paper epochs"]


def columns(table: Table) -> list[str]:
    """Scores that a table shows: those that a row of ours or of the paper has."""
    return [name for name in SCORES if any(name in row.scores or _paper(row, name) for row in table.rows)]


def cells(table: Table, row: Row, missing: str) -> list[Cell]:
    """One row; `missing` stands in the first score of a row without a run."""
    none = "" if row.command else EMPTY
    ours = [score_cell(row.scores.get(name), name, none) for name in columns(table)]
    if row.command and ours:
        ours[0] = Cell(missing)
    theirs = [Cell(_paper(row, name)) for name in columns(table)]
    took, paper = row.training, row.paper_training
    training = [
        Cell(duration(took.seconds) if took else none),
        Cell(f"{took.epochs:g}" if took else none),
        Cell(f"{took.seconds_per_epoch:.3g}" if took else none),
    ]
    durations = [Cell(f"{paper.seconds_per_epoch:g}" if paper else ""), Cell(str(paper.epochs) if paper else "")]
    return [Cell(row.label), *ours, *training, *theirs, *durations]


def score_cell(score: Score | None, name: str, none: str = EMPTY) -> Cell:
    """Mean ± standard deviation; ∞ is exact (`MAX_DB` stands for it where an infinite value is not kept).

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
    """Hours, minutes or seconds, in three digits.

    >>> duration(42), duration(150), duration(13800 * 24)
    ('42 s', '2.5 min', '92 h')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def fillers(table: Table) -> dict[str, list[str]]:
    """Return each command that fills empty rows, with the labels of these rows: one run may fill several."""
    found: dict[str, list[str]] = {}
    for row in table.rows:
        if row.command:
            found.setdefault(row.command, []).append(row.label)
    return found


def _paper(row: Row, name: str) -> str:
    return str(getattr(row.paper, name).text) if row.paper else ""
