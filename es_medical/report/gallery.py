"""Pictures of the input, each method and the target, with error maps on one scale."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from es_medical.output.pictures import deviation, panel_values
from es_medical.report.groups import Group
from es_medical.report.methods import label, place, shown
from es_medical.report.reading.cases import Array, Cases, arrays, pictures
from es_medical.report.reading.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 1.7  # inches of a panel
INPUT = "Input"
MOST = 3
"""Largest number of cases shown."""

CLIPPED = 99.5
"""Percentile of the methods' errors at the end of the scale, so that a single bright pixel does not darken all maps."""


def gallery(group: Group) -> "list[Figure]":
    """Make one figure for each case that all shown methods have; from logged pictures if no arrays were logged."""
    methods = [method for method in sorted(group.runs, key=place) if shown(method).equivariant or method.endswith("tv")]
    runs = {method: group.runs[method][0] for method in methods}
    found = {method: one for method, run in runs.items() if (one := arrays(run)) is not None}
    if found:
        ids = [one for one in next(iter(found.values())).reconstruction if all(one in c.reconstruction for c in found.values())]
        return [_case(one, found, runs) for one in ids[:MOST]]
    strips = {method: pictures(run) for method, run in runs.items()}
    strips = {method: one for method, one in strips.items() if one}
    common = sorted(set.intersection(*(set(one) for one in strips.values()))) if strips else []
    return [_strips(case, {method: one[case] for method, one in strips.items()}) for case in common[:MOST]]


def _case(item: str, found: Mapping[str, Cases], runs: Mapping[str, Run]) -> "Figure":
    """Draw images above and errors below; the window and the error scale are the same in every panel."""
    from matplotlib.figure import Figure

    first = next(iter(found.values()))
    target = first.target.get(item)
    images = {INPUT: first.baseline[item]} if item in first.baseline else {}
    images |= {label(method): one.reconstruction[item] for method, one in found.items()}
    scores = {label(method): runs[method].details.items.get(item, {}).get("psnr") for method in found}
    scores |= {INPUT: next((s.get("baseline_psnr") for s in [runs[m].details.items.get(item, {}) for m in found]), None)}
    columns = len(images) + (target is not None)
    figure = Figure(figsize=(SIDE * columns + 0.8, SIDE * (1.25 + (target is not None))), layout="constrained")
    axes = figure.subplots(1 + (target is not None), columns, squeeze=False)
    for axis, (name, image) in zip(axes[0], images.items(), strict=False):
        _show(axis, panel_values(image), first.window)
        axis.set_title(name + (f"\n{scores[name]:.2f} dB" if scores.get(name) is not None else ""), fontsize=8)
    if target is not None:
        _show(axes[0, -1], panel_values(target), first.window)
        axes[0, -1].set_title("Target", fontsize=8)
        _errors(figure, axes[1], images, target)
    return figure


def _errors(figure: "Figure", axes: "Sequence[Axes]", images: Mapping[str, Array], target: Array) -> None:
    """Draw error maps on the scale of the methods' errors; the far larger error of the input may be clipped."""
    errors = {name: _error(image, target) for name, image in images.items()}
    methods = [error for name, error in errors.items() if name != INPUT]
    highest = float(np.percentile(np.stack(methods), CLIPPED)) or 1.0
    for axis, error in zip(axes, errors.values(), strict=False):
        drawn = axis.imshow(error, cmap="inferno", vmin=0.0, vmax=highest, interpolation="nearest")
        axis.set_axis_off()
    axes[-1].set_axis_off()
    bar = figure.colorbar(drawn, cax=axes[-1].inset_axes((0.05, 0.05, 0.1, 0.9)), extend="max")
    bar.set_label("|error|", fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _error(image: Array, target: Array) -> Array:
    difference = panel_values(image) - panel_values(target)
    return deviation(np.moveaxis(difference, -1, 0) if difference.ndim == 3 else difference)


def _show(axis: "Axes", values: Array, window: tuple[float, float]) -> None:
    low, high = window
    grey = np.clip((values - low) / (high - low), 0, 1)
    axis.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    axis.set_axis_off()


def _strips(case: str, strips: Mapping[str, bytes]) -> "Figure":
    """Draw the logged picture of each method, one below the other; all panels share the window that they state."""
    from matplotlib.figure import Figure
    from PIL import Image

    images = {method: np.asarray(Image.open(BytesIO(content))) for method, content in strips.items()}
    height, width = max(image.shape[0] for image in images.values()), max(image.shape[1] for image in images.values())
    figure = Figure(figsize=(9, len(images) * (9 * height / width + 0.25)), layout="constrained")
    for axis, (method, image) in zip(figure.subplots(len(images), 1, squeeze=False)[:, 0], images.items(), strict=True):
        axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axis.set_title(f"{label(method)}, {case}", fontsize=8, loc="left")
        axis.set_axis_off()
    return figure
