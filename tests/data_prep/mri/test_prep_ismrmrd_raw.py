import shutil
import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import pytest
from ismrmrd_scans import header, readout, readouts, write
from raw import complex_noise, kspace_of, to_image

from data_prep.mri.recorded import open_raw
from data_prep.run.manifest import PrepError

SIZE = (8, 6)


@pytest.fixture
def k():
    """Two slices of two coils."""
    return kspace_of(complex_noise((2, 2, *SIZE)))


def read(path):
    with open_raw(path) as volume:
        return np.stack([volume.kspace(i) for i in range(volume.n_slices)])


def why(path):
    with pytest.raises(PrepError) as caught:
        read(path)
    return str(caught.value)


def renumbered(acquisitions, **counters):
    for acquisition in acquisitions:
        for name, value in counters.items():
            setattr(acquisition.idx, name, value)
    return acquisitions


@pytest.fixture
def generate(tmp_path):
    """Debian's generator (package ismrmrd-tools)."""
    if shutil.which("ismrmrd_generate_cartesian_shepp_logan") is None:
        pytest.skip("ismrmrd_generate_cartesian_shepp_logan of Debian's ismrmrd-tools is not installed")

    def run(*options):
        path = tmp_path / "generated.h5"
        command = ["ismrmrd_generate_cartesian_shepp_logan", *options, "-o", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return path

    return run


@pytest.mark.parametrize(("matrix", "oversampling"), [("32", "2"), ("33", "1")])
def test_generated_phantom_is_recovered(generate, matrix, oversampling):
    path = generate("-m", matrix, "-c", "3", "-O", oversampling, "-n", "0")
    with h5py.File(path) as file:
        stored = file["dataset/coil_images"][0].view(np.complex64)  # (coils, columns, rows)
    with open_raw(path) as volume:
        assert (volume.n_slices, volume.coils, volume.size) == (1, 3, (int(matrix) * int(oversampling), int(matrix)))
        assert volume.mask is None
        assert volume.geometry(0) is None
        assert volume.note == ""
        image = np.roll(to_image(volume.kspace(0)), int(matrix) % 2, (1, 2))  # the generator's FFT is off by one on odd sides
        np.testing.assert_allclose(image, stored.transpose(0, 2, 1), atol=2e-6)


def test_accelerated_phantom_is_refused_since_its_repetitions_differ(generate):
    assert "repetition (0, 1)" in why(generate("-m", "16", "-c", "1", "-a", "2"))


@pytest.mark.parametrize("size", [(8, 7), (9, 6), (7, 1)])
def test_any_size_is_read_exactly(tmp_path, size):
    k = kspace_of(complex_noise((2, 2, *size)))
    path = write(tmp_path / "a.h5", readouts(k), header(size))
    np.testing.assert_array_equal(read(path), k)


def test_one_channel_has_no_coil_axis(tmp_path, k):
    with open_raw(write(tmp_path / "a.h5", readouts(k[:, :1]), header(SIZE))) as volume:
        assert volume.coils == 0
        assert volume.kspace(1).dtype == np.complex64
        np.testing.assert_array_equal(volume.kspace(1), k[1, 0])


def test_header_says_pixel_patient_and_reconstruction(tmp_path, k):
    subject = "<subjectInformation><patientID>P7</patientID></subjectInformation>"
    with open_raw(write(tmp_path / "a.h5", readouts(k), header(SIZE, subject=subject))) as volume:
        assert volume.subject == "P7"
        assert volume.encoding.pixel == (200 / 8, 90 / 6)
        assert volume.encoding.spacing == (25, 22.5)
        assert volume.encoding.size == (4, 4)


def test_centre_of_the_encoding_limits_stands_in_the_middle(tmp_path, k):
    lines = [readout(k[0, :, :, w], w - 2) for w in range(2, 6)]  # partial Fourier: the two first lines left out
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE, limits=(0, 3, 1)))) as volume:
        np.testing.assert_array_equal(volume.kspace(0)[..., 2:], k[0][..., 2:])
        assert not volume.kspace(0)[..., :2].any()
        assert volume.encoding.measured == (2, 6)
        assert volume.mask is None  # all lines inside the encoding limits were acquired


def test_left_out_lines_are_in_the_mask(tmp_path, k):
    lines = [line for line in readouts(k) if line.idx.kspace_encode_step_1 not in (1, 4)]
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE))) as volume:
        assert volume.mask.tolist() == [True, False, True, True, False, True]
        np.testing.assert_array_equal(volume.kspace(1), np.where(volume.mask, k[1], 0))


