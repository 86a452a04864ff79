import numpy as np
import pytest
import torch

from data_prep.mri.normalisation import Acquisition, VolumeRange, crop_or_pad, normalise
from data_prep.run.manifest import PrepError
from es_medical.data.geometry import Geometry


@pytest.mark.parametrize("n", [1, 4, 5])
@pytest.mark.parametrize("m", [1, 2, 3, 8, 9])
def test_origin_stays_the_origin_and_nothing_else_moves(n, m):
    x = np.arange(1, n + 1, dtype=float)[None]
    y = crop_or_pad(x, (1, m))[0]
    assert y.shape == (m,)
    assert y[m // 2] == x[0, n // 2]
    kept = y[y > 0]
    assert len(kept) in {min(n, m), min(n, m) - 1}
    assert np.all(np.diff(kept) == 1)


def test_padding_and_cropping_back_gives_the_same():
    x = np.random.default_rng(0).standard_normal((2, 13, 18))
    assert np.array_equal(crop_or_pad(crop_or_pad(x, (31, 40)), (13, 18)), x)


def test_constant_image_is_an_error():
    with pytest.raises(PrepError, match="constant image .every value is 3"):
        normalise(np.full((4, 4), 3.0), VolumeRange(0, 5), "slice")


def test_measurement_depends_on_the_key_alone():
    acquisition = Acquisition((16, 16), 4, 0.1, 0.1, 0)
    x = np.random.default_rng(0).random((16, 16))
    take = lambda key: acquisition.record(x, VolumeRange(0, 1), "slice", key, "s", "train", Geometry(), 0).measurement  # noqa: E731
    assert torch.equal(take("a"), take("a"))
    assert not torch.equal(take("a"), take("b"))
