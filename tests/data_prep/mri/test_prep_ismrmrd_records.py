import h5py
import numpy as np
import psutil
import pytest
from ismrmrd_scans import header, readouts, write
from raw import complex_noise, kspace_of

from data_prep.mri.ismrmrd_file import read_heads, read_samples


def records(samples, n=40, coils=2):
    k = kspace_of(complex_noise((1, coils, samples, n)))
    return readouts(k, measurement_uid=7, position=(1.5, -2, 3))


@pytest.mark.parametrize(
    "layout",
    [{"chunks": (1,)}, {"chunks": (7,)}, {"chunks": (64,), "maxshape": (None,)}, {"chunks": (7,), "compression": 1}, {}],
)
def test_heads_are_the_same_however_they_are_stored(tmp_path, layout):
    write(tmp_path / "a.h5", records(8), header((8, 40)))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        whole = file["dataset/data"][:]
        data = file.create_dataset("copy", data=whole, dtype=file["dataset/data"].dtype, **layout)
        heads = read_heads(data)
        assert heads.shape == (40,)
        assert heads["idx"]["kspace_encode_step_1"].tolist() == list(range(40))
        assert heads.tobytes() == whole["head"].tobytes()
        np.testing.assert_array_equal(heads["position"][3], [1.5, -2, 3])


@pytest.mark.parametrize("index", [[3], [1, 5, 9], [0, 1, 7, 30]])
def test_samples_of_any_choice_of_acquisitions(tmp_path, index):
    lines = records(8)
    write(tmp_path / "a.h5", lines, header((8, 40)))
    with h5py.File(tmp_path / "a.h5") as file:
        found = read_samples(file["dataset/data"], np.array(index), 2, 8, "")
    np.testing.assert_array_equal(found, [lines[i].data for i in index])


def test_memory_does_not_grow_with_what_was_read(tmp_path):
    write(tmp_path / "a.h5", records(4096, 100, 4), header((4096, 100)))  # 13 MB of samples
    memory = psutil.Process().memory_info
    with h5py.File(tmp_path / "a.h5") as file:
        data = file["dataset/data"]
        read_samples(data, np.arange(0, 100, 10), 4, 4096, "")
        before = memory().rss
        for start in range(10):
            read_heads(data)
            read_samples(data, np.arange(start, 100, 10), 4, 4096, "")
        assert memory().rss - before < 5e6
