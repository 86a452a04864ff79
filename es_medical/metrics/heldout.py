"""The score of a reconstruction when there is no ground truth: how well it predicts held-out measurements."""

import torch

from es_medical.physics.base import Operator
from es_medical.types import Image, Measurement, PerItem


def heldout_error(x_hat: Image, y: Measurement, physics2: Operator) -> PerItem:
    """|A_2 x_hat - y_2|^2 / |y_2|^2 of each item, where x_hat was made without y_2: 0 is perfect, 1 is no better than zero.

    It is NaN where y_2 is zero: nothing was measured there. Noise gives it a floor of |epsilon_2|^2 / |y_2|^2. It ranks
    checkpoints and stops training where there is no ground truth.

    Args:
        x_hat: reconstructions (B, C, H, W) from y_1.
        y: all measurements (B, ...).
        physics2: A_2 = M2 A, the operator of the measurements that were held out.
    """
    residual = (physics2.mask * (physics2.A(x_hat) - y)).square().flatten(1).sum(1)
    energy = (physics2.mask * y).square().flatten(1).sum(1)
    return torch.where(energy > 0, residual / energy, torch.nan)
