"""Inference on CT series: sinograms simulated as those of the training; HDF5, NIfTI and DICOM in Hounsfield units out."""

import functools
import gzip
import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from columns import columns, nifti, save_weights, stored
from ct_archives import ct, disc, uid, write, write_patients
from dicom_parts import values_of
from tiny import causes, execute, names, workflow, write_sinograms, write_slices

from data_prep.inference import ct_file, raise_failures
from data_prep.run.manifest import PrepError
from es_medical.data import read_header

BUNDLE = "lidc_ct"
SIZE, VIEWS, SIGMA = 16, 12, 0.002
OPEN = ("views", "sigma")


def textured(z):
    """A disc of tissue with an insert that moves from slice to slice: 32 x 32 pixels of 1 mm, in HU."""
    hu = disc((32, 32), inside=40.0)
    row = 8 + 4 * round(z / 2.5)
    hu[row : row + 4, 12:16] = 600.0
    return hu


def series(folder, n=3, patient="SECRETNAME", change=None, **how):
    """Slices of one textured series in a folder, told by name and content; returns the folder."""
    for i in range(n):
        data = ct(textured(2.5 * i), z=2.5 * i, patient=patient, **how)
        data.FrameOfReferenceUID = uid("frame", patient)
        if change:
            change(data, i)
        write(data, folder / f"{i:03d}.dcm")
    return folder


def expected(n=3):
    """What the stored images are: averages over 2 x 2 pixels, (n, 16, 16) in HU."""
    return np.stack([textured(2.5 * i).reshape(SIZE, 2, SIZE, 2).mean((1, 3)) for i in range(n)])


@pytest.fixture(scope="module")
def made_weights(tmp_path_factory, prep):
    """Weights of a tiny network for a file that `data_prep lidc` made; nothing is trained: what is kept says the same."""

    @functools.cache
    def make(*options, change=None):
        folder = tmp_path_factory.mktemp("weights")
        write_patients(folder / "raw", 3, 1, change=change)
        out, knobs = folder / "train.h5", ("--size", SIZE, "--views", VIEWS, "--sigma", SIGMA, "--seed", 3)
        prep("lidc", folder / "raw", out, *knobs, *options)
        weights_of(folder, out)
        return folder

    return make


@pytest.fixture
def weights(tmp_path, made_weights):
    """Puts a copy of such weights beside the file, which it returns."""
    return lambda *options, **how: shutil.copytree(made_weights(*options, **how), tmp_path, dirs_exist_ok=True) / "train.h5"


def weights_of(folder, source, bundle=BUNDLE):
    knobs = {"views": None, "sigma": None} if bundle == BUNDLE else {}
    save_weights(workflow(["train.yaml"], folder, source, "sqlite:///none.db", bundle, **knobs))


def reconstruct(tmp_path, source, **knobs):
    """`python -m monai.bundle run --config_file configs/inference.json --data_file SOURCE`, in this process; the folder."""
    execute(workflow(["inference.json"], tmp_path, source, "", BUNDLE, without=OPEN, **knobs))
    return tmp_path / "eval"


def prepare(tmp_path, source):
    return ct_file(str(source), str(tmp_path / "out"), str(tmp_path / "models"))


def reconstructions(out):
    return columns(out / "reconstructions.h5")


def volume_of(found):
    (name,) = set(found["volume"])
    return name


def dicom_series(folder):
    return [pydicom.dcmread(path) for path in sorted(folder.iterdir())]


def assert_nothing_identifies(out, *words):
    """In no name and in no byte of any file."""
    words = ["SECRETNAME", "Nobody", *(str(word) for word in words)]
    for path in (one for one in out.rglob("*") if one.is_file()):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        found = [word for word in words if word.encode() in content or word in str(path.relative_to(out))]
        assert found == [], path


# --- one series


