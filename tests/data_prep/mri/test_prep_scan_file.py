"""Inference on a scan: recorded k-space, prepared as the training data was; HDF5, NIfTI and DICOM out."""

import functools
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pydicom
import pytest
from columns import columns, nifti, save_weights, stored
from dicom_parts import values_of
from ismrmrd_scans import header, readouts, write
from raw import HEADER, complex_noise, kspace_of, phantom, seen_by_coils
from tiny import CENTER, causes, execute, workflow, write_slices

from data_prep.inference import raise_failures, scan_file
from data_prep.run.manifest import PrepError
from es_medical.data import read_header

BUNDLE = "fastmri_real"
MASK = ("--acceleration", 2, "--center-fraction", CENTER)
ALL = ("--slices", "all", "--train", 1, "--test", 0, "--val", 0)
LINES = (2, 9, 13, *range(19, 30), 33, 40, 44)
OPEN = ("acceleration", "center_fraction")
each_kind = pytest.mark.parametrize("kind", ["single", "multi"])


def kspace(kind, seed=0, scale=1.0):
    """The phantom's k-space with noise, (3, 64, 48), or seen by four smooth coils, (3, 4, 64, 48)."""
    x = phantom((3, 64, 48), seed)
    x = seen_by_coils(x, 4) if kind == "multi" else x
    return scale * (kspace_of(x) + 0.01 * complex_noise(x.shape, seed)).astype(np.complex64)


@pytest.fixture(scope="module")
def volume(make_volume):
    """Writes a volume of a kind; `lines`: the columns that it measures, the others are zero and there is a mask; `encoded`:
    first and one past the last column that is no zero-padding."""

    def make(path, kind, lines=None, seed=0, scale=1.0, encoded=None, **extra):
        k = kspace(kind, seed, scale=scale)
        if encoded is not None:
            start, stop = encoded
            k[..., :start] = k[..., stop:] = 0
            text = HEADER.format(width=48, maximum=stop - start - 1, center=24 - start)
            extra |= {"header": False, "ismrmrd_header": text}
        if lines is not None:
            mask = np.zeros(k.shape[-1], np.uint8)
            mask[list(lines)] = 1
            k, extra = k * mask, extra | {"mask": mask}
        return make_volume(path, seed=seed, kspace=k, keys=(), **extra)

    return make


@pytest.fixture(scope="module")
def made_weights(tmp_path_factory, volume, prep):
    """Weights of a tiny network for a file that the command made. Nothing is trained: it says the same."""

    @functools.cache
    def make(kind, *options, lines=None, files=("train.yaml",), **extra):
        folder = tmp_path_factory.mktemp("weights")
        volume(folder / "raw" / "a.h5", kind, lines, seed=7, **extra)
        out, coils = folder / "train.h5", ("--coils", kind)
        prep("fastmri", folder / "raw", out, "--measurements", "real", *coils, *ALL, *options)
        without = OPEN if "--native-width" in options else ()
        save_weights(workflow([*files], folder, out, "sqlite:///none.db", BUNDLE, without=without))
        return folder

    return make


@pytest.fixture
def weights(tmp_path, made_weights):
    """Puts a copy of such weights beside the file, which it returns."""
    return lambda *options, **how: shutil.copytree(made_weights(*options, **how), tmp_path, dirs_exist_ok=True) / "train.h5"


def reconstruct(tmp_path, source, *files, **knobs):
    """`python -m monai.bundle run --config_file configs/inference.json --data_file SOURCE`, in this process; the folder."""
    execute(workflow(["inference.json", *files], tmp_path, source, "", BUNDLE, without=OPEN, **knobs))
    return tmp_path / "eval"


def reconstructions(out):
    return columns(out / "reconstructions.h5")


def prepared(out):
    """The one slice file that was made of the input."""
    (path,) = out.glob("*_slices.h5")
    return path


def truth(seed=0, scale=1.0, columns=32):
    """Magnitudes of the phantom on the grid of the reconstruction."""
    left = 24 - columns // 2
    return scale * np.abs(phantom((3, 64, 48), seed)[:, 16:48, left : left + columns])


def shares(found, expected):
    """Relative error of each slice."""
    return np.linalg.norm(found - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))


# --- a fully sampled scan


