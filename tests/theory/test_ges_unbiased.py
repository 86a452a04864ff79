"""G-ES is unbiased: in the mean over noise, omega and splits it is the loss of a supervisor who knows A x, and a constant.

    E L_G-ES = E [w |A_1 (x_hat - x)|^2 / m_1 + |A_2 (x_hat - x)|^2 / m_2] + sigma^2 (w (1 + 1 / alpha^2) + 1)

for any fixed reconstructor, here a nonlinear one. tests/losses/test_splitting.py has the value for MRI of one image. Here the
images are random, g is drawn as well, and the slope with respect to a weight of the reconstructor is unbiased too: training
follows it. All within 4 standard errors (99.99 %) of the paired differences; a wrong sigma is out of 8 of them.
"""

import pytest
import torch
from equivariant_networks import Crooked, UnrolledGradient
from helpers import line_mri, randn, rng, within

from es_medical.groups import D4, Flips, Shifts
from es_medical.losses import EquivariantSplitting, mean_square
from es_medical.physics import Batch, CompressedSensing, Inpainting, gaussian_matrix, measure
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.splits import Split

SIGMA, ALPHA, WEIGHT, DRAWS = 0.4, 0.5, 0.7, 4_000
CASES = {
    "MRI": (lambda: line_mri((8, 8)), D4(), Split("lines", 0.6)),
    "CT": (lambda: CT(ParallelBeam((8, 8), n_views=5)).double(), D4(), Split("rays", 0.6)),
    "inpainting": (lambda: Inpainting(torch.arange(48).view(6, 8) % 5 < 2, (6, 8)), Shifts((6, 8)), Split("pixels", 0.6)),
    "compressed sensing": (lambda: CompressedSensing(0.4 * gaussian_matrix(20, 48, 0), (6, 8)), Flips(), Split("rows", 0.6)),
}
cases = pytest.mark.parametrize("name", CASES)


class Gained:
    """a f(y, A) with a weight a of each item, to have the slope of each; keeps what it was given and gave."""

    def __init__(self, channels):
        self.f, self.gain = UnrolledGradient(Crooked(channels), 2), torch.ones(DRAWS, 1, 1, 1, dtype=torch.float64)
        self.gain.requires_grad_()

    def __call__(self, y, physics, generator=None):
        with torch.no_grad():
            image = self.f(y, physics)
        self.physics1, self.image = physics, self.gain * image
        return self.image


def differences(name, assumed):
    """Of each draw: loss less the supervisor's, and the slope of the loss less that of the supervisor's."""
    make, group, split = CASES[name]
    physics, generator = make(), rng(7)
    x = randn(DRAWS, *physics.img_size, seed=5, dtype=torch.float64)
    f, y = Gained(physics.img_size[0]), measure(physics, x, SIGMA, generator)
    loss = EquivariantSplitting(split, assumed, ALPHA, WEIGHT, group)(f, Batch(y, physics), generator).total
    virtual, m1 = f.physics1, f.physics1.mask  # M1 A T_g, and y is that of T_g^-1 x
    target = virtual.group.inverse(x, virtual.g)
    error = physics.A(virtual.group.apply(f.image - target, virtual.g))
    supervisor = WEIGHT * mean_square(error, m1) + mean_square(error, physics.mask - m1)
    slopes = [torch.autograd.grad(value.sum(), f.gain, retain_graph=True)[0].flatten() for value in (loss, supervisor)]
    return (loss - supervisor).detach(), slopes[0] - slopes[1]


@cases
def test_loss_and_slope_are_those_of_the_supervisor(name):
    value, slope = differences(name, SIGMA)
    assert within(value, SIGMA**2 * (WEIGHT * (1 + 1 / ALPHA**2) + 1))
    assert within(slope, 0.0)


@pytest.mark.parametrize("wrong", [0.7 * SIGMA, 1.4 * SIGMA])
@cases
def test_wrong_noise_level_is_detected_by_the_same_test(name, wrong):
    """The constant is the right one for the two levels: what is left is that omega no longer cancels the noise of y_1."""
    value, slope = differences(name, wrong)
    assert not within(value, WEIGHT * (SIGMA**2 + wrong**2 / ALPHA**2) + SIGMA**2, standard_errors=8)
    assert not within(slope, 0.0, standard_errors=8)
