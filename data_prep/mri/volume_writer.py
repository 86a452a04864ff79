"""The slices of planned volumes, made in tasks of bounded memory and written volume by volume."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from data_prep.mri.fastmri_file import Volume
from data_prep.mri.recorded import RecordedVolume
from data_prep.mri.recording import Recording
from data_prep.mri.simulation import Simulation
from data_prep.run.manifest import Outcome, PrepError, Pseudonyms, SkipError
from es_medical.data import SliceRecord, SliceWriter

AnyVolume = Volume | RecordedVolume
Pipeline = Simulation | Recording

TASK_BYTES = 2**25  # of records that a thread makes before it hands them on


class Planned(NamedTuple):
    """A volume and where its slices go."""

    volume: AnyVolume
    split: str


class Task(NamedTuple):
    """Some slices of a volume, which are read together."""

    planned: Planned
    indices: tuple[int, ...]
    last: bool


class Part(NamedTuple):
    """What became of a task: records and notes, or the failure of its volume."""

    records: list[SliceRecord]
    notes: list[str]
    failure: Outcome | None


def failure(name: str, error: Exception) -> Outcome:
    """The outcome of a file that an exception gave up."""
    if isinstance(error, PrepError):
        return Outcome(name, "skipped" if isinstance(error, SkipError) else "failed", str(error))
    return Outcome(name, "failed", f"unexpected {type(error).__name__}", detail=str(error))


def second_pass(task: Task, pipeline: Pipeline, pseudonyms: Pseudonyms) -> Part:
    """Makes the records of some slices; a volume with a bad slice is given up."""
    volume: Any = task.planned.volume  # of the kind that the pipeline is for
    records, notes = list[SliceRecord](), list[str]()
    try:
        for record, remarks in pipeline.records(volume, task.indices, task.planned.split, pseudonyms):
            records.extend([record] if record is not None else [])
            notes.extend(remarks)
    except Exception as error:  # one bad file never stops the others
        return Part([], [], failure(volume.name, error))
    return Part(records, notes, None)


def tasks(planned: Sequence[Planned], pipeline: Pipeline) -> list[Task]:
    """Divides the slices into tasks of at most `TASK_BYTES`, so that memory stays bounded whatever the volumes."""
    height, width = pipeline.size
    n = max(1, TASK_BYTES // (8 * height * width * (1 + max(2 * pipeline.coils, 1))))
    result = []
    for one in planned:
        slices = one.volume.slices
        chunks = [slices[i : i + n] for i in range(0, len(slices), n)]
        result += [Task(one, chunk, chunk is chunks[-1]) for chunk in chunks]
    return result


class WrittenVolume:
    """The slices of one volume after another, taken back when one of them fails."""

    def __init__(self, writer: SliceWriter) -> None:
        self.writer = writer
        self._begin()

    def _begin(self) -> None:
        self.start = self.writer.n
        self.failure: Outcome | None = None
        self.notes: Counter[str] = Counter()
        self.scales, self.ranges, self.maxima = list[float](), list[float](), list[float]()

    def add(self, part: Part) -> None:
        """Write a part of the volume, unless an earlier one failed."""
        self.failure = self.failure or part.failure
        if self.failure is None:
            self.notes.update(part.notes)
            for record in part.records:
                self.writer.append(record)
                self.scales.append(record.scale)
                self.ranges.append(record.data_range)
                self.maxima.append(record.scale * record.peak)

    def finish(self, planned: Planned) -> Outcome:
        """End the volume: what became of it."""
        volume, split = planned
        n = self.writer.n - self.start
        outcome = self.failure
        if outcome is None and n == 0:
            outcome = Outcome(volume.name, "failed", "every chosen slice is blank")
        if outcome is not None:
            self.writer.rollback(self.start)
        else:
            if volume.whole and self.writer.with_image and all(math.isnan(one) for one in self.ranges):
                self.writer.set_data_range(self.start, [max(self.maxima) / scale for scale in self.scales])
            notes = [f"{note} ({count} of {len(volume.slices)} slices)" for note, count in sorted(self.notes.items())]
            text = "; ".join([*([volume.note] if volume.note else []), *notes])
            outcome = Outcome(volume.name, "done", text, slices=n, target=volume.target, split=split)
        self._begin()
        return outcome