def test_trained_network_reconstructs_a_scan(tmp_path, workflow_uri, volume, prep):
    """From raw files to DICOM: prepare, train, reconstruct; in the scanner's own units."""
    scale = 1e-5
    for i in range(3):
        volume(tmp_path / "raw" / f"{i}.h5", "single", seed=i + 1, scale=scale)
    shares_of = ("--slices", "all", "--train", 2, "--test", 1, "--val", 1)
    prep("fastmri", tmp_path / "raw", tmp_path / "train.h5", "--measurements", "real", *shares_of, *MASK)
    execute(workflow(["train.yaml"], tmp_path, tmp_path / "train.h5", workflow_uri, BUNDLE, epochs=1, lr=1e-4))
    out = reconstruct(tmp_path, volume(tmp_path / "scan.h5", "single", scale=scale))
    result = reconstructions(out)
    assert result["reconstruction"].shape == result["spread"].shape == (3, 2, 32, 32)
    assert result["slice"].tolist() == [0, 1, 2]
    (subject,) = set(result["volume"])
    assert (shares(nifti(out / f"{subject}_reconstruction.nii.gz"), truth(scale=scale)) < 0.5).all()


@each_kind
@pytest.mark.parametrize("encoded", [None, (4, 44)])
def test_scan_is_undersampled_by_the_mask_of_the_training(tmp_path, volume, weights, kind, encoded):
    """Also where its own would differ: the training's scans were zero-padded. Warnings (of another mask) are errors here."""
    train = weights(kind, *MASK, "--mask-seed", 3, encoded=encoded)
    out = reconstruct(tmp_path, volume(tmp_path / "scan.h5", kind))
    made, used = read_header(prepared(out)), read_header(train)
    assert made.mask.equal(used.mask)
    assert (made.acceleration, made.center_fraction) == (used.acceleration, used.center_fraction)
    assert (made.n, made.coils, made.size, made.has_image) == (3, 4 * (kind == "multi"), (32, 32), False)
    assert not stored(prepared(out), "measurement")[..., ~used.mask.numpy()].any()


def test_scan_prepared_for_inference_is_what_the_command_makes_of_it(tmp_path, volume, weights, prep):
    """The same measurements, noise levels and scales as `data_prep fastmri --mask-from` gives."""
    train = weights("multi", *MASK, "--virtual-coils", 3)
    scan = volume(tmp_path / "scan.h5", "multi")
    made = scan_file(str(scan), str(tmp_path / "out"), str(tmp_path / "models"))
    options = ("--measurements", "real", "--coils", "multi", "--virtual-coils", 3, "--mask-from", train)
    prep("fastmri", scan, tmp_path / "b.h5", *ALL, *options)
    for name in ("measurement", "maps", "sigma", "scale"):
        np.testing.assert_array_equal(stored(made, name), stored(tmp_path / "b.h5", name), err_msg=name)


@each_kind
def test_nifti_and_dicom_hold_the_magnitudes(tmp_path, volume, weights, kind):
    weights(kind, *MASK)
    out = reconstruct(tmp_path, volume(tmp_path / "scan.h5", kind, scale=300.0))
    result = reconstructions(out)
    (name,) = set(result["volume"])
    expected = np.hypot(*result["reconstruction"].transpose(1, 0, 2, 3)) * result["scale"][:, :1, None]
    np.testing.assert_allclose(nifti(out / f"{name}_reconstruction.nii.gz"), expected, rtol=1e-5)
    series = [pydicom.dcmread(path) for path in sorted((out / "dicom" / name / "reconstruction").iterdir())]
    assert [one.InstanceNumber for one in series] == [1, 2, 3]
    assert len({one.SeriesInstanceUID for one in series}) == 1
    pixels = np.stack([values_of(one) for one in series])
    np.testing.assert_allclose(pixels, expected, atol=expected.max() / 2**15)
    (spread,) = (out / "dicom" / name / "spread").iterdir()
    found = pydicom.dcmread(spread)
    assert found.SOPClassUID.name == "Parametric Map Storage"
    assert (int(found.NumberOfFrames), found.Rows, found.Columns) == (3, 32, 32)
    heights = [one.PlanePositionSequence[0].ImagePositionPatient[2] for one in found.PerFrameFunctionalGroupsSequence]
    frames = found.pixel_array[np.argsort(heights)]
    np.testing.assert_allclose(frames, nifti(out / f"{name}_spread.nii.gz"), rtol=1e-5)


