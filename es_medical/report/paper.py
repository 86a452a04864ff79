"""The paper's own numbers, each with its setting and its source: `paper_rows.csv` and `paper_tables.csv` beside this file.

Numbers are stored as the paper prints them ("28.46 ± 2.97"), so that they can be compared with the paper by eye;
`Printed.mean` and `Printed.sd` read them. PSNR and EQUIV are in dB, `s_per_epoch` in seconds. Sources are labels in the
paper's source. Training times (tbl:training_durations) are of one RTX 3090 Ti for inpainting and of one H100 for MRI. Points
of compressed sensing, one row for each ratio m / n, are those of a figure, in full precision.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple


class Printed(NamedTuple):
    """A number as printed: "mean ± standard deviation over the test items", or "" where the paper gives none.

    >>> Printed("28.46 ± 2.97").mean, Printed("28.46 ± 2.97").sd, Printed("").mean
    (28.46, 2.97, None)
    """

    text: str = ""

    @property
    def mean(self) -> float | None:
        """The mean, None where the paper gives none."""
        return float(self.text.partition("±")[0]) if self.text else None

    @property
    def sd(self) -> float | None:
        """The standard deviation over items, None where the paper gives none."""
        return float(self.text.partition("±")[2]) if "±" in self.text else None


class PaperRow(NamedTuple):
    """One row of a table of the paper.

    Attributes:
        label: as the paper names it.
        method: our name of it (`--method`), "baseline" for the operator's own linear reconstruction.
        psnr: dB.
        ssim: without unit.
        equiv: dB.
        known: False where the loss does not know the noise level.
    """

    label: str
    method: str
    psnr: Printed
    ssim: Printed = Printed()
    equiv: Printed = Printed()
    known: bool = True


class PaperTable(NamedTuple):
    """One table of the paper, or one block of it: what it measures, its source and setting, its rows in the paper's order."""

    key: str
    title: str
    source: str
    setting: str
    rows: tuple[PaperRow, ...]

    def row(self, method: str, known: bool = True) -> PaperRow | None:
        """Return the row of a method, None where the paper has none."""
        return next((row for row in self.rows if (row.method, row.known) == (method, known)), None)


class Duration(NamedTuple):
    """Training of one method in the paper: seconds per epoch, and number of epochs."""

    method: str
    seconds_per_epoch: int
    epochs: int


def _read(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(files("es_medical.report").joinpath(name).read_text(encoding="utf-8").splitlines()))


_ROWS, _TABLES = _read("paper_rows.csv"), _read("paper_tables.csv")
_SENSING = [row for row in _ROWS if row["key"] == "sensing"]


def _row(row: Mapping[str, str]) -> PaperRow:
    psnr, ssim, equiv = (Printed(row[name]) for name in ("psnr", "ssim", "equiv"))
    return PaperRow(row["label"], row["method"], psnr, ssim, equiv, row["knows_noise"] == "yes")


def _part(part: str) -> dict[str, PaperTable]:
    """Return the tables of one part by key; all parts of a key share one setting."""
    settings = {row["key"]: row["setting"] for row in _TABLES if row["setting"]}
    rows: dict[str, list[PaperRow]] = defaultdict(list)
    for row in _ROWS:
        if row["part"] == part:
            rows[row["key"]].append(_row(row))
    tables = [table for table in _TABLES if table["part"] == part and table["key"] != "sensing"]
    return {
        (key := table["key"]): PaperTable(key, table["title"], table["source"], settings[key], tuple(rows[key]))
        for table in tables
    }


TABLES = _part("methods")
"""The tables of methods by key, in the order of the report."""

ABLATIONS = _part("architectures")
"""Equivariant against other architectures, by the key of the table of methods."""

UNKNOWN_NOISE = _part("unknown noise")
"""Losses that take the noise level as zero, by the key of the table of methods."""

DURATIONS = {
    key: [
        Duration(row["method"], int(row["s_per_epoch"]), int(row["epochs"]))
        for row in _ROWS
        if row["key"] == key and row["epochs"]
    ]
    for key in dict.fromkeys(row["key"] for row in _ROWS if row["epochs"])
}
"""Training times by the key of the table of methods."""

RATIOS = tuple(dict.fromkeys(float(row["ratio"]) for row in _SENSING))
"""m / n of the figure's points: compression levels of 90, 80, 70, 60 and 50 %."""

LEVELS = {
    method: tuple(float(row["psnr"]) for row in _SENSING if row["method"] == method)
    for method in dict.fromkeys(row["method"] for row in _SENSING)
}
"""PSNR in dB at `RATIOS` (fig:compressive_sensing, fig:compressing_sensing_supp); the baseline is the pseudo-inverse."""


def sensing_table(ratio: float) -> PaperTable | None:
    """Return the figure's points at one ratio m / n, to 0.01 dB, as a table; None for a ratio that the figure does not have."""
    at = [row for row in _SENSING if abs(float(row["ratio"]) - ratio) < 1e-6]
    if not at:
        return None
    table = next(row for row in _TABLES if row["key"] == "sensing")
    rows = tuple(PaperRow(row["label"], row["method"], Printed(f"{float(row['psnr']):.2f}")) for row in at)
    title = f"{table['title']} ({100 * (1 - ratio):g} % compression)"
    return PaperTable("sensing", title, table["source"], f"{table['setting']}, m / n = {ratio:g}", rows)
