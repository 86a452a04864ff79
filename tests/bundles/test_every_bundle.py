"""What holds for every folder in bundles/: its files and metadata, its configuration, and MONAI's commands on them."""

import importlib.util
import json
import re
import runpy
import shutil
import tomllib
from pathlib import Path

import pytest
from monai.bundle import verify_metadata, verify_net_in_out
from packaging.requirements import Requirement
from packaging.version import Version
from tiny import BUNDLE_NAMES, BUNDLES, load, workflow

from es_medical.knobs import AUTO, BY_DATA

SCHEMA = Path(__file__).with_name("metadata_schema.json")
PLACES = ("/home", "/root", "/work", "/mnt", "/data/u", "C:\\")
INFERENCE_ONLY = {"data_split", "mask_seed", "input_file", "failures", "weights", "dataset", "dataloader", "handlers"}
INFERENCE_ONLY |= {"evaluator", "dicom", "source_dicom", "intervals", "calibrate_by", "n_bootstrap", "flag"}
INFERENCE_ONLY |= {"interval_inferer", "burned_in"}
CHECKED = {"acceleration", "center_fraction", "views", "mask", "keep", "ratio", "sigma", "photons"}  # against the data file
WRITE = BUNDLES / "template" / "write.py"
WRITTEN = runpy.run_path(str(WRITE))["written"]()
unhashed = pytest.mark.filterwarnings("ignore:No hash value provided:UserWarning")  # our own file, not downloaded


def configs(bundle):
    return BUNDLES / bundle / "configs"


def overlays(bundle):
    return sorted(path.name for path in configs(bundle).glob("*.yaml") if path.name != "train.yaml")


PAIRS = [(bundle, one) for bundle in BUNDLE_NAMES for one in overlays(bundle)]
each_bundle = pytest.mark.parametrize("bundle", BUNDLE_NAMES)
each_overlay = pytest.mark.parametrize(("bundle", "overlay"), PAIRS)


# --- files and metadata


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(BUNDLES.parent).as_posix())
def test_committed_file_is_what_the_template_gives(path):
    assert path.read_text() == WRITTEN[path], f"{path} differs from its template: run python bundles/template/write.py"


def test_template_writes_every_bundle():
    assert {path.parts[len(BUNDLES.parts)] for path in WRITTEN if path.is_relative_to(BUNDLES)} == set(BUNDLE_NAMES)
    assert len(WRITTEN) == 8 * len(BUNDLE_NAMES) + 1  # seven configurations and the licence; docs/knobs.md


@each_bundle
def test_every_knob_says_what_it_is(bundle):
    """The table of knobs, docs/knobs.md, has those with a comment."""
    knobs = (configs(bundle) / "train.yaml").read_text().split("\nrun_name:")[0].splitlines()
    assert [line for line in knobs if line and not line.startswith("#") and "  # " not in line] == []


@each_bundle
@pytest.mark.parametrize("name", ["docs/README.md", "docs/data_license.txt", "configs/demo.yaml"])
def test_file_is_there(bundle, name):
    assert (BUNDLES / bundle / name).stat().st_size > 0


@each_bundle
def test_no_file_names_an_absolute_path(bundle):
    """In what is ours: a training in this folder leaves weights beside it."""
    ours = [path for folder in ("configs", "docs") for path in (BUNDLES / bundle / folder).iterdir()]
    assert len(ours) > 8
    for path in ours:
        assert not any(word in path.read_text() for word in PLACES), path


@each_bundle
def test_readme_and_training_name_every_overlay(bundle):
    root, known = BUNDLES / bundle, {name.removesuffix(".yaml") for name in overlays(bundle)}
    readme = (root / "docs" / "README.md").read_text()
    assert {name for name in known if name not in readme} == set()
    listed = re.search(r"^# Overlays: (.*)\.$", (root / "configs" / "train.yaml").read_text(), re.MULTILINE)
    assert set(listed.group(1).split(", ")) == known


@each_bundle
def test_bundle_says_its_own_name(bundle):
    training, metadata = load(bundle, "train.yaml"), load(bundle, "metadata.json")
    assert (training["experiment"], training["tags"]["bundle"]) == (bundle, bundle)
    assert all(load(bundle, name).get("experiment", bundle).startswith(bundle) for name in overlays(bundle))
    assert (BUNDLES / bundle / "docs" / "README.md").read_text().startswith(f"# {metadata['name']}\n")
    assert [load(other, "metadata.json")["name"] for other in BUNDLE_NAMES].count(metadata["name"]) == 1


@each_bundle
def test_changelog_holds_the_version(bundle):
    metadata = load(bundle, "metadata.json")
    assert metadata["version"] in metadata["changelog"]


@unhashed
@each_bundle
def test_metadata_is_valid(bundle, tmp_path):
    schema = shutil.copy(SCHEMA, tmp_path / "schema.json")
    verify_metadata(meta_file=str(configs(bundle) / "metadata.json"), filepath=schema)  # a file that is there: no download


