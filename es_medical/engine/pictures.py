"""Pictures for the run page: every panel in a stated window, so that two epochs can be compared by eye."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Gray = npt.NDArray[np.uint8]
SEPARATOR, STRIP, SMALLEST = 2, 14, 128  # pixels: between panels, of the label, height below which pixels are repeated


class Panel(NamedTuple):
    """One image with its name and the values shown as black and white."""

    name: str
    image: "npt.ArrayLike | Tensor"
    window: tuple[float, float]


def magnitude(image: "npt.ArrayLike | Tensor") -> npt.NDArray[np.float64]:
    """A 2-D real image: |x| of complex values or of (2, H, W) real and imaginary parts; (1, H, W) loses its axis.

    Real values, Hounsfield units too, keep their sign.

    Raises:
        ValueError: Any other shape.
    """
    detached = image.detach().cpu() if hasattr(image, "detach") else image
    values = np.asarray(detached)
    if values.ndim == 3 and values.shape[0] == 2:
        values = np.hypot(values[0].astype(np.float64), values[1].astype(np.float64))
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2:
        raise ValueError(f"a picture is (H, W), (1, H, W) or (2, H, W), got {np.shape(detached)}")
    return np.abs(values).astype(np.float64) if np.iscomplexobj(values) else values.astype(np.float64)


def windowed(image: "npt.ArrayLike | Tensor", window: tuple[float, float]) -> Gray:
    """`window` to 0..255, values outside to its ends, NaN to black: never the image's own minimum and maximum.

    Raises:
        ValueError: An empty window, or a shape that `magnitude` refuses.

    >>> windowed([[-1000, 0, 1000, 5000]], (-1000, 1000)).tolist()
    [[0, 128, 255, 255]]
    """
    low, high = window
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"a window is two finite values, the lower first, got {window}")
    scaled = (np.nan_to_num(magnitude(image), nan=low, posinf=high, neginf=low) - low) / (high - low)
    return np.rint(255 * scaled.clip(0, 1)).astype(np.uint8)


def picture(
    baseline: "npt.ArrayLike | Tensor",
    reconstruction: "npt.ArrayLike | Tensor",
    spread: "npt.ArrayLike | Tensor",
    target: "npt.ArrayLike | Tensor | None" = None,
    error: "npt.ArrayLike | Tensor | None" = None,
    *,
    window: tuple[float, float],
    error_max: float,
    labels: bool = True,
    smallest: int = SMALLEST,
    baseline_name: str = "zero-filled",
) -> Gray:
    """Baseline | reconstruction | spread | target | error, side by side.

    Args:
        baseline: As `magnitude` takes it, like the other four.
        reconstruction: Mean over the samples.
        spread: Standard deviation over the samples, per pixel.
        target: The ground truth, if there is one.
        error: By default the difference of the magnitudes of `reconstruction` and `target`, if there is a target.
        window: Values shown as black and white in the first, second and fourth panel, in units of the image.
        error_max: Value shown as white in the third and fifth panel; black is 0.
        labels: Names and windows in a strip above the panels.
        smallest: Pixels are repeated until a panel is at least so high.
        baseline_name: What the first panel is.

    Returns:
        uint8 image of 3 to 5 panels with separators of 2 pixels.

    Raises:
        ValueError: Different sizes, an empty window, or a shape that `magnitude` refuses.
    """
    scale = (0.0, error_max)
    panels = [Panel(baseline_name, baseline, window), Panel("recon", reconstruction, window)]
    panels.append(Panel("spread", spread, scale))
    if target is not None:
        panels.append(Panel("target", target, window))
        error = magnitude(reconstruction) - magnitude(target) if error is None else error
    if error is not None:
        panels.append(Panel("error", np.abs(magnitude(error)), scale))
    return side_by_side(panels, labels, smallest)


def side_by_side(panels: Sequence[Panel], labels: bool = True, smallest: int = SMALLEST) -> Gray:
    """Any panels of one size in a row, white separators between them.

    Raises:
        ValueError: No panel, or different sizes.
    """
    images = [windowed(panel.image, panel.window) for panel in panels]
    if len({image.shape for image in images}) != 1:
        raise ValueError(f"panels have one size, got {[(p.name, i.shape) for p, i in zip(panels, images, strict=True)]}")
    factor = max(1, -(-smallest // images[0].shape[0]))
    images = [image.repeat(factor, 0).repeat(factor, 1) for image in images]
    if labels:
        images = [np.vstack([_label(panel, image.shape[1]), image]) for panel, image in zip(panels, images, strict=True)]
    separator = np.full((images[0].shape[0], SEPARATOR), 255, np.uint8)
    row = [part for image in images for part in (separator, image)]
    return np.hstack(row[1:])


def _label(panel: Panel, width: int) -> Gray:
    from PIL import Image, ImageDraw

    strip = Image.new("L", (width, STRIP))
    low, high = panel.window
    ImageDraw.Draw(strip).text((3, 1), f"{panel.name} [{low:.3g}, {high:.3g}]", fill=255)
    return np.asarray(strip)
