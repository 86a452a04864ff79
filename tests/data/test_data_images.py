"""Slice files of every kind but k-space: sinograms, images with missing values, products with a matrix that the file holds."""

from dataclasses import replace

import pytest
import torch

from es_medical.data import CachedSlices, Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter, read_header

SIZE, ROWS, SINOGRAM = (6, 8), 5, (5, 9)
KINDS = {  # shapes, then of measurement, image and mask, and the matrix
    "views": (Shapes.sinogram(SIZE, SINOGRAM), (1, *SINOGRAM), (1, *SIZE), SINOGRAM[:1], None),
    "rays": (Shapes.sinogram(SIZE, SINOGRAM), (1, *SINOGRAM), (1, *SIZE), SINOGRAM, None),
    "colour": (Shapes.pixels(SIZE, 3), (3, *SIZE), (3, *SIZE), (3, *SIZE), None),
    "pixels": (Shapes.pixels(SIZE, 3), (3, *SIZE), (3, *SIZE), SIZE, None),
    "columns": (Shapes.pixels(SIZE, 1), (1, *SIZE), (1, *SIZE), SIZE[1:], None),
    "matrix": (Shapes.rows(SIZE, ROWS), (ROWS,), (1, *SIZE), (ROWS,), torch.rand(ROWS, 48)),
}


OPERATOR = {"kind": "some", "n_views": 5, "size": [6, 8]}


def header(mask, matrix):
    return SliceHeader(0.1, torch.ones(mask, dtype=torch.bool), modality="IMAGE", operator=OPERATOR, matrix=matrix)


@pytest.mark.parametrize("with_image", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_measurement_image_and_operator_come_back(tmp_path, kind, with_image):
    shapes, measurement, image, mask, matrix = KINDS[kind]
    one = SliceRecord(torch.rand(measurement), torch.rand(image) if with_image else None, "a", "b", "train", 2000.0, -1000.0)
    with SliceWriter(tmp_path / "a.h5", header(mask, matrix), SIZE, with_image, shapes=shapes) as writer:
        writer.append(one)
    found, dataset = read_header(tmp_path / "a.h5"), SliceDataset(tmp_path / "a.h5")
    assert (found.modality, found.operator, found.size, found.channels, found.coils) == ("IMAGE", OPERATOR, SIZE, image[0], 0)
    assert found.mask.equal(header(mask, matrix).mask)
    assert (found.matrix is None) == (matrix is None)
    if matrix is not None:
        assert torch.equal(found.matrix, matrix)
    for item in (dataset[0], CachedSlices(dataset, "cpu")[0]):
        assert torch.equal(item["measurement"], one.measurement)
        assert ("image" in item) == with_image
        assert not with_image or torch.equal(item["image"], one.image)
        assert (float(item["scale"]), float(item["offset"])) == (2000, -1000)


@pytest.mark.parametrize("name", ["measurement", "image"])
def test_other_shapes_are_refused(tmp_path, name):
    shapes, measurement, image, mask, _ = KINDS["views"]
    given = {"measurement": torch.rand(measurement), "image": torch.rand(image)} | {name: torch.rand(2, 3, 3)}
    with (
        pytest.raises(ValueError, match=f"{name} of slice a has shape"),
        SliceWriter(tmp_path / "a.h5", header(mask, None), SIZE, shapes=shapes) as writer,
    ):
        writer.append(SliceRecord(**given, id="a", subject="b", split="train"))


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
