"""A bundle's configuration is checked before anything is built from it."""

import json
import sys
from pathlib import Path

import pytest
from monai.bundle import ConfigParser
from tiny import CONFIGS, causes, workflow

from es_medical.engine import config
from es_medical.engine.config import as_typed, check_configuration, check_names, check_versions, resolved_configuration


@pytest.fixture
def configure(data_file, tmp_path):
    """Initialises the training configuration with overrides and returns its parser."""

    def make(*files, **overrides):
        one = workflow(["train.yaml", *files], tmp_path, data_file, "sqlite:///none.db", **overrides)
        one.initialize()
        return one.parser

    return make


@pytest.mark.parametrize(
    ("wrong", "right"), [("metod", "method"), ("lerning_rate", "valid names"), ("sgma", "sigma"), ("epoch", "epochs")]
)
def test_misspelt_override_is_refused_with_the_nearest_name(configure, wrong, right):
    with pytest.raises(RuntimeError) as caught:
        configure(**{wrong: 1})
    assert f"unknown configuration name '{wrong}'" in causes(caught.value)
    assert right in causes(caught.value)


def test_an_earlier_name_of_a_method_becomes_todays(configure):
    assert configure(method="ei_lot").get_parsed_content("run_name").startswith("EI, alternating terms,")


def test_misspelt_name_in_an_overlay_file_is_refused(configure, tmp_path):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("batchsize: 8\n")
    with pytest.raises(RuntimeError) as caught:
        configure(overlay)
    assert "did you mean 'batch_size'?" in causes(caught.value)


@pytest.mark.parametrize("name", ["trian#trainer#max_epochs", "train#trainr#max_epochs"])
def test_misspelt_nested_section_is_an_error(configure, name):
    with pytest.raises(KeyError, match="tr"):
        configure(**{name: 1})


def test_misspelt_nested_argument_is_an_error(configure):
    parser = configure(**{"train#trainer#max_epoch": 1})
    with pytest.raises(RuntimeError) as caught:
        parser.get_parsed_content("train#trainer")
    assert "unexpected keyword argument 'max_epoch'" in causes(caught.value)


def test_nested_override_is_used(configure):
    parser = configure(**{"train#trainer#max_epochs": 7})
    assert parser.get_parsed_content("train#trainer").state.max_epochs == 7


def test_names_that_only_the_users_own_files_refer_to_are_accepted(configure, tmp_path):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(
        "my_widths: [2, 4]\nwidths: '@my_widths'\nmy_net: {depth: 1}\nnote: {of: '@my_net#depth'}\ntags: '@note'\n"
    )
    widths = configure(overlay, widths="@my_widths").get_parsed_content("network_def").Conv1
    assert widths[0].out_channels == 2


@pytest.mark.parametrize("text", ["1e-4", "0.0001", "1E-4"])
def test_number_as_text_is_a_number(configure, text):
    parser = configure(lr=text)
    assert parser.get_parsed_content("optimizer").param_groups[0]["lr"] == 1e-4
    assert parser.get_parsed_content("lr") == 1e-4


def test_yaml_text_number_of_an_overlay_is_a_number(configure, tmp_path):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("weight_decay: 1e-3\nval_interval: '5'\n")
    parser = configure(overlay, val_interval="5")
    assert parser.get_parsed_content("optimizer").param_groups[0]["weight_decay"] == 1e-3
    assert parser.get_parsed_content("val_interval") == 5
    assert isinstance(parser.get_parsed_content("val_interval"), int)


@pytest.mark.parametrize("text", ["1e-4x", "1e-41e-4", "fast"])
def test_text_where_a_number_belongs_is_refused(configure, text):
    with pytest.raises(RuntimeError) as caught:
        configure(lr=text)
    assert f"lr must be a number like 0.0005, got {text!r}" in causes(caught.value)


@pytest.mark.parametrize(("text", "value"), [("false", False), ("False", False), ("true", True)])
def test_truth_value_as_text_is_a_truth_value(configure, text, value):
    parser = configure(acs_in_input=text, amp=text, whole_group=text)
    assert parser.get_parsed_content("split").n_center == (4 if value else 1)
    assert parser.get_parsed_content("amp") is value
    assert parser.get_parsed_content("inferer").whole_group is value


def test_text_where_a_truth_value_belongs_is_refused(configure):
    with pytest.raises(RuntimeError) as caught:
        configure(resume="nope")
    assert "resume must be true or false, got 'nope'" in causes(caught.value)


# --- null, and jobs that do not exist


def typed(monkeypatch, *arguments):
    """As if a user had typed the arguments after `python -m monai.bundle`."""
    monkeypatch.setattr(sys, "argv", ["/site-packages/monai/bundle/__main__.py", "run", *arguments])


@pytest.mark.parametrize("arguments", [("--ema", "None"), ("--ema=null",)])
def test_null_on_the_command_line_is_null_though_monai_leaves_it_out(configure, monkeypatch, arguments):
    typed(monkeypatch, *arguments, "--lr", "0.1")
    assert configure("fast.yaml").get_parsed_content("average") is None


def test_overlay_sets_what_no_null_turns_off(configure, monkeypatch):
    typed(monkeypatch, "--lr", "None0")
    assert configure("fast.yaml").get_parsed_content("average") is not None


@pytest.mark.parametrize("text", ["null", None])
def test_null_as_text_or_in_an_overlay_is_null(configure, tmp_path, text):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(f"amp: {text}\nema: {'null' if text is None else repr(text)}\n")
    parser = configure("fast.yaml", overlay, clip=text, sigma=text, cache_device=text)
    assert [parser.get_parsed_content(name) for name in ("amp", "ema", "clip", "sigma", "cache_device")] == [None] * 5
    assert parser.get_parsed_content("average") is None


