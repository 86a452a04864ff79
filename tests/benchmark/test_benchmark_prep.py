import h5py
import numpy as np
import pytest

from data_prep.mri.noise import estimate_sigma
from data_prep.mri.normalisation import crop_or_pad
from data_prep.mri.recorded import inspect_recorded
from data_prep.mri.simulation import magnitude
from es_medical.benchmark import prep
from es_medical.benchmark.prep import (
    PLAIN,
    TRANSFORMS,
    Peak,
    benchmark_prep,
    fastest_transform,
    peak_here,
    read_and_transform,
    table,
)
from es_medical.benchmark.raw_files import make_volume

SIZE = (64, 48)


def test_volume_is_laid_out_as_fastmri_files_are(tmp_path):
    path = make_volume(tmp_path / "volume.h5", 3, SIZE, seed=0)
    found = inspect_recorded(path, path.name, "digest", "single", "all", "auto")
    assert (found.slices, found.recorded, found.size, found.encoded) == ((0, 1, 2), SIZE, (32, 32), (0, 48))
    assert found.note == ""
    with h5py.File(path) as file:
        assert file["kspace"].dtype == np.complex64
        x = crop_or_pad(magnitude(file["kspace"][1]), (32, 32))
        assert np.abs(file["reconstruction_esc"][1] - x).max() < 1e-5 * x.max()
        assert estimate_sigma(file["kspace"][1]).sigma == pytest.approx(1e-7, rel=0.15)


def test_slices_and_volumes_differ(tmp_path):
    files = [make_volume(tmp_path / f"{seed}.h5", 2, SIZE, seed) for seed in range(2)]
    slices = [h5py.File(path)["kspace"][i] for path in files for i in range(2)]
    assert len({k.tobytes() for k in slices}) == 4


def test_baseline_transforms_every_slice_once(tmp_path):
    files = [make_volume(tmp_path / f"{seed}.h5", 3, SIZE, seed) for seed in range(2)]
    seen = []
    read_and_transform(files, seen.append)
    assert [(k.shape, k.dtype) for k in seen] == 6 * [(SIZE, np.complex64)]


def test_every_plain_transform_is_the_same_fft_and_one_is_chosen():
    k = np.random.default_rng(0).standard_normal(SIZE).astype(np.complex64)
    expected = np.fft.ifft2(k)
    for transform in TRANSFORMS.values():
        assert np.abs(np.asarray(transform(k)) - expected).max() < 1e-6
    name, chosen = fastest_transform(SIZE, repeats=2)
    assert np.abs(np.asarray(chosen(k)) - expected).max() < 1e-6
    assert name in TRANSFORMS


def test_whole_benchmark_compares_runs_over_the_same_slices(monkeypatch):
    counted = []
    plain = prep.read_and_transform
    monkeypatch.setattr(
        prep, "read_and_transform", lambda files, transform: counted.append(len(files)) or plain(files, transform)
    )
    result = benchmark_prep(slices=2, volumes=2, size=SIZE, repeats=2, workers=(1,), memory=False, processes=())
    assert counted == [2, 2, 2]
    assert (result.slices, result.size, result.peak) == (4, SIZE, {})
    assert set(result.milliseconds) == {PLAIN, "1 worker"}
    speed = result.speed["1 worker"]
    assert 0 < speed.low <= speed.median <= speed.high
    text = table(result._replace(peak={"2 workers": Peak(100, 200)}))
    assert "4 slices of 64 x 48" in text
    assert str(speed) in text
    assert "2 workers: 200, of which 100 before the first slice" in text


def test_benchmark_of_ct_compares_runs_over_the_same_slices():
    result = prep.benchmark_ct(slices=2, volumes=2, side=32, repeats=1, workers=(1,), processes=())
    assert (result.slices, set(result.milliseconds)) == (4, {prep.DECODED, "1 worker"})
    assert "speed / (pixel_array), target of one 0.45" in table(result)


def test_peak_of_this_process_is_what_it_holds_at_least():
    before = peak_here()
    held = np.ones(2**24)  # 128 MiB
    assert 128 < peak_here() < before + 2**14
    assert peak_here() >= before
    del held


def test_memory_is_that_of_a_new_process_without_its_parents(tmp_path):
    (tmp_path / "source").mkdir()
    make_volume(tmp_path / "source" / "volume.h5", 1, SIZE, 0)
    held = np.ones(2**26)  # 512 MiB on top of the same imports
    peak = prep._measured_peak(tmp_path / "source", tmp_path / "out.h5", 1)
    assert 50 < peak.imports <= peak.run < held.nbytes / 2**20 + peak.imports
    assert peak.run < peak_here()


def test_a_failing_run_is_an_error(tmp_path):
    from data_prep.run.workers import worker_pool

    source = tmp_path / "source"
    source.mkdir()
    make_volume(source / "good.h5", 1, SIZE, 0)
    (source / "bad.h5").write_bytes(b"no HDF5")
    with worker_pool(1) as pool, pytest.raises(RuntimeError, match="failed on a file"):
        prep.prepare(prep._prep_run(tmp_path / "out.h5", 1, pool), source)