@pytest.mark.parametrize(("first", "last"), [(3, 8), (0, 5)])
def test_asymmetric_echo_stands_on_its_rows(tmp_path, k, first, last):
    lines = readouts(k[..., first:last, :], center_sample=4 - first)
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE))) as volume:
        found = volume.kspace(1)
        assert volume.note == "asymmetric echo: 3 of 8 rows were not recorded and are zero"
    np.testing.assert_array_equal(found[:, first:last], k[1][:, first:last])
    assert not np.delete(found, np.s_[first:last], axis=1).any()


def test_samples_to_discard_are_dropped(tmp_path, k):
    padded = np.pad(k, [(0, 0), (0, 0), (3, 1), (0, 0)], constant_values=1e6)
    lines = readouts(padded, discard_pre=3, discard_post=1, center_sample=7)
    np.testing.assert_array_equal(read(write(tmp_path / "a.h5", lines, header(SIZE))), k)


@pytest.mark.parametrize("size", [(8, 6), (9, 6)])
@pytest.mark.parametrize("odd_only", [False, True])
def test_reversed_lines_are_turned_round(tmp_path, size, odd_only):
    k = kspace_of(complex_noise((1, 2, *size)))
    lines = [
        readout(k[0, :, ::-1, w], w, flag="REVERSE") if w % 2 or not odd_only else readout(k[0, :, :, w], w)
        for w in range(size[1])
    ]
    with open_raw(write(tmp_path / "a.h5", lines, header(size))) as volume:
        np.testing.assert_array_equal(volume.kspace(0), k[0])
        assert ("both directions" in volume.note) == odd_only


def test_reversed_asymmetric_echo_is_refused(tmp_path, k):
    lines = [readout(k[0, :, 7:2:-1, w], w, flag="REVERSE", center_sample=1) for w in range(6)]
    assert "reversed readouts with an asymmetric echo" in why(write(tmp_path / "a.h5", lines, header(SIZE)))


def test_averages_give_the_mean_and_less_noise(tmp_path, k):
    noise = [readout(complex_noise((2, 500)), flag="NOISE_MEASUREMENT")]
    once = write(tmp_path / "a.h5", noise + readouts(k), header(SIZE))
    lines = readouts(k) + renumbered(readouts(3 * k), average=1)
    twice = write(tmp_path / "b.h5", noise + lines, header(SIZE))
    np.testing.assert_allclose(read(twice), 2 * k, rtol=1e-6)
    with open_raw(once) as one, open_raw(twice) as two:
        np.testing.assert_allclose(two.noise_covariance, one.noise_covariance / 2)
        assert one.note == two.note == ""


def test_unequal_averages_are_said(tmp_path, k):
    lines = readouts(k) + renumbered(readouts(k)[:3], average=1)
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE))) as volume:
        assert "means of 1 to 2 readouts" in volume.note
        np.testing.assert_allclose(volume.kspace(0), k[0], rtol=1e-6)


def test_readouts_that_are_no_image_are_left_out(tmp_path, k):
    flags = ("NAVIGATION_DATA", "PHASECORR_DATA", "HPFEEDBACK_DATA", "DUMMYSCAN_DATA", "RTFEEDBACK_DATA")
    flags += ("SURFACECOILCORRECTIONSCAN_DATA", "NOISE_MEASUREMENT")
    other = [readout(np.full((2, 12), 1e6), column, flag=flag) for column, flag in enumerate(flags)]
    np.testing.assert_array_equal(read(write(tmp_path / "a.h5", other + readouts(k), header(SIZE))), k)


def accelerated(k, flag):
    """Every second line, and the lines 2 and 3 again for calibration, scaled so that it shows."""
    imaging = [line for line in readouts(k) if line.idx.kspace_encode_step_1 % 2 == 0]
    return imaging + [readout(2 * k[s, :, :, w], w, s, flag=flag) for s in range(2) for w in (2, 3)]


@pytest.mark.parametrize("calibration", ["", "embedded", "other"])
def test_calibration_lines_fill_gaps_and_never_replace_imaging(tmp_path, k, calibration):
    path = write(tmp_path / "a.h5", accelerated(k, "PARALLEL_CALIBRATION"), header(SIZE, calibration=calibration))
    with open_raw(path) as volume:
        assert volume.mask.tolist() == [True, False, True, True, True, False]
        np.testing.assert_array_equal(volume.kspace(1)[..., [0, 2, 4]], k[1][..., [0, 2, 4]])
        np.testing.assert_array_equal(volume.kspace(1)[..., 3], 2 * k[1][..., 3])
        assert volume.note == ""


def test_calibration_of_another_scan_is_left_out(tmp_path, k):
    path = write(tmp_path / "a.h5", accelerated(k, "PARALLEL_CALIBRATION"), header(SIZE, calibration="separate"))
    with open_raw(path) as volume:
        assert volume.mask.tolist() == [True, False, True, False, True, False]
        assert volume.note == "4 lines of separate calibration are left out"


