"""Full disks, read-only folders, little memory, clocks that go back, servers that fail, locks, and two runs at once."""

import ctypes
import os
import random
import resource
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from endurance import child
from endurance.damage import KINDS, changed_source, damage
from endurance.judging import Expected, Outcome, compare, judge
from endurance.server import Trouble, server
from endurance.work import PREPARE, RECONSTRUCT, SEND, TRAIN, Job, lay_out, leftovers, quick, train

FULL = ("No space left", "File too large", "disk is full", "disk I/O error")  # the last two are SQLite's
READ_ONLY = ("Permission denied", "readonly database", "unable to open database")
MEMORY = ("MemoryError", "out of memory", "not enough memory", "allocate", "start new thread", "bad_alloc")
SENDING = "eval/unsent"


class Disturbance(NamedTuple):
    """One way to disturb a command: what is tried, in what group of the table, and the function that tries it."""

    name: str
    group: str
    run: Callable[[Path, Path, Expected, random.Random], Outcome]


def full_disk(job: Job) -> Callable[..., Outcome]:
    """A small tmpfs as the working directory that fills up; then it is made larger."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)], check=False).returncode:
            return _small_files(job)(source, place, expected, rng)
        try:
            inside = lay_out(job, source, place / "work")
            whole = _used(place)
            free = rng.randint(0, {"preparation": 120, "training": 900, "sending": 600, "inference": 250}[job.name]) * 1024
            subprocess.run(["mount", "-o", f"remount,size={(whole + free) // 4096 * 4096}", str(place)], check=True)
            ended = child.run(job.command(inside), inside, before=quick)
            subprocess.run(["mount", "-o", "remount,size=256m", str(place)], check=True)
            found = judge(job, inside, ended, expected, FULL)
            return found._replace(where=f"{free // 1024} KiB free: {found.where}")
        finally:
            subprocess.run(["umount", "-l", str(place)], check=False)

    return run


def _used(place: Path) -> int:
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _small_files(job: Job) -> Callable[..., Outcome]:
    """No file may grow beyond a limit: what a full disk is where none can be mounted."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        lay_out(job, source, place)
        limit = rng.randint(1, 60) * 1024

        def before() -> None:
            quick()
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        ended = child.run(job.command(place), place, before=before)
        found = judge(job, place, ended, expected, FULL)
        return found._replace(where=f"files of at most {limit // 1024} KiB: {found.where}")

    return run


def read_only(job: Job, *closed: str) -> Callable[..., Outcome]:
    """Some folders, or all, in which nothing may be written."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        lay_out(job, source, place)
        for name in closed:
            (place / name).mkdir(exist_ok=True, parents=True)
            for path in (place / name, *(place / name).iterdir()):
                path.chmod(0o555 if path.is_dir() else 0o444)

        def before() -> None:
            quick()
            _give_up_rights()
            os.environ["HOME"] = "/nonexistent"

        ended = child.run(job.command(place), place, before=before)
        for path in (place, *place.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return judge(job, place, ended, expected, READ_ONLY)

    return run


def _give_up_rights() -> None:
    """Be bound by the modes of files, as root is not."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def little_memory(job: Job) -> Callable[..., Outcome]:
    """The process may take only so many MB more than it has at the start."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        lay_out(job, source, place)
        more = rng.choice((1, 4, 8, 16, 32, 64, 128))

        def before() -> None:
            quick()
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + more * 2**20, resource.RLIM_INFINITY))

        ended = child.run(job.command(place), place, before=before)
        found = judge(job, place, ended, expected, MEMORY)
        return found._replace(where=f"{more} MB more: {found.where}")

    return run


def clock_back(job: Job) -> Callable[..., Outcome]:
    """The clock jumps back by three days while the command runs."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        lay_out(job, source, place)
        first = rng.randint(1, 200)

        def before() -> None:
            quick()
            calls, real, real_ns = [0], time.time, time.time_ns

            def back() -> float:
                calls[0] += 1
                return 3 * 86400.0 if calls[0] > first else 0.0

            time.time = lambda: real() - back()
            time.time_ns = lambda: real_ns() - int(back()) * 10**9

        ended = child.run(job.command(place), place, before=before)
        found = judge(job, place, ended, expected, ())
        return found._replace(where=f"after {first} looks at the clock: {found.where}")

    return run


