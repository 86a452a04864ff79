"""A source series: found by content, refused with names where it is none, matched with the pixel grid of a volume."""

import shutil

import numpy as np
import pydicom
import pytest
from dicom_parts import OBLIQUE, assert_valid, scanned, source_plane, write_slice, write_source
from enhanced_dicom import enhanced
from pydicom.uid import MediaStorageDirectoryStorage

from es_medical.data.geometry import Geometry
from es_medical.output.dicom.header import CT, MR
from es_medical.output.dicom.source import read_source

NAN = float("nan")


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "source")


def unplaced(n, spacing=(NAN, NAN)):
    return [Geometry(spacing=spacing)] * n


def change(file, **values):
    one = pydicom.dcmread(file)
    for name, value in values.items():
        setattr(one, name, value)
    one.save_as(file)


def test_slices_are_sorted_along_their_normal_whatever_the_names_and_numbers(source):
    series = read_source(source)
    assert [one.InstanceNumber for one in series.slices] == [3, 2, 1]
    for i, plane in enumerate(series.planes):
        np.testing.assert_allclose(plane.position, source_plane(i).position, atol=1e-6)
        assert plane.slice_spacing == pytest.approx(4.0, abs=1e-5)


def test_a_missing_slice_leaves_the_usual_distance(tmp_path):
    """B8: of steps of 8, 4, 4 mm and of 8, 4 mm it is 4 mm, and no mean."""
    source = write_source(tmp_path / "source", 5)
    (source / "IM4").unlink()
    assert {round(plane.slice_spacing, 4) for plane in read_source(source).planes} == {4.0}
    (source / "IM1").unlink()
    assert {round(plane.slice_spacing, 4) for plane in read_source(source).planes} == {4.0}


def test_one_file_is_a_series_of_one_slice(source):
    series = read_source(source / "IM2")
    assert len(series.slices) == 1
    assert series.size == (12, 10)


def test_one_slice_keeps_the_spacing_of_the_volume_where_its_source_states_none(source):
    """With a source as without one: else a NIfTI volume is 1 mm thick with it, and the slice's thickness without it."""
    series = read_source(source / "IM2")
    assert np.isnan(series.planes[0].slice_spacing)
    assert series.matched([Geometry(slice_spacing=2.5)], (12, 10))[1][0].slice_spacing == 2.5
    change(source / "IM2", SpacingBetweenSlices=4)
    stated = read_source(source / "IM2").matched([Geometry(slice_spacing=2.5)], (12, 10))[1]
    assert stated[0].slice_spacing == 4


