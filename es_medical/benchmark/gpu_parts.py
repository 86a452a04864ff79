"""The parts of the GPU report. What needs a GPU was written without one at hand: its first run is the test of it."""

import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from es_medical.benchmark.gpu_problems import PAPER, TINY, Fast, Problem, Sizes, make
from es_medical.benchmark.timing import alternate, medians
from es_medical.engine.step import Pass, training_step
from es_medical.losses import LossValue
from es_medical.methods import method_of
from es_medical.networks.denoisers import GRAPHS
from es_medical.physics import Batch

PAPER_EPOCH = {"es": 24.0, "supervised": 29.0, "ei": 53.0, "sure": 36.0}
"""Seconds of an epoch of 900 images on an H100, MRI x8 at 40 dB (table "Training durations" of the paper)."""
TOLERANCE = 1e-4
"""Largest difference of a float32 gradient from that in float64 on the CPU, relative to its norm; or `FACTOR` times that of
float32 on the CPU, where that is more (SURE divides by a small step)."""
FACTOR = 10.0
AGREEMENT = Sizes((8, 16), 2, 32, 4, 32, 12, 16, 6, (16, (4, 8)))
BF16, COMPILED, CUDA_GRAPHS = Fast(True, True), Fast(True, True, True), Fast(True, True, GRAPHS)


class Context:
    """Where and how large the problems are, how much time is left, and what the running part has found so far."""

    def __init__(self, device: torch.device, sizes: Sizes, end: float, repeats: int) -> None:
        self.device, self.sizes, self.end, self.repeats = device, sizes, end, repeats
        self.found: dict[str, Any] = {}

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.end - time.monotonic()

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def measure(self, step: Callable[[], object]) -> dict[str, float]:
        """Time a step: the first one (with compilation), then as many as a quarter of the time left allows; peak memory."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        first = self._seconds(step)
        self.found |= {"first_ms": 1e3 * first}
        for _ in range(3 if self.on_gpu else 0):  # a CUDA graph is captured in the second or third run
            self._seconds(step)
        inner = 5 if self.on_gpu else 1
        n = max(1, min(self.repeats, int(0.25 * self.left / max(inner * self._seconds(step), 1e-6))))
        found = {"ms": medians(alternate({"step": step}, n, 0, self.device, inner))["step"], "rounds": n}
        if self.on_gpu:
            found["peak_mib"] = torch.cuda.max_memory_allocated(self.device) / 2**20
        self.found |= found
        return found

    def _seconds(self, step: Callable[[], object]) -> float:
        start = time.monotonic()
        step()
        self.wait()
        return time.monotonic() - start


def step(context: Context, kind: str = "mri", method: str = "es", fast: Fast | None = None, demo: bool = False) -> None:
    """Time a training step: forward, loss, backward, clipping and AdamW."""
    _need_gpu(context, fast is not None and fast.compiled == GRAPHS)
    torch.backends.cudnn.allow_tf32 = not method_of(method).precise
    problem = make(kind, context.sizes, context.device, method, fast, demo)
    context.found |= {"batch": len(problem.batch), "tf32": torch.backends.cudnn.allow_tf32}
    speed = 1e3 * len(problem.batch) / context.measure(problem.step)["ms"]
    context.found |= {"images_per_second": speed, "epoch_seconds": context.sizes.epoch / speed}
    if context.sizes is PAPER and kind == "mri" and not demo:
        context.found["paper_epoch_seconds"] = PAPER_EPOCH[method]


def epoch(context: Context, fast: Fast) -> None:
    """Train for an epoch of images that are on the device, shuffled; the loss is checked every ten steps, as in a training."""
    problem = make("mri", context.sizes, context.device, "es", fast, n=context.sizes.epoch)
    y, n = problem.batch.y, context.sizes.epoch

    def take(rows: Tensor) -> Tensor:
        one = Pass(Batch(y[rows], problem.batch.physics), problem.generator)
        return training_step(problem.loss, problem.network, problem.optimizer, [one])["loss"]

    order = torch.randperm(n, generator=problem.generator, device=context.device).split(context.sizes.batch)
    for rows in order[:4]:
        take(rows)
    context.wait()
    start, done = time.monotonic(), 0
    for i, rows in enumerate(order):
        value = take(rows)
        done += len(rows)
        if i % 10 == 9 and (not bool(value.isfinite()) or context.left < 2):
            break
    context.wait()
    seconds = time.monotonic() - start
    if not bool(value.isfinite()):
        raise FloatingPointError(f"the loss is {float(value)} after {done} images")
    context.found |= {"images": done, "seconds": seconds, "epoch_seconds": seconds * n / done, "loss": float(value)}
    if context.sizes is PAPER:
        context.found["paper_epoch_seconds"] = PAPER_EPOCH["es"]


def captured(context: Context, demo: bool = False) -> None:
    """Capture a whole training step as one CUDA graph, whose random numbers are new in each replay, and time the replays.

    With a learning rate of 0, the losses of the replays must be those of the plain step from the same state of the generator.
    """
    _need_gpu(context, True)
    problem = make("mri", context.sizes, context.device, "es", None, demo)
    problem = problem._replace(optimizer=torch.optim.AdamW(problem.network.parameters(), lr=0.0, capturable=True))
    stream = torch.cuda.Stream(context.device)
    stream.wait_stream(torch.cuda.current_stream(context.device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            problem.step()
    torch.cuda.current_stream(context.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(problem.generator)
    with torch.cuda.graph(graph):
        output = problem.step()
    problem.generator.manual_seed(1)
    replayed = torch.stack([_after(graph, output["loss"]) for _ in range(4)])
    problem.generator.manual_seed(1)
    plain = torch.stack([problem.step()["loss"] for _ in range(4)])
    context.found |= {"draws_differ": len(set(replayed.tolist())) == 4}
    context.found |= {"loss_gap": float(((replayed - plain).abs() / plain.abs()).max())}
    context.measure(graph.replay)


def _after(graph: torch.cuda.CUDAGraph, value: Tensor) -> Tensor:
    graph.replay()
    return value.clone()


def agreement(context: Context) -> None:
    """Compare loss and gradient in float32 with float64 on the CPU, from the same draws: operators, losses and networks."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    sizes = TINY if context.sizes is TINY else AGREEMENT
    methods = {"mri": ("es", "supervised", "ei", "sure"), "coils": ("es",), "ct": ("es",), "inpainting": ("es",)}
    for kind, method in [(kind, method) for kind, several in methods.items() for method in several]:
        problem = make(kind, sizes, torch.device("cpu"), method)
        exact = gradient(problem, torch.device("cpu"), torch.float64)
        here, cpu = (gap(gradient(problem, device, torch.float32), exact) for device in (context.device, torch.device("cpu")))
        agrees = here <= max(TOLERANCE, FACTOR * cpu)
        context.found[f"{kind} {method}"] = {"gap": here, "gap_cpu_float32": cpu, "agrees": agrees}


