"""Measured sinograms: right attenuation, place and noise from simulated counts, and what is masked, said or refused."""

import functools
import json

import h5py
import numpy as np
import pytest
import scipy.io
import tifffile
import torch
from columns import stored
from sinogram_scans import DISCS, PHOTONS, counts, exchange, fields, helsinki, line_integrals, positions

from data_prep.inference import ct_file
from data_prep.run.manifest import PrepError
from data_prep.sinogram.arrays import table
from es_medical.data import read_header
from es_medical.engine.training_data import preparation
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import geometry_from_dict

BINS, WIDTH = 120, 0.5
PARALLEL = np.arange(90) * 2.0
FULL = np.arange(120) * 3.0
SMALL = ("--size", 16)  # where values in the image do not matter
FAN = {"source_origin": 200.0, "source_detector": 300.0}


@pytest.fixture
def made(prep, tmp_path):
    """Runs the command on a file or folder; returns its output, and its images in raw units by FBP of each slice."""

    def run(source, *options, geometry=None, code=0, scale=("--scale", 0.4)):
        out = tmp_path / "out.h5"
        if geometry is not None:
            (tmp_path / "geometry.yaml").write_text(json.dumps(geometry))  # JSON is YAML
            options = (*options, "--geometry", tmp_path / "geometry.yaml")
        noise = () if "--noise" in options else ("--noise", "detector")  # a fit takes seconds, as finding a scale does
        said = prep("sinogram", source, out, "--size", 64, *noise, *scale, *options, code=code).output
        return said if code else (said, *reconstructed(out))

    return run


def scanner(out):
    header = read_header(out)
    operator = dict(header.operator)
    measured = operator.pop("measured")
    return built(json.dumps(operator)).masked(header.mask.float()), measured


@functools.cache
def built(operator):
    return CT(geometry_from_dict(json.loads(operator)))


def reconstructed(out):
    A, _ = scanner(out)
    y, scale = stored(out, "measurement", "scale")
    return A.fbp(torch.from_numpy(y))[:, 0].numpy() * scale[:, :1, None] + scale[:, 1:, None], out


def disc_values(image, pixel, discs=DISCS):
    """Mean of an image around the middle of each disc."""
    n = image.shape[-1]
    x = pixel * (np.arange(n) - (n - 1) / 2)
    near = [np.hypot(x - disc[0], -x[:, None] - disc[1]) < 0.6 * disc[2] for disc in discs[1:]]
    return [image[..., one].mean() for one in near]


def exact(discs=DISCS):
    return [discs[0][3] + disc[3] for disc in discs[1:]]


def test_right_attenuation_in_the_right_place_from_counts(made, tmp_path):
    p = line_integrals(PARALLEL, positions(BINS, WIDTH, 61.3))
    white, dark = fields(2, BINS)
    source = exchange(tmp_path / "a.h5", np.stack([counts(p, seed=k) for k in (0, 1)], 1), PARALLEL, white, dark)
    said, images, out = made(source, geometry={"bin_width": WIDTH}, scale=())
    assert images.shape[0] == 2
    pixel = stored(out, "spacing")[0, 0]
    for image in images:
        np.testing.assert_allclose(disc_values(image, pixel), exact(), rtol=0.01, atol=0.004)
    assert scanner(out)[1] | {"scale": 0, "pixel": 0} == {
        "unit": "1/cm", "water": None, "image": None, "scale": 0, "attenuation": "1/cm", "pixel": 0
    }  # fmt: skip
    assert 0.8 < stored(out, "measurement").max() * 0 + images.max() / scanner(out)[1]["scale"] < 1.6
    centre = float(said.split("estimated: bin ")[1].split()[0])
    assert abs(centre - 61.3) < 0.5