def resumed_with_clock_back(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
    """A training is killed, the clock is set back by a day, and it goes on."""
    lay_out(TRAIN, source, place)
    moment = child.Moment("es_medical.engine.trainer:Trainer._iteration", rng.randint(3, 6), 0.0)
    child.run(TRAIN.command(place), place, moment, quick)

    def before() -> None:
        quick()
        real, real_ns = time.time, time.time_ns
        time.time, time.time_ns = (lambda: real() - 86400.0), (lambda: real_ns() - 86400 * 10**9)

    ended = child.run(TRAIN.command(place), place, before=before)
    return judge(TRAIN, place, ended, expected, (), again=False)


def troubled(trouble: str) -> Callable[..., Outcome]:
    """A training that logs to a server in trouble, whose rest is sent when the server is well again."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        lay_out(TRAIN, source, place)
        with server(place, Trouble(trouble, rng.randint(0, 60), rng.random())) as uri:
            ended = child.run(train(place, uri), place, before=quick)
        faults = [f"exit status {ended.code}: {ended.tail}"] if ended.code else []
        with server(place, None) as uri:
            if any((place / SENDING).glob("*/state.json")):
                sent = child.run(["es_medical.tracking", "send", SENDING, "--uri", uri], place, before=quick)
                faults += [f"sending: exit status {sent.code}: {sent.tail}"] if sent.code else []
        faults = faults or compare(expected[TRAIN.name][0], TRAIN.result(place))
        return Outcome(
            0, faults, f"{ended.seconds:.0f} s, {'all sent' if 'not sent' not in ended.output else 'rest sent later'}"
        )

    return run


def locked_database(job: Job) -> Callable[..., Outcome]:
    """Another program holds the database for some seconds, or until the command has ended."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        lay_out(job, source, place)
        held = rng.choice((1.0, 5.0, 600.0))
        holder = os.fork()
        if holder == 0:
            with closing(sqlite3.connect(place / "mlflow.db", isolation_level=None)) as database:
                database.execute("BEGIN EXCLUSIVE")
                time.sleep(held)
                database.execute("ROLLBACK")
            os._exit(0)
        try:
            ended = child.run(job.command(place), place, before=quick)
        finally:
            with suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
        found = judge(job, place, ended, expected, ("locked", "not sent"), again=job is SEND and ended.code != 0)
        return found._replace(where=f"held {held:g} s: {found.where}")

    return run


def two_at_once(job: Job) -> Callable[..., Outcome]:
    """The same command twice in one folder, the second one a little later."""

    def run(source: Path, place: Path, expected: Expected, rng: random.Random) -> Outcome:
        lay_out(job, source, place)
        delay = rng.uniform(0, 0.8) * expected[job.name][1]
        first = os.fork()
        if first == 0:
            ended = child.run(job.command(place), place, before=quick)
            (place.parent / f"{place.name}_first.txt").write_text(f"{ended.code}\n{ended.output}")
            os._exit(0)
        time.sleep(delay)
        second = child.run(job.command(place), place, before=quick)
        os.waitpid(first, 0)
        code, _, output = (place.parent / f"{place.name}_first.txt").read_text().partition("\n")
        codes = [int(code), second.code]
        said = ("another", "in use", "up to date", "locked", "no unsent log")
        faults = [
            f"run {n}: exit status {code} without its cause: {text[-1500:]}"
            for n, (code, text) in enumerate(zip(codes, (output, second.output), strict=True), 1)
            if code and not any(word in text for word in said)
        ]
        after = child.run(job.command(place), place, before=quick) if all(codes) else second
        faults += [f"afterwards: {after.tail}"] if all(codes) and after.code else []
        if not faults and job is TRAIN:
            from endurance.work import weights_of

            wanted = {name: value for name, value in expected[job.name][0].items() if ".pt" in name}
            faults = compare(wanted, weights_of(place))
        elif not faults:
            faults = compare(expected[job.name][0], job.result(place))
        faults += [f"left over: {name}" for name in leftovers(place)]
        return Outcome(0, faults, f"{delay:.1f} s later: exit statuses {codes}")

    return run


def _all() -> Iterator[Disturbance]:
    for kind in KINDS:
        yield Disturbance(kind.name, "a flipped bit", damage(kind))
    yield Disturbance("a scan, after its preparation", "a flipped bit", changed_source)
    for job in (PREPARE, SEND, RECONSTRUCT, TRAIN):
        yield Disturbance(f"{job.name}: disk full", "disk full", full_disk(job))
        yield Disturbance(f"{job.name}: a limit on the size of files", "disk full", _small_files(job))
        yield Disturbance(f"{job.name}: little memory", "no memory", little_memory(job))
        yield Disturbance(f"{job.name}: two in one folder", "two runs at once", two_at_once(job))
        yield Disturbance(f"{job.name}: clock set back", "clock set back", clock_back(job))
    yield Disturbance("training: resumed after the clock was set back", "clock set back", resumed_with_clock_back)
    for job, closed in ((PREPARE, ["."]), (TRAIN, ["models"]), (TRAIN, ["eval"]), (RECONSTRUCT, ["eval"]), (SEND, ["unsent"])):
        yield Disturbance(f"{job.name}: {closed[0]} read-only", "read-only folder", read_only(job, *closed))
    for trouble in ("slow", "dead", "500", "web page", "cut off", "restarting"):
        yield Disturbance(f"training: server {trouble}", "MLflow server", troubled(trouble))
    for job in (TRAIN, SEND):
        yield Disturbance(f"{job.name}: database locked", "SQLite locked", locked_database(job))


ALL = tuple(_all())
