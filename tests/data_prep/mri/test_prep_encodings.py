"""`data_prep fastmri --measurements real`: masks of samples, partial Fourier, 3-D, interpolation, files without a header."""

import struct

import h5py
import numpy as np
import pytest
from columns import columns, stored
from raw import HEADER, complex_noise, kspace_of, phantom, seen_by_coils, to_image, to_kspace
from scipy.io import savemat

from data_prep.mri.array_file import counted, read_arrays, read_mask_file
from data_prep.mri.normalisation import crop_or_pad
from data_prep.mri.options import FastMRIOptions, options_of_training
from data_prep.mri.twix_file import open_twix
from data_prep.run.manifest import PrepError
from es_medical.data import read_header
from es_medical.engine.operators import build_split, operator_of
from es_medical.engine.training_data import preparation

REAL = ("--measurements", "real", "--slices", "all", "--train", 1, "--test", 0, "--val", 0)
FULL = ("--acceleration", 1, "--center-fraction", 1)


def to_complex(x):
    """(N, 2, ...) to complex (N, ...)."""
    return x[:, 0] + 1j * x[:, 1]


def images(path):
    """Magnitudes of the stored images in raw units."""
    found = columns(path)
    return np.abs(to_complex(found["image"])) * found["scale"][:, :1, None]


def samples(size=(32, 32), share=0.25, center=8, seed=0):
    """A mask of random samples with a fully measured block."""
    mask = np.random.default_rng(seed).random(size) < share
    rows, columns_ = (slice(n // 2 - center // 2, n // 2 + center // 2) for n in size)
    mask[rows, columns_] = True
    return mask


# --- masks of samples


@pytest.fixture
def poisson(tmp_path, make_volume, prep):
    """A file of k-space measured by a mask of samples; the mask."""
    mask = samples()
    np.save(tmp_path / "mask.npy", mask)
    make_volume(tmp_path / "a.h5")
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, "--mask-from", tmp_path / "mask.npy")
    return mask, result


def test_mask_of_samples_measures_these_samples_and_no_others(tmp_path, poisson):
    mask, result = poisson
    found, header = columns(tmp_path / "out.h5"), read_header(tmp_path / "out.h5")
    np.testing.assert_array_equal(found["mask"], mask)
    k = to_kspace(to_complex(found["image"].astype(np.float64)))
    np.testing.assert_allclose(to_complex(found["measurement"]), k * mask, atol=1e-5)
    assert header.acceleration == float(f"{mask.size / mask.sum():.4g}")
    assert f"mask of samples: {mask.sum()} of 1024 (acceleration {header.acceleration:g})" in result.stdout


def test_split_of_single_samples_keeps_the_block_in_the_centre(tmp_path, poisson):
    mask, _ = poisson
    out = str(tmp_path / "out.h5")
    split, physics = build_split(out, "auto", 0.8, True), operator_of(out)
    m1 = split(physics, 3, None)[:, 0].numpy()
    assert split.unit == "samples"
    assert (split.n_rows, split.n_center) >= (8, 8)
    assert m1[:, 12:20, 12:20].all()
    assert not m1[:, ~mask].any()
    np.testing.assert_array_equal(m1.sum((1, 2)), round(0.8 * mask.sum()))
    assert (m1[0] != m1[1]).any()
    assert build_split(out, "auto", 0.8, False).n_rows == 1


def test_scan_at_inference_is_measured_by_the_samples_of_the_training(tmp_path, poisson):
    options = options_of_training(preparation(tmp_path / "out.h5"))
    np.testing.assert_array_equal(options.given.measured, poisson[0])
    assert options.mask == read_header(tmp_path / "out.h5").configuration["mask"]


def test_mask_of_columns_in_a_mat_file_is_a_mask_of_lines(tmp_path, make_volume, prep):
    lines = samples()[5] | (np.abs(np.arange(32) - 15.5) < 3)
    savemat(tmp_path / "masks.mat", {"lines": np.tile(lines, (32, 1)), "k": np.ones((4, 4))})
    make_volume(tmp_path / "a.h5")
    options = ("--mask-from", tmp_path / "masks.mat", "--mask-variable", "lines")
    prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *options)
    np.testing.assert_array_equal(stored(tmp_path / "out.h5", "mask"), lines)
    assert build_split(str(tmp_path / "out.h5"), "auto", 0.8, True).unit == "lines"
    with pytest.raises(PrepError, match="2 masks of 0 and 1 among 2 arrays"):
        read_mask_file(tmp_path / "masks.mat")


