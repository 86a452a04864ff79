"""Training, not algebra: the project's loss, networks and random draws, on samples of measurements of one operator.

Each step draws new images of a Gaussian distribution, measures four pixels of thirteen, and hands on the measurements alone.
The network is `ReynoldsAveraging` of a table of linear maps, one for each pixel that may be shown; a random g of each item in
training, the mean over all g when it is tested.
"""

import pytest
import torch
from helpers import rng
from theory_cases import (
    DIFFERENCE_SETS,
    Table,
    distance,
    every_draw,
    eye,
    indicator,
    inputs,
    invariant_covariance,
    rows_of,
    wiener,
)

from es_medical.groups import Shifts
from es_medical.losses import EquivariantSplitting
from es_medical.networks import ReynoldsAveraging
from es_medical.physics import Batch, Inpainting, measure
from es_medical.splits import Split

ALPHA, STEP = 0.5, 0.02
pytestmark = pytest.mark.usefixtures("unchecked")  # half of the time would be spent on checks of shapes


def trained(physics, group, sigma, group_of_loss=None, batch=2_000, steps=200):
    """A table that gradient descent found with the splitting loss; Reynolds averaging where the loss has no g."""
    generator, root = rng(), torch.linalg.cholesky(invariant_covariance(group, physics.img_size))
    table = Table(every_draw(physics, group, 1))
    network = table if group_of_loss else ReynoldsAveraging(table, group).train()
    loss = EquivariantSplitting(Split("pixels", 1 / float(physics.mask.sum())), sigma, ALPHA, 0.1, group_of_loss)
    optimiser = torch.optim.Adam(network.parameters(), STEP)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = (torch.randn(batch, len(root), generator=generator, dtype=torch.float64) @ root.T).view(batch, *physics.img_size)
        y = measure(physics, x, sigma, generator)
        optimiser.zero_grad()
        loss(network, Batch(y, physics), generator).total.mean().backward()
        optimiser.step()
        schedule.step()
    return network.eval()


def errors(network, physics, group, noise):
    """Distance of the network to the Wiener estimator, for every pixel that a split shows."""
    covariance, n = invariant_covariance(group, physics.img_size), len(eye(physics.img_size))
    for place in range(n):
        alone = Inpainting(indicator(n, (place,)), physics.image_size)
        rows = rows_of((place,), physics)
        with torch.no_grad():
            found = network(rows.view(1, *physics.img_size), alone).view(n, 1)  # the image of the number 1 at that pixel
        yield distance(found, wiener(covariance, rows, noise), inputs(covariance, rows, noise))


@pytest.mark.parametrize("sigma", [0.0, 0.4])
def test_descent_on_samples_of_measurements_finds_the_wiener_estimator(sigma):
    """With noise that of y_1 + alpha omega."""
    physics, group = Inpainting(indicator(13, DIFFERENCE_SETS[13]), (1, 13)), Shifts((1, 13))
    network = trained(physics, group, sigma)
    assert max(errors(network, physics, group, sigma * (1 + ALPHA**2) ** 0.5)) < 0.02


def test_descent_with_the_group_in_the_loss_finds_it_as_well():
    """A table that is not equivariant, and an explicit g in the loss: each of its maps is trained by a seventh of the items."""
    physics, group = Inpainting(indicator(7, DIFFERENCE_SETS[7]), (1, 7)), Shifts((1, 7))
    assert max(errors(trained(physics, group, 0.0, group, 4_000), physics, group, 0.0)) < 0.02


def test_descent_on_measurements_of_even_columns_does_not_find_it():
    """The subgroup of even shifts shows the even pixels from the even ones: the odd ones stay as they were, zero."""
    physics, group = Inpainting(indicator(6, (0, 2, 4)), (1, 6)), Shifts((1, 6))
    network = trained(physics, group, 0.0, steps=50)
    assert min(errors(network, physics, group, 0.0)) > 0.3
