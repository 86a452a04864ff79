"""Training curves, compression levels and the equivariance ablation as pictures. No global state of matplotlib is used."""

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from es_medical.methods import BASELINE, LEARNING_FREE
from es_medical.metrics.image import MAX_DB
from es_medical.report.groups import Group
from es_medical.report.levels import Levels
from es_medical.report.methods import COLD, PAIRS, kind, label, place, shown
from es_medical.report.paper import LEVELS, RATIOS
from es_medical.report.reading.timing import curves
from es_medical.report.tables import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
MINUTE = 60.0


def png(figure: "Figure") -> bytes:
    """Draw a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


def curves_figure(group: Group) -> "Figure | None":
    """Draw PSNR of the validation items against epochs, and PSNR and SSIM against training time; None where no run has a curve.

    The best method that learns nothing, at its best weight, and the baseline are horizontal lines.
    """
    drawn = {method: seeds for method, seeds in curves(group.runs).items() if any(len(one.psnr) > 1 for one in seeds)}
    if not drawn:
        return None
    figure = _figure(13, 3.8)
    left, middle, right = figure.subplots(1, 3)
    middle.sharey(left)
    for method, seeds in drawn.items():
        for i, one in enumerate(seeds):
            style = _style(method) | ({"label": label(method)} if i == 0 else {})
            minutes = [seconds / MINUTE for seconds in one.seconds]
            left.plot(one.epochs, one.psnr, **style)
            middle.plot(minutes, one.psnr, **style)
            right.plot(minutes, one.ssim, **style)
    for name, axes in (("val/psnr", (left, middle)), ("val/ssim", (right,))):
        _flat_lines(group, name, axes)
    _axes(left, "epoch", "PSNR (dB), validation items")
    _axes(middle, "training time (min)", "PSNR (dB), validation items")
    _axes(right, "training time (min)", "SSIM, validation items")
    right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def levels_figure(levels: Levels) -> "Figure":
    """Draw PSNR against the compression level, ours solid, the paper's dotted; the level grows to the right as in the paper."""
    figure = _figure(8, 4.2)
    axes = figure.subplots()
    for method in sorted(levels.points, key=place):
        points = sorted(levels.points[method].items())
        x, means = [_level(ratio) for ratio, _ in points], [one.mean for _, one in points]
        deviations, style = [one.sd or 0.0 for _, one in points], _style(method)
        line = axes.errorbar(x, means, deviations, marker="o", capsize=2, color=style["color"], label=f"{label(method)}, ours")
        line[0].set_linestyle(style["linestyle"])
    for method, printed in LEVELS.items():
        x, name = [_level(ratio) for ratio in RATIOS], f"{label(method)}, paper"
        axes.plot(x, printed, color=shown(method).colour, label=name, marker="x", alpha=0.6, linestyle=":")
    axes.set_xticks([_level(ratio) for ratio in sorted({*RATIOS, *(r for one in levels.points.values() for r in one)})])
    _axes(axes, "compression level (%)", "PSNR (dB)")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def ablation_figure(table: Table) -> "Figure | None":
    """Draw PSNR and EQUIV of each loss with an equivariant network and without; None where no pair is complete."""
    rows = {row.method: row for row in table.rows}
    pairs = [(rows[a], rows[b]) for a, b in PAIRS if a in rows and b in rows and rows[a].scores and rows[b].scores]
    if not pairs:
        return None
    figure = _figure(9, 1.6 + 0.6 * len(pairs))
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ("psnr", "equiv"), strict=True):
        for y, pair in enumerate(reversed(pairs)):
            for row, marker, offset in zip(pair, ("o", "s"), (0.12, -0.12), strict=True):
                _ablation_point(axes, row, name, y + offset, marker)
        axes.set_yticks(range(len(pairs)), [_pair_name(b) for _, b in reversed(pairs)])
        axes.set_ylim(-0.6, len(pairs) - 0.4)
        _axes(axes, f"{name.upper()} (dB)", "")
    _ablation_legend(figure)
    return figure


def _pair_name(other: Row) -> str:
    """Name the loss of a pair by its row without equivariance, of which ES has two."""
    name = other.label.partition(",")[0]
    return f"{name}, g in the loss" if other.method == "es_neq" else name


def _ablation_point(axes: "Axes", row: Row, name: str, y: float, marker: str) -> None:
    """Draw our mean with its standard deviation, and the paper's mean, hollow, on the same line."""
    score, printed = row.scores.get(name), getattr(row.paper, name).mean if row.paper else None
    if score is not None and score.mean < MAX_DB:
        axes.errorbar([score.mean], [y], xerr=[score.sd or 0.0], marker=marker, color=_colour(marker), capsize=2)
    elif score is not None:
        axes.annotate("∞", (0.97, y), xycoords=("axes fraction", "data"), color=_colour(marker), ha="right", va="center")
    if printed is not None:
        axes.plot([printed], [y], marker=marker, color=_colour(marker), fillstyle="none", alpha=0.7, linestyle="none")


def _ablation_legend(figure: "Figure") -> None:
    from matplotlib.lines import Line2D

    names = [
        ("o", "full", "equivariant, ours"),
        ("s", "full", "not equivariant, ours"),
        ("o", "none", "equivariant, paper"),
        ("s", "none", "not equivariant, paper"),
    ]
    handles = [
        Line2D([], [], marker=marker, fillstyle=fill, color=_colour(marker), linestyle="none", label=text)  # type: ignore[arg-type]
        for marker, fill, text in names
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False)


def _colour(marker: str) -> str:
    return "tab:orange" if marker == "o" else "tab:blue"


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _style(method: str) -> dict[str, str]:
    """Return one colour for each loss; dashed where the network is not equivariant."""
    row = shown(method)
    dashed = not row.equivariant and row.kind != LEARNING_FREE
    return {"color": row.colour, "linestyle": "-." if method.endswith(COLD) else "--" if dashed else "-"}


def _flat_lines(group: Group, name: str, axes: "Sequence[Axes]") -> None:
    """Draw the best method that learns nothing, at its best weight, and the baseline, which every run logs, as lines."""
    tried = {
        method: max(point.value for point in points)
        for method, runs in group.runs.items()
        if kind(method) == LEARNING_FREE and (points := [one for run in runs for one in run.details.curves.get(name, ())])
    }
    flat = {max(tried, key=lambda method: tried[method]): max(tried.values())} if tried else {}
    logged = [found for run in group.all_runs if (found := run.details.curves.get(name.replace("val/", "val/baseline_")))]
    flat |= {BASELINE: logged[0][-1].value} if logged else {}
    for method, value in flat.items():
        for one in axes:
            one.axhline(value, color=shown(method).colour, linestyle=":", label=label(method))


def _axes(axes: "Axes", x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)


def _level(ratio: float) -> float:
    """Return the compression level, 1 - m / n, in percent."""
    return round(100 * (1 - ratio), 6)