def test_no_name_of_the_input_is_in_any_output(tmp_path, volume, weights):
    weights("single", *MASK)
    scan = volume(tmp_path / "in" / "SECRETNAME.h5", "single", patient="SECRETNAME")
    out = reconstruct(tmp_path, scan)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert len(files) >= 2 + 1 + 2 + 4  # slices, manifest; HDF5; NIfTI; DICOM
    manifest = json.loads(next(out.glob("*.manifest.json")).read_text())
    assert [one["status"] for one in manifest["sources"]] == ["done"]
    for path in files:
        assert "SECRET" not in str(path.relative_to(out))
        content = path.read_bytes()
        assert b"SECRET" not in (gzip.decompress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("given", [False, True])
def test_grid_is_that_of_the_training_whatever_the_scan_says(tmp_path, volume, weights, given):
    """A scan whose header names no reconstruction, or one of 40 x 40."""
    weights("single", *MASK)
    text = HEADER.format(width=48, maximum=47, center=24).replace("<x>32</x><y>32</y>", "<x>40</x><y>40</y>")
    extra = {"ismrmrd_header": text} if given else {}
    out = reconstruct(tmp_path, volume(tmp_path / "scan.h5", "single", header=False, **extra))
    assert reconstructions(out)["reconstruction"].shape == (3, 2, 32, 32)


# --- an undersampled scan


@each_kind
def test_undersampled_scan_keeps_its_lines(tmp_path, volume, weights, kind):
    """Trained on undersampled scans alone: there is no ground truth anywhere."""
    native = ("--native-width", "--size", 32)
    weights(kind, *native, lines=LINES, files=("train.yaml", "native_width.yaml"))
    scan = volume(tmp_path / "scan.h5", kind, LINES)
    out = reconstruct(tmp_path, scan, "native_width.yaml")
    assert read_header(prepared(out)).mask.nonzero().flatten().tolist() == list(LINES)
    result = reconstructions(out)
    assert result["reconstruction"].shape == (3, 2, 32, 48)
    (name,) = set(result["volume"])
    expected = truth(columns=48)
    found = nifti(out / f"{name}_reconstruction.nii.gz")
    scales = np.ones(3) if kind == "single" else (found * expected).sum((1, 2)) / (expected**2).sum((1, 2))
    assert (shares(found / scales[:, None, None], expected) < 0.5).all()


def test_other_lines_than_those_of_the_training_are_used_and_warned_of(tmp_path, volume, weights):
    weights("single", "--native-width", "--size", 32, lines=LINES, files=("train.yaml", "native_width.yaml"))
    own = sorted((3, *LINES))
    with pytest.warns(UserWarning, match=r"another sampling mask than the data has \(17 and 18 measured entries\)"):
        out = reconstruct(tmp_path, volume(tmp_path / "scan.h5", "single", own), "native_width.yaml")
    assert read_header(prepared(out)).mask.nonzero().flatten().tolist() == own


def test_fully_sampled_scan_on_its_own_width_gets_the_lines_of_the_training(tmp_path, volume, weights):
    weights("single", "--native-width", "--size", 32, lines=LINES, files=("train.yaml", "native_width.yaml"))
    out = reconstruct(tmp_path, volume(tmp_path / "scan.h5", "single"), "native_width.yaml")
    assert read_header(prepared(out)).mask.nonzero().flatten().tolist() == list(LINES)


def test_undersampled_scan_for_a_resampling_network_is_refused(tmp_path, volume, weights):
    weights("single", *MASK)
    scan = volume(tmp_path / "scan.h5", "single", LINES)
    with pytest.raises(PrepError, match="can't be resampled to 32"):
        scan_file(str(scan), str(tmp_path / "out"), str(tmp_path / "models"))


# --- folders, and what goes wrong


@each_kind
def test_broken_file_of_a_folder_does_not_stop_the_others(tmp_path, volume, weights, kind):
    weights(kind, *MASK)
    for seed in (1, 2):
        good = volume(tmp_path / "in" / f"SECRET{seed}.h5", kind, seed=seed)
    (tmp_path / "in" / "cut.h5").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    with pytest.raises(RuntimeError) as caught:
        reconstruct(tmp_path, tmp_path / "in")
    assert "PrepError: 1 of 3 sources failed and were not reconstructed: " in causes(caught.value)
    assert "truncated HDF5" in causes(caught.value)
    assert "SECRET" not in causes(caught.value)
    out = tmp_path / "eval"
    result = reconstructions(out)
    assert len(result["id"]) == 6
    subjects = set(result["volume"])
    assert len(subjects) == 2
    for name in subjects:
        assert nifti(out / f"{name}_reconstruction.nii.gz").shape == (3, 32, 32)
        assert len(list((out / "dicom" / name / "reconstruction").iterdir())) == 3


def test_broken_file_is_told_again_when_nothing_is_prepared_anew(tmp_path, volume, weights):
    weights("single", *MASK)
    volume(tmp_path / "in" / "a.h5", "single")
    (tmp_path / "in" / "page.h5").write_text("<html>403</html>")
    times = set()
    for _ in range(2):
        made = scan_file(str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "models"))
        times.add(Path(made).stat().st_mtime_ns)
        with pytest.raises(PrepError, match="1 of 2 sources failed and were not reconstructed: .*web page"):
            raise_failures(made)
    assert len(times) == 1


