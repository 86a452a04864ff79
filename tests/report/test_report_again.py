"""What a second call of `reproduce` takes as done."""

from io import StringIO
from pathlib import Path

import pytest
from report_store import items
from rich.console import Console

from es_medical.report.plan import plan
from es_medical.report.reproduce import Reproduction, is_there

BUNDLES = Path(__file__).parents[2] / "bundles"


@pytest.fixture
def how(store, tmp_path):
    def make(**knobs):
        return Reproduction("demo", 0, store.uri, BUNDLES, tmp_path, 1, (), Console(file=StringIO()), knobs)

    return make


def planned(effort):
    return plan("demo", ["inpainting"], ["es"], BUNDLES, effort)[0]


def finish(store, how, run, **params):
    study = how.experiment(run)
    knobs = {"epochs": str(run.knobs["epochs"])} | params
    store.log("es", items(25), study, "div2k_inpainting", {}, params=knobs, tags={"study": study}, metrics={"heldout": 0.1})


def test_a_finished_run_is_not_made_again(store, how):
    finish(store, how(), planned(0.1))
    assert is_there(store.client, planned(0.1), how())


def test_a_short_trial_does_not_stand_for_the_whole_training(store, how):
    finish(store, how(), planned(0.1))
    assert not is_there(store.client, planned(1.0), how())
    assert how().folder(planned(0.1)) != how().folder(planned(1.0))  # nor does the training go on from its state


def test_a_run_with_other_knobs_does_not_stand_for_this_one(store, how):
    finish(store, how(), planned(0.1), widths="[4, 8]", lr="0.001")
    assert is_there(store.client, planned(0.1), how(widths="[4,8]", lr="1e-3"))
    assert not is_there(store.client, planned(0.1), how(widths="[8,16]"))
    assert how(widths="[4,8]").folder(planned(0.1)) != how(widths="[8,16]").folder(planned(0.1))
    assert "/" not in how(data_file="/a/b.h5").folder(planned(0.1)).name
