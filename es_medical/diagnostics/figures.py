"""Figures of a diagnosis: what is sampled with and without transformations, and spectra. No global state is used."""

from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from es_medical.diagnostics.actions import MOVES, SETS
from es_medical.diagnostics.base import RANK_THRESHOLD
from es_medical.diagnostics.coverage import TURNS, Coverage, coverage, plane_of, view_angles
from es_medical.diagnostics.diagnosis import Diagnosis, Finding
from es_medical.diagnostics.verdict import percent
from es_medical.physics.base import Operator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
FLOOR = 1e-5  # share of the largest eigenvalue at which the plot ends
HOLE = 0.4  # inner radius of the picture of views
LEGEND = 34  # characters in a line of the legend


def png(figure: "Figure") -> bytes:
    """Draw a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


def coverage_figure(physics: Operator, diagnosis: Diagnosis) -> "Figure | None":
    """Draw what the operator samples alone and with transformations, side by side: k-space, pixels, or views.

    The best set is shown where it can be drawn, else the one that adds most. None for an operator without such a picture (a
    dense matrix).
    """
    if getattr(physics, "geometry", None) is not None:
        return _views_figure(physics, _shown(diagnosis, TURNS))
    if plane_of(physics) is None:
        return None
    return _plane_figure(coverage(physics, "none"), coverage(physics, _shown(diagnosis, MOVES)))


def _shown(diagnosis: Diagnosis, drawable: tuple[str, ...]) -> str:
    """Return the best set if it can be drawn, else the drawable set that adds most; of equal ones the largest."""
    best = diagnosis.best
    if best is not None and best.action in drawable:
        return best.action
    found = [one for one in diagnosis.findings if one.action in drawable]
    return max(reversed(found), key=lambda one: one.rank).action


def _plane_figure(alone: Coverage, moved: Coverage) -> "Figure":
    import matplotlib

    colours = matplotlib.colormaps["plasma"].with_extremes(under="black")  # unmeasured entries stand out
    figure = _figure(9, 4.3)
    panels = figure.subplots(1, 2)
    for axes, one in zip(panels, (alone, moved), strict=True):
        image = axes.imshow(one.sampled.mean(0).numpy(), vmin=1e-6, vmax=1, cmap=colours, interpolation="nearest")
        axes.set_title(f"{_title(one.action)}\n{percent(one.share)} of {_entries(one)}", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
    label = (
        "share of the operators A T_g that measure it"
        if len(moved.sampled) == 1
        else "share of the operators A T_g, mean of the channels"
    )
    figure.colorbar(image, ax=panels, shrink=0.85, label=label)
    return figure


def _title(action: str) -> str:
    return SETS[action].label if action == "none" else f"with {SETS[action].label}"


def _entries(one: Coverage) -> str:
    return one.plane if one.plane == "k-space" else ("the values" if len(one.sampled) > 1 else "the pixels")


def _views_figure(physics: Operator, action: str) -> "Figure":
    """Draw every view as a line in its direction, except near the centre, where all of them meet."""
    figure = _figure(9, 4.6)
    for axes, name in zip(figure.subplots(1, 2), ("none", action), strict=True):
        angles = view_angles(physics, name)
        x, y = np.cos(np.deg2rad(angles)), np.sin(np.deg2rad(angles))
        sides = (1, -1) if physics.geometry.full_arc < 360 else (1,)
        for side in sides:
            axes.plot([side * HOLE * x, side * x], [side * HOLE * y, side * y], color=SETS[name].colour, linewidth=0.7)
        axes.set_title(f"{_title(name)}\n{len(angles)} angles", fontsize=10)
        axes.set_aspect("equal")
        axes.axis("off")
    return figure


def spectrum_figure(diagnosis: Diagnosis) -> "Figure":
    """Draw the eigenvalues of the mean Gram matrix of each set, the largest first, against their rank in percent of n."""
    figure = _figure(9.5, 4.4)
    axes = figure.subplots()
    for together in _alike(diagnosis.findings):
        first = together[0]
        x, y = _curve(first)
        names = ", ".join(SETS[one.action].short for one in together)
        label = fill(f"{names}: {percent(first.share)}", LEGEND)
        width = 2.4 if first.action == "none" else 1.4
        axes.step(x, y, where="pre", color=SETS[first.action].colour, linewidth=width, label=label)
    axes.axhline(RANK_THRESHOLD, color="tab:gray", linestyle=":", linewidth=1)
    axes.annotate("below: zero", (0.01, RANK_THRESHOLD), xycoords=("axes fraction", "data"), va="top", fontsize=8)
    _decorate(axes)
    return figure


def _alike(findings: tuple[Finding, ...]) -> list[list[Finding]]:
    """Group findings with the same curve: sets that add nothing share that of the operator alone."""
    groups: list[list[Finding]] = []
    for one in findings:
        same = next((group for group in groups if _same_curve(group[0], one)), None)
        if same is None:
            groups.append([one])
        else:
            same.append(one)
    return groups


def _same_curve(a: Finding, b: Finding) -> bool:
    grid = np.linspace(0.5, 99.5, 100)
    (xa, ya), (xb, yb) = _curve(a), _curve(b)
    return bool(np.allclose(_at(xa, ya, grid), _at(xb, yb, grid), rtol=1e-3, atol=FLOOR))


def _at(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    return y[np.minimum(np.searchsorted(x, grid), len(y) - 1)]


def _curve(finding: Finding) -> tuple[np.ndarray, np.ndarray]:
    """Return where each eigenvalue ends, in percent of n, and the eigenvalues over the largest, down to the floor."""
    values = np.asarray(finding.spectrum.eigenvalues, dtype=float)
    counts = np.asarray(finding.spectrum.counts, dtype=float)
    order = np.argsort(values)[::-1]
    values, counts = values[order], counts[order]
    relative = np.maximum(values / max(values[0], 1e-300), FLOOR)
    end = min(np.searchsorted(-relative, -FLOOR) + 1, len(relative))  # what lies on the floor is not drawn
    return 100 * np.concatenate([[0.0], np.cumsum(counts)[:end]]) / finding.spectrum.n, np.concatenate(
        [relative[:1], relative[:end]]
    )


def _decorate(axes: "Axes") -> None:
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, 2)
    axes.set_xlim(0, 100)
    axes.set_xlabel("eigenvalues, largest first (% of n)")
    axes.set_ylabel("eigenvalue / largest")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9, title="rank, % of n", alignment="left")


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
