import h5py
import numpy as np
import pytest

from data_prep.mri.fastmri_file import open_volume, read_kspace
from data_prep.mri.simulation import Wanted, inspect, magnitude
from data_prep.run.manifest import PrepError, SkipError


def test_kspace_keeps_its_phase(tmp_path):
    x = np.exp(0.01j * np.arange(48)) * np.ones((2, 64, 1))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["kspace"] = x.astype(np.complex64)
    with open_volume(tmp_path / "a.h5") as file:
        k = read_kspace(file, 1)
    assert k.dtype == np.complex64
    assert np.abs(np.angle(k * x[1].conj())).max() < 1e-5


@pytest.mark.parametrize("shape", [(64, 37), (21, 30)])
def test_constant_kspace_is_a_peak_at_the_origin(shape):
    x = magnitude(np.full(shape, 1 / np.sqrt(np.prod(shape)), np.complex64))
    assert np.unravel_index(x.argmax(), shape) == (shape[0] // 2, shape[1] // 2)
    assert x.max() == pytest.approx(1, abs=1e-6)
    assert x.sum() == pytest.approx(1, abs=1e-4)


def test_empty_edge_columns_are_padding_and_empty_columns_inside_the_limits_are_not(tmp_path, make_volume):
    wanted = Wanted()
    for header, edge in ((False, 5), (True, 5)):
        path = make_volume(tmp_path / "a.h5", keys=(), header=header)
        with h5py.File(path, "r+") as file:
            file["kspace"][..., :edge] = 0
        if header:  # the header says that all 48 columns were encoded
            with pytest.raises(PrepError, match="5 of 48 encoded columns are empty"):
                inspect(path, "a", "d", wanted)
        else:
            volume = inspect(path, "a", "d", wanted)
            assert volume.target == "ifft(kspace)"
            assert volume.note == "5 empty edge columns taken as padding"


def test_mask_of_ones_is_fully_sampled_subject_to_the_check(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5", keys=(), mask=np.ones(48, np.uint8))
    assert inspect(path, "a", "d", Wanted()).target == "ifft(kspace)"
    with h5py.File(path, "r+") as file:
        file["kspace"][..., 10:14] = 0
    with pytest.raises(PrepError, match="4 of 48 encoded columns are empty"):
        inspect(path, "a", "d", Wanted())
    with h5py.File(path, "r+") as file:
        file["mask"][10:14] = 0
    with pytest.raises(SkipError, match="stored mask"):
        inspect(path, "a", "d", Wanted())


def test_constant_slices_are_left_out_with_a_note(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["reconstruction_esc"][0] = 0
    volume = inspect(path, "a", "d", Wanted(slices="all"))
    assert volume.slices == (1, 2)
    assert volume.note == "1 constant slices left out"


def test_damaged_data_is_an_error_without_the_path(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        x = file["kspace"][()]
        del file["kspace"]
        data = file.create_dataset("kspace", data=x, chunks=(1, 64, 48), compression="gzip")
        where = data.id.get_chunk_info(1)
    with path.open("r+b") as raw:
        raw.seek(where.byte_offset)
        raw.write(b"\xff" * where.size)
    with pytest.raises(PrepError, match="kspace slice 1 cannot be read: damaged") as caught:
        inspect(path, "a", "d", Wanted())
    assert str(tmp_path) not in str(caught.value)
