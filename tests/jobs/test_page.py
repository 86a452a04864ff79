"""Names of pictures: what a person reads in MLflow and on the page of a run."""

from types import SimpleNamespace

import pytest

from es_medical.jobs.page import RunPage


@pytest.mark.parametrize(
    ("ids", "shown", "names"),
    [
        ([f"{i:016x}" for i in range(10)], 5, ["recon/6 of 10", "validation slice 6 of 10"]),
        (["a/b", "item4"], 0, ["recon/a_b", "validation slice a_b"]),
    ],
)
def test_pictures_are_named_by_slice_or_if_that_is_a_hash_by_place(ids, shown, names):
    found = []
    parts = {
        "tracker": SimpleNamespace(log_image=lambda name, *_: found.append(name)),
        "page": SimpleNamespace(add_pictures=lambda name, *_: found.append(name)),
        "record": SimpleNamespace(picture=lambda *_: None),
    }
    case = SimpleNamespace(id=ids[shown], baseline=0, reconstruction=0, spread=0, target=0)
    evaluator = SimpleNamespace(rows=[{"id": name} for name in ids], cases=[case])
    RunPage._pictures(SimpleNamespace(baseline="", **parts), evaluator, "recon", "validation", 1)
    assert found == names