def test_series_is_simulated_by_the_scanner_of_the_training(tmp_path, weights):
    """All slices with its knobs, and every pixel's value told in HU."""
    train = weights()
    made = prepare(tmp_path, series(tmp_path / "in"))
    header, used = read_header(made), read_header(train)
    assert (header.n, header.size, header.modality, header.splits) == (3, (SIZE, SIZE), "CT", {"train": 3})
    assert (header.operator, header.sigma, header.seed) == (used.operator, used.sigma, used.seed)
    assert header.mask.equal(used.mask)
    number, scaling, image = stored(made, "slice", "scale", "image")
    assert number.tolist() == [0, 1, 2]
    scale, offset = scaling.T[:, :, None, None]
    hu = image[:, 0] * scale + offset
    np.testing.assert_allclose(hu, expected(), atol=0.01)


def test_sinograms_are_those_that_the_command_makes(tmp_path, weights, prep):
    weights()
    source = series(tmp_path / "in")
    made, other = prepare(tmp_path, source), tmp_path / "b.h5"
    knobs = ("--size", SIZE, "--views", VIEWS, "--sigma", SIGMA, "--seed", 3, "--slices", "all", "--train", 1, "--test", 0)
    prep("lidc", source, other, *knobs)
    for name in ("measurement", "image", "scale", "position", "spacing"):
        np.testing.assert_array_equal(stored(made, name), stored(other, name), err_msg=name)


def test_trained_network_reconstructs_a_series(tmp_path, prep, workflow_uri):
    """From files to a training without ground truth to images of a patient that it did not see."""
    for k in range(3):
        series(tmp_path / "raw" / str(k), patient=f"p{k}")
    knobs = ("--size", SIZE, "--views", VIEWS, "--sigma", SIGMA, "--slices", "all", "--without-image")
    prep("lidc", tmp_path / "raw", tmp_path / "train.h5", *knobs)
    options = {"views": VIEWS, "sigma": SIGMA, "epochs": 2, "val_interval": 2}
    execute(workflow(["train.yaml"], tmp_path, tmp_path / "train.h5", workflow_uri, BUNDLE, **options))
    found = reconstructions(reconstruct(tmp_path, series(tmp_path / "in"), dicom=False))
    assert found["reconstruction"].shape == found["spread"].shape == (3, 1, SIZE, SIZE)
    truth = (expected() + 1000) / 2000
    errors = np.square(found["reconstruction"][:, 0] - truth).sum((1, 2))
    assert (errors < 0.1 * np.square(truth).sum((1, 2))).all()
    others = np.square(found["reconstruction"][:, 0] - np.roll(truth, 1, 0)).sum((1, 2))
    assert (errors < others).all()  # each is its own slice


def test_nifti_and_dicom_hold_hounsfield_units_at_the_place_of_the_series(tmp_path, weights):
    weights()
    out = reconstruct(tmp_path, series(tmp_path / "in"))
    found = reconstructions(out)
    name = volume_of(found)
    hu = found["reconstruction"][:, 0] * 2000 - 1000
    np.testing.assert_allclose(nifti(out / f"{name}_reconstruction.nii.gz"), hu, atol=1e-3)
    np.testing.assert_allclose(nifti(out / f"{name}_spread.nii.gz"), found["spread"][:, 0] * 2000, atol=1e-3)
    images = dicom_series(out / "dicom" / name / "reconstruction")
    assert {one.SOPClassUID.name for one in images} == {"CT Image Storage"}
    assert [one.InstanceNumber for one in images] == [1, 2, 3]
    assert len({one.SeriesInstanceUID for one in images}) == 1
    for one, values, z in zip(images, hu, (0, 2.5, 5), strict=True):
        np.testing.assert_allclose(values_of(one), values, atol=0.5 * float(one.RescaleSlope) + 1e-3)
        assert (list(one.ImagePositionPatient), list(one.PixelSpacing)) == ([0.5, 0.5, z], [2, 2])
        assert one.ImageType[0] == "DERIVED"
    affine = nib.load(out / f"{name}_reconstruction.nii.gz").affine
    np.testing.assert_allclose(affine @ (0, 0, 1, 1), (-0.5, -0.5, 2.5, 1), atol=1e-5)
    (spread,) = dicom_series(out / "dicom" / name / "spread")
    assert (spread.SOPClassUID.name, int(spread.NumberOfFrames)) == ("Parametric Map Storage", 3)