def test_mask_without_zero_frequency_or_of_another_size_is_refused(tmp_path, make_volume, prep):
    with pytest.raises(PrepError, match="does not measure zero frequency, expected at index 16 of 32 and 16 of 32"):
        counted(np.fft.ifftshift(samples(share=0)))
    np.save(tmp_path / "mask.npy", samples((16, 32)))
    make_volume(tmp_path / "a.h5")
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "o.h5", *REAL, "--mask-from", tmp_path / "mask.npy", code=1)
    assert "the given mask has 16 x 32 samples, the slices have 32 x 32" in result.output


def test_several_coils_and_samples_use_nothing_that_the_mask_leaves_out(tmp_path, make_volume, prep):
    """Scale, coil compression and maps of a fully sampled scan are those of one that lacks the other samples."""
    pytest.importorskip("sigpy", reason="sensitivity maps need the extra `coils`")
    mask, k, found = samples((32, 32), center=12), kspace_of(seen_by_coils(phantom((1, 32, 32)), 4)), []
    np.save(tmp_path / "mask.npy", mask)
    for name, x in (("full", k), ("other", np.where(mask, k, 2 * k[..., ::-1]))):
        make_volume(tmp_path / name / "a.h5", kspace=x, keys=(), header=False)
        options = ("--coils", "multi", "--virtual-coils", 3, "--size", 32, "--sigma", 0.01, "--no-whiten")
        out = tmp_path / f"{name}.h5"
        prep("fastmri", tmp_path / name, out, *REAL, *options, "--mask-from", tmp_path / "mask.npy")
        found.append(stored(out, "measurement", "maps", "scale"))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


# --- 3-D


def slab(shape=(8, 64, 48), seed=0):
    """A smooth complex volume and its k-space in three dimensions, centred and orthonormal."""
    x = phantom(shape, seed) * np.hanning(shape[0] + 2)[1:-1, None, None]
    k = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(to_kspace(x), 0), axis=0, norm="ortho"), 0)
    return x, k.astype(np.complex64)


def in_3d(n, kept=0):
    """A header that announces n partitions, of which the reconstruction keeps some."""
    text = HEADER.format(width=48, maximum=47, center=24)
    text = text.replace("<z>1</z></matrixSize></encodedSpace>", f"<z>{n}</z></matrixSize></encodedSpace>")
    fields = [f"<fieldOfView_mm><x>320</x><y>192</y><z>{3 * m}</z></fieldOfView_mm>" for m in (n, kept or n)]
    return text.replace("</matrixSize></encodedSpace>", "</matrixSize>" + fields[0] + "</encodedSpace>").replace(
        "<fieldOfView_mm><x>160</x><y>128</y><z>3</z></fieldOfView_mm>", fields[1].replace("320", "160").replace("192", "128")
    )


@pytest.mark.parametrize("kept", [8, 6])
def test_partitions_of_a_3d_acquisition_are_transformed_to_slices(tmp_path, make_volume, prep, kept):
    """S6: without the slices of the oversampled ends."""
    x, k = slab()
    make_volume(tmp_path / "a.h5", kspace=k, keys=(), header=False, ismrmrd_header=in_3d(8, kept))
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *FULL)
    assert f"3-D: 8 partitions transformed to {kept} slices" in result.stdout
    expected = crop_or_pad(np.abs(x), (32, 32))[4 - kept // 2 :][:kept]
    np.testing.assert_allclose(images(tmp_path / "out.h5"), expected, atol=1e-4 * expected.max())
    np.testing.assert_allclose(stored(tmp_path / "out.h5", "slice_spacing"), 3)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda k: k.__setitem__(6, 0), "3-D: 1 partitions between measured ones are empty; expected a fully sampled kz"),
        (lambda k: k.__setitem__(slice(0, 3), 0), "3-D: 3 of 8 partitions are empty, at most a quarter may be"),
        (lambda k: k.__setitem__(slice(None), np.roll(k, 3, 0)), "3-D: partition 7 of 8 is the strongest"),
    ],
)
def test_partitions_that_are_no_full_kz_are_refused(tmp_path, make_volume, prep, change, cause):
    _, k = slab()
    change(k)
    make_volume(tmp_path / "a.h5", kspace=k, keys=(), header=False, ismrmrd_header=in_3d(8))
    assert cause in prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *FULL, code=1).stdout


