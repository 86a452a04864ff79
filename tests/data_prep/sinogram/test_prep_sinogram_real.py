"""Measured data of three kinds, as a user gives them: the organisers' image, known centres, known dead bins."""

import numpy as np
import pytest
import scipy.io
import torch
from columns import stored

from es_medical.data import read_header
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import geometry_from_dict


def scanner(out):
    header = read_header(out)
    return CT(geometry_from_dict({k: v for k, v in header.operator.items() if k != "measured"}), header.mask)


def test_helsinki_scan_agrees_with_the_organisers_image(prep, shared_data, tmp_path):
    folder, out = shared_data / "sinograms" / "htc2022", tmp_path / "a.h5"
    prep("sinogram", folder / "htc2022_ta_full.mat", out, "--size", 64, "--pixel", 512 * 0.14832 / 64, "--views", 120)
    image = scanner(out).fbp(torch.from_numpy(stored(out, "measurement")), "hann")[0, 0].numpy() * stored(out, "scale")[0, 0]
    fbp = scipy.io.loadmat(folder / "reference" / "htc2022_ta_full_recon_fbp.mat")["reconFullFbp"]
    organisers = fbp.reshape(64, 8, 64, 8).mean((1, 3))
    assert np.corrcoef(image.ravel(), organisers.ravel())[0, 1] > 0.995
    slope = np.polyfit(organisers.ravel(), image.ravel(), 1)[0]
    assert slope == pytest.approx(10 / 0.14832, rel=0.03)  # theirs is for a pixel of 0.14832 mm


def test_helsinki_scan_agrees_with_itself(prep, shared_data, tmp_path):
    source, out = shared_data / "sinograms" / "htc2022" / "htc2022_06c_full.mat", tmp_path / "a.h5"
    said = prep("sinogram", source, out, "--size", 64, "--pixel", 512 * 0.14832 / 64, "--views", 90, "--reference").output
    A, (y, x) = scanner(out), map(torch.from_numpy, stored(out, "measurement", "image"))
    assert float((A.A(x) - y).norm() / y.norm()) < 0.02  # 5 % with the views the other way round
    assert "WARNING" not in said
    (tmp_path / "g.yaml").write_text("mirrored: true\n")
    assert "agree much better when the views go the other way" in prep(
        "sinogram",
        source,
        tmp_path / "b.h5",
        *("--size", 16, "--views", 90, "--noise", "detector"),
        "--geometry",
        tmp_path / "g.yaml",
    ).output.replace("\n", " ")


def test_tooth_has_its_known_centre_and_its_noise(prep, shared_data, tmp_path):
    out = tmp_path / "a.h5"
    said = prep(
        "sinogram", shared_data / "sinograms" / "tomopy_tooth.h5", out, "--size", 64, "--noise", "detector", "--preview"
    ).output
    assert abs(float(said.split("estimated: bin ")[1].split()[0]) - 296.0) < 0.5
    assert "2 slices of 64 x 64" in said
    y, sigma = stored(out, "measurement", "sigma")
    air = y[:, 0, :, :40]
    np.testing.assert_allclose(sigma, (air[:, 1:] - air[:, :-1]).std((1, 2)) / np.sqrt(2), rtol=0.5)  # more where tooth is
    assert out.with_suffix(".preview.png").stat().st_size > 1000


def test_neutron_image_has_its_known_centre_and_dead_bins(prep, shared_data, tmp_path):
    geometry, out = tmp_path / "g.yaml", tmp_path / "a.h5"
    geometry.write_text("kind: parallel\narc: 360\nvalues: counts\nair_bins: 30\n")
    source = shared_data / "sinograms" / "sarepy_sinogram_360_neutron_image.tif"
    options = ("--size", 16, "--merge", 1, "--floor", 400, "--noise", "detector", "--geometry", geometry)
    said = prep("sinogram", source, out, *options).output
    assert abs(float(said.split("estimated: bin ")[1].split()[0]) - 245.1) < 0.5
    for words in ("the last view repeats the first", "216 counts of 400 or below: masked", "dead bins: masked"):
        assert words in said
    mask = stored(out, "mask")
    assert mask.shape == (458, 503)
    assert not mask[:, [314, 346]].any()
    assert mask.mean() > 0.99
