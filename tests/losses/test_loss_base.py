import pytest
import torch
from helpers import randn

from es_medical.losses import mean_square


@pytest.mark.parametrize("shape", [(1, 1, 1, 6), (1, 1, 4, 6), (3, 1, 1, 6), (3, 1, 4, 6), (3, 2, 4, 6)])
def test_mean_square_divides_by_the_measured_numbers_of_each_item(shape):
    residual, mask = randn(3, 2, 4, 6), (randn(*shape, seed=1) > 0).float()
    full = mask.expand(3, 2, 4, 6).bool()
    expected = torch.stack([residual[i][full[i]].square().mean() for i in range(3)])
    torch.testing.assert_close(mean_square(residual, mask), expected)