def test_stored_noise_is_that_of_the_counts(made, tmp_path):
    p = line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5))
    gain = 3.0  # counts for each photon
    white, dark = fields(1, BINS, frames=40, dark=0)
    source = exchange(tmp_path / "a.h5", gain * counts(p, dark=0)[:, None], PARALLEL, gain * white, dark)
    _, _, out = made(source, "--centre", 59.5, "--merge", 1, "--noise", "detector", geometry={"bin_width": WIDTH})
    A, measured = scanner(out)
    clean = torch.from_numpy(p) / (float(A.norm) * measured["scale"] * measured["pixel"] / 10)
    error = stored(out, "measurement")[0, 0] - clean.numpy()
    assert np.sqrt((error**2).mean()) == pytest.approx(float(stored(out, "sigma")[0]), rel=0.05)


def test_a_mismatch_of_scanner_and_operator_counts_as_noise(made, tmp_path):
    """A source that gets stronger and weaker from view to view: no image explains the sinogram."""
    p = line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5))
    noise = 0.02 * np.random.default_rng(0).standard_normal(p.shape)
    levels = []
    for bent in (p + noise, p + noise + 0.3 * np.sin(np.arange(90))[:, None]):
        np.save(tmp_path / "a.npy", bent)
        geometry = {"kind": "parallel", "arc": 180, "values": "attenuation", "bin_width": WIDTH, "centre": 59.5}
        said, _, out = made(
            tmp_path / "a.npy", "--merge", 1, "--noise", "fit", "--size", 32, "--views", 45, "--overwrite", geometry=geometry
        )
        A, measured = scanner(out)
        levels.append(float(stored(out, "sigma")[0]) * float(A.norm) * measured["scale"] * measured["pixel"] / 10)
    assert levels[0] < 0.1
    assert levels[1] > 0.15
    assert "counted as noise" in said.replace("\n", " ")


@pytest.mark.parametrize("kind", ["parallel 180", "parallel 360", "fan", "fan, counts the other way"])
def test_centre_of_rotation_within_half_a_bin(kind, made, tmp_path):
    fan, half = "fan" in kind, "180" in kind
    angles, direction = (PARALLEL if half else FULL), -1 if "other" in kind else 1
    p = line_integrals(direction * angles, positions(BINS, WIDTH, 57.2), **(FAN if fan else {}))
    np.save(tmp_path / "a.npy", -np.log(counts(p, dark=0) / PHOTONS))
    geometry = {"kind": "fan" if fan else "parallel", "arc": 180 if half else 360, "values": "attenuation", "bin_width": WIDTH}
    geometry |= (FAN if fan else {}) | ({"direction": "clockwise"} if direction < 0 else {})
    said, images, out = made(tmp_path / "a.npy", *(("--views", 60) if fan else ()), geometry=geometry)
    assert abs(float(said.split("estimated: bin ")[1].split()[0]) - 57.2) < 0.5
    np.testing.assert_allclose(disc_values(images[0], stored(out, "spacing")[0, 0]), exact(), rtol=0.01, atol=0.004)


def test_mirrored_bins_and_a_start_angle_give_the_same_image(made, tmp_path):
    angles = 30 - FULL
    p = line_integrals(angles, positions(BINS, WIDTH, 57.2), **FAN)
    np.save(tmp_path / "a.npy", p[:, ::-1])
    geometry = {"kind": "fan", "arc": 360, "direction": "clockwise", "start": 30, "mirrored": True, "bin_width": WIDTH} | FAN
    geometry |= {"values": "attenuation", "centre": BINS - 1 - 57.2}
    _, images, out = made(tmp_path / "a.npy", "--views", 60, geometry=geometry)
    np.testing.assert_allclose(disc_values(images[0], stored(out, "spacing")[0, 0]), exact(), rtol=0.01, atol=0.004)


