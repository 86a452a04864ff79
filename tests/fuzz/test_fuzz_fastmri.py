import h5py
import numpy as np
import pytest
from fuzzing import fuzz, prepared
from hdf5_mutants import hdf5_mutants, write_mutant
from raw import HEADER, kspace_of, phantom

from data_prep.mri.fastmri import prepare
from data_prep.mri.options import FastMRIOptions
from data_prep.run.manifest import PrepError
from es_medical.data import SliceDataset

SIZE = (3, 64, 32)
NAMES = ("kspace", "reconstruction_esc", "ismrmrd_header", "mask")


def volume(path, mask=False):
    x = phantom(SIZE)
    with h5py.File(path, "w") as file:
        file["kspace"] = kspace_of(x)
        file["reconstruction_esc"] = np.abs(x[:, 16:48]).astype(np.float32)
        file["ismrmrd_header"] = HEADER.format(width=32, maximum=31, center=16)
        file.attrs["patient_id"] = "p"
        if mask:
            file["mask"] = np.ones(32, np.float32)
    return path.read_bytes()


@pytest.mark.parametrize("measurements", ["synthetic", "real"])
def test_fastmri_volume_gives_finite_slices_or_a_stated_error(tmp_path, measurements):
    path = tmp_path / "in.h5"
    content = volume(path, mask=measurements == "real")
    options = FastMRIOptions(
        slices="all", measurements=measurements, acceleration=2, center_fraction=0.2, train=1, test=0, val=0
    )

    def fastmri_file(mutant):
        write_mutant(path, content, mutant)
        with prepared("fastmri", options, tmp_path / "out.h5") as prep:
            prepare(prep, path, overwrite=True)
        check_slices(prep.out, measurements)

    fuzz(hdf5_mutants(content, NAMES, ("patient_id",)), fastmri_file, PrepError, 60)


def check_slices(path, measurements):
    """Every stored number is finite, and images have the range that they are to have."""
    slices = SliceDataset(path)
    for item in slices:
        assert np.isfinite(item["measurement"].numpy()).all()
        assert item["measurement"].abs().max() > 0
        assert 0 <= item["sigma"] < np.inf
        assert 0 < item["scale"] < np.inf
        if "image" in item:
            assert np.isfinite(item["image"].numpy()).all()
            assert item["image"].abs().max() <= 1.001 or measurements == "real"