def test_calibration_lines_of_another_length_are_left_out(tmp_path, k):
    lines = [*readouts(k), readout(np.ones((2, 4)), 3, flag="PARALLEL_CALIBRATION")]
    with open_raw(write(tmp_path / "a.h5", lines, header(SIZE))) as volume:
        np.testing.assert_array_equal(volume.kspace(0), k[0])
        assert "1 calibration lines that do not fit" in volume.note


def correlated_noise(n, seed=0):
    """(3, n) noise, and the covariance of its real and of its imaginary parts each."""
    rng = np.random.default_rng(seed)
    mix = np.array([[1, 0, 0], [0.5j, 2, 0], [0.3, -0.4j, 0.5]])
    return mix @ (rng.standard_normal((3, n)) + 1j * rng.standard_normal((3, n))) + 5, mix @ mix.conj().T


@pytest.mark.parametrize(
    ("dwell", "system", "factor"),
    [
        (5.0, "", 1),
        (20.0, "", 4),  # noise recorded in a quarter of the bandwidth
        (5.0, "<relativeReceiverNoiseBandwidth>0.8</relativeReceiverNoiseBandwidth>", 1 / 0.8),
    ],
)
def test_noise_covariance_in_the_bandwidth_of_the_image(tmp_path, dwell, system, factor):
    k = kspace_of(complex_noise((1, 3, *SIZE)))
    noise, covariance = correlated_noise(12000)
    scans = [readout(noise[:, i : i + 6000], flag="NOISE_MEASUREMENT", sample_time_us=dwell) for i in (0, 6000)]
    with open_raw(write(tmp_path / "a.h5", scans + readouts(k), header(SIZE, system=system))) as volume:
        np.testing.assert_allclose(volume.noise_covariance, factor * covariance, atol=0.04 * factor * 4)
        np.testing.assert_array_equal(volume.noise_covariance, volume.noise_covariance.conj().T)
        assert volume.note == ""


@pytest.mark.parametrize(
    ("noise", "dwell", "note"),
    [
        (complex_noise((2, 2)), 5.0, "2 noise samples of 2 channels are too few"),
        (np.zeros((2, 9)), 5.0, "empty in some channel"),
        (complex_noise((2, 9)), 0.0, "dwell times are not all known"),
    ],
)
def test_what_a_noise_scan_cannot_tell_is_said(tmp_path, k, noise, dwell, note):
    scans = [readout(noise, flag="NOISE_MEASUREMENT", sample_time_us=dwell)]
    with open_raw(write(tmp_path / "a.h5", scans + readouts(k), header(SIZE))) as volume:
        assert note in volume.note
        assert (volume.noise_covariance is None) == (dwell > 0)


def noise_scan(noise):
    return lambda lines, k: lines.append(readout(noise, flag="NOISE_MEASUREMENT"))


def again(**counters):
    return lambda lines, k: lines.extend(renumbered(readouts(k), **counters))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"trajectory": "radial"}, "trajectory 'radial', expected 'cartesian'"),
        ({"partitions": 4}, "3-D encoding of several slabs"),
        ({"limits": (0, 3, 2)}, "outside 1 to 4 of the header's encoding limits"),
        ({"limits": False, "size": (8, 8)}, "which step is k = 0 is unknown"),
        ({"size": (6, 6)}, "do not fit on the 6 encoded rows"),
        ({"size": (16, 6)}, "reach neither end of the 16 encoded rows"),
        ({"slices": 3}, "no readouts of slice 2; expected 3 slices"),
        ({"slices": 10**9}, "expected 1000000000 slices"),
        ({"size": (8, 10**9), "limits": (0, 5, 3)}, "more than the 65536 that acquisitions can count"),
        ({"size": (0, 6)}, "no encodedSpace/matrixSize"),
    ],
)
def test_header_that_does_not_describe_the_readouts_is_refused(tmp_path, k, change, cause):
    size = change.pop("size", SIZE)
    assert cause in why(write(tmp_path / "a.h5", readouts(k), header(size, **change)))


