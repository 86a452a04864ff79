"""Our CT operator and training step next to those of deepinv's `Tomography`, on sparse-view CT."""

from argparse import Namespace
from collections.abc import Iterator
from time import perf_counter
from typing import NamedTuple

import torch
from deepinv.physics import Tomography
from deepinv.physics.generator import BernoulliSplittingMaskGenerator
from torch import Tensor

from es_medical.benchmark.deepinv_step import deepinv_job
from es_medical.benchmark.step import backpropagate
from es_medical.benchmark.timing import Job, Ratio, alternate, medians, ratio
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
    """Time to build our operator, from the cache if it holds the matrix."""
    milliseconds: dict[str, float]
    speed: dict[str, Ratio]
    """deepinv's time / ours, by job: "A", "A^T", "ES step"."""


def run(options: Namespace) -> Iterator[Result]:
    """Run the benchmark with the options of the command line."""
    device = torch.device(options.device)
    yield benchmark_ct(options.size, options.views, options.batch, options.repeats, device, options.step)


def benchmark_ct(
    size: int,
    n_views: int,
    batch: int,
    repeats: int,
    device: torch.device,
    step: bool = True,
    widths: tuple[int, ...] = (8, 16),
) -> Result:
    """Time the operators and, with `step`, a training step of a small MoDL (3 unrolled steps, D4, splits by views)."""
    start = perf_counter()
    physics = CT(ParallelBeam((size, size), n_views=n_views)).to(device)
    build_seconds = perf_counter() - start
    theirs = Tomography(n_views, size, normalize=True, device=device)
    x = torch.rand(batch, 1, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    times = alternate(_operators(physics, theirs, x), repeats, 1, device)
    if step:  # deepinv's takes a minute or more on a CPU
        warmup = 1 if device.type == "cuda" else 0
        times |= alternate(_steps(physics, theirs, x, widths), max(repeats // 4, 1), warmup, device)
    speed = {name: ratio(times, name + DEEPINV, name) for name in times if not name.endswith(DEEPINV)}
    return Result(size, n_views, batch, build_seconds, medians(times), speed)


def _operators(physics: CT, theirs: Tomography, x: Tensor) -> dict[str, Job]:
    y, y_theirs = physics.A(x), theirs.A(x)
    return {
        "A": lambda: physics.A(x),
        "A" + DEEPINV: lambda: theirs.A(x),
        "A^T": lambda: physics.A_adjoint(y),
        "A^T" + DEEPINV: lambda: theirs.A_adjoint(y_theirs),
    }


def _steps(physics: CT, theirs: Tomography, x: Tensor, widths: tuple[int, ...]) -> dict[str, Job]:
    """Make the training step (forward, loss, backward) of a denoiser in each library; both draw one g and one split."""
    torch.manual_seed(0)
    denoiser, generator = unet(1, widths).to(x.device), torch.Generator(x.device).manual_seed(0)
    network = ReynoldsAveraging(MoDL(denoiser), D4()).to(x.device).train()
    loss = EquivariantSplitting(Split("views"), sigma=0.0)
    y, y_theirs = physics.A(x), theirs.A(x)  # (B, 1, V, D) and (B, 1, D, V)
    masks = BernoulliSplittingMaskGenerator(tuple(y_theirs.shape[1:]), split_ratio=0.8, device=x.device)
    return {
        "ES step": lambda: backpropagate(loss, network, Batch(y, physics), generator),
        "ES step" + DEEPINV: deepinv_job(denoiser, 3, theirs, masks, y_theirs),
    }


def table(result: Result) -> str:
    """Return a result as a text table, ours and deepinv's side by side."""
    problem = f"{result.size}x{result.size}, {result.n_views} views, batch {result.batch}"
    head = f"{problem}; operator made in {result.build_seconds:.2f} s"
    rows = [
        f"  {name:8s} {result.milliseconds[name]:9.1f} ms {result.milliseconds[name + DEEPINV]:9.1f} ms   {speed}"
        for name, speed in result.speed.items()
    ]
    return "\n".join([head, f"  {'':8s} {'ours':>9s}    {'deepinv':>9s}      times as fast (least-greatest)", *rows])
