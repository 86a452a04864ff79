"""Kill -9 at random moments, the same command again until it ends, and the results beside those of an undisturbed run."""

import random
from pathlib import Path
from typing import NamedTuple

from endurance import child
from endurance.child import Moment
from endurance.judging import Outcome, compare, send_rest
from endurance.work import JOBS, PREPARE, RECONSTRUCT, SEND, TRAIN, Job, Result, lay_out, leftovers, quick


class Stage(NamedTuple):
    """A stage of a job: functions in which it is killed, their numbers of calls, and the longest delay after a call began."""

    name: str
    job: Job
    functions: tuple[tuple[str, int], ...] = ()
    delay: float = 0.0


STAGES = (
    Stage("preparation", PREPARE),
    Stage(
        "preparation, writing the slice file",
        PREPARE,
        (
            ("es_medical.data.writer:SliceWriter.append", 9),
            ("es_medical.data.writer:SliceWriter._finish", 1),
            ("data_prep.run.runner:write_manifest", 1),
            ("pathlib:Path.replace", 2),
        ),
        0.01,
    ),
    Stage("training, from start to end", TRAIN),
    Stage("training, in a step", TRAIN, (("es_medical.engine.trainer:Trainer._iteration", 6),), 0.05),
    Stage("validation and test", TRAIN, (("es_medical.engine.evaluator:Evaluator._iteration", 10),), 0.05),
    Stage("saving weights", TRAIN, (("torch:save", 12), ("pathlib:Path.replace", 16)), 0.005),
    Stage(
        "logging to the spool",
        TRAIN,
        (
            ("es_medical.tracking.spool:Spool.append", 35),
            ("es_medical.tracking.spool:Spool.keep", 25),
            ("es_medical.tracking.spool:Spool.remove", 1),
        ),
        0.003,
    ),
    Stage("sending", SEND, (("es_medical.tracking.upload:Uploader._send_batch", 25),), 0.05),
    Stage("sending, between server and disk", SEND, (("es_medical.tracking.spool:Spool.keep", 25),), 0.003),
    Stage("inference", RECONSTRUCT),
    Stage(
        "inference, writing images",
        RECONSTRUCT,
        (
            ("es_medical.output.saving:SaveReconstructions._collect", 3),
            ("es_medical.output.saving:SaveReconstructions._write", 1),
            ("nibabel:save", 8),
            ("es_medical.output.dicom.writer:dcmwrite", 16),
            ("pathlib:Path.replace", 20),
        ),
        0.01,
    ),
)


def undisturbed(source: Path, folder: Path) -> dict[str, tuple[Result, float]]:
    """The results of every job, and its seconds."""
    found = {}
    for job in JOBS:
        place = lay_out(job, source, folder / job.name)
        ended = child.run(job.command(place), place, before=quick)
        if ended.code:
            raise RuntimeError(f"{job.name} failed undisturbed:\n{ended.output}")
        found[job.name] = (job.result(place), ended.seconds)
    return found


def experiment(stage: Stage, source: Path, folder: Path, expected: Result, seconds: float, rng: random.Random) -> Outcome:
    """Kill a job one to eight times in a stage, let it end, and compare."""
    place, kills, said = lay_out(stage.job, source, folder), 0, []
    for _ in range(rng.choice((1, 2, 3, 5, 8))):
        moment = Moment("", 0, rng.uniform(0, 1.05 * seconds))
        if stage.functions:
            function, calls = rng.choice(stage.functions)
            moment = Moment(function, rng.randint(1, calls), rng.choice((0.0, rng.uniform(0, stage.delay))))
        ended = child.run(stage.job.command(place), place, moment, quick)
        said.append(f"{moment.function or 'start'} {moment.call} + {moment.delay:.4f} s -> {ended.code}")
        if ended.code not in (-9, 0):
            return Outcome(kills, [f"exit status {ended.code} in place of a kill: {ended.tail}"], "; ".join(said))
        kills += ended.code == -9
        if ended.code == 0:
            break
    else:
        ended = child.run(stage.job.command(place), place, before=quick)
    if ended.code:
        return Outcome(kills, [f"the same command again: exit status {ended.code}: {ended.tail}"], "; ".join(said))
    faults = send_rest(stage.job, place) + compare(expected, stage.job.result(place))
    faults += [f"left over: {name}" for name in leftovers(place)]
    return Outcome(kills, faults, "; ".join(said))