def test_nothing_of_the_input_identifies_the_output(tmp_path, weights):
    weights()
    out = reconstruct(tmp_path, series(tmp_path / "SECRETNAME"))
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) == 2 + 1 + 2 + 4  # slices, manifest; HDF5; NIfTI; DICOM
    own = pydicom.dcmread(tmp_path / "SECRETNAME" / "000.dcm")
    assert_nothing_identifies(out, own.StudyInstanceUID, own.SeriesInstanceUID, own.SOPInstanceUID)


def test_source_dicom_gives_study_patient_and_place(tmp_path, weights):
    """The same folder as input and as source, as a user types it."""
    weights()
    source = series(tmp_path / "in")
    out = reconstruct(tmp_path, source, source_dicom=str(source))
    name = volume_of(reconstructions(out))
    originals = dicom_series(source)
    images = dicom_series(out / "dicom" / name / "reconstruction")
    for one, original in zip(images, originals, strict=True):
        assert (one.StudyInstanceUID, one.PatientID) == (uid("study", "SECRETNAME"), "SECRETNAME")
        assert one.SeriesInstanceUID != original.SeriesInstanceUID
        assert one.SourceImageSequence[0].ReferencedSOPInstanceUID == original.SOPInstanceUID
        assert list(one.ImagePositionPatient) == [0.5, 0.5, original.ImagePositionPatient[2]]
    (spread,) = dicom_series(out / "dicom" / name / "spread")
    assert spread.StudyInstanceUID == originals[0].StudyInstanceUID


def test_one_file_is_a_series_of_one_slice(tmp_path, weights):
    weights("--without-image")  # a training without ground truth says enough
    file = series(tmp_path / "in") / "001.dcm"
    found = reconstructions(reconstruct(tmp_path, file, dicom=False))
    assert found["slice"].tolist() == [0]
    np.testing.assert_allclose(found["position"], [[0.5, 0.5, 2.5]])


def test_each_of_two_series_of_a_patient_is_a_volume(tmp_path, weights):
    weights()
    series(tmp_path / "in" / "a", 3, series="a")
    series(tmp_path / "in" / "b", 2, series="b")
    out = reconstruct(tmp_path, tmp_path / "in")
    found = reconstructions(out)
    assert len(set(found["subject"])) == 1
    volumes = set(found["volume"])
    assert names(out / "dicom") == volumes
    assert sorted(nifti(out / f"{name}_reconstruction.nii.gz").shape[0] for name in volumes) == [2, 3]


def test_intercept_of_the_training_is_that_of_a_series_that_has_none(tmp_path, weights):
    """Files without rescale, of one scanner, for the training and for the inference."""
    weights("--intercept", -1024, change=without_rescale)
    made = prepare(tmp_path, series(tmp_path / "in", change=without_rescale))
    np.testing.assert_allclose(stored(made, "image")[:, 0] * 2000 - 1000, expected(), atol=0.01)


def without_rescale(data, _):
    del data.RescaleSlope, data.RescaleIntercept


# --- several series, and what goes wrong


def test_broken_series_and_a_broken_slice_do_not_stop_the_others(tmp_path, weights):
    weights()
    for k in range(3):
        series(tmp_path / "in" / f"patient{k}", patient=f"SECRETNAME{k}")
    for path in (*(tmp_path / "in" / "patient1").iterdir(), tmp_path / "in" / "patient2" / "001.dcm"):
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(RuntimeError) as caught:
        reconstruct(tmp_path, tmp_path / "in")
    message = causes(caught.value)
    assert "PrepError: 2 of 4 sources failed and were not reconstructed: " in message
    assert "1748 bytes, expected 2048" in message
    assert "SECRETNAME" not in message
    out = tmp_path / "eval"
    found = reconstructions(out)
    assert sorted(found["position"][:, 2]) == [0, 0, 2.5, 5, 5]
    volumes = set(found["volume"])
    assert names(out / "dicom") == volumes
    assert sorted(len(dicom_series(out / "dicom" / name / "reconstruction")) for name in volumes) == [2, 3]
    assert sorted(len(nifti(out / f"{name}_reconstruction.nii.gz")) for name in volumes) == [2, 3]
    assert_nothing_identifies(out)


