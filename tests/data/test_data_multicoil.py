"""Slice files of several coils, with what belongs to each slice alone."""

import math

import h5py
import pytest
import torch

from es_medical.data import CachedSlices, SliceDataset, SliceHeader, SliceRecord, SliceWriter, read_header
from es_medical.data.cache import memory_estimate

SIZE, COILS = (6, 8), 3
HEADER = SliceHeader(math.nan, torch.ones(8, dtype=torch.bool), 1.0, 0.25, encoded_lines=7)


def record(i, **fields):
    generator = torch.Generator().manual_seed(i)
    measurement, maps = torch.rand(2, 2, COILS, *SIZE, generator=generator)
    given = {"maps": maps, "sigma": 0.1 * (i + 1), "peak": 2.0 + i} | fields
    return SliceRecord(measurement, torch.rand(2, *SIZE, generator=generator), f"item{i}", "one", "train", **given)


def write(path, records, **options):
    with SliceWriter(path, HEADER, SIZE, **({"coils": COILS} | options)) as writer:
        for one in records:
            writer.append(one)
    return path


def test_coils_maps_and_numbers_of_each_slice_come_back(tmp_path):
    place = {"position": (1.0, 2.0, 3.0), "orientation": (1.0, 0, 0, 0, 1, 0), "slice_spacing": 4.0}
    records = [record(i, **place) for i in range(3)]
    path = write(tmp_path / "a.h5", records)
    header, dataset = read_header(path), SliceDataset(path)
    assert (header.coils, header.encoded_lines, header.size) == (COILS, 7, SIZE)
    assert math.isnan(header.sigma)
    for i, one in enumerate(records):
        item = dataset[i]
        assert torch.equal(item["measurement"], one.measurement)
        assert torch.equal(item["maps"], one.maps)
        assert float(item["sigma"]) == pytest.approx(one.sigma)
        assert float(item["peak"]) == one.peak
    with h5py.File(path) as file:
        assert file["position"][2].tolist() == [1, 2, 3]
        assert file["orientation"][2].tolist() == [1, 0, 0, 0, 1, 0]
        assert file["slice_spacing"][2] == 4


@pytest.mark.parametrize("older", [False, True])
def test_slice_without_its_own_sigma_has_that_of_the_header(tmp_path, older):
    """So has a file that was written before the columns were there."""
    header = SliceHeader(0.5, torch.ones(8, dtype=torch.bool))
    with SliceWriter(tmp_path / "a.h5", header, SIZE) as writer:
        writer.append(SliceRecord(torch.zeros(2, *SIZE), torch.zeros(2, *SIZE), "a", "b", "train"))
    if older:
        with h5py.File(tmp_path / "a.h5", "a") as file:
            for name in ("sigma", "peak", "position", "orientation", "slice_spacing"):
                del file[name]
            del file.attrs["encoded_lines"]
    item = SliceDataset(tmp_path / "a.h5")[0]
    assert (float(item["sigma"]), float(item["peak"])) == (0.5, 1.0)
    assert "maps" not in item
    assert read_header(tmp_path / "a.h5").encoded_lines == 0


@pytest.mark.parametrize(
    ("fields", "coils", "message"),
    [
        ({"maps": None}, COILS, "maps missing, file is of 3 coils"),
        ({}, 0, "maps given, file is of 0 coils"),
        ({}, 4, r"\(2, 3, 6, 8\), expected \(2, 4, 6, 8\)"),
        ({"maps": torch.zeros(2, 2, *SIZE)}, COILS, r"maps of slice item0 has shape \(2, 2, 6, 8\)"),
    ],
)
def test_record_of_other_coils_is_refused_and_nothing_is_left(tmp_path, fields, coils, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "a.h5", [record(0, **fields)], coils=coils)
    assert list(tmp_path.iterdir()) == []


def test_rollback_takes_the_slices_of_a_broken_volume_back(tmp_path):
    with SliceWriter(tmp_path / "a.h5", HEADER, SIZE, coils=COILS) as writer:
        for i in (0, 1, 2):
            writer.append(record(i))
        writer.rollback(1)
        writer.append(record(5))
    dataset = SliceDataset(tmp_path / "a.h5")
    assert dataset.ids == ["item0", "item5"]
    assert torch.equal(dataset[1]["maps"], record(5).maps)


def test_data_range_is_filled_in_after_the_volume(tmp_path):
    with SliceWriter(tmp_path / "a.h5", HEADER, SIZE, coils=COILS) as writer:
        for i in (0, 1, 2):
            writer.append(record(i))
        writer.set_data_range(1, [7.0, 8.0])
    assert [float(one["data_range"]) for one in map(SliceDataset(tmp_path / "a.h5").__getitem__, (1, 2))] == [7, 8]


def test_memory_of_coils_and_maps_is_counted_and_cached(tmp_path):
    path = write(tmp_path / "a.h5", [record(i) for i in range(2)])
    dataset = SliceDataset(path)
    item = dataset[0]
    counted = sum(item[name].nbytes for name in ("measurement", "maps", "image"))
    assert memory_estimate(dataset) == 2 * counted
    assert torch.equal(CachedSlices(dataset, "cpu")[1]["maps"], dataset[1]["maps"])
