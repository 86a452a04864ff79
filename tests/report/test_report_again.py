"""What a second call of `reproduce` takes as done."""

from io import StringIO

import pytest
from report_store import BUNDLES, items
from rich.console import Console

from es_medical.knobs import AUTO
from es_medical.report.running.plan import decisive_knobs, plan
from es_medical.report.running.reproduce import Reproduction, is_there

CHOSEN = {
    "split_ratio": "0.9",
    "eval_split_input": "False",
    "weighting": "frequency",
    "step": "100.0",
    "consistency_weight": "0.1",
}


@pytest.fixture
def how(store, tmp_path):
    def make(**knobs):
        return Reproduction("demo", 0, store.uri, BUNDLES, tmp_path, 1, (), Console(file=StringIO()), knobs)

    return make


def planned(effort=0.1, study="mri_x8", method="es"):
    return plan("demo", [study], [method], BUNDLES, effort)[0]


@pytest.fixture
def finish(store, how):
    """Logs a finished run of a plan, with other knobs where they are given, and without some."""

    def log(run, without=(), name=None, **params):
        study = how().experiment(run)
        own = {name: str(value) for name, (value, _) in decisive_knobs(run, BUNDLES).items() if name not in without}
        followed = {name: CHOSEN[name] for name, value in own.items() if value == AUTO and name not in params}
        own |= followed
        tags, scores = {"study": study} | {f"auto.{name}": "why" for name in followed}, {"heldout": 0.1}
        params = own | params
        store.log(name or run.method, items(25), study, run.study.bundle, {}, params=params, tags=tags, metrics=scores)

    return log


@pytest.fixture
def there(store, how):
    return lambda run, **knobs: is_there(store.client, run, how(**knobs))


def test_a_finished_run_is_not_made_again_whatever_its_place_and_speed(finish, there):
    finish(planned(), num_workers="7", data_file="elsewhere.h5", key_metric="psnr")
    assert there(planned())


def test_a_short_trial_does_not_stand_for_the_whole_training(finish, there, how):
    finish(planned(0.1))
    assert not there(planned(1.0))
    assert how().folder(planned(1.0)) != how().folder(planned(0.1))  # nor does the training go on from its state


def test_a_run_with_other_knobs_does_not_stand_for_this_one(finish, there, how):
    finish(planned(), widths="[4, 8]", lr="0.001")
    assert there(planned(), widths="[4,8]", lr="1e-3")
    assert not there(planned(), widths="[8,16]")
    assert how(widths="[4,8]").folder(planned()) != how(widths="[8,16]").folder(planned())
    assert "/" not in how(data_file="/a/b.h5").folder(planned()).name


def test_a_knob_that_was_changed_on_resuming_counts_as_it_was_at_the_end(finish, there):
    finish(planned(), **{"lr": "3.0", "lr.epoch3": str(decisive_knobs(planned(), BUNDLES)["lr"][0])})
    assert there(planned())


@pytest.mark.parametrize("knob", ["eval_split_input", "weighting", "iterations"])
def test_a_run_from_before_a_knob_had_its_default(finish, there, knob):
    finish(planned(), without=(knob,))
    assert not there(planned())  # the demo sets another value


@pytest.mark.parametrize("study", ["mri_x8", "mri_x6"])
def test_a_knob_that_follows_from_the_data_is_there_where_it_did(finish, there, study):
    """A run that was given a value does not stand for it, whatever the value."""
    run = planned(study=study)
    for knob, value in CHOSEN.items():
        finish(run, **{knob: value})
        finish(run, **{knob: "0.5"})
    assert not there(run)
    finish(run)
    assert there(run)


@pytest.mark.parametrize(("method", "made_again"), [("es", True), ("tikhonov", False)])
def test_a_run_of_an_older_demo_is_made_again_and_one_of_what_learns_nothing_is_not(finish, there, method, made_again):
    finish(planned(method=method), lr="0.001")
    assert there(planned(method=method)) != made_again


@pytest.mark.parametrize(("method", "made_again"), [("es", True), ("ei", False)])
def test_knobs_of_splits_matter_to_splitting_methods_alone(finish, there, method, made_again):
    finish(planned(method=method), split_ratio="0.7", eval_split_input="True")
    assert there(planned(method=method)) != made_again


def test_a_run_under_the_earlier_name_of_its_method_is_there(finish, there):
    run = planned(method="ei_lot")
    assert run.method == "ei_alternating"
    finish(run, name="ei_lot")
    assert there(run)
    assert not there(planned(method="ei"))