def test_other_numbers_of_partitions_and_simulation_are_refused(tmp_path, make_volume, prep):
    make_volume(tmp_path / "a.h5", kspace=slab()[1], keys=(), header=False, ismrmrd_header=in_3d(16))
    cause = "the header announces 16 partitions of a 3-D acquisition, kspace has 8"
    assert cause in prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, code=1).stdout
    make_volume(tmp_path / "a.h5", kspace=slab()[1], keys=(), header=False, ismrmrd_header=in_3d(8))
    assert "3-D" in prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", code=1).stdout


@pytest.mark.parametrize("vendor", ["", "SIEMENS"])
def test_ismrmrd_partitions_become_slices_at_their_place(tmp_path, prep, vendor):
    """A point of the volume comes out at its slice, and that slice at its height along the slab."""
    pytest.importorskip("ismrmrd", reason="raw files need the extra `ismrmrd`")
    from ismrmrd_scans import header, readout, write

    x = np.zeros((8, 32, 24), complex)
    x[6, 18, 10] = 1
    k = np.fft.fftshift(np.fft.fft(np.fft.ifftshift(to_kspace(x), 0), axis=0, norm="ortho"), 0)
    k += 1e-4 * complex_noise(k.shape)
    lines = []
    for z in range(8):
        for w in range(24):
            line = readout(
                k[z, :, w][None], w, read_dir=(1, 0, 0), phase_dir=(0, 1, 0), slice_dir=(0, 0, 1), position=(0, 0, 50)
            )
            line.idx.kspace_encode_step_2 = z
            lines.append(line)
    limits = "<kspace_encoding_step_2><minimum>0</minimum><maximum>7</maximum><center>4</center></kspace_encoding_step_2>"
    text = header((32, 24), partitions=8, field=(96, 72), vendor=vendor, recon=(32, 24)).replace("<z>5</z>", "<z>16</z>")
    text = text.replace("<x>100</x><y>90</y>", "<x>96</x><y>72</y>")
    text = text.replace("</encodingLimits>", limits + "</encodingLimits>")
    write(tmp_path / "a.h5", lines, text)
    prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *FULL, "--native-width", "--size", 32)
    found = columns(tmp_path / "out.h5")
    order = np.argsort(found["slice"])
    place = np.unravel_index(images(tmp_path / "out.h5")[order].argmax(), (8, 32, 24))
    assert place[1:] == (18, 10)
    height = found["position"][order][place[0], 2]
    assert height == pytest.approx(50 + (-1 if vendor else 1) * (6 - 4) * 2, abs=1e-6)
    across = np.diff(found["position"][order], axis=0) @ np.cross(found["orientation"][0][:3], found["orientation"][0][3:])
    np.testing.assert_allclose(across, 2, atol=1e-6)  # in order along the normal, 16 mm in 8 slices


# --- the header's field of view and pixels


