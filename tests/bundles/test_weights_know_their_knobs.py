"""What uses trained weights takes their knobs from them: nothing is typed twice, and another network is refused by name."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from processes import reconstruct
from raw import HEADER, kspace_of, phantom
from tiny import KNOBS, causes, workflow
from typer.testing import CliRunner

from es_medical.data import file_digest
from es_medical.engine.settings import knobs_to_keep, read_knobs_of, taken_knobs
from es_medical.engine.weights.state_file import BEST, LAST
from es_medical.reconstruct import app

CASE = "fastmri_synthetic"
NOTHING = tuple(KNOBS)  # of the training's knobs is given again


@pytest.fixture
def start(trained, data_file, workflow_uri, tmp_path):
    """Initialises what uses the weights without their knobs, and returns its configuration."""

    def initialised(*files, **knobs):
        places = {"output_dir": str(tmp_path / "eval")}
        one = workflow(list(files), trained(CASE), data_file(CASE), workflow_uri, CASE, NOTHING, **(places | knobs))
        one.initialize()
        return one.parser

    return initialised


def test_resuming_and_calibrating_take_them_and_what_is_given_stays(start):
    resumed = start("train.yaml", resume=True, epochs=3, batch_size=3)
    assert [resumed[name] for name in ("widths", "lr", "lr_milestones")] == [[4, 8], 0.01, [1, 3]]
    assert [resumed[name] for name in ("epochs", "batch_size")] == [3, 3]
    assert start("train.yaml", "calibrate.yaml")["iterations"] == 1


def test_what_may_differ_is_given_as_before(start):
    parser = start("inference.json", n_samples=5, batch_size=1, sigma=0.02)
    assert [parser[name] for name in ("n_samples", "batch_size", "sigma", "widths")] == [5, 1, 0.02, [4, 8]]
    assert parser.get_parsed_content("assumed_sigma") == 0.02  # it follows sigma, as in the training


def test_overlay_that_is_repeated_does_not_change_the_network(start):
    parser = start("train.yaml", "demo.yaml", "evaluate.yaml")
    assert [parser[name] for name in ("widths", "iterations", "start")] == [[4, 8], 1, "initial"]
    assert parser["lr"] == 0.003  # an overlay is given


@pytest.mark.parametrize(
    ("files", "knobs", "message"),
    [
        (("inference.json",), {"widths": [8, 16]}, "widths: [4, 8] in training, [8, 16] is given"),
        (("train.yaml", "evaluate.yaml"), {"iterations": 2}, "iterations: 1 in training, 2 is given"),
        (("train.yaml",), {"resume": True, "method": "supervised"}, "method: es in training, supervised is given"),
        (("inference.json",), {"group": {"_target_": "es_medical.groups.Flips"}}, "group: es_medical.groups.D4 in training"),
    ],
)
def test_another_network_is_refused_by_name(start, files, knobs, message):
    with pytest.raises(RuntimeError) as caught:
        start(*files, **knobs)
    assert message in causes(caught.value)
    assert "leave it out, the weights know their own" in causes(caught.value)


def test_value_on_the_command_line_is_refused_even_if_it_is_the_default(start, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/x/monai/bundle/__main__.py", "run", "--widths", "[64,128,256,512]"])
    with pytest.raises(RuntimeError) as caught:
        start("inference.json")
    assert "widths: [4, 8] in training, [64, 128, 256, 512] is given" in causes(caught.value)


def test_weights_of_before_load_with_their_knobs_given(trained, data_file, tmp_path):
    (tmp_path / "models").mkdir()
    state = torch.load(trained(CASE) / "models" / BEST)
    torch.save({name: value for name, value in state.items() if name != "configuration"}, tmp_path / "models" / BEST)
    images, _ = reconstruct(CASE, tmp_path, data_file(CASE))
    assert images.std() > 0


# --- what is kept


def test_weights_name_no_place_of_the_machine(trained):
    for name in (BEST, LAST):
        kept = read_knobs_of(trained(CASE) / "models" / name)
        assert kept["tags"]["bundle"] == CASE
        assert "/" not in json.dumps({key: value for key, value in kept.items() if not isinstance(value, dict)})
        assert str(trained(CASE)) not in json.dumps(kept)


@pytest.mark.parametrize(
    ("path", "kept"), [("demo.h5", True), ("data/demo.h5", True), ("/home/me/demo.h5", False), ("../demo.h5", False)]
)
def test_data_file_is_kept_if_it_is_relative(path, kept):
    assert ("data_file" in knobs_to_keep({"data_file": path}, {"data_file": path}, {}, {})) is kept


# --- a file of weights is no place for code


def taken(kept, **given):
    default = {
        "seed": 0,
        "network_def": {"_target_": "es_medical.networks.unet", "size": "$@physics.image_size"},
        "group": None,
    }
    return taken_knobs(default | given, [default], set(), kept, "reconstructor.pt")


@pytest.mark.parametrize(
    "kept",
    [
        {"seed": "$__import__('os').getpid()"},
        {"seed": ["$1"]},
        {"network_def": {"_target_": "os.getpid"}},
        {"network_def": {"_target_": "es_medical.networks.modl.torch.hub.load"}},
        {"network_def": {"_target_": "torch.nn.Linear", "in_features": "$open('x', 'w')"}},
        {"network_def": {"_target_": "torch.nn.Sequential", "args": [{"_target_": "builtins.exec"}]}},
        {"group": {"_target_": "es_medical.groups.Flips", "_mode_": "debug"}},
    ],
)
def test_code_in_weights_is_refused(kept):
    with pytest.raises(ValueError, match="which is not built from a file of weights"):
        taken(kept)


@pytest.mark.parametrize(
    "kept",
    [
        {"network_def": {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "size": "$@physics.image_size"}},
        {"network_def": {"_target_": "UNet", "channels": [4, "@seed"]}},
        {"group": {"_target_": "es_medical.groups.Flips"}},
    ],
)
def test_known_networks_and_groups_are_taken(kept):
    assert taken(kept) == kept


# --- the model card


def test_model_card_says_what_the_weights_are(trained, data_file):
    card = (trained(CASE) / "models" / "README.md").read_text()
    assert card.startswith("# ES, MRI, slices.h5\n")
    for words in (
        file_digest(data_file(CASE)),
        "4 train, 2 val, 3 test slices of 16 x 16",
        "8 of 16 measured, acceleration 2.0",
        "not used in training, not used in the choice of weights",
        "widths [4, 8], zero_residual False, iterations 1",
        "| es ",
        "held-out error",
        "licence of the data | not stated in the data file",
        "python -m es_medical.reconstruct FOLDER INPUT OUT",
        "not for clinical use",
    ):
        assert words in card, words


# --- python -m es_medical.reconstruct


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A folder with two volumes in fastMRI's layout, a broken one between them, and a text."""
    folder = tmp_path_factory.mktemp("scans")
    for seed, name in enumerate(("Mueller_Anna.h5", "b.h5")):
        x = phantom((2, 32, 32), seed)
        with h5py.File(folder / name, "w") as file:
            file["kspace"], file["reconstruction_esc"] = kspace_of(x), np.abs(x[:, 8:24, 8:24]).astype(np.float32)
            file["ismrmrd_header"] = HEADER.format(width=32, maximum=31, center=16)
    (folder / "broken.h5").write_bytes(b"no HDF5")
    (folder / "notes.txt").write_text("two heads")
    return folder


