import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from es_medical.physics import ct_matrix
from es_medical.physics.ct_matrix import FanBeam, ParallelBeam, cache_folder, kernel, system_matrix

PARALLEL = ParallelBeam((12, 15), n_views=6)
FAN = FanBeam((12, 15), n_views=6, source_distance=40, detector_distance=20, pitch=1.5)
COARSE = ParallelBeam((12, 15), n_views=6, pitch=2.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ES_MEDICAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def chord(geometry, radius, centre):
    """Exact line integrals of a disc (bin centres, averaged over 9 points of each bin), (V, D)."""
    offsets = geometry.pitch * (np.arange(9) - 4) / 9
    angles, total = np.deg2rad(geometry.angles)[:, None], 0
    for u in (geometry.bins + offset for offset in offsets):
        if isinstance(geometry, FanBeam):
            source = geometry.source_distance * np.stack((np.sin(angles), -np.cos(angles)))
            bins = np.stack((np.cos(angles) * u, np.sin(angles) * u))
            bins = bins + geometry.detector_distance * np.stack((-np.sin(angles), np.cos(angles)))
            along = bins - source
            along = along / np.linalg.norm(along, axis=0)
            distance = (source[0] - centre[0]) * along[1] - (source[1] - centre[1]) * along[0]
        else:
            distance = u - centre[0] * np.cos(angles) - centre[1] * np.sin(angles)
        total = total + 2 * np.sqrt(np.clip(radius**2 - distance**2, 0, None)) / len(offsets)
    return total


def disc(size, radius, centre, fine=8):
    """Area of the disc in each pixel, x to the right and y up from the centre of the image."""
    rows, columns = ((np.arange(n * fine) + 0.5) / fine - n / 2 for n in size)
    inside = np.hypot(columns - centre[0], -rows[:, None] - centre[1]) <= radius
    return inside.reshape(size[0], fine, size[1], fine).mean((1, 3))


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize(("pitch", "shift"), [(1.0, 0.0), (2.0, 0.0), (1.0, 3.3), (2.0, -6.7)])
@pytest.mark.parametrize("beam", ["parallel", "fan"])
def test_projections_of_a_disc_off_centre_are_its_chords(beam, pitch, shift, even):
    size, centre = (48, 40) if even else (47, 41), (7.0, -9.5)
    angles = (0.0, 20.0, 45.0, 90.0, 137.0, 200.0, 270.0)
    if beam == "fan":
        geometry = FanBeam(size, angles, pitch=pitch, shift=shift, source_distance=90, detector_distance=45)
    else:
        geometry = ParallelBeam(size, angles, pitch=pitch, shift=shift)
    found = (system_matrix(geometry) @ disc(size, 10, centre).ravel()).reshape(geometry.shape)
    expected = chord(geometry, 10, centre)
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)
    mirrored = chord(geometry, 10, (-centre[0], centre[1]))  # what a wrong convention gives
    assert np.linalg.norm(found - mirrored) > 0.5 * np.linalg.norm(expected)
    if shift:
        other_way = chord(replace(geometry, shift=-shift), 10, centre)
        assert np.linalg.norm(found - other_way) > 0.5 * np.linalg.norm(expected)


def test_orientation_is_that_of_scikit_image_up_to_its_centre_of_rotation():
    transform = pytest.importorskip("skimage.transform")
    x = disc((33, 33), 5, (4.0, 6.0))  # odd: both turn about the middle of the central pixel
    angles = (0.0, 30.0, 90.0, 115.0)
    geometry = ParallelBeam((33, 33), angles, n_detectors=33)
    expected = transform.radon(x, angles, circle=True).T
    found = (system_matrix(geometry) @ x.ravel()).reshape(geometry.shape)
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)


def test_kernel_is_the_one_that_fills_the_bins():
    assert [kernel(one) for one in (PARALLEL, COARSE, FAN)] == ["linear", "strip", "strip_fanflat"]
    assert [kernel(replace(one, shift=0.5)) for one in (PARALLEL, COARSE, FAN)] == ["linear", "strip", "line_fanflat"]


@pytest.mark.parametrize("geometry", [PARALLEL, COARSE, FAN, replace(FAN, shift=0.5)])
def test_matrix_is_compact_and_ordered(geometry):
    matrix = system_matrix(geometry)
    assert matrix.shape == (geometry.shape[0] * geometry.shape[1], 12 * 15)
    assert (matrix.dtype, matrix.indices.dtype, matrix.indptr.dtype) == (np.float32, np.int32, np.int32)
    assert matrix.has_canonical_format
    assert (matrix.data > 0).all()


def test_second_call_reads_the_cache(monkeypatch):
    first = system_matrix(PARALLEL)
    monkeypatch.setattr(ct_matrix, "_build", lambda geometry: pytest.fail("built again"))
    second = system_matrix(PARALLEL)
    assert (first != second).nnz == 0
    assert (second.indices.dtype, second.data.dtype) == (np.int32, np.float32)


def test_every_geometry_has_its_own_file(folder):
    for geometry in (PARALLEL, COARSE, FAN, PARALLEL.turned(1.0), ParallelBeam((15, 12), n_views=6)):
        system_matrix(geometry)
    assert len(list(folder.glob("*.npz"))) == 5


@pytest.mark.parametrize("damage", ["truncated", "flipped", "garbage", "empty", "other"])
def test_broken_file_is_built_anew_with_a_warning(damage, folder):
    expected = system_matrix(PARALLEL)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[300] ^= 1  # within the first array: found by its checksum
    broken = {"truncated": whole[: len(whole) // 2], "flipped": bytes(flipped), "garbage": b"no zip", "empty": b""}
    if damage == "other":
        np.savez(path, data=expected.data, indices=expected.indices + 10**6, indptr=expected.indptr)
    else:
        path.write_bytes(broken[damage])
    with pytest.warns(UserWarning, match="can't be read .* built anew"):
        found = system_matrix(PARALLEL)
    assert (found != expected).nnz == 0
    assert path.read_bytes() == whole
    assert system_matrix(PARALLEL).nnz == expected.nnz  # no warning any more


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_folder_that_cannot_be_written_is_no_obstacle(place, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ES_MEDICAL_CACHE", str(tmp_path / "file" / ("" if place == "a file" else "below")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert system_matrix(PARALLEL).nnz > 0


def test_failed_write_leaves_nothing_behind(folder, monkeypatch):
    def full(*arguments, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert system_matrix(PARALLEL).nnz > 0
    assert list(folder.iterdir()) == []


def test_folder_is_the_environments_then_the_users(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ES_MEDICAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "es_medical"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "es_medical"


def test_missing_toolbox_is_named_with_its_installation(monkeypatch):
    monkeypatch.setitem(sys.modules, "astra", None)
    with pytest.raises(ImportError, match="pip install astra-toolbox"):
        system_matrix(PARALLEL)


def test_reading_from_the_cache_does_not_import_the_toolbox(monkeypatch):
    system_matrix(PARALLEL)
    monkeypatch.setitem(sys.modules, "astra", None)
    assert system_matrix(PARALLEL).nnz > 0
