import numpy as np
import pytest
from columns import stored

from data_prep.demo import chest
from es_medical.data import read_header


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(chest, "PATIENTS", 4)
    monkeypatch.setattr(chest, "SLICES", 3)


def test_phantom_where_pycerr_is_absent(tmp_path, prep, monkeypatch):
    monkeypatch.setattr(chest, "pycerr_folder", lambda: None)
    result = prep("demo", "ct", tmp_path / "out", "--size", 32, "--views", 6)
    assert "chest phantom" in result.output
    assert "pip install --no-deps pycerr==2.5.1" in result.output
    header = read_header(tmp_path / "out" / "demo_ct.h5")
    assert (header.n, header.size) == (12, (32, 32))
    assert header.splits == {"train": 3, "val": 3, "test": 6}
    assert stored(tmp_path / "out" / "demo_ct.h5", "measurement").shape[1:3] == (1, 6)


def test_installed_pycerr_is_used_and_named(tmp_path, prep, monkeypatch):
    folder = tmp_path / "cerr" / "datasets" / "radiomics_phantom_dicom"
    chest.write_archive(folder, 4, 3, 32, seed=1)
    (tmp_path / "cerr" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert chest.pycerr_folder() == folder
    assert "pycerr" in prep("demo", "ct", tmp_path / "a.h5", "--size", 16, "--views", 6).output
    assert read_header(tmp_path / "a.h5").splits == {"train": 6, "val": 3, "test": 3}


def test_pycerr_asked_for_and_absent_is_an_error_with_the_command(tmp_path, prep, monkeypatch):
    monkeypatch.setattr(chest, "pycerr_folder", lambda: None)
    assert "pip install --no-deps pycerr==2.5.1" in prep("demo", "ct", tmp_path / "a.h5", "--source", "pycerr", code=1).stderr


def test_phantom_patients_differ_and_hold_lung_tissue_and_bone(tmp_path):
    chests = [chest.Chest(np.random.default_rng([0, k]), 96).slice(0.0) for k in range(3)]
    for hu in chests:
        assert (hu[0] < -900).all()
        for low, high, share in ((-950, -700, 0.08), (0, 100, 0.05), (300, 1000, 0.005)):
            assert ((hu > low) & (hu < high)).mean() > share
    assert min(np.abs(a - b).mean() for a, b in zip(chests, chests[1:], strict=False)) > 20


def test_phantom_is_the_same_for_the_same_seed(tmp_path):
    for name in "ab":
        chest.write_archive(tmp_path / name, 1, 2, 32, seed=3)
    assert [one.read_bytes() for one in sorted((tmp_path / "a").rglob("*.dcm"))] == [
        one.read_bytes() for one in sorted((tmp_path / "b").rglob("*.dcm"))
    ]


def test_demo_of_photon_counts(tmp_path, prep, monkeypatch):
    monkeypatch.setattr(chest, "pycerr_folder", lambda: None)
    result = prep("demo", "ct", tmp_path / "a.h5", "--size", 16, "--views", 6, "--photons", "1e4")
    assert "6 views of 23 detector bins, parallel beam of unit norm, 10000 photons on a ray through air" in result.output
    header = read_header(tmp_path / "a.h5")
    assert header.operator["transmission"]["photons"] == header.configuration["photons"] == 1e4
    assert np.isnan(header.sigma)
