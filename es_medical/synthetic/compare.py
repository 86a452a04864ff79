"""Put synthetic images beside those of a slice file: contact sheets, power spectra and gradient histograms."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from es_medical.data import SliceDataset
from es_medical.synthetic.kinds import KINDS, draw
from es_medical.synthetic.statistics import gradient_histogram, power_spectrum, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHEET = (3, 6)  # rows and columns of a contact sheet
Statistic = Callable[[Tensor], tuple[Tensor, Tensor]]
COLOURS = {"real": "black", "synthetic": "tab:red"}


class Comparison(NamedTuple):
    """Real and synthetic images of a kind, and how far apart their statistics are.

    Attributes:
        kind: a name of `KINDS`.
        real: (n, c, h, w).
        synthetic: (n, c, h, w).
        decades: mean over all frequencies of |log10 of the ratio of the two power spectra|.
        overlap: part that the two histograms of gradients share, 0 ... 1.
    """

    kind: str
    real: Tensor
    synthetic: Tensor
    decades: float
    overlap: float


def compare(kind: str, path: str | Path, n: int, seed: int = 0) -> Comparison:
    """Compare at most n training images of a slice file with n synthetic ones of the same size.

    Raises:
        ValueError: the file has no images, or images of another number of channels than the kind.
    """
    data = SliceDataset(path, "train", limit=n)
    if not data.header.has_image:
        raise ValueError(f"{path} holds no images to compare with")
    real = torch.stack([data[i]["image"] for i in range(len(data))])
    if real.shape[1] != KINDS[kind].channels:
        raise ValueError(f"{path} has images of {real.shape[1]} channels, {kind} of {KINDS[kind].channels}")
    synthetic = draw(kind, n, (real.shape[-2], real.shape[-1]), seed)
    ratio = power_spectrum(real)[1].log10() - power_spectrum(synthetic)[1].log10()
    shared = torch.minimum(gradient_histogram(real)[1], gradient_histogram(synthetic)[1]).sum()
    return Comparison(kind, real, synthetic, float(ratio.abs().mean()), float(shared))


def figure(comparisons: Sequence[Comparison]) -> "Figure":
    """Draw a row for each kind: real images, synthetic images, power spectra, gradients."""
    from matplotlib.figure import Figure

    result = Figure(figsize=(15, 2.5 * len(comparisons)), layout="constrained")
    axes = result.subplots(len(comparisons), 4, squeeze=False, width_ratios=(2, 2, 1.1, 1.1))
    for row, one in zip(axes, comparisons, strict=True):
        _sheet(row[0], one.real, f"{one.kind}: training images of the demo")
        _sheet(row[1], one.synthetic, f"{one.kind}: synthetic")
        _curves(row[2], one, power_spectrum, "power spectrum", "cycles per pixel")
        _curves(row[3], one, gradient_histogram, "gradients", "log10 of the step to the next pixel")
        row[2].set_xscale("log", base=2)  # a tick for each octave
    return result


def _sheet(axes: "Axes", images: Tensor, title: str) -> None:
    rows, columns = SHEET
    chosen = shown(images[torch.arange(rows * columns) * len(images) // (rows * columns)])  # spread evenly
    c, h, w = chosen.shape[1:]
    tiles = chosen.reshape(rows, columns, c, h, w).permute(0, 3, 1, 4, 2).reshape(rows * h, columns * w, c)
    axes.imshow(tiles.squeeze(-1).numpy().clip(0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()


def _curves(axes: "Axes", one: Comparison, statistic: Statistic, title: str, label: str) -> None:
    for name, images in (("real", one.real), ("synthetic", one.synthetic)):
        x, y = statistic(images)
        axes.plot(x.numpy(), y.numpy(), color=COLOURS[name], label=name, linewidth=1.2)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7, frameon=False)