def test_causes_are_said_once_each(tmp_path, volume, weights):
    weights("single", *MASK)
    volume(tmp_path / "in" / "a.h5", "single")
    volume(tmp_path / "in" / "coils.h5", "multi", seed=1)
    for i in range(3):
        (tmp_path / "in" / f"{i}.h5").write_text(f"<html>{i}</html>")
    made = scan_file(str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "models"))
    with pytest.raises(PrepError) as caught:
        raise_failures(made)
    message = str(caught.value)
    assert "4 of 5 sources failed" in message
    assert message.count("web page") == 1
    assert "multi-coil (4 coils), expected single-coil" in message


def test_nothing_usable_is_an_error(tmp_path, weights):
    weights("single", *MASK)
    (tmp_path / "page.h5").write_text("<html>403</html>")
    with pytest.raises(RuntimeError) as caught:
        reconstruct(tmp_path, tmp_path / "page.h5")
    assert "no usable volume among 1 files" in causes(caught.value)
    assert not (tmp_path / "eval" / "reconstructions.h5").exists()


def test_wrong_kind_of_coils_is_refused(tmp_path, volume, weights, capsys):
    weights("multi", *MASK)
    with pytest.raises(PrepError, match="no usable volume among 1 files"):
        scan_file(str(volume(tmp_path / "scan.h5", "single")), str(tmp_path / "out"), str(tmp_path / "models"))
    assert "kspace is single-coil, expected multi-coil" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_failures_of_a_slice_file_of_the_user_are_no_failures_of_the_inference(tmp_path, volume, prep, weights):
    weights("single", *MASK)
    volume(tmp_path / "in" / "a.h5", "single")
    (tmp_path / "in" / "page.h5").write_text("<html>403</html>")
    options = ("--measurements", "real", *ALL, "--mask-from", tmp_path / "train.h5")
    prep("fastmri", tmp_path / "in", tmp_path / "mine.h5", *options, code=1)
    out = reconstruct(tmp_path, tmp_path / "mine.h5")
    assert len(reconstructions(out)["id"]) == 3


# --- ISMRMRD raw files


@each_kind
def test_ismrmrd_scan_gives_what_the_fastmri_layout_gives(tmp_path, volume, weights, kind):
    """Acquisitions of the same k-space; a header that names the patient."""
    train = weights(kind, *MASK)
    k = kspace(kind)
    patient = "<subjectInformation><patientID>SECRET</patientID></subjectInformation>"
    xml = header((64, 48), recon=(32, 32), field=(200, 135), subject=patient)  # pixels of 3.125 x 2.8125 mm in both spaces
    raw = write(tmp_path / "scan.h5", readouts(k if kind == "multi" else k[:, None]), xml)
    out = reconstruct(tmp_path, raw)
    assert read_header(prepared(out)).mask.equal(read_header(train).mask)
    result = reconstructions(out)
    one = scan_file(str(volume(tmp_path / "same.h5", kind)), str(tmp_path / "out"), str(tmp_path / "models"))
    np.testing.assert_allclose(stored(prepared(out), "measurement"), stored(one, "measurement"), atol=1e-5)
    (name,) = set(result["volume"])
    assert len(list((out / "dicom" / name / "reconstruction").iterdir())) == 3
    assert not any(b"SECRET" in path.read_bytes() for path in out.rglob("*") if path.is_file())


# --- weights that know no preparation


def test_weights_of_synthetic_data_are_refused(tmp_path, make_volume, volume, prep):
    make_volume(tmp_path / "raw" / "a.h5")
    prep("fastmri", tmp_path / "raw", tmp_path / "train.h5", *ALL, *MASK, "--sigma", 0.01)
    save_weights(workflow(["train.yaml"], tmp_path, tmp_path / "train.h5", ""))
    with pytest.raises(RuntimeError) as caught:
        reconstruct(tmp_path, volume(tmp_path / "scan.h5", "single"))
    assert "trained on data of another kind (fastmri, measurements synthetic)" in causes(caught.value)
    assert "give the slice file" in causes(caught.value)


def test_weights_of_a_file_of_unknown_making_are_refused(tmp_path, volume):
    save_weights(workflow(["train.yaml"], tmp_path, write_slices(tmp_path / "train.h5"), "", BUNDLE))
    with pytest.raises(PrepError, match="data of another kind"):
        scan_file(str(volume(tmp_path / "scan.h5", "single")), str(tmp_path / "out"), str(tmp_path / "models"))