def test_failures_are_told_again_when_nothing_is_prepared_anew(tmp_path, weights):
    weights()
    series(tmp_path / "in" / "a")
    for path in series(tmp_path / "in" / "b", patient="other").iterdir():
        path.write_bytes(path.read_bytes()[:-300])
    times = set()
    for _ in range(2):
        made = prepare(tmp_path, tmp_path / "in")
        times.add(Path(made).stat().st_mtime_ns)
        with pytest.raises(PrepError, match=r"1 of 2 sources failed and were not reconstructed: .*expected 2048"):
            raise_failures(made, str(tmp_path / "in"))
    assert len(times) == 1


def test_other_files_beside_the_series_are_no_failures(tmp_path, weights):
    weights()
    series(tmp_path / "in")
    (tmp_path / "in" / "LICENSE").write_text("text")
    scout = ct(disc((80, 64)), z=9, patient="SECRETNAME")
    scout.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    write(scout, tmp_path / "in" / "scout")
    raise_failures(prepare(tmp_path, tmp_path / "in"), str(tmp_path / "in"))


@pytest.mark.parametrize("content", ["<html>403</html>", None])
def test_nothing_usable_is_an_error(tmp_path, weights, content):
    weights()
    (tmp_path / "in").mkdir()
    if content:
        (tmp_path / "in" / "page.dcm").write_text(content)
    with pytest.raises(RuntimeError) as caught:
        reconstruct(tmp_path, tmp_path / "in")
    assert str(tmp_path / "in") in causes(caught.value)
    assert "PrepError" in causes(caught.value)
    assert not (tmp_path / "eval" / "reconstructions.h5").exists()


@pytest.mark.parametrize("inside", ["", "eval"])
def test_output_among_the_series_is_refused(tmp_path, weights, inside):
    """The next run would reconstruct the reconstructions."""
    weights()
    source = series(tmp_path / "in")
    before = names(source)
    with pytest.raises(PrepError, match="lies in .*: the next run would take its images"):
        ct_file(str(source), str(source / inside), str(tmp_path / "models"))
    assert names(source) == before


# --- weights that know no preparation


def test_weights_of_mr_data_are_refused(tmp_path, make_volume, prep):
    make_volume(tmp_path / "raw" / "a.h5")
    options = ("--acceleration", 2, "--center-fraction", 0.25, "--sigma", 0.01, "--train", 1, "--test", 0, "--val", 0)
    prep("fastmri", tmp_path / "raw", tmp_path / "train.h5", *options)
    weights_of(tmp_path, tmp_path / "train.h5", "fastmri_synthetic")
    with pytest.raises(RuntimeError) as caught:
        reconstruct(tmp_path, series(tmp_path / "in"))
    assert "the weights were trained on data of `data_prep fastmri`, not on CT images" in causes(caught.value)
    assert not (tmp_path / "eval").exists()


@pytest.mark.parametrize(("make", "bundle"), [(write_slices, "fastmri_synthetic"), (write_sinograms, BUNDLE)])
def test_weights_of_a_file_of_unknown_making_are_refused(tmp_path, make, bundle):
    weights_of(tmp_path, make(tmp_path / "train.h5"), bundle)
    with pytest.raises(PrepError, match=r"trained on data of `data_prep \(unknown\)`, not on CT images"):
        prepare(tmp_path, series(tmp_path / "in"))


def test_weights_of_the_demo_are_of_ct(tmp_path, prep, monkeypatch):
    from data_prep.demo import chest as demo_ct

    monkeypatch.setattr(demo_ct, "PATIENTS", 4)
    monkeypatch.setattr(demo_ct, "SLICES", 1)
    prep("demo", "ct", tmp_path / "demo.h5", "--size", SIZE, "--views", VIEWS, "--source", "phantom")
    weights_of(tmp_path, tmp_path / "demo.h5")
    made = prepare(tmp_path, series(tmp_path / "in"))
    assert read_header(made).operator == read_header(tmp_path / "demo.h5").operator
    assert json.loads(Path(made).with_suffix(".manifest.json").read_text())["configuration"]["slices"] == "all"
