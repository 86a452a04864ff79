"""Our CT operator and training step next to those of deepinv's `Tomography`, on sparse-view CT."""

from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from deepinv.loss import EquivariantSplittingLoss, MCLoss
from deepinv.loss.metric import MSE
from deepinv.models import MoDL as DeepinvMoDL
from deepinv.physics import Tomography
from deepinv.physics.generator import BernoulliSplittingMaskGenerator
from deepinv.transform import Reflect, Rotate
from torch import Tensor, nn

from es_medical.benchmark.step import backpropagate
from es_medical.benchmark.timing import Job, Ratio, alternate, ratio
from es_medical.groups import D4
from es_medical.losses import EquivariantSplitting
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.splits import Split

DEEPINV = " (deepinv)"


class Result(NamedTuple):
    """Medians in milliseconds, and deepinv's times divided by ours in neighbouring runs."""

    size: int
    n_views: int
    batch: int
    build_seconds: float
    """Our operator, from the cache where it holds the matrix."""
    milliseconds: dict[str, float]
    speed: dict[str, Ratio]
    """How many times as fast ours is, by job: "A", "A^T", "ES step"."""


def benchmark_ct(
    size: int,
    n_views: int,
    batch: int,
    repeats: int,
    device: torch.device,
    step: bool = True,
    widths: tuple[int, ...] = (8, 16),
) -> Result:
    """Time the operators, and with `step` a training step of a small MoDL (3 unrolled steps, D4, splits by views)."""
    start = perf_counter()
    physics = CT(ParallelBeam((size, size), n_views=n_views)).to(device)
    build_seconds = perf_counter() - start
    theirs = Tomography(n_views, size, normalize=True, device=device)
    x = torch.rand(batch, 1, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    times = alternate(_operators(physics, theirs, x), repeats, 1, device)
    if step:  # deepinv's takes a minute or more on a CPU
        warmup = 1 if device.type == "cuda" else 0
        times |= alternate(_steps(physics, theirs, x, widths), max(repeats // 4, 1), warmup, device)
    milliseconds = {name: median(values) for name, values in times.items()}
    speed = {name: ratio(times, name + DEEPINV, name) for name in times if not name.endswith(DEEPINV)}
    return Result(size, n_views, batch, build_seconds, milliseconds, speed)


def _operators(physics: CT, theirs: Tomography, x: Tensor) -> dict[str, Job]:
    y, y_theirs = physics.A(x), theirs.A(x)
    return {
        "A": lambda: physics.A(x),
        "A" + DEEPINV: lambda: theirs.A(x),
        "A^T": lambda: physics.A_adjoint(y),
        "A^T" + DEEPINV: lambda: theirs.A_adjoint(y_theirs),
    }


def _steps(physics: CT, theirs: Tomography, x: Tensor, widths: tuple[int, ...]) -> dict[str, Job]:
    """Make a training step (forward, loss, backward) of one denoiser with either library; both draw one g and one split."""
    torch.manual_seed(0)
    denoiser, generator = unet(1, widths).to(x.device), torch.Generator(x.device).manual_seed(0)
    network = ReynoldsAveraging(MoDL(denoiser), D4()).to(x.device).train()
    loss = EquivariantSplitting(Split("views"), sigma=0.0)
    y = physics.A(x)
    return {
        "ES step": lambda: backpropagate(loss, network, Batch(y, physics), generator),
        "ES step" + DEEPINV: _deepinv_step(denoiser, theirs, x),
    }


def _deepinv_step(denoiser: nn.Module, physics: Tomography, x: Tensor) -> Job:
    y = physics.A(x)  # (B, 1, D, V)
    loss = EquivariantSplittingLoss(
        mask_generator=BernoulliSplittingMaskGenerator(tuple(y.shape[1:]), split_ratio=0.8, device=x.device),
        consistency_loss=MCLoss(metric=MSE()),
        prediction_loss=MCLoss(metric=MSE()),
        transform=Rotate(n_trans=1, multiples=90, positive=True) * Reflect(n_trans=1, dim=[-1]),
        eval_transform=Rotate(n_trans=4, multiples=90, positive=True) * Reflect(n_trans=2, dim=[-1]),
    )
    network = loss.adapt_model(DeepinvMoDL(denoiser, 3).to(x.device)).train()

    def job() -> None:
        network.zero_grad(set_to_none=True)
        x_hat = network(y, physics, update_parameters=True)
        loss(x_net=x_hat, y=y, physics=physics, model=network).mean().backward()

    return job


def table(result: Result) -> str:
    """Lay a result out for reading, ours and deepinv's side by side."""
    problem = f"{result.size}x{result.size}, {result.n_views} views, batch {result.batch}"
    head = f"{problem}; operator made in {result.build_seconds:.2f} s"
    rows = [
        f"  {name:8s} {result.milliseconds[name]:9.1f} ms {result.milliseconds[name + DEEPINV]:9.1f} ms   {speed}"
        for name, speed in result.speed.items()
    ]
    return "\n".join([head, f"  {'':8s} {'ours':>9s}    {'deepinv':>9s}      times as fast (least-greatest)", *rows])