def test_null_of_a_part_of_a_section_is_null(configure, monkeypatch):
    typed(monkeypatch, "--train#trainer#clip", "None")
    assert configure().get_parsed_content("train#trainer").clip is None


@pytest.mark.parametrize("name", ["epochs", "resume"])
def test_null_where_a_value_is_needed_is_refused(configure, monkeypatch, name):
    typed(monkeypatch, f"--{name}", "None")
    with pytest.raises(RuntimeError) as caught:
        configure()
    assert f"{name} can't be null: expected a value like" in causes(caught.value)


def test_none_stays_the_name_of_a_weighting(configure, monkeypatch):
    typed(monkeypatch, "--weighting", "none")
    assert configure("demo.yaml", acceleration=2, weighting="none").get_parsed_content("weighting") == "none"


def test_a_section_is_no_job(data_file, tmp_path):
    """`run train`, as in older tutorials, would build the section and end without a word."""
    one = workflow(["train.yaml"], tmp_path, data_file, "sqlite:///none.db", run_id="train")
    with pytest.raises(RuntimeError) as caught:
        one.initialize()
    assert "'train' is a part of the configuration and no job: leave out the word" in causes(caught.value)


def test_references_stay_references_and_a_reference_to_a_number_is_a_number():
    assert as_typed({"sigma": "@other", "lr": "$1 + 1", "method": "es"}, {"sigma": 0.1, "lr": 1.0, "method": "es"}) == {}
    assert as_typed({"assumed_sigma": "5e-3"}, {"assumed_sigma": "@sigma", "sigma": 0.1}) == {"assumed_sigma": 0.005}


def test_names_message_is_the_same_every_time():
    with pytest.raises(ValueError, match="'a_wrong'"):
        check_names({"z_wrong": 1, "b_wrong": 1, "a_wrong": 1}, {"method": 1})


def test_newer_metadata_warns_with_package_versions_and_command(configure, data_file, tmp_path):
    content = json.loads((CONFIGS / "metadata.json").read_text()) | {"monai_version": "99.0.0"}
    content["required_packages_version"] = {"no_such_package": "1.2"}
    newer = tmp_path / "metadata.json"
    newer.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="this bundle was made with") as caught:
        configure(meta_file=str(newer))
    messages = [str(one.message) for one in caught]
    assert any("made with monai 99.0.0" in text and "pip install 'monai>=99.0.0'" in text for text in messages)
    assert any("no_such_package 1.2, none is installed" in text for text in messages)
    assert len(messages) == 2  # torch and numpy are new enough


def test_shipped_metadata_asks_for_nothing_newer_than_is_installed():
    check_versions(json.loads((CONFIGS / "metadata.json").read_text()))  # a warning is an error here


def test_local_versions_count_as_their_release(monkeypatch):
    monkeypatch.setattr("es_medical.engine.config.version", lambda package: "2.8.0+cu128")
    check_versions({"pytorch_version": "2.8.0"})
    with pytest.warns(UserWarning, match=r"torch 2.8.1, 2.8.0\+cu128 is installed"):
        check_versions({"pytorch_version": "2.8.1"})


def test_resolved_configuration_has_overrides_also_paths_and_evaluated_values(data_file, tmp_path):
    import yaml

    overrides = {
        "method": "supervised",
        "lr": "1e-4",
        "widths": (4, 8),
        "train#trainer#clip": 2.0,
        "data_file": Path(data_file),
    }
    one = workflow(["train.yaml"], tmp_path, data_file, "sqlite:///none.db", run=["$@recorded"], **overrides)
    one.parser["recorded"] = {"_target_": f"{__name__}.record"}
    sys.modules[__name__].seen = None
    one.initialize()
    one.run()
    seen = sys.modules[__name__].seen
    assert (seen["method"], seen["lr"], seen["assumed_sigma"]) == ("supervised", 1e-4, 0.01)
    assert seen["dataset_dir"] == "./data"
    assert seen["train"]["trainer"]["clip"] == 2.0
    assert "_meta_" not in seen
    read = yaml.safe_load(yaml.safe_dump(seen))
    assert (read["widths"], read["data_file"]) == ([4, 8], str(data_file))


def record():
    sys.modules[__name__].seen = resolved_configuration()
    return 0


def test_outside_a_bundle_it_says_so():
    with pytest.raises(RuntimeError, match="no MONAI bundle workflow is running"):
        check_configuration()


def test_an_error_is_one_line_and_its_traceback_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    config.say_cause_alone(ConfigParser({"root": str(tmp_path), "output_dir": "$@root + '/eval'"}))
    wrapped = RuntimeError("Failed to instantiate component")
    wrapped.__cause__ = ValueError("unknown configuration name 'metod': did you mean 'method'?")
    sys.excepthook(RuntimeError, wrapped, None)
    log = tmp_path / "eval" / "error.log"
    said = capsys.readouterr().err.splitlines()
    assert said == ["error: unknown configuration name 'metod': did you mean 'method'?", f"(traceback: {log})"]
    assert "Failed to instantiate component" in log.read_text()


def test_where_no_log_can_be_written_the_traceback_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    config.say_cause_alone(ConfigParser({"output_dir": "/dev/null"}))
    sys.excepthook(KeyError, KeyError("name"), None)
    assert capsys.readouterr().err.splitlines() == ["error: KeyError: 'name'", "KeyError: 'name'"]


def test_interruption_is_no_error_and_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    config.say_cause_alone(ConfigParser({"output_dir": str(tmp_path)}))
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "interrupted (--resume True goes on after the last finished epoch of a training)\n"
    assert not list(tmp_path.iterdir())