def gradient(problem: Problem, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the loss and its gradient as one vector, in float64 on the CPU; all draws come from one CPU generator."""
    network, physics = copy.deepcopy(problem.network).to(device, dtype), copy.deepcopy(problem.batch.physics).to(device, dtype)
    y, x = problem.batch.y.to(device, dtype), problem.batch.image.to(device, dtype)  # type: ignore[union-attr]
    value: LossValue = problem.loss(network, Batch(y, physics, image=x), torch.Generator().manual_seed(7))
    total = value.total.mean()
    total.backward()
    parts = [total, *(p.grad for p in network.parameters() if p.grad is not None)]
    return torch.cat([part.detach().flatten().double().cpu() for part in parts])


def gap(found: Tensor, exact: Tensor) -> float:
    """|found - exact| / |exact|."""
    return float((found - exact).norm() / exact.norm())


def compiled_agreement(context: Context) -> None:
    """Compare the losses of four steps at one set of weights: compiled, and with CUDA graphs, with the plain ones.

    They must differ from step to step: splits, noise and group elements are not frozen into compiled code.
    """
    plain = losses(context, None)
    kinds: dict[str, bool | str] = {"compiled": True, "graphs": GRAPHS}
    for name, compiled in kinds.items():
        if context.on_gpu or compiled is True:
            found = losses(context, Fast(False, False, compiled))
            close = float(((found - plain).abs() / plain.abs()).max())
            values = {"gap": close, "agrees": close <= TOLERANCE, "draws_differ": len(set(found.tolist())) == len(found)}
            context.found[name] = values


def losses(context: Context, fast: Fast | None, n: int = 4) -> Tensor:
    """Return the losses and gradient norms of n steps that leave the weights as they are."""
    torch.backends.cudnn.allow_tf32 = False
    problem = make("mri", context.sizes, context.device, "es", fast, demo=True)
    for group in problem.optimizer.param_groups:
        group["lr"] = 0.0
    outputs = [problem.step() for _ in range(n)]
    return torch.stack([output[name] for output in outputs for name in ("loss", "grad_norm")]).cpu()


def _need_gpu(context: Context, needed: bool) -> None:
    if needed and not context.on_gpu:
        raise NotImplementedError("needs a GPU")


PARTS: Mapping[str, Callable[[Context], None]] = {
    "agreement": agreement,
    "demo float32": partial(step, demo=True),
    "demo bf16": partial(step, demo=True, fast=BF16),
    "step float32": step,
    "step bf16": partial(step, fast=BF16),
    "epoch bf16": partial(epoch, fast=BF16),
    "supervised bf16": partial(step, method="supervised", fast=BF16),
    "ei float32": partial(step, method="ei"),
    "sure float32": partial(step, method="sure"),
    "coils bf16": partial(step, kind="coils", fast=BF16),
    "ct bf16": partial(step, kind="ct", fast=BF16),
    "shift bf16": partial(step, kind="inpainting", fast=BF16),
    "demo captured": partial(captured, demo=True),
    "step captured": captured,
    "demo compiled": partial(step, demo=True, fast=COMPILED),
    "demo graphs": partial(step, demo=True, fast=CUDA_GRAPHS),
    "compiled agreement": compiled_agreement,
    "step compiled": partial(step, fast=COMPILED),
    "step graphs": partial(step, fast=CUDA_GRAPHS),
    "epoch compiled": partial(epoch, fast=COMPILED),
}
