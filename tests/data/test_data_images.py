"""Slice files of photographs and digits: images with missing values, and products with a matrix that the file holds."""

from dataclasses import replace

import pytest
import torch

from es_medical.data import CachedSlices, Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter, read_header

SIZE, ROWS = (6, 8), 5
KINDS = {
    "colour": (Shapes.pixels(SIZE, 3), (3, *SIZE), (3, *SIZE), (3, *SIZE), None),
    "pixels": (Shapes.pixels(SIZE, 3), (3, *SIZE), (3, *SIZE), SIZE, None),
    "columns": (Shapes.pixels(SIZE, 1), (1, *SIZE), (1, *SIZE), SIZE[1:], None),
    "matrix": (Shapes.rows(SIZE, ROWS), (ROWS,), (1, *SIZE), (ROWS,), torch.rand(ROWS, 48)),
}


def header(mask, matrix):
    return SliceHeader(0.0, torch.ones(mask, dtype=torch.bool), modality="IMAGE", operator={"kind": "some"}, matrix=matrix)


@pytest.mark.parametrize("kind", KINDS)
def test_measurement_image_and_operator_come_back(tmp_path, kind):
    shapes, measurement, image, mask, matrix = KINDS[kind]
    one = SliceRecord(torch.rand(measurement), torch.rand(image), "a", "b", "train")
    with SliceWriter(tmp_path / "a.h5", header(mask, matrix), SIZE, shapes=shapes) as writer:
        writer.append(one)
    found, dataset = read_header(tmp_path / "a.h5"), SliceDataset(tmp_path / "a.h5")
    assert (found.modality, found.size, found.channels, found.coils) == ("IMAGE", SIZE, image[0], 0)
    assert tuple(found.mask.shape) == mask
    assert (found.matrix is None) == (matrix is None)
    if matrix is not None:
        assert torch.equal(found.matrix, matrix)
    for item in (dataset[0], CachedSlices(dataset, "cpu")[0]):
        assert torch.equal(item["measurement"], one.measurement)
        assert torch.equal(item["image"], one.image)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_matrices_of_another_shape_are_refused(tmp_path, kind):
    shapes, _, _, mask, matrix = KINDS[kind]
    with pytest.raises(ValueError, match="mask of 9 entries does not fit"):
        SliceWriter(tmp_path / "a.h5", header((9,), matrix), SIZE, shapes=shapes)
    other = torch.rand(ROWS, 47) if matrix is not None else torch.rand(2, 2)
    with pytest.raises(ValueError, match=r"matrix of shape \(., .+\): these measurements need"):
        SliceWriter(tmp_path / "a.h5", header(mask, other), SIZE, shapes=shapes)


@pytest.mark.parametrize("sigma", [float("inf"), -0.1])
def test_noise_without_a_level_is_refused(tmp_path, sigma):
    shapes, _, _, mask, matrix = KINDS["matrix"]
    with pytest.raises(ValueError, match=f"sigma {sigma:g}: expected a finite number"):
        SliceWriter(tmp_path / "a.h5", replace(header(mask, matrix), sigma=sigma), SIZE, shapes=shapes)


def test_many_slices_of_a_matrix_stand_in_the_order_they_came(tmp_path):
    shapes, measurement, image, mask, matrix = KINDS["matrix"]
    records = [SliceRecord(torch.rand(measurement), torch.rand(image), f"{i}", f"{i}", "train") for i in range(130)]
    with SliceWriter(tmp_path / "a.h5", header(mask, matrix), SIZE, shapes=shapes) as writer:
        for one in records:
            writer.append(one)
    dataset = SliceDataset(tmp_path / "a.h5")
    assert len(dataset) == 130
    assert all(torch.equal(dataset[i]["measurement"], records[i].measurement) for i in range(130))
