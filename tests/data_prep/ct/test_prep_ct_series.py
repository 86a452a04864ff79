import numpy as np
import pytest
from ct_archives import AXIAL, ct, disc, write, write_series

from data_prep.ct.header import read_ct
from data_prep.ct.pixels import read_hounsfield
from data_prep.ct.series import by_volume, make_series, step_of
from data_prep.run.manifest import PrepError
from es_medical.data.dicom.elements import quiet_pydicom
from es_medical.data.stack import gaps

CORONAL = (1, 0, 0, 0, 0, -1)
OBLIQUE = (1, 0, 0, 0, 0.8, -0.6)


def groups_of(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    with quiet_pydicom():
        files = [file for path in paths for file in read_ct(path, path.name, "dicom")]
    return by_volume(files, lambda file: read_hounsfield(folder / file.name, file).values.tobytes())


def series_of(folder):
    (group,) = groups_of(folder)
    return make_series(group, "series")


def along(series):
    return [one.along for one in series.slices]


@pytest.mark.parametrize("orientation", [AXIAL, CORONAL, OBLIQUE])
def test_order_is_by_position_along_the_normal(tmp_path, orientation):
    normal = np.cross(orientation[:3], orientation[3:])

    def reverse(data, i):
        data.ImagePositionPatient = list(10 * i * normal + [3, 4, 5])
        data.ImageOrientationPatient, data.InstanceNumber = list(orientation), 9 - i

    write_series(tmp_path, 4, change=reverse)
    series = series_of(tmp_path)
    assert [one.file.name for one in series.slices] == [f"{i:03d}.dcm" for i in range(4)]
    np.testing.assert_allclose(np.diff(along(series)), 10)
    assert series.spacing == 10
    assert ("not axial" in series.notes) == (orientation == CORONAL)


def test_missing_slice_is_named_and_the_spacing_is_kept(tmp_path):
    write_series(tmp_path, 5)
    (tmp_path / "002.dcm").unlink()
    series = series_of(tmp_path)
    assert series.spacing == 2.5
    assert series.notes == ("slice missing at 5 mm along the normal (spacing 2.5 mm)",)


@pytest.mark.parametrize(
    ("positions", "missing"), [([0, 1, 2], ""), ([0, 1, 4, 5, 6], "2, 3 mm"), ([0, 1, 9, 10], "2, 3, 4 and more mm")]
)
def test_gaps(positions, missing):
    found = gaps(np.array(positions, float))
    assert (missing in found[0]) if missing else not found


def test_copies_are_counted_and_leave_the_spacing(tmp_path):
    paths = write_series(tmp_path, 4)
    (tmp_path / "copy.dcm").write_bytes(paths[1].read_bytes())
    series = series_of(tmp_path)
    assert len(series.slices) == 4
    assert series.spacing == 2.5
    assert series.notes == ("copies of slices left out (1)",)


def test_second_image_at_a_position_is_a_copy_or_its_series_is_refused(tmp_path):
    write_series(tmp_path, 4)
    write(ct(z=2.5, key="sent again"), tmp_path / "x.dcm")
    series = series_of(tmp_path)
    assert along(series) == [0, 2.5, 5, 7.5]
    assert series.notes == ("copies of slices left out (1)",)
    write(ct(disc(inside=300), z=2.5, key="other phase"), tmp_path / "y.dcm")
    series = series_of(tmp_path)
    assert not series.slices
    assert {(one.status, one.cause) for one in series.dropped} == {
        ("failed", "several images at 1 positions, and no AcquisitionNumber or time tells them apart")
    }


def test_gantry_tilt_is_told(tmp_path):
    tilt = np.deg2rad(15)
    along_z = [1, 0, 0, 0, np.cos(tilt), np.sin(tilt)]

    def lean(data, i):
        data.ImageOrientationPatient = [f"{value:.8f}" for value in along_z]

    write_series(tmp_path, 4, change=lean)
    series = series_of(tmp_path)
    assert [item.file.identity.position[2] for item in series.slices] == [0, 2.5, 5, 7.5]
    assert series.notes == ("gantry tilt of 15 degrees: the slices are taken as they are, the volume is sheared",)


@pytest.mark.parametrize(
    ("element", "value", "cause"),
    [
        ("ImageType", ["DERIVED", "SECONDARY", "AXIAL"], "secondary"),
        ("ImageOrientationPatient", list(CORONAL), "parallel"),
        ("Rows", 16, "size"),
        ("ImagePositionPatient", None, "no position"),
    ],
)
def test_odd_image_of_a_series_is_left_out_and_named(tmp_path, element, value, cause):
    write_series(tmp_path, 4)
    odd = ct(disc((16, 32)) if element == "Rows" else None, z=20)
    setattr(odd, element, value)
    write(odd, tmp_path / "odd.dcm")
    series = series_of(tmp_path)
    assert len(series.slices) == 4
    (dropped,) = series.dropped
    assert dropped.name == "odd.dcm"
    assert dropped.status == "skipped"
    assert cause in dropped.cause


def test_series_without_positions_is_in_the_order_of_instance_numbers(tmp_path):
    def change(data, i):
        del data.ImagePositionPatient
        data.InstanceNumber = 9 - i

    write_series(tmp_path, 3, change=change)
    series = series_of(tmp_path)
    assert [one.file.name for one in series.slices] == ["002.dcm", "001.dcm", "000.dcm"]
    assert "instance numbers" in series.notes[0]
    assert np.isnan(series.geometry(0).position).all()


def test_middle_is_by_position_and_not_by_count(tmp_path):
    write_series(tmp_path, 9, step=1.0)
    for i in (5, 6, 7):
        (tmp_path / f"{i:03d}.dcm").unlink()
    series = series_of(tmp_path)
    assert [series.slices[i].file.name for i in series.chosen("middle")] == ["004.dcm"]


def test_every_nth_holds_the_middle(tmp_path):
    write_series(tmp_path, 8)
    series = series_of(tmp_path)
    assert series.chosen("middle") == (4,)
    assert series.chosen("every:3") == (1, 4, 7)
    assert series.chosen("every:100") == (4,)
    assert series.chosen("all") == tuple(range(8))


@pytest.mark.parametrize("which", ["every", "every:0", "every:x", "first", "every:-1"])
def test_unknown_choice_of_slices(which):
    with pytest.raises(PrepError, match="middle, all, or every:N"):
        step_of(which)


def test_uid_shared_by_patients_makes_a_series_of_each(tmp_path):
    """Stacked into one, a patient's slices would stand between another's, and in his split."""
    for i, patient in enumerate(["a", "b", "b", ""]):
        data = ct(z=2.5 * i, patient=patient)
        data.SeriesInstanceUID = "1.2.3"
        write(data, tmp_path / f"{i}.dcm")
    groups = groups_of(tmp_path)
    assert [[file.identity.patient for file in group.files] for group in groups] == [["a"], ["b", "b"], [""]]
    assert all("told apart by PatientID" in make_series(group, "series").notes[0] for group in groups)


def test_file_without_patient_stays_with_its_series(tmp_path):
    def forget(data, i):
        data.PatientID = "" if i == 1 else "p"

    write_series(tmp_path, 3, change=forget)
    assert along(series_of(tmp_path)) == [0, 2.5, 5]
