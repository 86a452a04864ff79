import json

import numpy as np
import pytest
from byte_mutants import changed_bytes
from fuzzing import fuzz, prepared
from hdf5_mutants import hdf5_mutants, write_mutant
from hypothesis import strategies as st
from sinogram_scans import counts, exchange, fields, helsinki, line_integrals, positions

from data_prep.run.manifest import PrepError
from data_prep.sinogram.measured import prepare
from data_prep.sinogram.options import SinogramOptions
from es_medical.data import SliceDataset

BINS, ANGLES = 48, np.arange(24) * 7.5
PARALLEL = line_integrals(ANGLES, positions(BINS, 1.0, 23.5))
GEOMETRY = {"kind": "parallel", "angles": ANGLES.tolist(), "bin_width": 1.0, "values": "attenuation"}
VALUES = [None, 0, -1, 1e-300, 1e300, float("nan"), float("inf"), "x", "", [], {}, [1], [None], True, 10**30, [[0]], -1e-9]
NAMES = ("exchange/data", "exchange/data_white", "exchange/data_dark", "exchange/theta", "exchange")


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of rays that are masked


def checked(source, options, out):
    with prepared("sinogram", options, out) as prep:
        done = prepare(prep, source, overwrite=True)
    for item in SliceDataset(out):
        assert item["measurement"].isfinite().all()
        assert 0 < float(item["scale"]) < np.inf
    if not done:
        raise PrepError("a file failed, and is listed")


def test_data_exchange_gives_finite_sinograms_or_a_stated_error(tmp_path):
    path = tmp_path / "a.h5"
    white, dark = fields(2, BINS)
    content = exchange(path, counts(PARALLEL)[:, None].repeat(2, 1), ANGLES, white, dark).read_bytes()

    def data_exchange(mutant):
        write_mutant(path, content, mutant)
        checked(path, SinogramOptions(size=16, train=1, test=0), tmp_path / "out.h5")

    fuzz(hdf5_mutants(content, NAMES), data_exchange, PrepError, 25)


def test_helsinki_file_gives_finite_sinograms_or_a_stated_error(tmp_path):
    path = tmp_path / "a.mat"
    content = helsinki(path, PARALLEL, ANGLES).read_bytes()

    def helsinki_file(mutant):
        path.write_bytes(mutant)
        checked(path, SinogramOptions(size=16, train=1, test=0), tmp_path / "out.h5")

    fuzz(changed_bytes(content, head=2048), helsinki_file, PrepError, 25)


@pytest.mark.parametrize("kind", ["npy", "tif"])
def test_array_with_a_geometry_gives_finite_sinograms_or_a_stated_error(tmp_path, kind):
    path, geometry = tmp_path / "in" / f"a.{kind}", tmp_path / "geometry.yaml"
    path.parent.mkdir()
    array = PARALLEL.astype(np.float32)
    if kind == "npy":
        np.save(path, array)
    else:
        pytest.importorskip("tifffile").imwrite(path, array)
    content, whole = path.read_bytes(), json.dumps(GEOMETRY).encode()
    keys = [*GEOMETRY, "centre", "source_origin", "source_detector", "pixel", "arc", "direction", "start", "views"]
    values = st.dictionaries(st.sampled_from(keys), st.sampled_from(VALUES), min_size=1, max_size=2)
    other = values.map(lambda some: json.dumps(GEOMETRY | some).encode()) | changed_bytes(whole)
    mutants = st.tuples(changed_bytes(content, head=256), st.just(whole)) | st.tuples(st.just(content), other)

    def array_file(mutant):
        path.write_bytes(mutant[0])
        geometry.write_bytes(mutant[1])
        checked(path, SinogramOptions(size=16, train=1, test=0, geometry=geometry), tmp_path / "out.h5")

    fuzz(mutants, array_file, PrepError, 25)
