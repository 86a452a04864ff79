"""Images like those of MRI: heads, slices of a brain without its skull, limbs; dark outside."""

import torch
from torch import Tensor

from es_medical.synthetic.fields import bias_field, blurred, smooth_phase
from es_medical.synthetic.grid import Grid, column, pixel_grid
from es_medical.synthetic.leaves import coverage, dead_leaves, distance, ellipse, paint, random_leaves
from es_medical.synthetic.sampler import Sampler
from es_medical.synthetic.supports import blobs
from es_medical.synthetic.textures import band_noise, power_noise, small_leaves


def real_mr(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw MR images whose imaginary part is zero, (b, 2, h, w)."""
    image = magnitude(sampler, size)
    return torch.stack([image, torch.zeros_like(image)], dim=1)


def complex_mr(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw MR images of smooth phase, (b, 2, h, w)."""
    image, phase = magnitude(sampler, size), smooth_phase(sampler, size)
    return torch.stack([image * phase.cos(), image * phase.sin()], dim=1)


def magnitude(sampler: Sampler, size: tuple[int, int]) -> Tensor:
    """Draw magnitudes, (b, h, w) in [0, 1]: tissue inside a support in 85 % of the images, everywhere in the others."""
    grid = pixel_grid(sampler.batch, size, sampler.device)
    scale = torch.where(sampler.chance(0.85) > 0, sampler.uniform(0.3, 1.0), 2.0)
    grid = grid.moved(sampler.normal() * 0.08, sampler.normal() * 0.08, sampler.normal() * 0.3, torch.ones_like(scale))
    mirrored = sampler.chance(0.5)
    grid = grid.bent(sampler, sampler.uniform(0, 0.08)).mirrored(mirrored).bent(sampler, sampler.uniform(0, 0.02))
    edge = sampler.uniform(1.0, 2.0) * grid.pixel
    outside = blobs(grid, sampler, scale)
    gain = torch.where(sampler.chance(0.3) > 0, sampler.uniform(0.35, 1), 1.0)  # fat and vessels may be far brighter
    image = _tissue(grid, sampler, scale, outside, mirrored, edge) * column(gain)
    image = _skull(image, sampler, outside, scale, edge)
    image = blurred((image * bias_field(sampler, size, 0.2))[:, None], sampler.uniform(0, 0.4))[:, 0]
    image = image * (outside < 3 * grid.pixel)  # the blur's tail ends
    return (image / image.amax((1, 2), keepdim=True).clamp(min=1e-6) * column(sampler.uniform(0.8, 1))).clamp_(0, 1)


def _tissue(grid: Grid, sampler: Sampler, scale: Tensor, outside: Tensor, mirrored: Tensor, edge: Tensor) -> Tensor:
    """Lay leaves of four tissues, folds near the edge, dark ventricles and small vessels; zero outside."""
    levels = torch.cat([sampler.uniform(0.85, 1, 1), sampler.uniform(0.55, 0.9, 2), sampler.uniform(0.15, 0.5, 1)], dim=1)

    def values(m: int) -> Tensor:
        return (sampler.one_of(levels, m) + 0.04 * sampler.normal(m))[..., None].clamp(0, 1)

    canvas = column(levels[:, :1]).expand(-1, 1, *grid.size).clone()
    leaves = random_leaves(sampler, 20, 0.08, 1.0).scaled(scale.clamp(max=1)[:, None])
    canvas = dead_leaves(canvas, grid, leaves, values(20), edge)
    for cell in (0.25, 0.12):
        canvas = small_leaves(canvas, grid, sampler, cell, values, sampler.uniform(0, 0.3), edge)
    canvas = _folds(canvas, grid, sampler, scale, outside, levels, mirrored)
    canvas = _ventricles(canvas, grid, sampler, scale, levels, edge)
    noise = power_noise(sampler, grid.size, sampler.uniform(0.5, 1.5)) * column(sampler.uniform(0, 1) ** 2 * 0.05)
    return (canvas[:, 0] + noise).clamp_(0, 1) * coverage(outside, edge)


def _folds(
    canvas: Tensor, grid: Grid, sampler: Sampler, scale: Tensor, outside: Tensor, levels: Tensor, mirrored: Tensor
) -> Tensor:
    """Lay a folded grey ribbon (cortex) along the edge and on both sides of dark lines (sulci), in 70 % of the images.

    The sulci run inwards from the edge; in mirrored images another line is the fissure between left and right.
    """
    reach = scale.clamp(max=1)
    period = (sampler.uniform(0.07, 0.35) * reach * min(grid.size)).clamp(min=6)
    depth = reach * sampler.uniform(0.15, 0.9)
    far = 1e3 * (1 - ((outside + column(depth)) / column(0.25 * depth)).clamp(0, 1))
    sulcus = band_noise(sampler, grid.size, period).abs() * column(period / 4) + far  # about the distance to it, in pixels
    sulcus = torch.minimum(sulcus, grid.x.abs() / grid.pixel + column(1e3 * (1 - mirrored * sampler.chance(0.7))))
    away = torch.minimum(sulcus, -outside / grid.pixel)
    ribbon, gap = period * sampler.uniform(0.08, 0.2), sampler.uniform(-0.7, 0.05) * period.clamp(max=16) / 4
    present = column(sampler.chance(0.7))
    canvas = paint(canvas, coverage(away - column(ribbon), 1.5) * present, column(levels[:, 1:2]))
    return paint(canvas, coverage(sulcus - column(gap), 1.5) * present, column(levels[:, 3:4]))


def _ventricles(canvas: Tensor, grid: Grid, sampler: Sampler, scale: Tensor, levels: Tensor, edge: Tensor) -> Tensor:
    """Lay two or three dark, long blobs near the centre, in 60 % of the images."""
    present = sampler.chance(0.6)
    reach = scale.clamp(max=1)
    for _ in range(3):
        x, y = reach * sampler.uniform(-0.2, 0.2), reach * sampler.uniform(-0.3, 0.3)
        a, b = reach * sampler.uniform(0.08, 0.3), reach * sampler.uniform(0.02, 0.09)
        angle = torch.pi / 2 + 0.4 * sampler.normal()
        cover = coverage(distance(grid, ellipse(x, y, a, b.clamp(min=0.5 * grid.pixel), angle)), edge) * column(present)
        canvas = paint(canvas, cover, column(levels[:, 3:4] * sampler.uniform(0.7, 1.2, 1)))
    return canvas


def _skull(image: Tensor, sampler: Sampler, outside: Tensor, scale: Tensor, edge: Tensor) -> Tensor:
    """Lay a dark shell (bone) and a bright one (scalp) around the tissue, in 40 % of the images."""
    present = sampler.chance(0.4)
    bone, scalp = scale * sampler.uniform(0.03, 0.1), scale * sampler.uniform(0.02, 0.1)
    inner = outside + column(bone + scalp)  # shells inside the support, so that the head stays in the field
    image = torch.lerp(image, image * column(sampler.uniform(0, 0.3)), coverage(-inner, edge) * column(present))
    shell = coverage(torch.maximum(outside, -outside - column(scalp)), edge) * column(present)
    return torch.lerp(image, column(sampler.uniform(0.4, 1)).expand_as(image), shell)
