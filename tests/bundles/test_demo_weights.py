"""The weights that come with two bundles: small, plain data, and good for the operator of their demo."""

import re
from pathlib import Path

import pytest
import torch
from tiny import BUNDLES
from typer.testing import CliRunner

from data_prep.demo import chest
from data_prep.demo.cli import demo_ct, demo_mri
from data_prep.demo.options import BrainOptions, ChestOptions
from es_medical.reconstruct import app

GAIN = {"fastmri_synthetic": 10.0, "lidc_ct": 5.0}
"""PSNR above zero-filling and filtered back-projection, dB."""

each = pytest.mark.parametrize("bundle", GAIN)


def weights(bundle: str) -> Path:
    return BUNDLES / bundle / "models" / "demo"


@pytest.fixture
def data_file(bundle, tmp_path, monkeypatch):
    """A few test slices as the demo makes them."""
    monkeypatch.setattr(chest, "PATIENTS", 4)
    monkeypatch.setattr(chest, "SLICES", 1)
    path = tmp_path / "demo.h5"
    if bundle == "lidc_ct":
        assert demo_ct(path, ChestOptions(source="phantom"))
    else:
        assert demo_mri(path, BrainOptions(val=1, test=2))
    return path


@each
def test_reconstruction_is_far_above_the_linear_one(bundle, data_file, tmp_path):
    command = [str(weights(bundle)), str(data_file), str(tmp_path / "out"), "--data_split", "test", "--n_samples", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    first, ours = (float(found) for found in re.findall(r"│ *2 *│ ([\d.]+) ±", done.output))
    assert ours > first + GAIN[bundle]
    assert (tmp_path / "out" / "pictures.png").stat().st_size > 0


@each
def test_file_is_small_and_holds_no_code(bundle):
    assert {path.name for path in weights(bundle).iterdir()} == {"reconstructor.pt", "README.md"}
    assert sum(path.stat().st_size for path in weights(bundle).iterdir()) < 1e6
    state = torch.load(weights(bundle) / "reconstructor.pt", weights_only=True)
    assert state["configuration"]["tags"]["bundle"] == bundle


@each
def test_card_states_the_licence_and_how_they_are_made_anew(bundle):
    card = (weights(bundle) / "README.md").read_text()
    assert f"python bundles/template/demo_weights.py {bundle}" in card
    assert "not stated" not in card
    assert "not for clinical use" in card
    assert re.search(r"licence of the data \| .*(McConnell Brain Imaging Centre|phantom)", card)
