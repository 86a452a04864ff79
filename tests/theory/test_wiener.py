"""Theorem 1 of the paper where everything is exact: Gaussian images, linear reconstructors, every g and every split.

The project's own loss is least at B_S = Q^+ Q W_S + (I - Q^+ Q) V with any V, for every set S of pixels that a split shows.
W_S is the Wiener estimator E[x | z] = W_S z, and Q is Q_{A_1} of the split. Where Q has full rank, training by measurements
of one operator alone finds the estimator that training by images would find. The loss is fed with the covariance of the
measurements, as infinitely many of them tell it, and with nothing else.
"""

import pytest
import torch
from helpers import rng
from normal_equations import expected_loss, hessian, minimise
from theory_cases import (
    DIFFERENCE_SETS,
    SQUARES_19,
    Table,
    conditional_grams,
    distance,
    energy,
    every_draw,
    indicator,
    inputs,
    invariant_covariance,
    measured_covariance,
    rows_of,
    wiener,
)

from es_medical.groups import D4, Shifts
from es_medical.physics import MRI, Inpainting

SIGMA, ALPHA = 0.4, 0.5
EXACT = 1e-6


def line(places, n):
    """n pixels in a row, of which some are measured, and all cyclic shifts."""
    return Inpainting(indicator(n, places), (1, n)), Shifts((1, n))


def square_with_holes():
    """Each hole's orbit under D4 has four points, in the image and in k-space, where (2, 2) is the origin."""
    mask = torch.ones(4, 4)
    mask[1, 3] = mask[2, 1] = mask[1, 0] = 0
    return mask


def sixteen_of_64():
    chosen = torch.randperm(64, generator=rng())[:16]
    return Inpainting(indicator(64, chosen.tolist()).view(8, 8), (8, 8)), Shifts((8, 8))


FULL_RANK = {
    **{
        f"{len(places)} of {n} pixels": (lambda n=n, places=places: (*line(places, n), 1))
        for n, places in DIFFERENCE_SETS.items()
    },
    "16 of 8 x 8 pixels": lambda: (*sixteen_of_64(), 1),
    "two of the squares modulo 19": lambda: (*line(SQUARES_19, 19), 2),
    "4 x 4 pixels with three holes, D4": lambda: (Inpainting(square_with_holes(), (4, 4)), D4(), 1),
    "4 x 4 points of k-space with three holes, D4": lambda: (MRI(square_with_holes(), (4, 4)), D4(), 1),
}
DEFICIENT = {
    "even columns": lambda: (*line(range(0, 12, 2), 12), 1),
    "two pixels of a difference set": lambda: (*line(DIFFERENCE_SETS[13], 13), 2),
    "two lines of k-space, D4": lambda: (MRI([0, 1, 1, 0], (4, 4)), D4(), 1),
}


def solved(physics, group, n1, sigma=0.0, weight=0.01):
    """The minimiser of the loss as a table, Q of every set, and the images' covariance."""
    draws, covariance = every_draw(physics, group, n1), invariant_covariance(group, physics.img_size)
    seen, f = measured_covariance(physics, covariance), Table(draws)
    minimise(f, lambda: expected_loss(f, draws, seen, sigma, ALPHA, weight))
    return f, conditional_grams(draws), covariance


def each_set(f, grams, covariance, physics, noise=0.0):
    """(B_S, W_S, covariance of the input z, Q) of every set S."""
    for sites, found in f.estimators().items():
        rows = rows_of(sites, physics)
        yield found, wiener(covariance, rows, noise), inputs(covariance, rows, noise), grams[sites]


@pytest.mark.parametrize("name", FULL_RANK)
def test_minimiser_of_the_loss_is_the_wiener_estimator_where_q_has_full_rank(name):
    physics, group, n1 = FULL_RANK[name]()
    f, grams, covariance = solved(physics, group, n1)
    assert 0 < physics.mask.mean() < 1  # the operator alone is blind
    for found, best, seen, q in each_set(f, grams, covariance, physics):
        assert torch.linalg.matrix_rank(q, hermitian=True) == len(q)
        assert distance(found, best, seen) < EXACT


