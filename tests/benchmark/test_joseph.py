import numpy as np
import pytest
import torch

from es_medical.benchmark.joseph import joseph_matrix
from es_medical.physics import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.physics.ct_matrix import system_matrix


@pytest.mark.parametrize("geometry", [ParallelBeam((16, 16), n_views=7), ParallelBeam((12, 20), n_views=9, pitch=0.8)])
def test_matrix_is_that_of_astra(geometry, tmp_path, monkeypatch):
    monkeypatch.setenv("ES_MEDICAL_CACHE", str(tmp_path))
    expected, found = system_matrix(geometry), joseph_matrix(geometry)
    assert (found.shape, found.dtype, found.indices.dtype) == (expected.shape, np.float32, np.int32)
    assert abs((found - expected).toarray()).max() < 2e-5


def test_an_operator_takes_a_matrix_of_its_own():
    geometry = ParallelBeam((16, 16), n_views=6)
    x, matrix = torch.rand(2, 1, 16, 16), joseph_matrix(geometry)
    physics = CT(geometry, unit_norm=False, matrix=matrix)
    torch.testing.assert_close(physics.A(x).flatten(1), x.flatten(1) @ torch.from_numpy(matrix.toarray()).mT)
    with pytest.raises(ValueError, match="system matrix of shape"):
        CT(ParallelBeam((16, 16), n_views=5), matrix=matrix)
