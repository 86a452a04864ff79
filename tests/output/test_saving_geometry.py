"""The same voxel has the same place in NIfTI and DICOM, with and without a source; what is refused, and when."""

import getpass
import gzip
import socket
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import pydicom
import pytest
from dicom_parts import MARKER, OBLIQUE, points, save, source_plane, validator_errors, values_of, write_source
from tiny import names, set_texts, write_slices

from es_medical.data import SliceDataset
from es_medical.data.geometry import Geometry
from es_medical.output.dicom import writer as dicom
from es_medical.output.saving import SaveReconstructions

SIZE, N = (12, 10), 4
SCALE, OFFSET = 2e-5, 0.0


def slice_file(folder, planes=None, spacing=(float("nan"),) * 2, split=None):
    """A file with one volume of N slices (or several subjects: `split`), whose planes are stored if they are given."""
    path = write_slices(folder / "slices.h5", SIZE, split or {"test": N}, scale=(SCALE, OFFSET), spacing=spacing)
    with h5py.File(path, "r+") as file:
        if split is None:
            set_texts(file, "subject", ["0123abcd"] * N)
            file["slice"][:] = range(N)
        for i, plane in enumerate(planes or ()):
            for name in ("position", "orientation", "spacing", "slice_spacing"):
                file[name][i] = getattr(plane, name)
    return path


def marked(index=2, row=4, column=7, size=SIZE):
    """Background and one bright voxel, (N, H, W)."""
    images = np.full((N, *size), 0.1, np.float32)
    images[index, row, column] = 1.0
    return images


TILTED = (1.0, 0.0, 0.0, 0.0, np.cos(0.4), np.sin(0.4))
PLANES = {
    "oblique": [source_plane(i) for i in range(N)],
    "down": [source_plane(i) for i in reversed(range(N))],  # slice numbers run against the normal
    "mirrored": [source_plane(i, orientation=tuple(np.multiply(OBLIQUE, (-1, -1, 1, 1, 1, 1)))) for i in range(N)],
    "tilted gantry": [Geometry((-5.0, 3.0, 4.0 * i), TILTED, (1.5, 0.75), 4 * np.cos(0.4)) for i in range(N)],
}


@pytest.mark.parametrize("planes", PLANES.values(), ids=PLANES)
@pytest.mark.parametrize("voxel", [(0, 0, 0), (3, 11, 9), (2, 4, 7)])
def test_a_marked_voxel_is_at_one_place_in_nifti_and_dicom(tmp_path, planes, voxel):
    save(tmp_path / "out", slice_file(tmp_path, planes), marked(*voxel), dicom=True)
    expected = planes[voxel[0]].world(*voxel[1:])
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, expected, atol=1e-4)
    assert nib.load(tmp_path / "out" / "0123abcd_reconstruction.nii.gz").header["sform_code"] == 1  # as the scanner says


def test_a_marked_voxel_is_at_one_place_with_a_nominal_orientation(tmp_path):
    save(tmp_path / "out", slice_file(tmp_path, spacing=(1.5, 0.75)), marked(2, 4, 7), dicom=True)
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, [(7 - 5) * 0.75, (4 - 6) * 1.5, 2], atol=1e-5)


@pytest.mark.parametrize("order", [1, -1])
def test_the_source_gives_the_place_and_nifti_follows_it(tmp_path, order):
    """The stored planes only tell which slice is which (and run against the source's normal in one case)."""
    source = write_source(tmp_path / "source", N)
    planes = [source_plane(i) for i in range(N)][::order]
    save(tmp_path / "out", slice_file(tmp_path, planes), marked(1, 3, 8), dicom=True, source_dicom=source)
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, planes[1].world(3, 8), atol=1e-4)
    for file in (tmp_path / "out" / "dicom").rglob("*.dcm"):
        assert pydicom.dcmread(file).PatientID == "id17"
        assert validator_errors(file) == []


@pytest.mark.parametrize(("size", "shift"), [((20, 16), (4, 3)), ((8, 7), (-2, -2))])
def test_a_source_of_another_size_keeps_the_place_of_its_pixels(tmp_path, size, shift):
    source = write_source(tmp_path / "source", N, size, spacing=(1.5, 0.75))
    path = slice_file(tmp_path, spacing=(1.5, 0.75))
    save(tmp_path / "out", path, marked(1, 3, 4), dicom=True, source_dicom=source)
    expected = source_plane(1, size).world(3 + shift[0], 4 + shift[1])  # n//2 on n//2
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, expected, atol=1e-4)


