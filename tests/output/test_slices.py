"""Measurements in memory become a slice file that reads back as they were."""

import pytest
import torch
from helpers import line_mri, randn

from es_medical.data import SliceDataset, read_header
from es_medical.engine.operators import build_physics, build_split, check_operator
from es_medical.output.slices import write_slices
from es_medical.physics import CompressedSensing, gaussian_matrix

SPLITS = ["train", "val", "test"]


def test_k_space_reads_back_with_its_operator(tmp_path):
    physics, x = line_mri((16, 16)), randn(3, 2, 16, 16)
    y = physics.A(x)
    write_slices(tmp_path / "own.h5", physics, y, SPLITS, x, sigma=torch.tensor([0.1, 0.2, 0.3]))
    header = read_header(tmp_path / "own.h5")
    again = build_physics(str(tmp_path / "own.h5"), header.acceleration, header.center_fraction)
    check_operator(again, tmp_path / "own.h5")
    assert torch.equal(again.A(x), y)
    assert build_split(str(tmp_path / "own.h5"), "auto", 0.5, True).n_center >= 1
    item = SliceDataset(tmp_path / "own.h5", "val")[0]
    assert torch.equal(item["measurement"], y[1])
    assert float(item["sigma"]) == pytest.approx(0.2)


def test_subject_in_two_splits_is_refused_and_nothing_is_written(tmp_path):
    physics = line_mri((16, 16))
    y = physics.A(randn(3, 2, 16, 16))
    with pytest.raises(ValueError, match="subject a is in several splits"):
        write_slices(tmp_path / "own.h5", physics, y, SPLITS, subjects=["a", "a", "b"])
    with pytest.raises(ValueError, match="expected MRI or MaskedPhysics"):
        write_slices(tmp_path / "own.h5", CompressedSensing(gaussian_matrix(4, 256, 0), (16, 16)), torch.zeros(3, 4), SPLITS)
    assert not list(tmp_path.iterdir())
