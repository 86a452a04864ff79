"""Make pictures for the page of a run: every panel has a fixed, stated window, so that epochs can be compared by eye."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]
SEPARATOR, STRIP, SMALLEST = 2, 14, 128  # pixels: between panels, height of the label, smallest height of a panel


class Panel(NamedTuple):
    """One image with its name and the values shown as black and white."""

    name: str
    image: "npt.ArrayLike | Tensor"
    window: tuple[float, float]


def panel_values(image: "npt.ArrayLike | Tensor") -> npt.NDArray[np.float64]:
    """The values that a panel shows: (H, W) real, or (H, W, 3) for an RGB image (3, H, W).

    (2, H, W), real and imaginary parts, and complex values become their magnitude; (1, H, W) loses its axis. Real values,
    Hounsfield units too, keep their sign.

    Raises:
        ValueError: Any other shape.
    """
    detached = image.detach().cpu() if hasattr(image, "detach") else image
    values = np.asarray(detached)
    if values.ndim == 3 and values.shape[0] == 2:
        values = np.hypot(values[0].astype(np.float64), values[1].astype(np.float64))
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    rgb = values.ndim == 3 and values.shape[0] == 3 and not np.iscomplexobj(values)
    if values.ndim != 2 and not rgb:
        raise ValueError(f"a picture is (H, W), (1, H, W), (2, H, W) or real (3, H, W), got {np.shape(detached)}")
    values = np.moveaxis(values, 0, -1) if rgb else values
    return np.abs(values).astype(np.float64) if np.iscomplexobj(values) else values.astype(np.float64)


def deviation(image: "npt.ArrayLike | Tensor") -> npt.NDArray[np.float64]:
    """Magnitude of an error or a spread at each pixel, (H, W): |values|, for RGB the root mean square over the channels.

    Raises:
        ValueError: A shape that `panel_values` does not take.
    """
    values = panel_values(image)
    return np.sqrt(np.square(values).mean(-1)) if values.ndim == 3 else np.abs(values)


def windowed(image: "npt.ArrayLike | Tensor", window: tuple[float, float]) -> Pixels:
    """Map `window` to 0..255; values outside are clipped, NaN is black. The image's own range is never used.

    Returns:
        uint8, (H, W), or (H, W, 3) of an RGB image.

    Raises:
        ValueError: An empty window, or a shape that `panel_values` does not take.

    >>> windowed([[-1000, 0, 1000, 5000]], (-1000, 1000)).tolist()
    [[0, 128, 255, 255]]
    """
    low, high = window
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"a window is two finite values, the lower first, got {window}")
    scaled = (np.nan_to_num(panel_values(image), nan=low, posinf=high, neginf=low) - low) / (high - low)
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
    target_name: str = "target",
) -> Pixels:
    """Baseline | reconstruction | spread | target | error, side by side; spread and error in gray, see `deviation`.

    Args:
        baseline: As `panel_values` takes it, like the other four.
        reconstruction: Mean over the samples.
        spread: Standard deviation over the samples, per pixel.
        target: The ground truth or reference, if there is one.
        error: By default the difference of `reconstruction` and `target` (complex: of their magnitudes), if there is a target.
        window: Values shown as black and white in the first, second and fourth panel, in units of the image.
        error_max: Value shown as white in the third and fifth panel; black is 0.
        labels: Names and windows in a strip above the panels.
        smallest: Smallest height of a panel; pixels are repeated to reach it.
        baseline_name: Label of the first panel.
        target_name: Label of the fourth panel.

    Returns:
        uint8 image of 3 to 5 panels with separators of 2 pixels: (H, W), or (H, W, 3) where any panel is RGB.

    Raises:
        ValueError: Different sizes, an empty window, or a shape that `panel_values` does not take.
    """
    scale = (0.0, error_max)
    panels = [Panel(baseline_name, baseline, window), Panel("recon", reconstruction, window)]
    panels.append(Panel("spread", deviation(spread), scale))
    if target is not None:
        panels.append(Panel(target_name, target, window))
        error = _difference(reconstruction, target) if error is None else error
    if error is not None:
        panels.append(Panel("error", deviation(error), scale))
    return side_by_side(panels, labels, smallest)


def side_by_side(panels: Sequence[Panel], labels: bool = True, smallest: int = SMALLEST) -> Pixels:
    """Panels of one size in a row with white separators: (H, W), or (H, W, 3) if any of them is RGB.

    Raises:
        ValueError: No panel, or different sizes.
    """
    images = [windowed(panel.image, panel.window) for panel in panels]
    if len({image.shape[:2] for image in images}) != 1:
        raise ValueError(f"panels have one size, got {[(p.name, i.shape[:2]) for p, i in zip(panels, images, strict=True)]}")
    factor = max(1, -(-smallest // images[0].shape[0]))
    images = [image.repeat(factor, 0).repeat(factor, 1) for image in images]
    if labels:
        images = [_labelled(panel, image) for panel, image in zip(panels, images, strict=True)]
    if any(image.ndim == 3 for image in images):
        images = [_rgb(image) for image in images]
    separator = np.full((images[0].shape[0], SEPARATOR, *images[0].shape[2:]), 255, np.uint8)
    row = [part for image in images for part in (separator, image)]
    return np.hstack(row[1:])


def _difference(reconstruction: "npt.ArrayLike | Tensor", target: "npt.ArrayLike | Tensor") -> npt.NDArray[np.float64]:
    """Difference of the values that two panels show, channels first as `panel_values` takes it."""
    first, second = panel_values(reconstruction), panel_values(target)
    if first.shape != second.shape:
        raise ValueError(f"reconstruction and target are panels of one size and kind, got {first.shape} and {second.shape}")
    difference = first - second
    return np.moveaxis(difference, -1, 0) if difference.ndim == 3 else difference


def _rgb(image: Pixels) -> Pixels:
    """Gray pixels (H, W) as (H, W, 3); RGB pixels as they are."""
    return image if image.ndim == 3 else image[..., None].repeat(3, -1)


def _labelled(panel: Panel, image: Pixels) -> Pixels:
    """The pixels of a panel below a strip with its name and window."""
    from PIL import Image, ImageDraw

    strip = Image.new("L", (image.shape[1], STRIP))
    low, high = panel.window
    ImageDraw.Draw(strip).text((3, 1), f"{panel.name} [{low:.3g}, {high:.3g}]", fill=255)
    label = np.asarray(strip)
    return np.vstack([_rgb(label) if image.ndim == 3 else label, image])