def test_a_dead_bin_and_an_outlier_are_masked_and_zero_counts_are_said(made, tmp_path):
    p = line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5))
    values = counts(p, dark=0).astype(float)
    values[:, 40] = 1000 * (1 + np.arange(90) % 3)  # a dead bin
    values[10, 70] = 0
    values[20, 80] = 30 * PHOTONS  # a hit
    values[30, 90] = np.nan
    np.save(tmp_path / "a.npy", values)
    said, images, out = made(
        tmp_path / "a.npy", "--merge", 1, "--dead", "5", geometry={"kind": "parallel", "arc": 180, "white": PHOTONS}
    )
    for words in (
        "1 counts of 0 or below: masked",
        "1 values that are no numbers",
        "2 dead bins: masked",
        "1 outliers: masked",
    ):
        assert words in said
    mask, y = stored(out, "mask", "measurement")
    wanted = np.ones((90, BINS))
    wanted[:, [5, 40]] = 0
    for ray in ((10, 70), (20, 80), (30, 90)):
        wanted[ray] = 0
    np.testing.assert_array_equal(mask, wanted)
    assert (y[0, 0][wanted == 0] == 0).all()
    np.testing.assert_allclose(images[0].max(), 0.05 * WIDTH, rtol=0.3)  # 1/bin without bin_width: 0.5 / cm, 0.05 / mm
    assert "1/bin" in said


def test_repeated_view_is_left_out_and_views_are_taken_evenly(made, tmp_path):
    p = line_integrals(np.r_[FULL, 360], positions(BINS, WIDTH, 59.5), **FAN)
    np.save(tmp_path / "a.npy", p)
    geometry = {"kind": "fan", "arc": 360, "bin_width": WIDTH, "centre": 59.5, "values": "attenuation"} | FAN
    said, _, out = made(tmp_path / "a.npy", "--views", 30, *SMALL, geometry=geometry)
    assert "the last view repeats the first" in said
    assert "1 views repeat an angle: left out" in said
    np.testing.assert_allclose(read_header(out).operator["angles"], FULL[::4])
    said = made(tmp_path / "a.npy", "--views", 121, geometry=geometry, code=1)
    assert "120 views, fewer than the 121 of --views" in said


def test_views_of_a_parallel_beam_over_a_full_circle_do_not_measure_the_same_rays(made, tmp_path):
    np.save(tmp_path / "a.npy", line_integrals(FULL, positions(BINS, WIDTH, 59.5)))
    geometry = {"kind": "parallel", "arc": 360, "values": "attenuation"}
    _, _, out = made(tmp_path / "a.npy", "--views", 20, *SMALL, geometry=geometry)
    np.testing.assert_allclose(read_header(out).operator["angles"], FULL[:60:3])


def test_corrections_of_air_and_hardening_undo_them_exactly(made, tmp_path):
    p = line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5))
    hard = (np.sqrt(1 + 4 * 0.1 * p) - 1) / (2 * 0.1)  # hard + 0.1 hard^2 = p
    geometry = {"kind": "parallel", "arc": 180, "values": "attenuation", "bin_width": WIDTH, "centre": 59.5}
    np.save(tmp_path / "a.npy", p)
    _, right, _ = made(tmp_path / "a.npy", geometry=geometry)
    np.save(tmp_path / "b.npy", hard + 0.02)
    _, wrong, _ = made(tmp_path / "b.npy", geometry=geometry)
    said, corrected, _ = made(tmp_path / "b.npy", "--air-offset", "auto", "--beam-hardening", "0.1", geometry=geometry)
    assert "air read 0.0200: subtracted" in said
    assert np.abs(wrong - right).max() > 0.02
    np.testing.assert_allclose(corrected, right, atol=1e-5)
    assert "the curve falls" in made(tmp_path / "b.npy", "--beam-hardening=-1", geometry=geometry, code=1)


def test_rings_are_weaker(made, tmp_path):
    p = line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5))
    p += np.random.default_rng(0).normal(0, 0.01, BINS)
    np.save(tmp_path / "a.npy", p)
    geometry = {"kind": "parallel", "arc": 180, "values": "attenuation", "bin_width": WIDTH, "centre": 59.5}
    clean = tmp_path / "clean.npy"
    np.save(clean, line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5)))
    (_, wanted, _), (_, before, _) = made(clean, geometry=geometry), made(tmp_path / "a.npy", geometry=geometry)
    _, after, _ = made(tmp_path / "a.npy", "--rings", 9, geometry=geometry)
    assert (after - wanted).std() < 0.8 * (before - wanted).std()


