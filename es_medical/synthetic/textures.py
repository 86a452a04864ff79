"""Textures: noise of a chosen power spectrum, folds, and many small leaves at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from es_medical.synthetic.grid import Grid, column
from es_medical.synthetic.leaves import coverage, paint, power_law
from es_medical.synthetic.sampler import Sampler


def shaped_noise(sampler: Sampler, size: tuple[int, int], amplitude: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Draw noise of zero mean and unit variance whose Fourier amplitude follows `amplitude`.

    Args:
        sampler: its random numbers.
        size: height and width.
        amplitude: takes frequencies along y, (1, h, 1), and x, (1, 1, w // 2 + 1), in cycles per pixel, and returns
            amplitudes, (1 or b, h, w // 2 + 1); that of frequency 0 does not count.

    Returns:
        Noise (b, h, w), periodic.
    """
    height, width = size
    rows = torch.fft.fftfreq(height, device=sampler.device)[None, :, None]
    columns = torch.fft.rfftfreq(width, device=sampler.device)[None, None]
    spectrum = torch.fft.rfft2(sampler.normal(*size)) * amplitude(rows, columns)
    spectrum[:, 0, 0] = 0
    noise = torch.fft.irfft2(spectrum, s=size)
    return noise / noise.std((1, 2), keepdim=True).clamp(min=1e-8)


def power_noise(sampler: Sampler, size: tuple[int, int], slope: Tensor) -> Tensor:
    """Draw noise of power spectrum f^-(2 slope), slope (b,): 0 is white, 1 like photographs, 2 like clouds."""
    lowest = 0.5 / max(size)
    return shaped_noise(sampler, size, lambda fy, fx: torch.hypot(fy, fx).clamp(min=lowest) ** -column(slope))


def band_noise(sampler: Sampler, size: tuple[int, int], period: Tensor) -> Tensor:
    """Draw noise of about one period (b,) in pixels: its level sets are folds and stripes that wander."""

    def band(fy: Tensor, fx: Tensor) -> Tensor:
        octaves = torch.log((torch.hypot(fy, fx) * column(period)).clamp(min=1e-6))
        return torch.exp(-0.5 * (octaves / 0.3) ** 2)

    return shaped_noise(sampler, size, band)


def grain(sampler: Sampler, size: tuple[int, int], long: Tensor, fine: Tensor, angle: Tensor) -> Tensor:
    """Draw streaks, as of wood or muscle: `long` (b,) pixels along `angle` (b,), `fine` (b,) pixels across."""
    cos, sin = column(angle.cos()), column(angle.sin())

    def streaks(fy: Tensor, fx: Tensor) -> Tensor:
        along, across = cos * fx + sin * fy, cos * fy - sin * fx
        return torch.exp(-2 * (along * column(long)) ** 2 - 2 * (across * column(fine)) ** 2)

    return shaped_noise(sampler, size, streaks)


def stripes(grid: Grid, angle: Tensor, period: Tensor, phase: Tensor, edge: Tensor) -> Tensor:
    """Make parallel bars with smooth edges, (b, h, w) in [0, 1]; angle, period, phase and edge (b,), in the grid's unit."""
    wave = torch.sin(
        2 * torch.pi * ((grid.x * column(angle.cos()) + grid.y * column(angle.sin())) / column(period)) + column(phase)
    )
    return (0.5 + wave * column(period / (2 * torch.pi * edge))).clamp(0, 1)


def small_leaves(
    canvas: Tensor,
    grid: Grid,
    sampler: Sampler,
    cell: float,
    values: Callable[[int], Tensor],
    share: Tensor,
    edge: Tensor,
    where: Tensor | float = 1.0,
) -> Tensor:
    """Lay one leaf into a share of the cells of a turned and shifted lattice, all at once.

    A pass costs as much as a few large leaves, whatever the number of cells. Sizes follow `power_law` within an octave,
    so passes with cells of 1, 1/2, 1/4 ... continue the power law of the large leaves.

    Args:
        canvas: (b, c, h, w).
        grid: coordinates of the pixels.
        sampler: its random numbers.
        cell: side of a cell, in the grid's unit.
        values: draws the values of m leaves for each image, (b, m, c).
        share: share of the cells that have a leaf, (b,).
        edge: width of the edges, (b,).
        where: how much of each pixel may be covered, (b, h, w) or broadcastable to it.
    """
    turned = grid.moved(sampler.uniform(-cell, cell), sampler.uniform(-cell, cell), sampler.uniform(0, 3.14), cell + 0 * share)
    reach = int(1.6 * max(grid.size) / min(grid.size) / cell) + 2
    row, col = turned.y.floor(), turned.x.floor()
    side = 2 * reach
    index = ((row.long() + reach).clamp_(0, side - 1) * side + (col.long() + reach).clamp_(0, side - 1)).flatten(1)
    m = side * side

    def at_pixels(parameter: Tensor) -> Tensor:
        return parameter.gather(1, index).reshape(row.shape)

    radius = power_law(sampler.uniform(0, 1, m), 0.2, 0.4)
    aspect = 1 / sampler.uniform(0.4, 1, m)
    angle = sampler.uniform(0, torch.pi, m)
    x = 0.5 + sampler.uniform(-1, 1, m) * (0.5 - radius)
    y = 0.5 + sampler.uniform(-1, 1, m) * (0.5 - radius)
    dx, dy = turned.x - col - at_pixels(x), turned.y - row - at_pixels(y)
    cos, sin = at_pixels(angle.cos()), at_pixels(angle.sin())
    apart = torch.hypot(cos * dx + sin * dy, at_pixels(aspect) * (cos * dy - sin * dx)) - at_pixels(radius)
    present = at_pixels((sampler.uniform(0, 1, m) < share[:, None]).float())
    cover = coverage(apart * cell, edge) * present * where
    colour = values(m)
    drawn = torch.stack([at_pixels(colour[..., c]) for c in range(colour.shape[-1])], dim=1)
    return paint(canvas, cover, drawn)
