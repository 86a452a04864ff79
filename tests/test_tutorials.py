"""The tutorials run as scripts, with fewer epochs than a reader's; they stay short, and use public names alone."""

import ast
import importlib.util
import runpy
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import es_medical

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
LONGEST = {"mri_in_memory": 30, "own_operator": 60}
"""Lines of code without comments and blank lines."""

each = pytest.mark.parametrize("name", TUTORIALS)
quiet = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:parsing config_file:UserWarning"
)  # of other packages


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tutorials")


really_run = subprocess.run


def run_here(command, **options):
    """Run `python -m MODULE ...` in this process, which has imported what it needs."""
    if command[:2] != [sys.executable, "-m"]:
        return really_run(command, **options)
    module, given = command[2], command[3:]
    package = importlib.util.find_spec(module).submodule_search_locations is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, f"{module}.__main__" if package else module, raising=False)  # others have imported it
        patch.setattr(sys, "argv", [module, *given, *(["--logging_file", "False"] if module == "monai.bundle" else [])])
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            if end.code:
                raise
    return None


@pytest.fixture(scope="module")
def found(folder):
    """What each tutorial that trains defines, run once with one epoch."""
    kept = {}

    def run(name):
        if name not in kept:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                patch.setenv("EPOCHS", "1")
                patch.setattr(subprocess, "run", run_here)
                kept[name] = runpy.run_path(str(TUTORIALS[name]), run_name="__main__")
        return kept[name]

    return run


def code_lines(path):
    """Lines that hold code: those of the tokens that are neither comments nor line ends."""
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
    with path.open("rb") as file:
        return len({token.start[0] for token in tokenize.tokenize(file.readline) if token.type not in layout})


@quiet
@each
def test_tutorial_runs_and_its_reconstruction_beats_the_adjoint(name, found, capsys):
    defined = found(name)
    scores = defined.get("scores", {})
    ours = [value for method, value in scores.items() if method in ("ES", "ES, es_medical", "unet (es_medical)")]
    assert bool(scores) == bool(ours)
    assert all(value > min(scores.values()) + 1 for value in ours), scores


@quiet
def test_scanner_to_pacs_ends_in_a_series_of_the_new_scan(found):
    series = found("scanner_to_pacs")["series"]
    assert {image.Modality for image in series} >= {"MR"}
    assert {(image.Rows, image.Columns) for image in series} == {(64, 64)}
    assert len({image.StudyInstanceUID for image in series}) == 1


@pytest.mark.parametrize(("name", "most"), LONGEST.items())
def test_tutorial_is_short(name, most):
    assert code_lines(TUTORIALS[name]) <= most


def test_yaml_of_the_own_operator_is_short():
    lines = (FOLDER / "own_operator.yaml").read_text().splitlines()
    assert len([line for line in lines if line.strip() and not line.startswith("#")]) <= 20


@each
def test_tutorial_uses_public_names_alone(name):
    tree = ast.parse(TUTORIALS[name].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith(("es_medical", "data_prep")), node.module
        if isinstance(node, ast.Import):
            assert all("." not in alias.name for alias in node.names if alias.name.startswith("es_medical"))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "es":
            assert node.attr in es_medical.__all__
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")


def test_every_public_name_exists_and_says_what_it_is():
    for name in es_medical.__all__:
        assert getattr(es_medical, name).__doc__.strip(), name
    assert set(es_medical.__all__) <= set(dir(es_medical))
    with pytest.raises(AttributeError, match="no attribute 'D5'"):
        es_medical.D5  # noqa: B018


def test_index_names_every_tutorial():
    text = (FOLDER / "README.md").read_text()
    assert all(f"]({path.name})" in text for path in TUTORIALS.values())


@quiet
def test_yaml_of_the_own_operator_builds_the_operator_that_measured_the_file(found, folder):
    """Another blur under the same mask is refused."""
    from monai.bundle import ConfigParser

    from es_medical.engine.operators import check_operator

    found("own_operator")
    bundle = FOLDER.parents[1] / "bundles" / "fastmri_synthetic" / "configs" / "train.yaml"
    content = ConfigParser.load_config_files([str(bundle), str(FOLDER / "own_operator.yaml")])
    content["data_file"] = str(folder / "tissue.h5")
    physics = ConfigParser(content).get_parsed_content("physics")
    check_operator(physics, content["data_file"])
    content["physics"]["physics"]["filter"]["sigma"] = [0.8, 0.8]
    with pytest.raises(ValueError, match="another operator under the mask"):
        check_operator(ConfigParser(content).get_parsed_content("physics"), content["data_file"])


@quiet
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, of a scheduler without milestones left
def test_weights_of_the_own_operator_reconstruct_with_its_configuration(found, folder, tmp_path, monkeypatch):
    """Without it they are refused in one line that says what to do."""
    from monai.bundle import ConfigParser, ConfigWorkflow
    from typer.testing import CliRunner

    from es_medical.engine.settings import knobs_to_keep
    from es_medical.reconstruct import app

    found("own_operator")
    configs, own = FOLDER.parents[1] / "bundles" / "fastmri_synthetic" / "configs", FOLDER / "own_operator.yaml"
    monkeypatch.chdir(tmp_path)
    knobs = {"data_file": str(folder / "tissue.h5"), "ckpt_dir": "models", "output_dir": "eval"}
    job = ConfigWorkflow([str(configs / "train.yaml"), str(own)], logging_file=False, workflow_type="train", **knobs)
    job.initialize()
    checkpoints = job.parser.get_parsed_content("checkpoints")  # what a training does before its first epoch
    content = {name: value for name, value in job.parser.get().items() if name != "_meta_"}
    checkpoints.configuration = knobs_to_keep(content, content, ConfigParser.load_config_file(str(configs / "train.yaml")), {})
    checkpoints.save_best(0.0, 1)
    command = ["models", str(folder / "tissue.h5"), "out", "--data_split", "test", "--n_samples", "1", "--dataset#limit", "3"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "an operator of their own (es_medical.MaskedPhysics): add --config_file FILE" in refused.output
    done = CliRunner().invoke(app, [*command, "--config_file", str(own)])
    assert done.exit_code == 0, done.output
    assert "tissue.h5: 3 slices to reconstruct" in done.output
    assert len(list((tmp_path / "out" / "png").glob("*_reconstruction.png"))) == 3