@pytest.mark.parametrize("step", [1, -1])
def test_values_are_equal_in_nifti_in_the_order_of_the_slices_and_in_dicom_along_the_normal(tmp_path, step):
    images = np.random.default_rng(0).random((N, *SIZE)).astype(np.float32)
    save(tmp_path / "out", slice_file(tmp_path, [source_plane(i) for i in range(N)][::step]), images, dicom=True)
    nifti = nib.load(tmp_path / "out" / "0123abcd_reconstruction.nii.gz").get_fdata()
    np.testing.assert_allclose(nifti.transpose(2, 1, 0), images * SCALE, rtol=1e-6)
    files = sorted((tmp_path / "out" / "dicom" / "0123abcd" / "reconstruction").iterdir())[::step]
    for i, file in enumerate(files):
        one = pydicom.dcmread(file)
        np.testing.assert_allclose(values_of(one), nifti[:, :, i].T, atol=0.51 * float(one.RescaleSlope))


def test_a_missing_slice_is_a_gap_of_the_right_width(tmp_path):
    planes = [source_plane(i) for i in (0, 1, 3, 4)]
    save(tmp_path / "out", slice_file(tmp_path, planes), marked(2, 4, 7), dicom=True)
    image = nib.load(tmp_path / "out" / "0123abcd_reconstruction.nii.gz")
    assert image.shape == (10, 12, 5)
    assert np.isnan(image.get_fdata()[..., 2]).all()
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, planes[2].world(4, 7), atol=1e-4)
    assert len(names(tmp_path / "out" / "dicom" / "0123abcd" / "reconstruction")) == N


def test_slices_beside_a_grid_are_no_nifti_but_still_dicom(tmp_path):
    planes = [source_plane(i) for i in (0, 1, 2.4, 3)]
    with pytest.raises(RuntimeError, match="1 of 1 volumes.*off a regular grid"):
        save(tmp_path / "out", slice_file(tmp_path, planes), marked(), dicom=True)
    assert len(names(tmp_path / "out" / "dicom" / "0123abcd" / "reconstruction")) == N
    assert not list((tmp_path / "out").glob("*.nii.gz"))
    with h5py.File(tmp_path / "out" / "reconstructions.h5") as file:
        np.testing.assert_allclose(file["position"][2], planes[2].position, rtol=1e-6)


def test_an_older_slice_file_is_nominal(tmp_path):
    path = slice_file(tmp_path)
    with h5py.File(path, "r+") as file:
        for name in ("position", "orientation", "slice_spacing"):
            del file[name]
    save(tmp_path / "out", path, marked(), dicom=True)
    image = nib.load(tmp_path / "out" / "0123abcd_spread.nii.gz")
    assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
    assert b"nominal orientation and spacing" in image.header["descrip"].item()  # the distance of slices is unknown


def test_one_failing_volume_does_not_stop_the_others(tmp_path):
    path = slice_file(tmp_path, split={"train": 2, "test": 2})  # subjects train0 and test1
    images = marked()
    images[0, 0, 0] = np.nan
    with pytest.raises(RuntimeError, match="1 of 2 volumes were not written: train0: ValueError: slice 0 .*NaN or infinite"):
        save(tmp_path / "out", path, images, dicom=True)
    assert names(tmp_path / "out" / "dicom") == {"test1"}
    assert len(list((tmp_path / "out" / "dicom").rglob("*.dcm"))) == 3
    assert len(list((tmp_path / "out").glob("*.nii.gz"))) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dicom": False}, "dicom is off"),
        ({"n": 3}, "has 3 slices, the volume 4"),
        ({"split": {"train": 2, "test": 2}}, "one series, the slices are of 2 volumes"),
        ({"size": (9, 9)}, "expected the same pixel spacing or field of view"),
    ],
)
def test_a_source_that_does_not_fit_is_refused_before_any_reconstruction(tmp_path, options, message):
    options = {"dicom": True, "n": N, "split": None, "size": SIZE} | options
    source = write_source(tmp_path / "source", options["n"], options["size"])
    dataset = SliceDataset(slice_file(tmp_path, split=options["split"]))
    with pytest.raises(ValueError, match=message):
        SaveReconstructions(tmp_path / "out", dataset, options["dicom"], source)
    assert not (tmp_path / "out").exists()


