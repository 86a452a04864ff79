"""`lidc --photons`: sinograms that are the logarithm of counts, and what a file says of them."""

import math

import numpy as np
import pytest
import torch
from columns import columns
from ct_archives import write_patients

from data_prep import inference
from data_prep.ct import lidc as command
from es_medical.data import SliceDataset, read_header
from es_medical.engine import checkpoint
from es_medical.engine.operators import build_scanner, read_transmission
from es_medical.physics.transmission import COUNTED

SMALL = ("--size", 16, "--views", 5, "--slices", "all")


@pytest.fixture
def lidc(tmp_path, prep):
    """Runs the command on `tmp_path / "in"`; returns the result and the path of the file."""

    def run(*options, out="out.h5", code=0):
        return prep("lidc", tmp_path / "in", tmp_path / out, *SMALL, *options, code=code), str(tmp_path / out)

    return run


def tensors(path, *names):
    found = columns(path)
    return [torch.from_numpy(found[name]) for name in names]


def test_noise_of_the_stored_sinograms_is_that_of_theory(tmp_path, lidc):
    """Counts have the mean I0 exp(-c A x) and its variance; sigma is the root mean square of the noise of the logarithm."""
    write_patients(tmp_path / "in", 12, 4)
    _, path = lidc("--photons", "5e4")
    y, x, sigma = tensors(path, "measurement", "image", "sigma")
    scan, physics = read_transmission(path, 5e4), build_scanner(path, 5, None, photons=5e4)
    clean = physics.A(x)
    counts, mean = scan.counts(y), 5e4 * scan.transmitted(clean)
    assert torch.equal(scan.post_log(counts), y)  # whole photons
    scores = ((counts - mean) / mean.sqrt()).flatten()
    assert abs(float(scores.mean())) < 4 / len(scores) ** 0.5
    assert abs(float(scores.square().mean()) - 1) < 4 * (2 / len(scores)) ** 0.5
    expected = (1 / (scan.attenuation**2 * mean)).flatten(1).mean(1).sqrt()
    torch.testing.assert_close(sigma.float(), expected, rtol=0.1, atol=0)
    found = (y - clean).square().mean().sqrt()
    assert float(sigma.square().mean().sqrt()) == pytest.approx(float(found), rel=0.15)


def test_header_says_what_gives_counts_back(tmp_path, lidc):
    write_patients(tmp_path / "in", 3, 2)
    result, path = lidc("--photons", "1e4")
    header = read_header(path)
    norm = float(build_scanner(path, 5, None).norm)
    assert header.operator[COUNTED]["photons"] == 1e4
    assert header.operator[COUNTED]["attenuation"] == pytest.approx(2 * 0.0193 * 400 / 16 * norm, rel=1e-6)
    assert math.isnan(header.sigma)
    assert (header.configuration["photons"], header.configuration["sigma"]) == (1e4, 0)
    assert "10000 photons on a ray through air" in result.output
    assert 0 < float(SliceDataset(path)[0]["sigma"]) < 1


def test_each_slice_has_its_own_photons_whatever_the_batch(tmp_path, lidc, monkeypatch):
    write_patients(tmp_path / "in", 4, 3)
    _, path = lidc("--photons", "1e4")
    monkeypatch.setattr(command, "BATCH", 1)
    _, single = lidc("--photons", "1e4", out="single.h5")
    y = tensors(path, "measurement")[0]
    torch.testing.assert_close(y, tensors(single, "measurement")[0], rtol=0, atol=1e-6)
    noise = y.flatten(1) - y.flatten(1).mean(0)
    assert np.abs(np.corrcoef(noise.numpy()) - np.eye(len(y))).max() < 0.6


def test_files_of_gaussian_noise_say_nothing_of_photons(tmp_path, lidc):
    """So that files made before are still up to date."""
    write_patients(tmp_path / "in", 3, 2)
    header = read_header(lidc()[1])
    assert "photons" not in header.configuration
    assert COUNTED not in header.operator
    assert header.sigma == 0.001


def test_inference_counts_as_many_photons_as_the_training_data(tmp_path, lidc, monkeypatch):
    write_patients(tmp_path / "in", 3, 2)
    _, path = lidc("--photons", "1e4")
    monkeypatch.setattr(checkpoint, "read_preparation", lambda folder: checkpoint.preparation(path))
    made = inference.ct_file(str(tmp_path / "in" / "patient0"), str(tmp_path / "eval"), "")
    assert read_header(made).operator == read_header(path).operator
    assert math.isnan(read_header(made).sigma)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--photons", "1e4", "--sigma", "0.01"), "--photons 10000 is the noise: leave out --sigma 0.01"),
        (("--photons", "1e9"), "photons must lie between 1 and 1e+07, got 1e+09"),
        (("--photons", "0"), "--photons"),
    ],
)
def test_impossible_options_are_refused(tmp_path, lidc, options, message):
    write_patients(tmp_path / "in", 2, 1)
    assert message in lidc(*options, code=2 if message == "--photons" else 1)[0].stderr


def test_scanner_of_other_photons_or_of_none_is_refused(tmp_path, lidc):
    write_patients(tmp_path / "in", 3, 2)
    _, path = lidc("--photons", "1e4")
    with pytest.raises(ValueError, match="was made with photons 10000, the configuration asks for photons 20000"):
        build_scanner(path, 5, None, photons=2e4)
    _, gaussian = lidc(out="gaussian.h5")
    with pytest.raises(ValueError, match="holds no photon counts: set photons to null, or make new measurements"):
        build_scanner(gaussian, 5, None, photons=1e4)
    assert build_scanner(path, 5, None).geometry == build_scanner(gaussian, 5, None).geometry
