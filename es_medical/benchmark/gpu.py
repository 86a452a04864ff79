"""One report of training on a GPU, made within a given time: each part is written as soon as it is there.

Needs torch, deepinv and this package alone. Draws, operators and losses are those of a training.
"""

import gc
import signal
import sys
import threading
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from es_medical.benchmark.gpu_parts import PARTS, Context
from es_medical.benchmark.gpu_problems import PAPER, TINY

LEAST = 5.0
"""Seconds below which no further part is started."""


class PartResult(NamedTuple):
    """What a part found, or why it did not.

    Attributes:
        part: its name.
        status: "done", "failed" or "skipped" (out of time, or it needs a GPU).
        seconds: how long it took.
        values: what it found, also before a failure; "peak_mib" is the largest memory of tensors on the GPU.
        error: type and message of a failure; reason of a part that was skipped.
    """

    part: str
    status: str
    seconds: float
    values: Mapping[str, Any]
    error: str = ""


def run(options: Namespace) -> Iterator[PartResult]:
    """Run the parts with the options of the command line; the time counts from here."""
    chosen = {name: part for name, part in PARTS.items() if not options.only or name in options.only}
    if unknown := set(options.only or ()) - set(PARTS):
        raise ValueError(f"unknown parts {', '.join(sorted(unknown))}: choose from {', '.join(PARTS)}")
    device, end = torch.device(options.device), time.monotonic() + 60 * options.minutes
    context = Context(device, TINY if options.tiny else PAPER, end, options.repeats)
    for name, part in chosen.items():
        yield run_part(name, part, context)


def run_part(name: str, part: Callable[[Context], None], context: Context) -> PartResult:
    """Run one part; its failure, or the end of the time, is a result."""
    if context.left < LEAST:
        return PartResult(name, "skipped", 0.0, {}, "out of time")
    start, status, error, context.found = time.monotonic(), "done", "", {}
    try:
        with warnings.catch_warnings(record=True) as warned, _interrupted_after(context.left):
            warnings.simplefilter("always")
            part(context)
    except NotImplementedError as reason:
        status, error = "skipped", str(reason)
    except Exception as failure:  # the other parts go on
        status, error = "failed", f"{type(failure).__name__}: {str(failure)[:2000]}"
    if warned:  # such as of a denoiser that is not compiled
        context.found["warnings"] = sorted({f"{one.category.__name__}: {one.message}" for one in warned})
    _clean_up(context.on_gpu)
    return PartResult(name, status, time.monotonic() - start, context.found, error)


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds, also while torch compiles; only in the main thread of a Unix."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError("out of time in this part")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _clean_up(on_gpu: bool) -> None:
    """Give the memory of a part back, also of one that ran out of it, and forget compiled code."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()


def table(result: PartResult) -> str:
    """Return a result as a text table."""
    lines = [f"{result.part}: {result.status}, {result.seconds:.1f} s{'  ' + result.error if result.error else ''}"]
    for name, value in result.values.items():
        shown = ", ".join(f"{key} {_short(one)}" for key, one in value.items()) if isinstance(value, Mapping) else _short(value)
        lines.append(f"  {name:28s} {shown}")
    return "\n".join(lines)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