def test_all_views_give_the_reference_and_water_hounsfield_units(made, tmp_path):
    p = line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5))
    np.save(tmp_path / "a.npy", p)
    geometry = {"kind": "parallel", "arc": 180, "values": "attenuation", "bin_width": WIDTH, "centre": 59.5}
    said, _, out = made(tmp_path / "a.npy", "--views", 15, "--reference", "--water", 0.2, geometry=geometry)
    assert "reference stored" in said
    image, scale, spacing = stored(out, "image", "scale", "spacing")
    found = disc_values(image[0, 0] * scale[0, 0] + scale[0, 1], spacing[0, 0])
    np.testing.assert_allclose(found, [1000 * (mu / 0.2 - 1) for mu in exact()], atol=30)
    assert scanner(out)[1]["unit"] == "HU"
    assert scanner(out)[1]["image"] == "reference"


def write_matlab73(path, x):
    with h5py.File(path, "w", userblock_size=512) as file:
        file["scan/p"] = x


FORMATS = {
    "npy": ("a.npy", np.save, {}),
    "mat": ("a.mat", lambda path, x: scipy.io.savemat(path, {"p": x, "note": "x"}), {"dataset": "p"}),
    "hdf5": ("a.h5", write_matlab73, {}),
    "tiff": ("a.tif", tifffile.imwrite, {}),
    "compressed tiff": ("a.tif", lambda path, x: tifffile.imwrite(path, x, compression="zlib"), {}),
}


def test_arrays_of_every_format_give_the_same_slices(made, tmp_path):
    p = np.stack([line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5), discs=DISCS[:n]) for n in (1, 2)], 1).astype("f4")
    geometry = {"kind": "parallel", "arc": 180, "values": "attenuation", "centre": 59.5}
    np.save(tmp_path / "other.npy", p.transpose(1, 2, 0))
    _, wanted, _ = made(tmp_path / "other.npy", *SMALL, geometry=geometry | {"axes": ["rows", "bins", "views"]})
    for name, (file, write, more) in FORMATS.items():
        write(tmp_path / file, p)
        _, images, _ = made(tmp_path / file, *SMALL, geometry=geometry | more)
        np.testing.assert_array_equal(images, wanted, err_msg=name)


def test_folders_of_projections_or_of_sinograms_are_one_scan(made, tmp_path):
    p = np.stack([line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5), discs=DISCS[:n]) for n in (1, 2)], 1)
    geometry = {"kind": "parallel", "arc": 180, "centre": 59.5, "white": "white.tif", "dark": 100}
    white, _ = fields(2, BINS)
    values = counts(p).astype(np.float32)
    np.save(tmp_path / "whole.npy", values)
    tifffile.imwrite(tmp_path / "white.tif", white.astype(np.float32))
    _, wanted, _ = made(tmp_path / "whole.npy", *SMALL, geometry=geometry)
    for files, parts in (("views", values), ("rows", values.transpose(1, 0, 2))):
        (tmp_path / files).mkdir()
        for k, part in enumerate(parts):
            tifffile.imwrite(tmp_path / files / f"{k:03d}.tif", part)
        tifffile.imwrite(tmp_path / files / "white.tif", white.astype(np.float32))
        said, images, _ = made(tmp_path / files, *SMALL, geometry=geometry | {"files": files})
        assert "named in the geometry" in said
        np.testing.assert_array_equal(images, wanted)


