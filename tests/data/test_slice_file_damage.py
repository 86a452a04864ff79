import h5py
import numpy as np
import pytest

from es_medical.data import SliceDataset, read_header


def damage(path, source, change):
    path.write_bytes(source.read_bytes())
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def replaced(name, value):
    def change(file):
        del file[name]
        file[name] = value

    return change


def attribute(name, value):
    def change(file):
        file.attrs[name] = value

    return change


def huge(file):
    del file["measurement"]
    file.create_dataset("measurement", (9, 2, 2**20, 2**20), np.float32, chunks=(1, 1, 64, 64))


def link(file):
    del file["scale"]
    file["scale"] = h5py.SoftLink("/nowhere")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (attribute("sigma", h5py.Empty("f4")), "in its header"),
        (attribute("configuration", "{"), "in its header"),
        (attribute("seed", np.inf), "in its header"),
        (replaced("scale", np.ones((9, 3))), "scale has the shape (9, 3), expected (9, 2)"),
        (replaced("split", np.zeros(9)), "split holds float64, expected text"),
        (replaced("mask", np.ones(7, np.uint8)), "mask of (7,) beside measurements of"),
        (huge, "the file stores 0"),
        (link, "damaged slice file"),
    ],
)
def test_damaged_slice_file_is_a_stated_error_before_pixels_are_read(tmp_path, data_file, change, why):
    path = damage(tmp_path / "a.h5", data_file, change)
    for read in (read_header, SliceDataset):
        with pytest.raises(ValueError, match=r"make it anew with data_prep") as caught:
            read(path)
        assert why in str(caught.value)


def test_damaged_pixels_are_a_stated_error_of_their_item(tmp_path, data_file):
    def change(file):
        values = file["measurement"][:]
        del file["measurement"]
        data = file.create_dataset("measurement", data=values, chunks=(1, *values.shape[1:]), compression="gzip")
        data.id.write_direct_chunk((1,) + (0,) * (values.ndim - 1), b"broken")

    slices = SliceDataset(damage(tmp_path / "a.h5", data_file, change))
    assert slices[0]["measurement"].isfinite().all()
    with pytest.raises(ValueError, match="damaged slice file"):
        slices[1]


@pytest.mark.parametrize("name", ["measurement", "image", "sigma", "scale", "mask"])
def test_a_flipped_bit_in_a_number_is_an_error_and_other_slices_are_read(tmp_path, data_file, name):
    path = tmp_path / "a.h5"
    path.write_bytes(data_file.read_bytes())
    with h5py.File(path) as file:
        place = file[name].id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"copy (it|the file) again, or make it anew with data_prep"):
        SliceDataset(path)[0]
    if name in ("measurement", "image"):
        assert SliceDataset(path)[1]["measurement"].isfinite().all()


def test_split_of_another_name_is_an_error(tmp_path, data_file):
    def change(file):
        file["split"][0] = "trein"

    with pytest.raises(ValueError, match="split 'trein', expected train, val, test"):
        read_header(damage(tmp_path / "a.h5", data_file, change))


def test_a_file_without_checksums_is_read(tmp_path, data_file):
    def change(file):
        del file["checksum"]
        file["image"][0] = 1

    assert (SliceDataset(damage(tmp_path / "a.h5", data_file, change))[0]["image"] == 1).all()