def test_what_is_no_dicom_is_passed_over_and_a_copy_counts_once(source, caplog):
    (source / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (source / "notes.txt").write_text("knee")
    (source / "empty").touch()
    (source / "sub").mkdir()
    shutil.copy(source / "IM1", source / "sub" / "IM1")
    assert len(read_source(source).slices) == 3
    assert "1 copies" in caplog.text


def test_a_data_set_without_preamble_is_found(source):
    bare = pydicom.dcmread(source / "IM1")
    for file in source.iterdir():
        content = file.read_bytes()
        length = int.from_bytes(content[140:144], "little")  # of the file meta information
        file.write_bytes(content[144 + length :])
    found = {one.SOPInstanceUID for one in read_source(source).slices}
    assert len(found) == 3
    assert bare.SOPInstanceUID in found


def test_a_directory_file_is_no_slice(source):
    one = pydicom.dcmread(source / "IM1")
    one.SOPClassUID = one.file_meta.MediaStorageSOPClassUID = MediaStorageDirectoryStorage
    one.save_as(source / "DICOMDIR")
    assert len(read_source(source).slices) == 3


def test_several_series_are_refused_by_name(source):
    change(source / "IM2", SeriesInstanceUID="9.9")
    with pytest.raises(ValueError, match="2 series, expected one: (IM1, IM3; IM2|IM2; IM1, IM3)"):
        read_source(source)


def test_a_mixture_of_volumes_is_refused_by_what_tells_them_apart(tmp_path):
    """S1, S2: two studies, or two phases, under one SeriesInstanceUID."""
    for k, tag in enumerate(("StudyInstanceUID", "FrameOfReferenceUID", "AcquisitionNumber")):
        for i in range(2):
            part = write_source(tmp_path / str(k) / "ab"[i])
            for file in part.iterdir():
                change(file, **{tag: f"{i + 1}"})
        with pytest.raises(
            ValueError, match=rf"holds 2 volumes, which differ in {tag}; expected one: a/IM1, a/IM2, a/IM3; b/IM1"
        ):
            read_source(tmp_path / str(k))
        assert len(read_source(tmp_path / str(k) / "a").slices) == 3


@pytest.mark.parametrize("tag", ["FrameOfReferenceUID", "StudyInstanceUID"])
def test_a_uid_for_each_slice_is_refused_by_its_name(source, tag):
    """R4"""
    for i, file in enumerate(source.iterdir()):
        change(file, **{tag: f"1.2.3.{i}"})
    with pytest.raises(ValueError, match=f"each of its 3 images has a {tag} of its own"):
        read_source(source)


@pytest.mark.parametrize("kind", [MR, CT], ids=["MR", "CT"])
def test_frames_of_an_enhanced_image_are_slices(tmp_path, kind):
    """R1"""
    images = [scanned(source_plane(i), i, kind=kind) for i in (2, 0, 1)]
    write_slice(tmp_path / "enhanced", enhanced(images))
    series = read_source(tmp_path / "enhanced", kind)
    assert [one.InstanceNumber for one in series.slices] == [2, 3, 1]
    for i, plane in enumerate(series.planes):
        np.testing.assert_allclose(plane.position, source_plane(i).position, atol=1e-6)


@pytest.mark.parametrize("name", ["ImagePositionPatient", "PixelSpacing", "StudyInstanceUID", "FrameOfReferenceUID"])
def test_a_missing_attribute_is_named_with_its_file(source, name):
    one = pydicom.dcmread(source / "IM3")
    delattr(one, name)
    one.save_as(source / "IM3")
    with pytest.raises(ValueError, match=f"IM3 lacks {name}"):
        read_source(source)


def test_a_file_cut_short_in_its_header_is_not_taken(source):
    (source / "IM3").write_bytes((source / "IM3").read_bytes()[:700])
    with pytest.raises(ValueError, match="IM3"):
        read_source(source)


def test_a_file_that_cannot_be_parsed_is_named_with_the_cause(source, monkeypatch):
    def broken(*_, **__):
        raise NotImplementedError("no such value representation")

    monkeypatch.setattr("es_medical.output.dicom.source.dcmread", broken)
    with pytest.raises(ValueError, match="source DICOM IM1 cannot be read .NotImplementedError: no such value"):
        read_source(source)


@pytest.mark.parametrize(
    ("name", "value"),
    [("PixelSpacing", [0, 1]), ("ImageOrientationPatient", [1, 0, 0, 1, 0, 0]), ("ImagePositionPatient", [1, 2])],
)
def test_a_plane_that_is_none_is_named_with_its_file(source, name, value):
    change(source / "IM2", **{name: value})
    with pytest.raises(ValueError, match="source DICOM IM2: .*expected"):
        read_source(source)


def test_stacks_that_are_none_are_refused(tmp_path):
    echoes = write_source(tmp_path / "echoes")
    change(echoes / "IM2", ImagePositionPatient=pydicom.dcmread(echoes / "IM1").ImagePositionPatient)
    with pytest.raises(ValueError, match="several images at 1 positions"):
        read_source(echoes)
    localizer = write_source(tmp_path / "localizer")
    change(localizer / "IM2", ImageOrientationPatient=[0, 1, 0, 0, 0, -1])
    with pytest.raises(ValueError, match="not parallel"):
        read_source(localizer)
    sizes = write_source(tmp_path / "sizes")
    change(sizes / "IM2", Rows=11)
    with pytest.raises(ValueError, match=r"\(11, 10\), \(12, 10\)"):
        read_source(sizes)


def test_nothing_there_is_an_error_with_the_place(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_source(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no DICOM file at"):
        read_source(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "numbers", "count"),
    [
        (unplaced(2), None, 2),
        ([Geometry()], None, 1),
        ([source_plane(i) for i in range(4)], None, 4),
        (unplaced(3), [0, 2, 3], 4),  # with a gap that the source has not
    ],
)
def test_another_number_of_slices_is_refused_where_positions_cannot_tell(source, wanted, numbers, count):
    with pytest.raises(ValueError, match=rf"has 3 slices, the volume {count}: expected as many"):
        read_source(source).matched(wanted, (12, 10), numbers)


@pytest.mark.parametrize(("size", "spacing"), [((8, 16), (1.5, 0.75)), ((13, 9), (1.5, 0.75)), ((24, 5), (0.75, 1.5))])
def test_a_crop_padding_or_finer_grid_keeps_the_place_of_a_pixel(source, size, spacing):
    series = read_source(source)
    slices, planes = series.matched(unplaced(3, spacing), size)
    assert slices == series.slices
    for i, plane in enumerate(planes):
        assert plane.spacing == spacing
        if spacing == (1.5, 0.75):  # about index n//2
            np.testing.assert_allclose(plane.world(size[0] // 2, size[1] // 2), source_plane(i).world(6, 5), atol=1e-5)
        else:  # outer corner
            np.testing.assert_allclose(plane.world(-0.5, -0.5), source_plane(i).world(-0.5, -0.5), atol=1e-5)


def test_an_unknown_spacing_of_the_same_size_is_the_grid_of_the_source(source):
    _, planes = read_source(source).matched(unplaced(3), (12, 10))
    np.testing.assert_allclose(planes[1].position, source_plane(1).position, atol=1e-6)


@pytest.mark.parametrize(("size", "spacing"), [((6, 5), (NAN, NAN)), ((12, 10), (1.0, 1.0)), ((6, 5), (3.0, 3.0))])
def test_another_field_of_view_is_refused_with_both(source, size, spacing):
    with pytest.raises(ValueError, match=rf"\(12, 10\) pixels of \(1.5, 0.75\) mm.*\({size[0]}, {size[1]}\) pixels of"):
        read_source(source).matched(unplaced(3, spacing), size)


@pytest.mark.parametrize(("numbers", "chosen"), [([0, 2], [0, 2]), ([1, 2], [1, 2]), ([4, 6], [0, 2]), ([3, 4, 5], [0, 1, 2])])
def test_slices_left_out_of_a_volume_are_left_out_of_the_source(source, numbers, chosen):
    """Blank slices are not reconstructed; some slices of a scan may be all that the source holds."""
    series = read_source(source)
    slices, planes = series.matched(unplaced(len(numbers)), (12, 10), numbers)
    assert [series.slices.index(one) for one in slices] == chosen
    np.testing.assert_allclose(planes[-1].position, source_plane(chosen[-1]).position, atol=1e-6)


def test_known_positions_that_disagree_are_refused(source):
    series = read_source(source)
    with pytest.raises(ValueError, match="no source slice"):
        series.matched([source_plane(i) for i in (1, 2, 3)], (12, 10))
    mirrored = [
        Geometry(tuple(source_plane(i).world(0, 9)), tuple(np.multiply(OBLIQUE, [-1, -1, -1, 1, 1, 1])), (1.5, 0.75), 4.0)
        for i in range(3)
    ]
    with pytest.raises(ValueError, match="no source slice"):
        series.matched(mirrored, (12, 10))


def test_pixels_of_a_real_scan_come_back_at_their_place(tmp_path, shared_data):
    """The wrist series, its pixels as if they had been reconstructed: A18, G1, G10 on a file of a scanner."""
    from es_medical.output.dicom.series import Derivation
    from es_medical.output.dicom.writer import DicomWriter
    from es_medical.output.volume import Volume

    pytest.importorskip("highdicom", reason="the extra `dicom` is not installed")
    folder = shared_data / "mr_magnitude" / "dicom_wrist"
    if not folder.is_dir():
        pytest.skip("the wrist series is not here")
    series = read_source(folder)
    full = {one.SOPInstanceUID: one for one in map(pydicom.dcmread, folder.iterdir())}
    pixels = np.stack([full[one.SOPInstanceUID].pixel_array for one in series.slices]).astype(np.float32)
    half = pixels.reshape(16, 128, 2, 128, 2).mean((2, 4))  # 256 -> 128 over the same field of view
    spacing = tuple(2 * value for value in series.planes[0].spacing)
    volume = Volume("wrist", "0", {"reconstruction": half, "spread": half / 9}, np.arange(16), tuple(unplaced(16, spacing)))
    DicomWriter(tmp_path, Derivation("es", 8), series).write(volume)
    files = sorted((tmp_path / "wrist" / "reconstruction").iterdir())
    for i, image in enumerate(map(pydicom.dcmread, files)):
        original = full[image.SourceImageSequence[0].ReferencedSOPInstanceUID]
        assert image.StudyInstanceUID == original.StudyInstanceUID
        assert image.PatientName == original.PatientName
        assert list(image.PixelSpacing) == [2 * value for value in original.PixelSpacing]
        moved = np.subtract(image.ImagePositionPatient, original.ImagePositionPatient)
        np.testing.assert_allclose(moved, [0.1171875, 0, -0.1171875], atol=1e-6)  # columns along x, rows down z
        expected = original.pixel_array.reshape(128, 2, 128, 2).mean((1, 3))
        np.testing.assert_allclose(image.pixel_array * float(image.RescaleSlope), expected, atol=float(image.RescaleSlope))
        assert image.InstanceNumber == i + 1
    assert_valid(tmp_path / "wrist")


@pytest.mark.parametrize("kind", [MR, CT], ids=["MR", "CT"])
def test_the_source_made_here_is_one_that_a_validator_accepts(tmp_path, kind):
    """Otherwise its faults, not ours, would decide the tests above."""
    assert_valid(write_source(tmp_path, kind=kind))
