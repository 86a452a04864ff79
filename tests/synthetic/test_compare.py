"""The comparison with a slice file: statistics and picture."""

import re

import pytest
import torch

from es_medical.synthetic import draw
from es_medical.synthetic.__main__ import main
from es_medical.synthetic.compare import compare
from es_medical.synthetic.statistics import gradient_histogram, gradient_sizes, power_spectrum


def test_power_spectrum_of_a_wave_peaks_at_its_frequency():
    x = torch.arange(64.0)
    wave = torch.sin(2 * torch.pi * 8 * x / 64).expand(1, 1, 64, 64)
    frequency, power = power_spectrum(wave)
    assert float(frequency[power.argmax()]) == pytest.approx(8 / 64)


def test_white_noise_has_a_flat_spectrum_of_its_variance():
    _, power = power_spectrum(0.1 * torch.randn(200, 1, 32, 32, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(power[2:], torch.full((14,), 0.01), rtol=0.1, atol=0)


def test_gradients_of_a_ramp_are_its_slope():
    ramp = 0.03 * torch.arange(16.0).expand(1, 1, 16, 16)
    torch.testing.assert_close(gradient_sizes(ramp), torch.full((1, 1, 15, 15), 0.03))
    centres, shares = gradient_histogram(ramp)
    assert float(shares.sum()) == pytest.approx(1)
    assert 10 ** float(centres[shares.argmax()]) == pytest.approx(0.03, rel=0.1)


def test_statistics_of_complex_images_are_those_of_their_magnitude():
    turned, real = draw("mr_phase", 4, 32, seed=0), draw("mr_phase", 4, 32, seed=0).norm(dim=1, keepdim=True)
    torch.testing.assert_close(power_spectrum(turned)[1], power_spectrum(real)[1])


def test_the_command_draws_a_picture_and_prints_the_distances(data_file, tmp_path, capsys):
    out = tmp_path / "picture.png"
    main([str(out), f"mr={data_file}", "--images", "8"])
    assert out.read_bytes().startswith(b"\x89PNG")
    assert re.fullmatch(
        r"mr: power spectra \d\.\d\d decades apart, histograms of gradients share \d\.\d\d\n", capsys.readouterr().out
    )


def test_images_of_another_kind_are_refused(data_file):
    with pytest.raises(ValueError, match="has images of 2 channels, ct of 1"):
        compare("ct", data_file, 4)


def test_an_unknown_kind_is_refused_before_any_work(capsys):
    with pytest.raises(SystemExit):
        main(["out.png", "heads=file.h5"])
    assert "give KIND=FILE with one of the kinds mr" in capsys.readouterr().err
