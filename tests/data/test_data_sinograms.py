"""Slice files of sinograms: real images, and the geometry of the scanner in place of a k-space mask."""

import pytest
import torch

from es_medical.data import Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter, read_header

SIZE, SINOGRAM = (6, 8), (5, 9)
GEOMETRY = {"kind": "parallel", "n_views": 5, "size": [6, 8]}


def header(mask=None):
    return SliceHeader(0.1, torch.ones(5, dtype=torch.bool) if mask is None else mask, modality="CT", operator=GEOMETRY)


def record(**fields):
    given = {"measurement": torch.rand(1, *SINOGRAM), "image": torch.rand(1, *SIZE)} | fields
    return SliceRecord(**given, id="a", subject="b", split="train", scale=2000.0, offset=-1000.0)


@pytest.mark.parametrize("with_image", [True, False])
def test_sinograms_images_and_geometry_come_back(tmp_path, with_image):
    one = record() if with_image else record(image=None)
    with SliceWriter(tmp_path / "a.h5", header(), SIZE, with_image, shapes=Shapes.sinogram(SIZE, SINOGRAM)) as writer:
        writer.append(one)
    found, item = read_header(tmp_path / "a.h5"), SliceDataset(tmp_path / "a.h5")[0]
    assert (found.modality, found.operator, found.size, found.coils) == ("CT", GEOMETRY, SIZE, 0)
    assert found.mask.tolist() == [True] * 5
    assert torch.equal(item["measurement"], one.measurement)
    assert ("image" in item) == with_image
    if with_image:
        assert torch.equal(item["image"], one.image)
    assert (float(item["scale"]), float(item["offset"])) == (2000, -1000)


@pytest.mark.parametrize("name", ["measurement", "image"])
def test_other_shapes_are_refused(tmp_path, name):
    with (
        pytest.raises(ValueError, match=f"{name} of slice a has shape"),
        SliceWriter(tmp_path / "a.h5", header(), SIZE, shapes=Shapes.sinogram(SIZE, SINOGRAM)) as writer,
    ):
        writer.append(record(**{name: torch.rand(2, 3, 3)}))


@pytest.mark.parametrize("shape", [(5,), (5, 9)])
def test_mask_is_of_views_or_of_rays(tmp_path, shape):
    SliceWriter(tmp_path / "a.h5", header(torch.ones(shape, dtype=torch.bool)), SIZE, shapes=Shapes.sinogram(SIZE, SINOGRAM))
    with pytest.raises(ValueError, match="mask of 9 entries does not fit"):
        SliceWriter(tmp_path / "a.h5", header(torch.ones(9, dtype=torch.bool)), SIZE, shapes=Shapes.sinogram(SIZE, SINOGRAM))