REFUSED = {
    "no geometry": (np.ones((20, 30)), None, (), "an array needs --geometry"),
    "unknown word": (np.ones((20, 30)), {"kind": "parallel", "pitch": 1}, (), "'pitch' was unexpected"),
    "kind": (np.ones((20, 30)), {"kind": "helical"}, (), "kind: 'helical' is not one of ['parallel', 'fan']"),
    "length": (np.ones((20, 30)), {"kind": "parallel", "bin_width": 0}, (), "bin_width: 0 is less than or equal"),
    "no angles": (np.ones((20, 30)), {"kind": "parallel"}, (), "give arc or angles"),
    "both": (np.ones((20, 30)), {"kind": "parallel", "arc": 180, "angles": [1]}, (), "angles and arc: give one of them"),
    "angles": (np.ones((20, 30)), {"kind": "parallel", "angles": [0, 1]}, (), "2 angles for 20 views"),
    "axes": (np.ones((20, 3, 2, 30)), {"kind": "parallel", "arc": 180}, (), "array of shape (20, 3, 2, 30): expected"),
    "complex": (np.ones((20, 30), complex), {"kind": "parallel", "arc": 180}, (), "complex128: expected real numbers"),
    "no white": (np.ones((20, 30)), {"kind": "parallel", "arc": 180, "centre": 14}, (), "counts without a white field"),
    "fan": (np.ones((20, 30)), {"kind": "fan", "arc": 360, "bin_width": 1}, (), "source to origin nan mm"),
    "cone": (np.ones((20, 3, 30)), {"kind": "fan", "arc": 360, "bin_width": 1} | FAN, (), "3 detector rows is a cone beam"),
    "centre": (np.ones((20, 30)), {"kind": "parallel", "arc": 180, "centre": 30}, (), "the detector has bins 0 to 29"),
    "arc": (np.ones((20, 30)), {"kind": "parallel", "arc": 90, "white": 2}, (), "views cover 90 degrees"),
    "all zero": (np.zeros((20, 30)), {"kind": "parallel", "arc": 180, "white": 2, "centre": 14}, (), "no ray is usable"),
    "white": (
        np.ones((20, 30)),
        {"kind": "parallel", "arc": 180, "white": "w.npy"},
        ("--centre", 14),
        "no file 'w.npy' beside",
    ),
    "water": (np.ones((20, 30)), {"kind": "parallel", "arc": 180, "white": 2}, ("--centre", 14, "--water", 0.2), "bin_width"),
    "number": (np.ones((20, 30)), None, ("--dead", "a"), "'a' is no number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name, made, tmp_path):
    values, geometry, options, words = REFUSED[name]
    np.save(tmp_path / "a.npy", values)
    assert words in made(tmp_path / "a.npy", *options, geometry=geometry, code=1)
    assert not (tmp_path / "out.h5").exists()


def test_wrong_direction_of_a_fan_is_said(made, tmp_path):
    np.save(tmp_path / "a.npy", line_integrals(FULL, positions(BINS, WIDTH, 59.5), **FAN))
    geometry = {"kind": "fan", "arc": 360, "values": "attenuation", "bin_width": WIDTH, "centre": 59.5} | FAN
    assert "WARNING" not in made(tmp_path / "a.npy", *SMALL, geometry=geometry)[0]
    assert "go the other way round" in made(tmp_path / "a.npy", *SMALL, geometry=geometry | {"direction": "clockwise"})[0]


def test_files_of_another_scanner_or_centre_fail_and_the_others_go_on(made, tmp_path):
    folder, u = tmp_path / "scans", positions(BINS, 0.4, 59.5)
    for k in range(3):
        helsinki(folder / f"{k}.mat", line_integrals(FULL + 0.1 * k, u, 400.0, 550.0), FULL)
    helsinki(folder / "other.mat", line_integrals(FULL, u, 400.0, 550.0), FULL, distanceSourceOrigin=390.0)
    helsinki(folder / "moved.mat", line_integrals(FULL, u + 1, 400.0, 550.0), FULL)
    said = made(folder, "--centre", "auto", *SMALL, code=1)
    for words in ("other.mat", "another scanner than that of most files", "moved.mat", "more than half a bin off"):
        assert words in said
    assert read_header(tmp_path / "out.h5").n == 3


def test_inference_prepares_another_scan_with_the_scale_and_pixels_of_the_training(made, tmp_path, monkeypatch):
    geometry = {"kind": "parallel", "arc": 180, "values": "attenuation", "bin_width": WIDTH}
    np.save(tmp_path / "a.npy", line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5)))
    options = ("--views", 30, "--reference", "--beam-hardening", "0.01", *SMALL)
    _, _, trained = made(tmp_path / "a.npy", *options, geometry=geometry, scale=())
    kept = json.loads(json.dumps(preparation(trained)))
    monkeypatch.setattr("es_medical.engine.checkpoint.read_preparation", lambda _: kept)
    np.save(tmp_path / "patient.npy", 0.3 * line_integrals(PARALLEL, positions(BINS, WIDTH, 61.0)))
    out = ct_file(str(tmp_path / "patient.npy"), str(tmp_path / "eval"), "")
    assert "patient" not in out
    assert not read_header(out).has_image
    assert scanner(out)[1] == scanner(trained)[1] | {"image": None}
    assert read_header(out).operator["angles"] == read_header(trained).operator["angles"]
    before, now = (read_header(file).operator.get("shift", 0.0) for file in (trained, out))
    assert now - before == pytest.approx(-1.5 * WIDTH / scanner(out)[1]["pixel"], abs=0.1)
    exchange(tmp_path / "unknown.h5", np.exp(-line_integrals(PARALLEL, positions(BINS, WIDTH, 61.0)))[:, None], PARALLEL)
    kept["configuration"]["geometry"] = {"white": 1.0}
    with pytest.raises(PrepError, match="sinograms in 1/bin, the weights were trained on 1/cm"):
        ct_file(str(tmp_path / "unknown.h5"), str(tmp_path / "eval"), "")
    kept.pop("units")
    with pytest.raises(PrepError, match="do not hold the units"):
        ct_file(str(tmp_path / "patient.npy"), str(tmp_path / "eval"), "")


