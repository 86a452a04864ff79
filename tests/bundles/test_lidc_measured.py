"""The bundle lidc_ct on sinograms that a scanner measured: overlay, units, references, masked rays, noise of each slice."""

import math
from dataclasses import replace

import nibabel as nib
import pytest
import torch
from processes import reconstruct
from tiny import causes, disc, execute, runs, smooth_images, workflow

from es_medical.data import Shapes, SliceHeader, SliceRecord, SliceWriter, read_header
from es_medical.engine import operators
from es_medical.engine.synthetic_slices import Likeness
from es_medical.physics.base import measure
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import FanBeam
from es_medical.randomness import item_generator
from es_medical.splits import Split

BUNDLE, SIZE, SCALE = "lidc_ct", (16, 16), 0.4
FAN = FanBeam(SIZE, n_views=9, pitch=1.5, shift=0.7, source_distance=40, detector_distance=20)
LEVELS = (0.002, 0.004, 0.001, 0.003)
ANY = {"views": None, "sigma": None}
KNOBS = {"warm_images": 4, "warm_epochs": 1} | ANY


def write_measured(path, unit="1/cm", image="reference", levels=LEVELS):
    """Sinograms of a fan whose detector is shifted, with a dead bin and a dead ray, and a noise level of their own."""
    mask = torch.ones(FAN.shape, dtype=torch.bool)
    mask[:, 3], mask[2, 7] = False, False
    scanner = CT(FAN, mask)
    images = disc(SIZE) * (0.5 + 0.4 * smooth_images(8, SIZE, 0)[:, :1])
    sigma = torch.tensor(levels).repeat(2)
    y = measure(scanner, images, sigma, [item_generator(0, str(i), "noise") for i in range(8)])
    measured = {"unit": unit, "water": None if unit == "1/cm" else 0.2, "image": image, "scale": SCALE}
    header = SliceHeader(math.nan, mask, modality="CT", operator=FAN.to_dict() | {"measured": measured})
    scale = (SCALE, 0.0) if unit == "1/cm" else (2000.0, -1000.0)
    splits = ("train", "train", "train", "train", "val", "val", "test", "test")
    with SliceWriter(path, header, SIZE, image is not None, shapes=Shapes.sinogram(SIZE, FAN.shape)) as writer:
        for i, split in enumerate(splits):
            x = None if image is None else images[i]
            writer.append(SliceRecord(y[i], x, f"item{i}", f"scan{i}", split, *scale, data_range=1.0, sigma=float(sigma[i])))
    return path


@pytest.fixture(scope="module")
def measured_file(tmp_path_factory):
    return write_measured(tmp_path_factory.mktemp("measured") / "slices.h5")


def fit(folder, source, uri, **knobs):
    knobs = KNOBS | {"epochs": 1, "experiment": folder.name} | knobs
    execute(workflow(["train.yaml", "measured.yaml"], folder, source, uri, BUNDLE, **knobs))
    return folder


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, measured_file, workflow_uri):
    """By the method es, with a warm start."""
    return fit(tmp_path_factory.mktemp("measured-es"), measured_file, workflow_uri)


def test_header_names_what_it_holds(tmp_path, measured_file):
    header = read_header(measured_file)
    assert (header.unit, header.image_name, header.measured["scale"]) == ("1/cm", "reference", SCALE)
    assert replace(header, operator=FAN.to_dict()).unit == "HU"
    assert replace(header, operator=FAN.to_dict()).image_name == "ground truth"
    assert replace(header, modality="MR", operator={}).unit == ""
    assert Likeness.of(measured_file).kind == "part"
    assert Likeness.of(write_measured(tmp_path / "hu.h5", "HU")).kind == "ct"


def test_operator_is_the_files_geometry_with_its_shift_and_its_dead_rays(measured_file):
    physics = operators.build_scanner(str(measured_file), None, None)
    assert physics.geometry == FAN
    assert float(physics.mask.sum()) == FAN.shape[0] * (FAN.shape[1] - 1) - 1
    y = physics.A(torch.ones(1, 1, *SIZE))
    assert (y[..., 3] == 0).all()
    assert y[0, 0, 2, 7] == 0
    assert (y[0, 0, :, 8] != 0).all()
    split = Split("views", 0.7)
    m1 = split(physics, 3, torch.Generator().manual_seed(0))
    assert (m1 <= physics.mask).all()  # dead rays are in no part
    with pytest.raises(ValueError, match="was made with sigma nan, the configuration asks for sigma 0.001"):
        operators.build_scanner(str(measured_file), None, 0.001)


@pytest.mark.parametrize("method", ["supervised", "tikhonov"])
def test_scores_are_to_the_reference_and_never_called_truth(
    tmp_path, measured_file, workflow_uri, client, method, capsys, caplog
):
    caplog.set_level("INFO", "es_medical")
    folder = fit(tmp_path / f"measured-{method}", measured_file, workflow_uri, method=method)
    (run,) = runs(client, folder.name)
    assert run.data.tags["images"] == "reference"
    assert "PSNR to reference (dB)" in run.data.tags["mlflow.note.content"]
    assert math.isfinite(run.data.metrics["test/psnr"])
    said = capsys.readouterr().out + "\n".join(m for m in caplog.messages if "synthetic images only" not in m)
    assert "PSNR to reference (dB)" in said
    assert "ground truth" not in said
    assert f"reference: {'used' if method == 'supervised' else 'not used'} in training" in said


def test_images_are_written_in_the_files_unit_and_dicom_only_in_hounsfield_units(tmp_path, measured_file, fitted, caplog):
    found, _ = reconstruct(BUNDLE, fitted, measured_file, "measured.yaml", dicom=True, **ANY)
    place = fitted / "eval"
    (image,) = place.glob("*scan0*_reconstruction.nii.gz")
    nifti = nib.load(image)
    assert b"reconstruction in 1/cm" in nifti.header["descrip"].item()
    assert nifti.get_fdata().max() == pytest.approx(SCALE * float(found[0].max()), rel=1e-5)
    assert not (place / "dicom").exists()
    assert "no DICOM is written: DICOM holds Hounsfield units, and these images are in 1/cm" in caplog.text
    with pytest.raises(Exception) as error:  # noqa: B017, PT011 - MONAI wraps it
        reconstruct(BUNDLE, fitted, measured_file, "measured.yaml", dicom=True, **ANY, source_dicom=str(tmp_path))
    assert "these images are in 1/cm" in causes(error.value)


def test_without_images_weights_are_chosen_by_the_held_out_error(tmp_path, workflow_uri, client):
    fit(tmp_path / "none", write_measured(tmp_path / "none.h5", image=None), workflow_uri, warm_images=0)
    (run,) = runs(client, "none")
    assert math.isfinite(run.data.metrics["test/heldout"])
    assert "test/psnr" not in run.data.metrics
    assert "images" not in run.data.tags