@pytest.mark.parametrize("recon", [(32, 96), (64, 48), (32, 24)], ids=["finer columns", "finer rows", "coarser columns"])
def test_image_covers_the_reconstructed_field_of_view_with_its_pixels(tmp_path, prep, recon):
    """S3: 100 x 90 mm, whatever the number of pixels; what interpolation adds to k-space is never measured."""
    pytest.importorskip("ismrmrd", reason="raw files need the extra `ismrmrd`")
    from ismrmrd_scans import header, readouts, write

    x = phantom((2, 64, 48))
    write(tmp_path / "a.h5", readouts(to_kspace(x)[:, None]), header((64, 48), recon=recon))  # 3.125 x 1.875 mm
    prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *FULL)
    found, header_ = columns(tmp_path / "out.h5"), read_header(tmp_path / "out.h5")
    assert header_.size == recon
    np.testing.assert_allclose(found["spacing"], [[100 / recon[0], 90 / recon[1]]] * 2)
    field, image = crop_or_pad(np.abs(x), (32, 48)), images(tmp_path / "out.h5")
    steps = [max(n // m, 1) for n, m in zip(recon, (32, 48), strict=True)]
    common = image[:, :: steps[0], :: steps[1]]
    expected = field[:, :, :: max(48 // recon[1], 1)]
    np.testing.assert_allclose(common, expected, atol=0.02 * expected.max())
    measured = np.broadcast_to(header_.mask.numpy(), recon)
    assert measured.sum() == min(recon[0], 32) * min(recon[1], 48)
    assert build_split(str(tmp_path / "out.h5"), "auto", 0.5, False).unit == "lines"


def on_grid(n, mm):
    """The same smooth head on n x n pixels of a size in mm, with phase."""
    u, v = (np.indices((n, n)) - n // 2) * mm
    return (np.exp(-((u / 40) ** 2) - ((v - 20) / 30) ** 2) + 0.5 * np.exp(-(((u + 30) / 12) ** 2) - (v / 12) ** 2)).astype(
        complex
    )


@pytest.mark.parametrize("measurements", ["real", "synthetic"])
def test_scans_of_two_pixel_sizes_are_brought_to_one(tmp_path, make_volume, prep, measurements):
    """S5: 320 x 320 and 384 x 384 over the same field of view; the larger matrix is not cut."""
    for n in (320, 384):
        x, field = on_grid(n, 220 / n)[None], "<fieldOfView_mm><x>220</x><y>220</y><z>3</z></fieldOfView_mm>"
        text = HEADER.format(width=n, maximum=n - 1, center=n // 2).replace("<x>64</x>", f"<x>{n}</x>")
        text = text.replace("<x>32</x><y>32</y>", f"<x>{n}</x><y>{n}</y>")
        text = text.replace("<x>160</x><y>128</y>", "<x>220</x><y>220</y>")
        text = text.replace("</matrixSize></encodedSpace>", f"</matrixSize>{field}</encodedSpace>")
        rss = {"reconstruction_rss": np.abs(x).astype(np.float32)}
        make_volume(tmp_path / "in" / f"{n}.h5", kspace=to_kspace(x), keys=(), header=False, ismrmrd_header=text, **rss)
    full = FULL if measurements == "real" else ("--acceleration", 4)
    options = ("--measurements", measurements, *REAL[2:], *full)
    result = prep("fastmri", tmp_path / "in", tmp_path / "out.h5", *options)
    assert "rescaled from pixels of 0.573 x 0.573 mm to 0.688 x 0.688 mm" in result.stdout
    np.testing.assert_allclose(stored(tmp_path / "out.h5", "spacing"), 220 / 320, rtol=1e-3)
    one, other = images(tmp_path / "out.h5")
    np.testing.assert_allclose(one, other, atol=0.01 * one.max())


def test_pixels_of_one_matrix_that_differ_are_said(tmp_path, make_volume, prep):
    for i, field in enumerate((160, 200)):
        text = HEADER.format(width=48, maximum=47, center=24).replace("<x>160</x><y>128</y>", f"<x>{field}</x><y>{field}</y>")
        make_volume(tmp_path / "in" / f"{i}.h5", seed=i, header=False, ismrmrd_header=text)
    result = prep("fastmri", tmp_path / "in", tmp_path / "out.h5")
    assert "pixel sizes differ and are kept: " in result.stdout
    assert "6.25 x 6.25 mm (1 volumes)" in result.stdout


# --- partial Fourier


def test_partial_fourier_is_a_mask_and_is_said(tmp_path, make_volume, prep):
    """Lines of the missing half count as not measured, not as zero."""
    k = kspace_of(phantom((1, 64, 48)))
    k[..., :12] = 0
    text = HEADER.format(width=48, maximum=35, center=12)
    make_volume(tmp_path / "a.h5", kspace=k, keys=(), header=False, ismrmrd_header=text)
    options = ("--acceleration", 1, "--center-fraction", 0.3, "--native-width")
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *options)
    assert "partial Fourier: columns 12 to 47 of 48, k = 0 at 24" in result.stdout
    assert "is k-space centred?" not in result.stdout
    np.testing.assert_array_equal(stored(tmp_path / "out.h5", "mask"), np.arange(48) >= 12)


def test_asymmetric_echo_is_a_mask_of_rows(tmp_path, make_volume, prep):
    k = kspace_of(phantom((1, 64, 48)))
    k[:, :16] = 0
    make_volume(tmp_path / "a.h5", kspace=k, keys=())
    options = ("--acceleration", 2, "--center-fraction", 0.3, "--size", 64, "--native-width")
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *options)
    assert "asymmetric echo: rows 16 to 63 of 64" in result.stdout
    mask = stored(tmp_path / "out.h5", "mask").astype(bool)
    np.testing.assert_array_equal(mask.any(1), np.arange(64) >= 16)
    split = build_split(str(tmp_path / "out.h5"), "auto", 0.8, True)
    assert (split.unit, split.n_center) == ("lines", round(0.3 * 48))


def test_kspace_that_is_not_centred_raises_a_doubt(tmp_path, make_volume, prep):
    make_volume(tmp_path / "a.h5", kspace=np.roll(kspace_of(phantom((1, 64, 48))), 9, -1), keys=())
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *REAL, *FULL)
    assert "is k-space centred? its largest sample is at row 32, column 33, expected at row 32, column 24" in result.stdout


# --- files without a header


AXES = {
    "slice,coil,readout,phase": (0, 1, 2, 3),
    "readout,phase,coil,slice": (2, 3, 1, 0),
    "phase,slice,readout,coil": (3, 0, 2, 1),
}


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("kind", ["npy", "mat", "v7.3"])
def test_arrays_with_stated_axes_are_the_same_kspace(tmp_path, make_volume, prep, axes, kind):
    k = kspace_of(seen_by_coils(phantom((2, 32, 24)), 3))
    stated = k.transpose(AXES[axes])
    path = tmp_path / "in" / ("k.npy" if kind == "npy" else "k.mat")
    path.parent.mkdir()
    if kind == "npy":
        np.save(path, stated)
    elif kind == "mat":
        savemat(path, {"kspace": stated, "mask": np.ones((4, 4))})
    else:
        with h5py.File(path, "w", userblock_size=512) as file:
            parts = np.empty(stated.T.shape, [("real", "f4"), ("imag", "f4")])
            parts["real"], parts["imag"] = stated.T.real, stated.T.imag
            file["kspace"] = parts
    found = list(read_arrays(path).values())[0]
    np.testing.assert_array_equal(found, stated)
    from data_prep.mri.recorded import Layout, open_raw

    with open_raw(path, Layout(tuple(axes.split(",")))) as volume:
        assert (volume.n_slices, volume.coils, volume.size) == (2, 3, (32, 24))
        for i in (0, 1):
            np.testing.assert_array_equal(volume.kspace(i), k[i])


@pytest.mark.parametrize(
    ("axes", "cause"),
    [
        ("readout,coil", "--axes readout,coil: expected readout and phase"),
        ("readout,phase", "complex arrays with the 2 axes of --axes: none; expected one"),
        (
            "readout,phase,coil",
            "complex arrays with the 3 axes of --axes: (24, 16, 2), (24, 16, 2); expected one: give its name",
        ),
    ],
)
def test_axes_that_do_not_fit_are_refused(tmp_path, prep, axes, cause):
    k = kspace_of(phantom((2, 24, 16))).transpose(1, 2, 0)
    savemat(tmp_path / "k.mat", {"k": k, "maps": k})
    result = prep("fastmri", tmp_path / "k.mat", tmp_path / "out.h5", *REAL, "--axes", axes, "--coils", "multi", code=1)
    assert cause in result.output


def test_partitions_of_an_array_become_slices(tmp_path, prep):
    x, k = slab((8, 32, 24))
    np.save(tmp_path / "k.npy", k.transpose(1, 2, 0))
    prep("fastmri", tmp_path / "k.npy", tmp_path / "out.h5", *REAL, *FULL, "--axes", "readout,phase,partition")
    np.testing.assert_allclose(images(tmp_path / "out.h5"), np.abs(x), atol=1e-4 * np.abs(x).max())


def test_other_dat_files_are_no_raw_data(tmp_path, prep):
    (tmp_path / "notes.dat").write_text("some notes " * 100)
    result = prep("fastmri", tmp_path, tmp_path / "out.h5", *REAL, code=1)
    assert "not a Siemens raw file" in result.output


# --- real scans


def test_real_multi_coil_scan(tmp_path, prep, shared_data):
    """The brain's own coils and phase: its image explains the measurements to the noise, lines and samples alike."""
    pytest.importorskip("sigpy", reason="sensitivity maps need the extra `coils`")
    import torch
    from torch.utils.data import default_collate

    from es_medical.data import SliceDataset

    path = shared_data / "kspace" / "scanner" / "loraks_MPRAGE_multi_channel.mat"
    options = (*REAL, "--coils", "multi", "--axes", "readout,phase,coil", "--variable", "kData")
    by_samples = ("--mask-from", path, "--mask-variable", "kMaskRandACS7")
    for name, chosen in (("lines", ("--acceleration", 4, "--center-fraction", 0.08)), ("samples", by_samples)):
        out = tmp_path / f"{name}.h5"
        prep("fastmri", path, out, *options, *chosen)
        batch = default_collate([SliceDataset(out)[0]])
        physics = operator_of(str(out)).of(batch)
        residual = physics.A(batch["image"]) - batch["measurement"]
        n = 2 * 4 * torch.broadcast_to(physics.mask, (1, 1, 1, 256, 256)).sum()
        assert float((residual.square().sum() / n).sqrt() / batch["sigma"]) < 1.1
        image, rss = images(out)[0], np.sqrt((np.abs(to_image(np.moveaxis(read_arrays(path)["kData"], -1, 0))) ** 2).sum(0))
        inside = rss > 0.1 * rss.max()
        assert np.median(np.abs(image - rss)[inside] / rss[inside]) < 0.02
    header = read_header(tmp_path / "samples.h5")
    assert (header.acceleration, int(header.mask.sum())) == (7.0, 9362)


def test_real_siemens_scan(tmp_path, prep, shared_data):
    """A phantom of 200 mm in a fully sampled gradient echo: without oversampling, on the scanner's plane."""
    pytest.importorskip("mapvbvd", reason="Siemens raw files need the extra `twix`")
    pytest.importorskip("sigpy", reason="sensitivity maps need the extra `coils`")
    path = shared_data / "kspace" / "scanner" / "twixtools_gre.dat"
    options = (*REAL, "--coils", "multi", "--acceleration", 2, "--center-fraction", 0.1)
    prep("fastmri", path, tmp_path / "out.h5", *options)
    found = columns(tmp_path / "out.h5")
    assert found["image"].shape == (1, 2, 160, 160)
    np.testing.assert_allclose(found["spacing"], 1.25)
    normal = np.cross(found["orientation"][0][:3], found["orientation"][0][3:])
    np.testing.assert_allclose(np.abs(normal), [0, 0.0383878, 0.9992630], atol=1e-5)  # the protocol's own slice normal
    center = found["position"][0] + 80 * 1.25 * (found["orientation"][0][:3] + found["orientation"][0][3:])
    np.testing.assert_allclose(center, [-2.5897, 53.9224, -53.9995], atol=1e-3)
    image = images(tmp_path / "out.h5")[0]
    assert np.median(image[40:120, 20:140]) > 8 * np.median(image[:8])  # object and air
    assert read_header(tmp_path / "out.h5").mask.sum() == 80
    assert FastMRIOptions(measurements="real").given is None


def test_cut_siemens_scan_is_an_error(tmp_path, prep, shared_data):
    pytest.importorskip("mapvbvd", reason="Siemens raw files need the extra `twix`")
    whole = (shared_data / "kspace" / "scanner" / "twixtools_gre.dat").read_bytes()
    for i, n in enumerate((200, 20_000, len(whole) // 2)):
        (tmp_path / f"{i}.dat").write_bytes(whole[:n])
    result = prep("fastmri", tmp_path, tmp_path / "out.h5", *REAL, "--coils", "multi", code=1)
    assert result.stdout.count("damaged, truncated or another kind of file") == 3


HOSTILE = {
    "a scan beyond the end": struct.pack("<IIQQQ", 2, 1, 0, 2**40, 100),
    "a header longer than the file": struct.pack("<II", 16384, 1) + b"Config\0" + struct.pack("<I", 2**31),
    "a record of no length": struct.pack("<II", 16384, 0).ljust(16384, b"\0") + b"\x80",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_siemens_scan_with_hostile_lengths_is_an_error_in_no_time(tmp_path, what):
    path = tmp_path / "a.dat"
    path.write_bytes(HOSTILE[what].ljust(40_000, b"\0"))
    with pytest.raises(PrepError, match="damaged, truncated"):
        open_twix(path)
