"""Coverage plots: nominal against empirical."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from es_medical.uncertainty.coverage import Coverage

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Mapping[str, Sequence[Coverage]]
"""Coverage at each level, by the name of the interval."""

DPI = 110
COLOURS = {"bootstrap": "tab:orange", "spread": "tab:blue"}
STYLES = {"calibrated": "-", "self-calibrated": ":"}


def coverage_figure(panels: Mapping[str, Curves]) -> "Figure":
    """Draw one panel for each kind of truth: the share of covered items against the nominal level.

    Bars are 95 % confidence intervals. On the diagonal coverage is the level; below it intervals are too narrow. Names have
    two parts, "bootstrap, calibrated": the first chooses the colour, the second the line.

    Args:
        panels: title of each panel -> curves.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels) + 0.4, 5.4), dpi=DPI, layout="constrained")
    shown: dict[str, Artist] = {}
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _panel(axes, curves)
        axes.set_title(title)
        handles, labels = axes.get_legend_handles_labels()
        shown |= dict(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _panel(axes: "Axes", curves: Curves) -> None:
    axes.plot([0, 100], [0, 100], color="black", linewidth=0.8, label="nominal")
    for shift, (name, points) in enumerate(curves.items()):
        levels = [100 * one.level + 0.5 * shift for one in points]  # side by side, so that bars do not overlap
        shares = [100 * one.share for one in points]
        bars = [[100 * (one.share - one.low) for one in points], [100 * (one.high - one.share) for one in points]]
        kind, _, word = name.partition(", ")
        colour, alpha = COLOURS.get(kind, "tab:gray"), 1.0 if word else 0.55
        line = axes.errorbar(
            levels, shares, bars, marker="o", markersize=4, capsize=2, elinewidth=0.8, label=name, color=colour, alpha=alpha
        )
        line[0].set_linestyle(STYLES.get(word, "--"))
    axes.set_xlim(0, 102)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("nominal level (%)")
    axes.set_ylabel("items covered (%)")
    axes.grid(alpha=0.3)
