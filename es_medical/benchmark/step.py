"""Time of an equivariant-splitting training step, next to its denoiser alone and to deepinv's loss."""

import math
from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

import deepinv
import torch
from deepinv.physics.generator import GaussianSplittingMaskGenerator
from torch import Tensor, nn

from es_medical.benchmark.deepinv_step import deepinv_job
from es_medical.benchmark.settings import Setting, chosen_settings
from es_medical.benchmark.timing import Job, Ratio, alternate_networks, medians, ratio
from es_medical.engine.step import apply_gradient
from es_medical.groups import D4
from es_medical.losses import EquivariantSplitting, Loss
from es_medical.networks import Accelerated, MoDL, ReynoldsAveraging, unet
from es_medical.physics import MRI, Batch, MultiCoilMRI, Operator, gaussian_line_mask, measure
from es_medical.splits import Split

EPOCH = 900
"""Number of images in the paper's fastMRI training set."""


class Result(NamedTuple):
    """Median times in milliseconds, and ratios of neighbouring runs."""

    setting: Setting
    milliseconds: dict[str, float]
    """By job: "denoiser", "es" and "deepinv" (forward, loss, backward each), "update" (clipping and AdamW)."""
    to_denoiser: Ratio
    """ES step / the same number of passes of the denoiser alone."""
    to_deepinv: Ratio | None
    """deepinv's step / ES step."""
    images_per_second: float
    epoch_seconds: float
    """Seconds of training steps in an epoch of 900 images."""


def run(options: Namespace) -> Iterator[Result]:
    """Run the benchmark with the options of the command line; one result for each setting."""
    for setting in chosen_settings(options):
        yield benchmark(setting, torch.device(options.device))


def benchmark(setting: Setting, device: torch.device) -> Result:
    """Time one setting on `device`."""
    times = alternate_networks(_jobs(setting, device), setting.repeats, device)
    milliseconds = medians(times)
    speed = 1e3 * setting.batch / (milliseconds["es"] + milliseconds["update"])
    to_deepinv = ratio(times, "deepinv", "es") if setting.deepinv else None
    return Result(setting, milliseconds, ratio(times, "es", "denoiser"), to_deepinv, speed, EPOCH / speed)


def _jobs(setting: Setting, device: torch.device) -> dict[str, Job]:
    """Make the jobs around one denoiser; each job first clears the gradients."""
    torch.manual_seed(0)
    denoiser = Accelerated(
        unet(2, setting.widths).to(device), setting.amp, channels_last=setting.channels_last, compiled=setting.compiled
    )
    generator = torch.Generator(device).manual_seed(0)
    mask = gaussian_line_mask(setting.size, acceleration=4, center_fraction=0.08, seed=0)
    physics = operator_of(setting, mask).to(device)
    x = torch.randn(setting.batch, 2, setting.size, setting.size, generator=generator, device=device)
    y = measure(physics, x, 0.01, generator)
    network = ReynoldsAveraging(MoDL(denoiser, setting.iterations), D4()).to(device)
    loss = EquivariantSplitting(Split(n_center=round(0.08 * setting.size)), sigma=0.01)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)

    def passes() -> None:
        denoiser.zero_grad(set_to_none=True)
        _repeat(denoiser, x, setting.iterations).square().mean().backward()

    jobs: dict[str, Job] = {
        "denoiser": passes,
        "es": lambda: backpropagate(loss, network, Batch(y, physics), generator),
        "update": lambda: apply_gradient(optimizer, clip=1.0),
    }
    if setting.deepinv:
        theirs = deepinv.physics.MRI(mask=mask.float().expand(y.shape[-2:]), device=device)
        masks = GaussianSplittingMaskGenerator(tuple(y.shape[1:]), split_ratio=0.8, device=device)
        jobs["deepinv"] = deepinv_job(denoiser, setting.iterations, theirs, masks, y)
    return jobs


def backpropagate(loss: Loss, network: nn.Module, batch: Batch, generator: torch.Generator) -> None:
    """Clear the gradients, then run loss and backward pass: a training step before its update."""
    network.zero_grad(set_to_none=True)
    loss(network, batch, generator).total.mean().backward()


def operator_of(setting: Setting, mask: Tensor) -> Operator:
    """Build single-coil MRI, or several coils around the image with normalised maps, different for each slice of the batch."""
    if not setting.coils:
        return MRI(mask, (setting.size, setting.size))
    side = torch.linspace(-1, 1, setting.size)
    angle = 2 * math.pi * (torch.arange(setting.coils) / setting.coils + torch.rand(setting.batch, 1))
    row, column = side[:, None] - angle.sin()[..., None, None], side - angle.cos()[..., None, None]
    maps = torch.polar(torch.exp(-row.square() - column.square()), torch.atan2(row, column))  # (B, C, H, W)
    maps = maps / torch.linalg.vector_norm(maps, dim=1, keepdim=True)
    return MultiCoilMRI(mask, torch.stack((maps.real, maps.imag), dim=1))


def _repeat(denoiser: nn.Module, x: Tensor, n: int) -> Tensor:
    """Apply the denoiser n times, phi(...phi(x)): the network's passes without its operators."""
    for _ in range(n):
        x = denoiser(x)
    return x


def table(result: Result) -> str:
    """Return a result as a text table."""
    times = ", ".join(f"{name} {value:.1f}" for name, value in result.milliseconds.items())
    return "\n".join(
        [
            f"{result.setting}  ({result.setting.iterations} passes, {result.setting.repeats} rounds)",
            f"  ms                    {times}",
            f"  ES step / denoiser    {result.to_denoiser}",
            f"  deepinv / ES step     {result.to_deepinv or 'not timed (--deepinv)'}",
            f"  training              {result.images_per_second:.3g} images/s, {result.epoch_seconds:.1f} s for {EPOCH} images",
        ]
    )
