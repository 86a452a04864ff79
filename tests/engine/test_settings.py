"""Settings in force: given, chosen from the measurements of a training, or kept with its weights."""

import logging
from dataclasses import replace

import pytest
import torch
from tiny import causes, execute, runs, workflow, write_slices

from es_medical.engine.auto import Settings
from es_medical.engine.checkpoint import BEST, LAST
from es_medical.engine.settings import choose_settings, read_knobs_of
from es_medical.knobs import AUTO, BY_DATA, logged_knobs
from es_medical.tracking import with_hidden

ALL = dict.fromkeys(BY_DATA, AUTO)
CLEAR = Settings(0.9, False, 0.1, "frequency", 100.0)
NOISY = Settings(0.8, True, 4.0, "none", 1.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Slice files of clear and of noisy measurements; each slice has its own noise level."""
    folder = tmp_path_factory.mktemp("settings")
    return {name: write_slices(folder / f"{name}.h5", sigmas=(level,)) for name, level in (("clear", 0.001), ("noisy", 1.0))}


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory, workflow_uri):
    """The folder of a training on the clear file with `auto`."""
    folder = tmp_path_factory.mktemp("auto")
    execute(job(folder, files["clear"], workflow_uri), check=True)
    return folder


def job(folder, source, uri, *overlays, **knobs):
    return workflow(["train.yaml", *overlays], folder, source, uri, **({"sigma": None} | ALL | knobs))


def values(settings):
    """Settings without the reasons."""
    return replace(settings, why={})


def parts(one):
    """Where the settings arrive: split, inferer, loss and network."""
    get = one.parser.get_parsed_content
    loss = get("loss")
    weighting = {"NoneType": "none", "FrequencyWeighting": "frequency"}[type(loss.weighting).__name__]
    step = round(float(get("reconstructor").reconstructor.log_step.detach().exp()), 4)
    return Settings(get("split").split_ratio, get("inferer").eval_split_input, loss.consistency_weight, weighting, step)


@pytest.mark.parametrize(("name", "expected"), [("clear", CLEAR), ("noisy", NOISY)])
def test_choices_reach_split_loss_network_and_inferer(files, tmp_path, name, expected):
    one = job(tmp_path, files[name], "sqlite:///none.db")
    one.initialize()
    assert parts(one) == expected
    assert set(one.parser.get_parsed_content("settings").why) == set(BY_DATA)


def test_values_that_are_given_stay_and_no_file_is_read():
    given = choose_settings("missing.h5", None, 0.7, True, 2.0, "none", 3.0)
    assert given == Settings(0.7, True, 2.0, "none", 3.0)


def test_one_knob_can_be_auto_and_the_others_not(files, tmp_path):
    one = job(tmp_path, files["clear"], "sqlite:///none.db", split_ratio=0.6, weighting="none", eval_split_input=True)
    one.initialize()
    assert parts(one) == Settings(0.6, True, 0.1, "none", 100.0)


def test_noisy_measurements_after_a_warm_start_give_images_from_all_of_them(files, tmp_path):
    one = job(tmp_path, files["noisy"], "sqlite:///none.db", warm_images=8)
    one.initialize()
    assert values(one.parser.get_parsed_content("settings")) == replace(NOISY, eval_split_input=False)
    no_average = choose_settings(str(files["noisy"]), one.parser.get_parsed_content("physics"), *ALL.values(), warm_images=8)
    assert values(no_average) == NOISY  # a single pass has more noise than the average over splits


def test_methods_without_an_average_over_the_group_keep_the_average_over_splits(files, tmp_path):
    for method in ("es_neq", "splitting"):
        one = job(tmp_path, files["noisy"], "sqlite:///none.db", warm_images=8, method=method)
        one.initialize()
        assert values(one.parser.get_parsed_content("settings")) == NOISY


def test_methods_that_learn_nothing_do_not_resume(files, tmp_path):
    one = job(tmp_path, files["clear"], "sqlite:///none.db", method="tv", resume=True)
    one.initialize()
    assert values(one.parser.get_parsed_content("settings")) == CLEAR


def test_run_shows_the_values_that_were_chosen_and_why(trained, client):
    (run,) = runs(client, trained.name)
    chosen = {
        "split_ratio": "0.9",
        "eval_split_input": "False",
        "weighting": "frequency",
        "step": "100.0",
        "consistency_weight": "0.1",
    }
    tags = with_hidden(run.data.tags)
    assert logged_knobs(run.data.params, tags).items() >= chosen.items()
    assert all("dB" in tags[f"auto.{name}"] for name in BY_DATA)


def test_choices_are_printed(files, tmp_path, caplog):
    one = job(tmp_path, files["noisy"], "sqlite:///none.db")
    one.initialize()
    with caplog.at_level(logging.INFO):
        one.parser.get_parsed_content("settings")
    assert "split_ratio: 0.8, chosen by the measurements (signal / noise" in caplog.text


def test_all_weights_keep_them(trained):
    for name in (BEST, LAST):
        kept = read_knobs_of(trained / "models" / name)
        assert Settings(**{knob: kept[knob] for knob in BY_DATA}) == CLEAR


@pytest.mark.parametrize("overlay", ["evaluate.yaml", "calibrate.yaml"])
def test_what_uses_weights_takes_theirs_whatever_its_data(trained, files, overlay):
    one = job(trained, files["noisy"], "sqlite:///none.db", overlay)
    one.initialize()
    assert values(one.parser.get_parsed_content("settings")) == CLEAR


def test_inference_takes_those_of_the_weights(trained, files, tmp_path):
    knobs = {"sigma": None, "output_dir": str(tmp_path)}
    one = workflow(["inference.json"], trained, files["noisy"], "", **knobs)
    one.initialize()
    inferer = one.parser.get_parsed_content("inferer")
    assert (inferer.split.split_ratio, inferer.eval_split_input) == (0.9, False)
    one.parser.get_parsed_content("weights")  # a difference would be a warning, and so an error
    given = workflow(["inference.json"], trained, files["noisy"], "", **knobs, split_ratio="0.7", eval_split_input="true")
    given.initialize()
    inferer = given.parser.get_parsed_content("inferer")
    assert (inferer.split.split_ratio, inferer.eval_split_input) == (0.7, True)


def test_resumed_training_keeps_what_it_began_with(trained, files):
    one = job(trained, files["noisy"], "sqlite:///none.db", resume=True)
    one.initialize()
    assert values(one.parser.get_parsed_content("settings")) == CLEAR


def test_weights_from_before_say_less(trained, files, tmp_path):
    state = torch.load(trained / "models" / BEST)
    (tmp_path / "models").mkdir()
    torch.save({name: value for name, value in state.items() if name != "configuration"}, tmp_path / "models" / BEST)
    say = {"consistency_weight": 1.0, "weighting": "none", "step": 1.0}
    one = job(tmp_path, files["noisy"], "sqlite:///none.db", "evaluate.yaml", **say)
    one.initialize()
    assert values(one.parser.get_parsed_content("settings")) == Settings(0.9, False)
    with pytest.raises(RuntimeError) as caught:
        job(tmp_path, files["noisy"], "sqlite:///none.db", "evaluate.yaml").initialize()
    assert "does not say its consistency_weight and step and weighting: give a value in place of auto" in causes(caught.value)


def test_no_weights_is_said(files, tmp_path):
    with pytest.raises(RuntimeError) as caught:
        workflow(["inference.json"], tmp_path, files["clear"], "").initialize()
    assert "no checkpoint at" in causes(caught.value)
    assert "train first" in causes(caught.value)


def test_auto_is_refused_elsewhere(files, tmp_path):
    one = job(tmp_path, files["clear"], "sqlite:///none.db", lr=AUTO)
    with pytest.raises(RuntimeError) as caught:
        one.initialize()
    assert "lr must be a number like 0.0005, got 'auto'" in causes(caught.value)
