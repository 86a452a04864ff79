import io
import json
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import torch
from rich.console import Console

from data_prep.run.manifest import OMIT_NONE, PrepError
from data_prep.run.plan import Inventory, Made, Plan, Task, image_outcomes
from data_prep.run.runner import PrepRun, measured_by, run
from es_medical.data import Shapes, SliceHeader, SliceRecord

SIZE = (2, 2)
PLACES = {"a": [0, 1], "b": [2, 3], "c": [4]}  # slices of each source, a task each


@dataclass(frozen=True)
class Knobs:
    seed: int = 0
    later: float | None = field(default=None, metadata=OMIT_NONE)


class Identity:
    """Measures every k-space line."""

    with_image = True

    def header(self):
        return SliceHeader(0.0, torch.ones(2, dtype=torch.bool))


def record(value, data_range=float("nan")):
    x = torch.full((2, *SIZE), float(value))
    return SliceRecord(x, x, str(value), "s", "train", scale=value + 1.0, peak=2.0, data_range=data_range)


@pytest.fixture
def attempt(tmp_path):
    """Runs tasks of single slices; returns what was printed, the stored values, and the status and cause of each source."""

    def attempt(make, alone=False, **plan):
        text = io.StringIO()
        prep = PrepRun("test", Knobs(), tmp_path / "a.h5", "pepper", 1, None, Console(file=text, width=200))
        inventory = Inventory({name: f"digest {name}" for name in PLACES}, [], list(PLACES))
        tasks = [Task(name, k, f"{name}/{k}" if alone else "") for name, numbers in PLACES.items() for k in numbers]
        report = partial(image_outcomes, target="images")
        made = Plan(Identity(), Shapes.kspace(SIZE), make, tasks, report, **plan)
        run(prep, inventory, lambda: made, measured_by(lambda _: "all lines", prep.out))
        with h5py.File(prep.out) as file:
            values, ranges = file["image"][:, 0, 0, 0].tolist(), file["data_range"][:]
        sources = json.loads((tmp_path / "a.manifest.json").read_text())["sources"]
        return text.getvalue(), values, ranges, sorted((one["status"], one["cause"]) for one in sources)

    return attempt


def test_source_with_one_bad_slice_is_taken_back_and_the_text_of_its_error_is_not_told(attempt):
    def make(k):
        if k == 3:
            raise KeyError("SECRET")
        return Made([record(k)])

    text, values, _, sources = attempt(make)
    assert values == [0, 1, 4]
    assert sources == [("done", ""), ("done", ""), ("failed", "unexpected KeyError")]
    assert "SECRET" not in text


def test_first_bad_slice_gives_the_cause_and_nothing_after_it_is_written(attempt):
    def make(k):
        if k in (0, 1):
            raise PrepError(f"slice {k} is broken")
        return Made([record(k)])

    assert attempt(make)[1:4:2] == ([2, 3, 4], [("done", ""), ("done", ""), ("failed", "slice 0 is broken")])


def test_slices_are_measured_some_at_a_time_whatever_their_source_and_files_fail_alone(attempt):
    batches = []

    def measure(some):
        batches.append([one.id for one in some])
        return list(some)

    def make(k):
        if k == 1:
            raise PrepError("cut short")
        return Made([record(k)])

    _, values, *_ = attempt(make, alone=True, measure=measure, batch=3)
    assert batches == [["0", "2", "3"], ["4"]]
    assert values == [0, 2, 3, 4]


def test_slices_measured_together_need_files_that_fail_alone(attempt):
    with pytest.raises(ValueError, match="cannot be taken back"):
        attempt(lambda k: Made([record(k)]), batch=3)


def test_maximum_of_a_whole_source_is_the_range_of_its_slices(attempt):
    """Peaks of 2 at scales 1 and 2: a maximum of 4 in raw units, which is 4 and 2 in stored ones."""
    _, _, ranges, _ = attempt(lambda k: Made([record(k, 7.0 if k == 4 else np.nan)]), whole=frozenset("ac"))
    np.testing.assert_array_equal(ranges, [4, 2, np.nan, np.nan, 7])


def test_no_slice_is_an_error_that_leaves_nothing(attempt, tmp_path):
    with pytest.raises(PrepError, match="no slice could be made of 3 files: nothing was written"):
        attempt(lambda _: Made(notes=["blank"]))
    with pytest.raises(PrepError, match="of 2 series"):
        attempt(lambda _: Made(failure="broken"), what="2 series")
    assert not list(tmp_path.iterdir())


def test_second_run_is_refused_while_the_first_writes_and_takes_nothing_from_it(attempt, tmp_path):
    def make(k):
        if k == 3:
            with pytest.raises(PrepError, match="another run is writing"):
                attempt(lambda k: Made([record(k)]))
        return Made([record(k)])

    _, values, _, _ = attempt(make)
    assert values == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "a.manifest.json"]


@pytest.mark.parametrize("error", [NotImplementedError, PermissionError])
def test_without_locks_a_run_goes_on_and_leaves_no_lock(attempt, tmp_path, monkeypatch, error):
    monkeypatch.setattr("filelock.FileLock._acquire", Mock(side_effect=error))
    assert attempt(lambda k: Made([record(k)]))[1] == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5", "a.manifest.json"]


def test_copies_are_written_once(attempt):
    _, values, _, sources = attempt(lambda k: Made([record(k)], content="same" if k in (0, 4) else ""))
    assert values == [0, 1, 2, 3]
    assert ("skipped", "same pixels as another one: left out") in sources


def test_copy_of_a_slice_that_was_taken_back_is_written(attempt):
    def make(k):
        return Made(failure="broken") if k == 1 else Made([record(k)], content="same" if k in (0, 4) else "")

    assert attempt(make)[1] == [2, 3, 4]


def test_option_that_came_later_is_stored_only_where_it_is_given(tmp_path):
    stored = [PrepRun("test", knobs, tmp_path, "", 1, None, Console()).configuration() for knobs in (Knobs(), Knobs(later=2.0))]
    assert [one.get("later", "absent") for one in stored] == ["absent", 2.0]