@unhashed
def test_metadata_that_lacks_something_is_refused(tmp_path):
    """The schema is applied: a copy of it, so that nothing is downloaded."""
    broken = tmp_path / "metadata.json"
    broken.write_text(json.dumps({key: value for key, value in load("lidc_ct", "metadata.json").items() if key != "version"}))
    with pytest.raises(ValueError, match="Failed validating"):
        verify_metadata(meta_file=str(broken), filepath=shutil.copy(SCHEMA, tmp_path / "schema.json"))


@each_bundle
def test_required_packages_are_dependencies_or_extras_of_ours(bundle):
    """In the version that pyproject.toml asks for at least."""
    project = tomllib.loads((BUNDLES.parent / "pyproject.toml").read_text())["project"]
    ours = [Requirement(one) for one in sum(project["optional-dependencies"].values(), project["dependencies"])]
    metadata = load(bundle, "metadata.json")
    numbers = {"monai": "monai_version", "torch": "pytorch_version", "numpy": "numpy_version"}
    wanted = metadata["required_packages_version"] | {name: metadata[key] for name, key in numbers.items()}
    for package, version in wanted.items():
        lowest = [spec.version for one in ours if one.name == package for spec in one.specifier if spec.operator == ">="]
        assert [Version(one) for one in lowest] == [Version(version)], package


@each_bundle
def test_network_takes_and_gives_what_the_metadata_says(bundle):
    """That of the training is the same (`test_inference_has_the_knobs_of_the_training`)."""
    files = {"meta_file": str(configs(bundle) / "metadata.json"), "config_file": str(configs(bundle) / "inference.json")}
    verify_net_in_out("network_def", **files, device="cpu", any=32)
    verify_net_in_out("network_def", **files, device="cpu", n=4)


# --- configuration files


@each_bundle
def test_yaml_is_short(bundle):
    for name in ("train.yaml", *overlays(bundle)):
        text = (configs(bundle) / name).read_text()
        assert len(text.splitlines()) <= 125
        assert text.count("$") <= 13


@each_overlay
def test_overlay_sets_only_names_that_the_training_has(bundle, overlay):
    assert set(load(bundle, overlay)) <= set(load(bundle, "train.yaml"))


@each_overlay
def test_overlay_changes_something_and_keeps_the_kind_of_each_number(bundle, overlay):
    shipped, given = load(bundle, "train.yaml"), load(bundle, overlay)
    assert any(shipped[key] != value for key, value in given.items())
    for key, value in given.items():
        if isinstance(shipped[key], int | float) and value is not None and not (value == AUTO and key in BY_DATA):
            assert type(value) is type(shipped[key]) or isinstance(value, int | float), key


@each_bundle
def test_inference_has_the_knobs_of_the_training(bundle):
    """With the same values; what only checks the data file may be left open, and what weights keep follows from them."""
    training, inference = load(bundle, "train.yaml"), load(bundle, "inference.json")
    assert set(inference) - set(training) <= INFERENCE_ONLY
    common = set(inference) & set(training) - {"num_workers", "initialize", "run", "physics", "reconstructor", "settings"}
    common -= {"knobs_from"}
    assert {inference[name] for name in common & set(BY_DATA)} == {AUTO}
    common -= set(BY_DATA)
    for name in common - {name for name in CHECKED if inference.get(name) is None}:
        assert json.dumps(inference[name]) == json.dumps(training[name]).replace('"@data_file"', '"@input_file"'), name


@pytest.mark.parametrize(
    ("bundle", "files"),
    [(bundle, ["train.yaml", one]) for bundle, one in PAIRS]
    + [(bundle, ["inference.json", "demo.yaml"]) for bundle in BUNDLE_NAMES],
)
def test_overlays_merge_and_everything_is_built(bundle, files, data_file, tmp_path):
    free = ("iterations", "n_samples", "epochs", "lr", "lr_milestones", "val_interval", "key_metric", "batch_size")
    given = {} if "train.yaml" in files else {"split_ratio": 0.8, "eval_split_input": True}  # there are no weights to keep them
    one = workflow(files, tmp_path, data_file(bundle), "sqlite:///none.db", bundle, without=free, **given)
    one.initialize()
    assert one.check_properties() == []
    for name in ("session", "checkpoints") if "train.yaml" in files else ("evaluator", "inferer"):
        one.parser.get_parsed_content(name)


@each_bundle
def test_no_ground_truth_is_used_by_default(bundle):
    assert (load(bundle, "train.yaml")["method"], load(bundle, "demo.yaml")["key_metric"]) == ("es", "heldout")
    assert all("method" not in load(bundle, name) for name in overlays(bundle))


def targets(content):
    """Every `_target_` in a configuration."""
    if isinstance(content, dict):
        own = [content["_target_"]] if "_target_" in content else []
        return own + [name for value in content.values() for name in targets(value)]
    return [name for value in content for name in targets(value)] if isinstance(content, list) else []


@each_bundle
def test_no_target_is_the_name_of_a_module(bundle):
    """From Python 3.12 on, MONAI (pydoc.locate) finds the module in place of a function of the same dotted name."""
    files = ("train.yaml", "inference.json", *overlays(bundle))
    dotted = {name for file in files for name in targets(load(bundle, file)) if "." in name}
    assert len(dotted) > 10
    assert [name for name in sorted(dotted) if is_module(name)] == []


def is_module(name):
    """Whether a dotted name is that of a module; the modules above it are imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of something inside a module
        return False