def test_a_source_matched_in_order_only_is_said_once(tmp_path, caplog):
    source = write_source(tmp_path / "source", N)
    save(tmp_path / "out", slice_file(tmp_path), marked(), dicom=True, source_dicom=source)
    assert caplog.text.count("positions are unknown") == 1


def test_without_positions_the_slice_numbers_tell_the_order_not_the_rows(tmp_path):
    path = slice_file(tmp_path)
    with h5py.File(path, "r+") as file:
        file["slice"][:] = range(N)[::-1]
    source = write_source(tmp_path / "source", N)
    save(tmp_path / "out", path, marked(0, 4, 7), dicom=True, source_dicom=source)
    for point in points(tmp_path / "out"):
        np.testing.assert_allclose(point, source_plane(N - 1).world(4, 7), atol=1e-4)


@pytest.mark.parametrize("stated", [float("nan"), 3.0])
def test_the_positions_decide_how_far_slices_are_apart(tmp_path, stated):
    planes = [Geometry(one.position, one.orientation, one.spacing, stated) for one in map(source_plane, range(N))]
    save(tmp_path / "out", slice_file(tmp_path, planes), marked(), dicom=True)
    assert nib.load(tmp_path / "out" / "0123abcd_spread.nii.gz").header.get_zooms()[2] == pytest.approx(4)
    for file in (tmp_path / "out" / "dicom" / "0123abcd" / "reconstruction").iterdir():
        assert pydicom.dcmread(file).SpacingBetweenSlices == pytest.approx(4, abs=1e-4)


def test_a_missing_library_is_named_with_its_command_before_any_reconstruction(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "highdicom", None)
    with pytest.raises(ImportError, match=r"pip install 'es_medical\[dicom\]'"):
        SaveReconstructions(tmp_path, SliceDataset(slice_file(tmp_path)), dicom=True)


def test_nothing_of_a_series_is_left_when_its_writing_fails(tmp_path, monkeypatch):
    written = []

    def failing(path, one, enforce_file_format):
        written.append(path)
        Path(path).write_bytes(b"half")
        if len(written) == 2:
            raise OSError("no space left on device")

    monkeypatch.setattr(dicom, "dcmwrite", failing)
    with pytest.raises(RuntimeError, match="no space left"):
        save(tmp_path / "out", slice_file(tmp_path), marked(), dicom=True)
    assert names(tmp_path / "out" / "dicom" / "0123abcd") == set()


def test_no_path_user_or_machine_is_in_what_is_written(tmp_path):
    """G6 for our own writing: names of folders, of the slice file, of the user and of the machine."""
    inside = tmp_path / f"in_{MARKER}"
    inside.mkdir()
    path = slice_file(inside).rename(inside / f"{MARKER}.h5")
    save(tmp_path / f"out_{MARKER}", path, marked(), dicom=True, method="es")
    files = [file for file in (tmp_path / f"out_{MARKER}").rglob("*") if file.suffix in (".dcm", ".gz")]
    assert len(files) == N + 1 + 2
    secrets = [MARKER, *(name for name in (getpass.getuser(), socket.gethostname()) if len(name) > 3)]
    for file in files:
        content = file.read_bytes()
        content += gzip.decompress(content) if file.suffix == ".gz" else b""
        for secret in secrets:
            assert secret.encode() not in content, (file.name, secret)


def test_recorded_numbers_are_not_blurred_by_single_precision(tmp_path):
    plane = Geometry((0.1, 0.2, 0.3), (1, 0, 0, 0, 1, 0), (0.6875, 1.1), 3.3)
    planes = [Geometry((0.1, 0.2, 0.3 + 3.3 * i), plane.orientation, plane.spacing, 3.3) for i in range(N)]
    save(tmp_path / "out", slice_file(tmp_path, planes), marked(), dicom=True)
    one = pydicom.dcmread(tmp_path / "out" / "dicom" / "0123abcd" / "reconstruction" / "0001.dcm")
    assert [str(value) for value in one.PixelSpacing] == ["0.6875", "1.1"]
    assert float(one.ImagePositionPatient[0]) == pytest.approx(0.1, abs=1e-9)
