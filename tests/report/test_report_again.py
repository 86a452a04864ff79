"""What a second call of `reproduce` takes as done."""

from io import StringIO
from pathlib import Path

import pytest
from report_store import items
from rich.console import Console

from es_medical.report.running.plan import decisive_knobs, plan
from es_medical.report.running.reproduce import Reproduction, is_there

BUNDLES = Path(__file__).parents[2] / "bundles"


@pytest.fixture
def how(store, tmp_path):
    def make(**knobs):
        return Reproduction("demo", 0, store.uri, BUNDLES, tmp_path, 1, (), Console(file=StringIO()), knobs)

    return make


def planned(effort, study="inpainting", method="es"):
    return plan("demo", [study], [method], BUNDLES, effort)[0]


def finish(store, how, run, without=(), **params):
    study = how.experiment(run)
    own = {name: str(value) for name, (value, _) in decisive_knobs(run, BUNDLES).items() if name not in without}
    tags, scores = {"study": study}, {"heldout": 0.1}
    store.log(run.method, items(25), study, run.study.bundle, {}, params=own | params, tags=tags, metrics=scores)


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


@pytest.mark.parametrize("knob", ["eval_split_input", "weighting", "iterations"])
def test_a_run_from_before_a_knob_had_its_default(store, how, knob):
    finish(store, how(), planned(0.1, "mri_x8"), without=(knob,))
    assert not is_there(store.client, planned(0.1, "mri_x8"), how())  # the demo sets another value


def test_knobs_that_a_study_sets_back_to_their_default_are_compared(store, how):
    """The demo at 10 dB undoes some knobs of the demo at 40 dB."""
    for knob, other in {"eval_split_input": "False", "weighting": "frequency", "step": "100.0"}.items():
        finish(store, how(), planned(0.1, "mri_x6"), **{knob: other})
    assert not is_there(store.client, planned(0.1, "mri_x6"), how())
    finish(store, how(), planned(0.1, "mri_x6"))
    assert is_there(store.client, planned(0.1, "mri_x6"), how())


def test_a_run_of_an_older_demo_is_made_again_and_one_of_what_learns_nothing_is_not(store, how):
    finish(store, how(), planned(0.1, "mri_x8"), lr="0.001")
    finish(store, how(), planned(0.1, "mri_x8", "tikhonov"), lr="0.001")
    assert not is_there(store.client, planned(0.1, "mri_x8"), how())
    assert is_there(store.client, planned(0.1, "mri_x8", "tikhonov"), how())


def test_knobs_of_splits_matter_to_splitting_methods_alone(store, how):
    for method in ("es", "ei"):
        finish(store, how(), planned(0.1, "mri_x8", method), split_ratio="0.7", eval_split_input="True")
    assert not is_there(store.client, planned(0.1, "mri_x8", "es"), how())
    assert is_there(store.client, planned(0.1, "mri_x8", "ei"), how())


def test_place_and_speed_do_not_matter(store, how):
    finish(store, how(), planned(0.1), num_workers="7", data_file="elsewhere.h5", key_metric="psnr")
    assert is_there(store.client, planned(0.1), how())