@pytest.fixture
def command(trained):
    """Runs the command with the weights; returns exit code and what it printed, without the breaks of lines."""

    def run(*arguments, weights=None):
        done = CliRunner().invoke(app, [str(weights or trained(CASE) / "models"), *map(str, arguments)])
        return done.exit_code, done.output

    return run


def test_one_command_reconstructs_a_slice_file_as_inference_does(command, trained, data_file, tmp_path):
    moved = shutil.copytree(trained(CASE) / "models", tmp_path / "mine")  # far from their bundle
    code, printed = command(data_file(CASE), tmp_path / "out", "--data_split", "test", weights=moved / BEST)
    assert code == 0, printed
    assert "reconstructed 1 of 1" in printed
    assert "reconstructions.h5" in printed
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        images = torch.from_numpy(file["reconstruction"][()])
    expected, _ = reconstruct(CASE, trained(CASE), data_file(CASE), data_split="test", output_dir=str(tmp_path / "eval"))
    assert torch.equal(images, expected)


def test_folder_around_the_weights_is_enough_and_slices_are_counted_scored_and_shown(command, trained, data_file, tmp_path):
    code, printed = command(data_file(CASE), tmp_path / "out", "--n_samples=1", weights=trained(CASE))
    assert code == 0, printed
    assert "slices.h5: 9 slices to reconstruct (4 train, 2 val, 3 test; --data_split test for one part)" in printed
    assert "PSNR (dB)" in printed
    assert (tmp_path / "out" / "pictures.png").read_bytes().startswith(b"\x89PNG")


def test_folder_of_scans_goes_on_past_a_broken_one(command, scans, tmp_path):
    code, printed = command(scans, tmp_path / "out", "--n_samples=1")
    assert code == 1, printed
    assert "reconstructed 2 of 3" in printed
    assert "error: broken.h5: " in printed
    written = sorted(path.name for path in (tmp_path / "out").glob("*_reconstruction.nii.gz"))
    assert len(written) == 2
    lines = {line.split("│")[1].strip(): line for line in printed.splitlines() if line.count("│") == 3}
    assert lines.keys() >= {"Mueller_Anna.h5", "b.h5", "broken.h5"}
    assert sorted(name for name in written if any(name[:16] in lines[scan] for scan in ("Mueller_Anna.h5", "b.h5"))) == written
    assert not any(b"Mueller" in path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())


def test_folder_of_slice_files_goes_on_past_a_broken_one(command, data_file, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a.h5", "c.h5"):
        shutil.copy(data_file(CASE), tmp_path / "in" / name)
    with h5py.File(tmp_path / "in" / "a.h5", "a") as file:
        del file["checksum"]  # changed on purpose
        file["measurement"][0] = np.nan
    (tmp_path / "in" / "cut.h5").write_bytes(data_file(CASE).read_bytes()[:20000])
    code, printed = command(tmp_path / "in", tmp_path / "out", "--data_split=train", "--n_samples=1")
    assert code == 1, printed
    assert "reconstructed 1 of 3" in printed
    assert "hold NaN or infinite values" in printed
    assert "error: cut.h5: " in printed
    assert (tmp_path / "out" / "c" / "reconstructions.h5").is_file()


@pytest.mark.parametrize(
    ("weights", "message"), [("absent", "no checkpoint at"), ("models/model.pt", "is not the file to reconstruct with")]
)
def test_weights_that_are_none_are_said_in_one_line(command, trained, tmp_path, weights, message):
    code, printed = command(tmp_path, tmp_path / "out", weights=trained(CASE) / weights)
    assert code == 1
    assert printed.startswith("error: ")
    assert message in printed
    assert len(printed.splitlines()) == 1
