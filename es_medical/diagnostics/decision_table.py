"""The paper's decision table for the transformations, computed from operators: which transformations add to A."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch

from es_medical.diagnostics.actions import Term
from es_medical.diagnostics.blur import IsotropicBlur
from es_medical.diagnostics.mean_gram import GroupMean
from es_medical.diagnostics.spectrum import Spectrum, spectrum, spectrum_of
from es_medical.groups import Shifts
from es_medical.physics import (
    MRI,
    CompressedSensing,
    Inpainting,
    Operator,
    bernoulli_mask,
    gaussian_line_mask,
    gaussian_matrix,
)
from es_medical.types import Mask

if TYPE_CHECKING:
    from rich.table import Table

TOLERANCE = 0.01
"""Gain in rank, as a share of n, from which transformations get a tick."""

ACTIONS = {"Translation": "shifts", "Rotation": "rotations_90", "Permutation": "permutations", "Amplitude": "amplitude"}
"""The set that represents each transformation on a pixel grid; turns by 90 degrees move pixels to pixels."""
TRANSFORMATIONS = tuple(ACTIONS)

PAPER: dict[str, tuple[bool, ...]] = {
    "Isotropic blur": (False, False, True, False),
    "Image inpainting": (True, True, True, False),
    "Sparse-view CT": (False, True, True, False),
    "Accelerated MRI": (False, True, True, False),
    "Compressive sensing": (True, True, True, False),
}
"""Ticks of the paper's table "Decision table for the transformations", shown next to ours and not used otherwise."""

VIEWS, REACH, BIN = 5, 2, 0.25


class Cell(NamedTuple):
    """One entry of the table.

    Attributes:
        operator: row of the table.
        transformation: column of the table.
        alone: rank of A^T A, as a share of n.
        gain: what the transformations add to it, as a share of n.
        paper: the paper's tick.
    """

    operator: str
    transformation: str
    alone: float
    gain: float
    paper: bool

    @property
    def tick(self) -> bool:
        """Whether the transformations add at least 1 % of n."""
        return self.gain >= TOLERANCE


class DecisionTable(NamedTuple):
    """The table, row by row, and remarks that explain it."""

    cells: tuple[Cell, ...]
    remarks: tuple[str, ...]

    @property
    def disagreements(self) -> tuple[Cell, ...]:
        """Entries that differ from the paper's."""
        return tuple(cell for cell in self.cells if cell.tick != cell.paper)


def decision_table(size: int = 16, seed: int = 0) -> DecisionTable:
    """Compute the paper's decision table: gain in the rank of mean_g (A T_g)^T A T_g for five operators and four sets.

    The operators, on images of size x size: an ideal low-pass of 0.25 cycles per pixel; 30 % of the pixels; every fourth
    k-space line; a Gaussian matrix with n / 4 rows; parallel beams from 5 directions over 180 degrees, of objects in a disc of
    diameter `size` within a field of view twice as wide. Rotations are turns by 90 degrees, which need no
    interpolation.

    Translations of CT keep the object in the field of view: shifts by up to 2 pixels of a disc in a field of twice its size, so
    that nothing wraps around. The detector's bins are a quarter of a pixel wide: each view is
    known as a function, as in the Radon transform, and a translation shifts it. See the remarks for wider bins.

    Args:
        size: pixels along a side, at least 8.
        seed: of masks and matrix.

    Raises:
        ImportError: astra-toolbox is not installed.
    """
    physics, support = scanner(size)
    rows = {name: _row(name, operator) for name, operator in _on_grid(size, seed).items()}
    rows["Sparse-view CT"] = _row("Sparse-view CT", physics, support, translations(physics, support, REACH))
    return DecisionTable(tuple(cell for name in PAPER for cell in rows[name]), _remarks(size))


def translations(physics: Operator, support: Mask, reach: int) -> Spectrum:
    """Return the spectrum for translations by whole pixels up to `reach` that keep an object inside the image.

    Args:
        physics: the operator A.
        support: pixels of the object, (H, W).
        reach: greatest length of a translation, in pixels.

    Raises:
        ValueError: the object would leave the image.
    """
    edge = support.clone()
    edge[reach : edge.shape[0] - reach, reach : edge.shape[1] - reach] = 0
    if bool(edge.any()):
        raise ValueError(f"the object is within {reach} pixels of the edge: translations would take it out of the image")
    steps = torch.arange(-reach, reach + 1)
    moves = torch.cartesian_prod(steps, steps)
    moves = moves[moves.square().sum(1) <= reach**2]
    shifts = Shifts(physics.image_size)  # cyclic, but the object never reaches the edge
    return spectrum_of(GroupMean([Term(physics, shifts, g[None], 1 / len(moves)) for g in moves], support))


