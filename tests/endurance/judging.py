"""Whether a disturbed command gave the right result, which is that of an undisturbed run, or said why not."""

import signal
from pathlib import Path
from typing import Any, NamedTuple

from endurance import child
from endurance.child import Ended
from endurance.work import SEND, TRAIN, Job, Result, leftovers, quick

Expected = dict[str, tuple[Result, float]]


class Outcome(NamedTuple):
    """What came of one experiment: number of kills that hit, and what differs from an undisturbed run."""

    kills: int
    faults: list[str]
    where: str


def compare(expected: Result, found: Result) -> list[str]:
    """What is lost, added or different."""
    names = sorted(expected.keys() | found.keys())
    return [
        f"{name}: {_short(found.get(name))} in place of {_short(expected.get(name))}"
        for name in names
        if expected.get(name) != found.get(name)
    ]


def _short(value: Any) -> str:
    return "nothing" if value is None else str(value)[:300]


def judge(job: Job, place: Path, ended: Ended, expected: Expected, causes: tuple[str, ...], again: bool = True) -> Outcome:
    """A disturbed command must give the right result or say why not; undisturbed, it then gives the right result.

    Args:
        job: the command.
        place: where it ran.
        ended: how it ended.
        expected: results of undisturbed runs.
        causes: what its message may say, any of them.
        again: run the same command again, undisturbed.
    """
    faults, wanted = [], expected[job.name][0]
    if ended.code == -signal.SIGALRM:
        faults.append(f"hangs: {ended.tail}")
    if ended.code < 0:
        faults.append(f"ended by signal {-ended.code}: {ended.tail}")
    again = again and not (job is SEND and ended.code == 0)  # nothing is left to send
    if ended.code and ended.code != -signal.SIGALRM and not any(cause.lower() in ended.output.lower() for cause in causes):
        faults.append(f"exit status {ended.code} without its cause: {ended.tail}")
    went = f"exit status {ended.code}" + (f": {(ended.tail.splitlines() or [''])[-1][:200]}" if ended.code else "")
    if again:
        after = child.run(job.command(place), place, before=quick)
        faults += [f"afterwards: exit status {after.code}: {after.tail}"] if after.code else []
    if not faults:
        faults += send_rest(job, place) + compare(wanted, job.result(place))
        faults += [f"left over: {name}" for name in leftovers(place)] if again else []
    return Outcome(0, faults, went)


def send_rest(job: Job, place: Path) -> list[str]:
    """Send what a training has kept: of one that was killed without a checkpoint, the next one says so."""
    unsent = place / "eval" / "unsent"
    if job is not TRAIN or not any(unsent.glob("*/state.json")):
        return []
    ended = child.run(["es_medical.tracking", "send", str(unsent), "--uri", "sqlite:///mlflow.db"], place, before=quick)
    return [f"sending what was kept: exit status {ended.code}: {ended.tail}"] if ended.code else []