def test_header_without_limits_is_enough_when_all_lines_are_there(tmp_path, k):
    np.testing.assert_array_equal(read(write(tmp_path / "a.h5", readouts(k), header(SIZE, limits=False))), k)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda lines, k: lines.pop(), "6 of slice 0, 5 of slice 1, 5 of them in common"),
        (noise_scan(complex_noise((3, 9))), "3 channels, the imaging readouts have 2"),
        (noise_scan(np.full((2, 9), np.nan)), "noise measurement holds NaN"),
        (again(contrast=1), "several images per slice: contrast (0, 1)"),
        (again(phase=1), "several images per slice: phase (0, 1)"),
        (again(repetition=1), "several images per slice: repetition (0, 1)"),
        (again(set=1), "several images per slice: set (0, 1)"),
        (lambda lines, k: renumbered(lines[:6], kspace_encode_step_2=1), "kspace_encode_step_2 takes 0, 1"),
        (lambda lines, k: lines.append(readout(k[0, :1, :, 0])), "differ in active_channels: 1, 2"),
        (lambda lines, k: lines.append(readout(k[0, :, :7, 0])), "differ in number_of_samples: 7, 8"),
        (lambda lines, k: lines.append(readout(k[0, :, :, 0], center_sample=3)), "differ in center_sample: 3, 4"),
        (lambda lines, k: lines.append(readout(k[0, :, :, 0], encoding_space_ref=1)), "differ in encoding_space_ref: 0, 1"),
        (lambda lines, k: lines.append(lines[2]), "column 2 2 times with the same counters"),
        (lambda lines, k: renumbered(lines[6:], slice=3), "no readouts of slice 1, 2"),
        (lambda lines, k: [line.set_flag(19) for line in lines], "none of 12 acquisitions is an imaging readout"),
        (lambda lines, k: [setattr(line, "discard_pre", 8) for line in lines], "no samples"),
    ],
)
def test_contradictory_readouts_are_refused(tmp_path, k, change, cause):
    lines = readouts(k)
    change(lines, k)
    assert cause in why(write(tmp_path / "a.h5", lines, header(SIZE)))


@pytest.mark.parametrize("value", [np.inf, 1j * np.nan])
def test_samples_that_are_no_numbers_are_refused_by_slice(tmp_path, k, value):
    k[1, 1, 3, 2] = value
    path = write(tmp_path / "a.h5", readouts(k), header(SIZE))
    with open_raw(path) as volume:
        np.testing.assert_array_equal(volume.kspace(0), k[0])
        with pytest.raises(PrepError, match="slice 1 holds NaN or infinite"):
            volume.kspace(1)


def test_averages_too_large_to_add_are_refused(tmp_path, k):
    k[0] = 3e38
    lines = readouts(k) + renumbered(readouts(k), average=1)
    assert "slice 0 holds NaN or infinite" in why(write(tmp_path / "a.h5", lines, header(SIZE)))


def test_record_shorter_than_its_head_is_refused(tmp_path, k):
    path = write(tmp_path / "a.h5", readouts(k), header(SIZE))
    with h5py.File(path, "r+") as file:
        record = file["dataset/data"][7]
        record["data"] = record["data"][:-2]
        file["dataset/data"][7] = record
    assert "slice 1 has a readout of 30 numbers, expected 32" in why(path)


def test_incomplete_files_are_refused(tmp_path, k):
    xml = header(SIZE)
    assert "no dataset/data (found: xml)" in why(write(tmp_path / "a.h5", [], xml))
    assert "no dataset/xml" in why(write(tmp_path / "b.h5", readouts(k), None))
    whole = write(tmp_path / "c.h5", readouts(k), xml).read_bytes()
    (tmp_path / "d.h5").write_bytes(whole[: len(whole) // 2])
    assert "truncated HDF5 file" in why(tmp_path / "d.h5")
    (tmp_path / "e.h5").write_text("<html>")
    assert "not an HDF5 file" in why(tmp_path / "e.h5")


def test_other_hdf5_files_are_not_taken_for_ismrmrd(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["kspace"] = np.ones((1, 4, 4), np.complex64)
        file["ismrmrd_header"] = header(SIZE)
    np.testing.assert_array_equal(read(tmp_path / "a.h5"), np.ones((1, 4, 4)))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["dataset/data"] = np.ones(4)
        file["dataset/xml"] = header(SIZE)
    assert "dataset/data has no data, head, traj" in why(tmp_path / "b.h5")


def test_missing_package_is_named_with_its_install_command(tmp_path, k, monkeypatch):
    path = write(tmp_path / "a.h5", readouts(k), header(SIZE))
    monkeypatch.setitem(sys.modules, "ismrmrd.hdf5", None)
    assert "pip install 'es_medical[ismrmrd]'" in why(path)


def test_file_is_not_written_to(tmp_path, k):
    path = write(tmp_path / "a.h5", readouts(k), header(SIZE))
    before = path.read_bytes()
    path.chmod(0o444)
    read(path)
    assert path.read_bytes() == before


def test_one_slice_is_in_memory_at_a_time(tmp_path):
    k = kspace_of(complex_noise((12, 4, 64, 16)))
    path = write(tmp_path / "a.h5", readouts(k), header(k.shape[-2:]))
    with open_raw(path) as volume:
        volume.kspace(0)
        tracemalloc.start()
        for i in range(12):
            volume.kspace(i)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 6 * k[0].nbytes