@pytest.mark.parametrize("weight", [0.01, 1.0])
@pytest.mark.parametrize("name", ["4 of 13 pixels", "two of the squares modulo 19"])
def test_minimiser_of_the_gaussian_loss_is_the_wiener_estimator_of_the_recorrupted_measurements(name, weight):
    """With noise of variance sigma^2 in y and R2R: E[x | y_1 + alpha omega], noise (1 + alpha^2) sigma^2, for every weight."""
    physics, group, n1 = FULL_RANK[name]()
    f, grams, covariance = solved(physics, group, n1, SIGMA, weight)
    noise = SIGMA * (1 + ALPHA**2) ** 0.5
    for found, best, seen, _ in each_set(f, grams, covariance, physics, noise):
        assert distance(found, best, seen) < EXACT
    for found, other, seen, _ in each_set(f, grams, covariance, physics, SIGMA):  # not that of y_1 itself
        assert distance(found, other, seen) > 0.01


@pytest.mark.parametrize("sigma", [0.0, SIGMA])
@pytest.mark.parametrize("name", DEFICIENT)
def test_minimiser_misses_the_wiener_estimator_by_its_energy_in_the_null_space_of_q(name, sigma):
    """The minimiser of least norm is Q^+ Q W_S; what it lacks has energy tr((I - Q^+ Q) W C W^T), and it lacks much."""
    physics, group, n1 = DEFICIENT[name]()
    f, grams, covariance = solved(physics, group, n1, sigma)
    noise, missed = sigma * (1 + ALPHA**2) ** 0.5, []
    for found, best, seen, q in each_set(f, grams, covariance, physics, noise):
        kept = torch.linalg.pinv(q, hermitian=True) @ q
        assert torch.linalg.matrix_rank(q, hermitian=True) < len(q)
        assert distance(found, kept @ best, seen) < EXACT
        lost = energy(best - kept @ best, seen)
        assert abs(energy(found - best, seen) - lost) < EXACT * energy(best, seen)
        missed.append(distance(found, best, seen))
    assert max(missed) > 0.2


@pytest.mark.parametrize("name", ["even columns", "two pixels of a difference set"])
def test_minimiser_is_not_unique_where_q_lacks_rank(name):
    """The loss is flat in (n - rank Q) directions for every number that a split shows: no step there costs anything."""
    physics, group, n1 = DEFICIENT[name]()
    draws, covariance = every_draw(physics, group, n1), invariant_covariance(group, physics.img_size)
    seen, f, grams = measured_covariance(physics, covariance), Table(draws), conditional_grams(draws)

    def value():
        return expected_loss(f, draws, seen)

    flat = [matrix.shape[1] - torch.linalg.matrix_rank(matrix, hermitian=True) for matrix in hessian(f, value)]
    expected = [n1 * (len(q) - torch.linalg.matrix_rank(q, hermitian=True)) for q in (grams[sites] for sites in f.sets)]
    assert flat == expected
    minimise(f, value)
    least, before, q = value(), f.weight.detach().clone(), grams[f.sets[0]]
    kept = torch.linalg.pinv(q, hermitian=True) @ q

    def moved(direction):
        with torch.no_grad():
            f.weight.copy_(before)
            f.weight[0] += direction.sum(1)
        return value()

    torch.testing.assert_close(moved(torch.eye(len(q), dtype=q.dtype) - kept), least, rtol=1e-10, atol=0)
    assert moved(kept) > 1.001 * least


def test_images_that_are_not_invariant_are_not_learnt():
    """The theorem's assumption matters: the minimiser is then far from the Wiener estimator of the true distribution."""
    physics, group = line(DIFFERENCE_SETS[13], 13)
    draws = every_draw(physics, group, 1)
    covariance = invariant_covariance(group, physics.img_size, elements=torch.zeros(1, 2, dtype=torch.long))
    seen, f = measured_covariance(physics, covariance), Table(draws)
    minimise(f, lambda: expected_loss(f, draws, seen))
    gaps = [distance(found, best, c) for found, best, c, _ in each_set(f, conditional_grams(draws), covariance, physics)]
    assert max(gaps) > 0.1