def scanner(size: int, views: int = VIEWS, bins: float = BIN) -> tuple[Operator, Mask]:
    """Return a sparse-view scanner of a field of view twice as wide as the object, and the object's pixels (H, W), a disc.

    Args:
        size: diameter of the object, in pixels.
        views: evenly spaced over 180 degrees.
        bins: width of the detector's bins, in pixels.
    """
    from es_medical.physics.ct import CT
    from es_medical.physics.ct_geometry import ParallelBeam

    beam = ParallelBeam((2 * size, 2 * size), n_views=views, n_detectors=round(2 * size / bins), pitch=bins)
    position = torch.arange(2 * size, dtype=torch.float64) - size + 0.5
    return CT(beam).double(), (torch.hypot(position[:, None], position) <= size / 2).double()


def _on_grid(size: int, seed: int) -> dict[str, Operator]:
    n = size**2
    return {
        "Isotropic blur": IsotropicBlur((size, size), cutoff=0.25),
        "Image inpainting": Inpainting(bernoulli_mask((1, size, size), 0.3, seed), (size, size)),
        "Accelerated MRI": MRI(gaussian_line_mask(size, 4, 2 / size, seed), (size, size)),
        "Compressive sensing": CompressedSensing(gaussian_matrix(n // 4, n, seed).double(), (size, size)),
    }


def _row(name: str, physics: Operator, support: Mask | None = None, translated: Spectrum | None = None) -> list[Cell]:
    """Compute a row of the table; `translated`, if given, replaces all cyclic shifts."""
    alone = spectrum(physics, "none", support)
    found = {"Translation": translated} if translated else {}
    found |= {column: spectrum(physics, action, support) for column, action in ACTIONS.items() if column not in found}
    share = alone.rank() / alone.n
    return [Cell(name, column, share, _gain(alone, found[column]), PAPER[name][i]) for i, column in enumerate(ACTIONS)]


def _remarks(size: int) -> tuple[str, ...]:
    """Describe how the results depend on how CT is modelled."""
    wide, support = scanner(size, bins=1.0)
    even, _ = scanner(size, views=VIEWS + 1)
    gains = {
        "wide": _gain(spectrum(wide, "none", support), translations(wide, support, REACH)),
        "cyclic": _gain(spectrum(wide, "none", support), spectrum(wide, "shifts", support)),
        "quarter": _gain(spectrum(even, "none", support), spectrum(even, "rotations_90", support)),
        "fine": _gain(spectrum(even, "none", support), spectrum(even, "fine_rotations", support)),
    }
    return (
        f"Translations of CT keep the object in the field of view and the detector's bins are {BIN:g} pixels wide. With bins "
        f"as wide as a pixel they add {100 * gains['wide']:.1f} % of n: shifts by a part of a bin sample each view more "
        "finely, but never from another direction. Cyclic shifts, which no scanner can do, would add "
        f"{100 * gains['cyclic']:.1f} %.",
        f"Rotations are turns by 90 degrees. An even number of views is blind to them ({VIEWS + 1} views: "
        f"{100 * gains['quarter']:+.1f} %), not to turns by fractions of the view spacing ({100 * gains['fine']:+.1f} %).",
    )


def _gain(alone: Spectrum, found: Spectrum) -> float:
    return (found.rank() - alone.rank()) / alone.n


def as_rich(table: DecisionTable) -> "Table":
    """Lay the table out for a terminal: gains in % of n, our tick and the paper's."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "Rank of A, and gain in rank, % of n (our tick, the paper's tick)"
    shown = Table("operator", "A alone", *TRANSFORMATIONS, title=title, box=SIMPLE_HEAD)
    for name in PAPER:
        row = [cell for cell in table.cells if cell.operator == name]
        shown.add_row(name, f"{100 * row[0].alone:.1f}", *(_entry(cell) for cell in row))
    return shown


def _entry(cell: Cell) -> str:
    ours, theirs = ("✓" if tick else "\N{MULTIPLICATION SIGN}" for tick in (cell.tick, cell.paper))
    return f"{100 * cell.gain:+.1f} {ours} {theirs}"


def show(size: int = 16, seed: int = 0) -> DecisionTable:
    """Compute the table and print it with its remarks."""
    from rich.console import Console

    table, console = decision_table(size, seed), Console()
    console.print(as_rich(table))
    for remark in table.remarks:
        console.print(f"- {remark}")
    for cell in table.disagreements:
        console.print(f"- Differs from the paper: {cell.operator} x {cell.transformation}, {100 * cell.gain:+.1f} %.")
    return table


if __name__ == "__main__":
    import typer

    def main(
        size: Annotated[int, typer.Option(help="Pixels along a side.", min=8, max=32)] = 16,
        seed: Annotated[int, typer.Option(help="Seed of masks and matrix.", min=0)] = 0,
    ) -> None:
        """Compute the paper's decision table for the transformations from operators, and print it."""
        show(size, seed)

    typer.run(main)
