"""Try a reader on mutated files: it gives a right value or a stated error, in bounded time and memory, whatever the bytes.

A few hundred mutants a reader, the same in every run; `ES_FUZZ_SECONDS=300 pytest -s tests/fuzz/...` tries new ones for so many
seconds a test, goes on after a failure and lists each kind of failure once, with its smallest mutant.
"""

import os
import random
import resource
import signal
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console

from data_prep.run.runner import PrepRun

SECONDS = float(os.environ.get("ES_FUZZ_SECONDS", "0"))
SHARE = float(os.environ.get("ES_FUZZ_SHARE", "0.4"))  # of the fixed number of mutants
MEMORY = 2**29  # bytes beyond those in use that a reader of a file of some kilobytes may ask for
CPU_SECONDS = 5  # of one mutant
UNSTATED = (
    "unexpected ",
    "MemoryError",
    "allocate",
    "Traceback",
    "object at 0x",
    "Hang",
)  # words of an error that nobody stated


class Hang(BaseException):
    """A mutant took too long; no reader's `except Exception` catches it."""


@contextmanager
def bounded():
    """Limit the time of the processor and the memory."""

    def stop(*_):
        raise Hang(f"more than {CPU_SECONDS} s for one file")

    before, limits = signal.signal(signal.SIGPROF, stop), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)


def fuzz(mutants, read, refusals, n):
    """Try `read` on `n` mutants (or for `ES_FUZZ_SECONDS`).

    Args:
        mutants: strategy of what `read` takes.
        read: reads a mutant and asserts that the value is right.
        refusals: exceptions that are stated errors.
        n: number of mutants of a run without `ES_FUZZ_SECONDS`.

    Returns:
        how many mutants were tried, taken and refused.
    """
    count, found = Counter(), {}

    def attempt(mutant):
        count["tried"] += 1
        try:
            with bounded():
                read(mutant)
            count["taken"] += 1
        except refusals as error:
            check_stated(str(error))
            count["refused"] += 1

    if not SECONDS:
        _given(mutants, attempt, max(1, round(n * SHARE)), derandomize=True)()
        assert count["taken"], "no mutant was taken: the error is in the files"
        assert count["refused"], "no mutant was refused: nothing was mutated"
        return count

    def note(mutant):
        try:
            attempt(mutant)
        except (Exception, Hang) as error:
            kind = _kind(error)
            if kind not in found or len(repr(mutant)) < len(found[kind][0]):
                found[kind] = repr(mutant), "".join(traceback.format_exception(error)[-3:])

    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        seed(random.randrange(2**32))(_given(mutants, note, 200, derandomize=False))()
    print(f"\n{read.__name__}: {dict(count)}, {len(found)} kinds of failure", flush=True)
    for mutant, trace in found.values():
        print(f"\n{mutant[:1000]}\n{trace}", flush=True)
    assert not found, f"{len(found)} kinds of failure, listed above"
    return count


def check_stated(told):
    """An error says what is wrong, in words that somebody chose."""
    assert told
    assert not any(word in told for word in UNSTATED), f"not a stated error: {told!r}"


@contextmanager
def prepared(command, options, out):
    """A preparation run as a command makes it; what it prints holds no unstated error."""
    printed = StringIO()
    prep = PrepRun(command, options, out, "salt", 1, None, Console(file=printed, width=1000))
    try:
        yield prep
    finally:
        for line in filter(None, printed.getvalue().splitlines()):
            check_stated(line)


def _given(mutants, attempt, n, derandomize):
    def run(mutant):
        attempt(mutant)

    quiet = settings(
        max_examples=n, derandomize=derandomize, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if derandomize else (Phase.generate,), print_blob=False,
    )  # fmt: skip
    return quiet(given(mutants)(run))


def _kind(error):
    """The type of an error and the last line of our own or a test's code that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    inner = error.__context__
    while inner is not None and inner.__context__ is not None:
        inner = inner.__context__
    return type(error).__name__, frames[-1].filename, frames[-1].lineno, type(inner).__name__, str(error)[:60]
