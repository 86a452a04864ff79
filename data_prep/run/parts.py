"""Parts: the finished slices of one source in a slice file of their own, so that processes share the work and a run can go on.

The name of a part is `KEY.DIGEST.h5`. KEY stands for everything that decides its content, DIGEST for its bytes: a part is used
again where both agree. It gets its name once it is complete and on the disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import h5py
import torch

from data_prep.run.plan import Made, Plan, Task
from es_medical.data import SliceRecord, SliceWriter, file_digest
from es_medical.data.atomic import PARTIAL
from es_medical.data.hdf5 import PARTS_KEPT, read_text, write_text
from es_medical.data.schema import COLUMNS, PIXELS, open_slices
from es_medical.data.virtual import Place

DIGITS = 16  # of a part's SHA-256 in its name
PART = re.compile(rf"[0-9a-f]+\.[0-9a-f]{{{DIGITS}}}\.h5")
MADE = ".made_"  # start of the name of one that is being made
RESULTS = "results"  # attribute of a part: how many slices each task gave, and what is to be said of them


class Result(NamedTuple):
    """What one task gave: the number of its slices, and the rest of its `Made`."""

    n: int
    notes: Sequence[str] = ()
    failure: str = ""
    content: str = ""
    detail: str = ""


class Part(NamedTuple):
    """The results of the tasks of one source, in order; if one affects the whole source it is the last.

    Attributes:
        name: of its file, "" if there is no slice.
        results: one for each task.
        again: whether it was there already.
    """

    name: str
    results: Sequence[Result]
    again: bool = False


class _NothingError(Exception):
    """There is no slice to write."""


class _PartWriter(SliceWriter):
    results: Sequence[Result] = ()

    def _finish(self) -> None:
        write_text(self._file.attrs, RESULTS, json.dumps(self.results))
        super()._finish()


def whole_parts(folder: Path) -> dict[str, Path]:
    """The parts in a folder by their keys; whether their bytes are as written is checked when they are used."""
    return {path.name.partition(".")[0]: path for path in sorted(folder.glob("[!.]*.h5"))}


def parts_folder(out: Path) -> Path:
    """Where the parts of a slice file are."""
    return out.with_suffix(".parts").absolute()


def discard_parts(out: Path) -> None:
    """Remove the parts beside a finished slice file that holds its pixels itself, also those that a killed run left."""
    folder = parts_folder(out)
    if not folder.is_dir():
        return
    with open_slices(out) as file:
        if PARTS_KEPT in file.attrs:
            return
    for path in folder.iterdir():
        if PART.fullmatch(path.name) or path.name.startswith((MADE, PARTIAL)):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # something else is there
        folder.rmdir()


def part_of(plan: Plan[Any], tasks: Sequence[Task[Any]], folder: Path, key: str) -> Part:
    """The part of the tasks of one source: the one that is there if its bytes are as written, else a new one.

    A part in which something failed is not used again, as the cause may have passed.

    Raises:
        OSError: it cannot be written.
    """
    for path in folder.glob(f"{key}.*.h5"):
        if path.name == _named(key, path):
            with open_slices(path) as file:
                results = [Result(*result) for result in json.loads(read_text(file.attrs, RESULTS))]
            if not any(result.failure for result in results):
                return Part(path.name, results, again=True)
        path.unlink()
    return _new_part(plan, tasks, folder, key)


def _named(key: str, path: Path) -> str:
    return f"{key}.{file_digest(path)[:DIGITS]}.h5"


def _new_part(plan: Plan[Any], tasks: Sequence[Task[Any]], folder: Path, key: str) -> Part:
    path, results = folder / f"{MADE}{uuid4().hex}.h5", list[Result]()
    header, with_image = plan.operator.header(), plan.operator.with_image
    with suppress(_NothingError), _PartWriter(path, header, plan.size, with_image, plan.coils, plan.shapes) as writer:
        _fill(writer, plan, tasks, results)
        if writer.n == 0 or (results[-1].failure and not tasks[len(results) - 1].file):
            raise _NothingError
        writer.results = [result._replace(detail="") for result in results]
    if not path.exists():
        return Part("", results)
    name = _named(key, path)
    path.replace(folder / name)
    return Part(name, results)


def _fill(writer: SliceWriter, plan: Plan[Any], tasks: Sequence[Task[Any]], results: list[Result]) -> None:
    """Write the slices of all tasks, up to a failure that affects the whole source."""
    pending = list[Any]()
    for task in tasks:
        made = plan.attempt(task)
        results.append(Result(len(made.records), made.notes, made.failure, made.content, made.detail))
        if made.failure and not task.file:
            return
        for record in made.records:
            pending.append(record)
            if len(pending) == plan.batch:
                _measure(writer, plan, pending)
    _measure(writer, plan, pending)


def _measure(writer: SliceWriter, plan: Plan[Any], pending: list[Any]) -> None:
    for record in plan.measure(pending) if pending else ():
        writer.append(record)
    pending.clear()


def read_part(part: Part, tasks: Sequence[Task[Any]], folder: Path, places: bool) -> Iterator[tuple[Task[Any], Made]]:
    """Each task with its result; the records are read as they are looked at.

    Args:
        part: the part.
        tasks: its tasks.
        folder: where it is.
        places: give `Place`s instead of pixels, see `VirtualWriter`.
    """
    if not part.name:
        for task, result in zip(tasks, part.results, strict=False):
            yield task, _made_again(result, ())
        return
    with open_slices(folder / part.name) as file:
        columns, first = {name: _column(file, name) for name in COLUMNS if name != "checksum"}, 0
        stored = {name: file[name] for name in PIXELS if name in file}  # looking them up for each row is slower

        def record(row: int) -> SliceRecord:
            values = {name: column[row] for name, column in columns.items()}
            values["scale"], values["offset"] = values["scale"]
            pixels: dict[str, Any] = {"image": None, "maps": None} | {
                name: Place(folder / part.name, row) if places else torch.from_numpy(data[row]) for name, data in stored.items()
            }
            return SliceRecord(**pixels, **values)

        for task, result in zip(tasks, part.results, strict=True):
            yield task, _made_again(result, map(record, range(first, first + result.n)))
            first += result.n


def _made_again(result: Result, records: Iterable[SliceRecord]) -> Made:
    return Made(records, result.notes, result.failure, result.content, result.detail)


def _column(file: h5py.File, name: str) -> list[Any]:
    data = file[name]
    values = data.asstr()[:] if h5py.check_string_dtype(data.dtype) else data[:]
    return values.tolist() if values.ndim == 1 else [tuple(row) for row in values.tolist()]
