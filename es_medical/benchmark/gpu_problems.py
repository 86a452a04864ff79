"""The training problems of the GPU report: operator, measurements, network, loss and optimiser, at the paper's size or tiny."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from es_medical.benchmark.joseph import joseph_matrix
from es_medical.benchmark.settings import PAPER_WIDTHS, Setting
from es_medical.benchmark.step import operator_of
from es_medical.engine.step import Pass, training_step
from es_medical.groups import D4, FineRotations
from es_medical.losses import Loss, build_loss
from es_medical.networks import Accelerated, MoDL, ReynoldsAveraging, shift_unet, unet
from es_medical.physics import CT, Batch, Inpainting, Operator, bernoulli_mask, gaussian_line_mask, measure
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.splits import Split


class Sizes(NamedTuple):
    """Sizes of all problems."""

    widths: tuple[int, ...]
    """Feature maps at each scale of the UNet."""
    batch: int
    mri: int
    """Side of the MR images."""
    coils: int
    ct: int
    views: int
    inpainting: int
    epoch: int
    """Training images in an epoch."""
    demo: tuple[int, tuple[int, ...]]
    """Side and widths of a small network, whose steps are bound by the launch of kernels."""


PAPER = Sizes(PAPER_WIDTHS, 4, 320, 8, 256, 50, 128, 900, (64, (16, 32, 64)))
TINY = Sizes((2, 4), 2, 16, 2, 16, 6, 8, 6, (8, (2, 4)))
SIGMA = {"mri": 0.005, "coils": 0.005, "ct": 0.001, "inpainting": 0.0}
"""Noise levels of the paper."""


class Fast(NamedTuple):
    """How the denoiser runs (see `Accelerated`)."""

    amp: bool = False
    channels_last: bool = False
    compiled: bool | str = False


class Problem(NamedTuple):
    """What a training step takes."""

    batch: Batch
    network: nn.Module
    loss: Loss
    generator: torch.Generator
    optimizer: torch.optim.Optimizer

    def step(self) -> dict[str, Tensor]:
        """Take one training step, as the trainer does."""
        return training_step(self.loss, self.network, self.optimizer, [Pass(self.batch, self.generator)])


def make(
    kind: str, sizes: Sizes, device: torch.device, method: str = "es", fast: Fast | None = None, demo: bool = False, n: int = 0
) -> Problem:
    """Make a problem: single-coil "mri" (x8), multi-coil "coils", "ct" or "inpainting", with the network that the paper has.

    Args:
        kind: the operator.
        sizes: sizes of images and network.
        device: where it is.
        method: training method, see `es_medical.losses.build_loss`.
        fast: how the denoiser runs; None for float32.
        demo: the small network and images of the demo (MRI).
        n: number of images, for those of an epoch; 0 for those of a batch.
    """
    torch.manual_seed(0)
    side, widths = sizes.demo if demo else (getattr(sizes, "mri" if kind == "coils" else kind), sizes.widths)
    n, generator = n or sizes.batch, torch.Generator(device).manual_seed(0)
    physics, split = _operator(kind, side, sizes)
    physics = physics.to(device)
    x = torch.rand(n, *physics.img_size, generator=generator, device=device)
    y = measure(physics, x, SIGMA[kind], generator)
    channels, shifts = physics.img_size[0], kind == "inpainting"
    denoiser = (shift_unet if shifts else unet)(channels, widths).to(device)
    modl = MoDL(denoiser if fast is None else Accelerated(denoiser, *fast), 3)
    network = (modl if shifts else ReynoldsAveraging(modl, D4())).to(device).train()
    loss = build_loss(method, split, SIGMA[kind], transform=FineRotations())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
    return Problem(Batch(y, physics, image=x), network, loss, generator, optimizer)


def _operator(kind: str, side: int, sizes: Sizes) -> tuple[Operator, Split]:
    if kind == "ct":
        geometry = ParallelBeam((side, side), n_views=sizes.views)
        return CT(geometry, matrix=joseph_matrix(geometry)), Split("views")
    if kind == "inpainting":
        return Inpainting(bernoulli_mask((side, side), 0.3, seed=0), (side, side), channels=3), Split("pixels")
    mask = gaussian_line_mask(side, acceleration=8 if side >= 64 else 2, center_fraction=0.04 if side >= 64 else 0.2, seed=0)
    setting = Setting(side, sizes.batch, coils=sizes.coils if kind == "coils" else 0)
    return operator_of(setting, mask), Split(n_center=2)