def test_tiff_whose_tags_do_not_fit_is_refused_in_no_time(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, line_integrals(PARALLEL, positions(BINS, WIDTH, 60.0)).astype(np.float32))
    whole = path.read_bytes()
    assert table(path).shape == (len(PARALLEL), BINS)
    first = int.from_bytes(whole[4:8], "little")
    back = first + 2 + 12 * int.from_bytes(whole[first : first + 2], "little")  # where the next page is named
    for at, value in ((first, b"\xff\xff"), (first + 6, b"\xff" * 4), (back, whole[4:8])):
        path.write_bytes(whole[:at] + value + whole[at + len(value) :])
        with pytest.raises(PrepError, match="damaged TIFF"):
            table(path)


WRONG_UNITS = {
    "radians": ({"kind": "parallel", "angles": np.deg2rad(PARALLEL).tolist(), "centre": 59.5}, "radians"),
    "bins in m": (FAN | {"kind": "fan", "arc": 360, "bin_width": WIDTH / 1000}, "are all lengths in mm"),
    "distances in m": (
        {"kind": "fan", "arc": 360, "bin_width": WIDTH, "source_origin": 0.2, "source_detector": 0.3}, "are all lengths in mm"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_UNITS)
def test_geometry_in_other_units_is_refused(made, tmp_path, name):
    geometry, cause = WRONG_UNITS[name]
    np.save(tmp_path / "a.npy", line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5)))
    assert cause in " ".join(made(tmp_path / "a.npy", geometry=geometry | {"values": "attenuation"}, code=1).split())


def test_all_lengths_in_metres_are_doubted(made, tmp_path):
    np.save(tmp_path / "a.npy", line_integrals(PARALLEL, positions(BINS, WIDTH, 59.5)))
    geometry = {"kind": "parallel", "arc": 180, "bin_width": WIDTH / 1000, "centre": 59.5, "values": "attenuation"}
    assert "are all lengths in mm" in made(tmp_path / "a.npy", *SMALL, geometry=geometry, scale=())[0]
