"""The average over splits at test time, against the paper's proposition, for Gaussian images and linear reconstructors.

    f_bar(y, A) = E[Qbar^-1 Q_{A_1} f(y_1, A_1) | y, A] = E[Qbar^-1 Q_{A_1} E[x | y_1, A_1] | y, A],  Qbar = E[Q_{A_1} | A],

for any minimiser f of the ES loss, also where no Q_{A_1} has full rank and f is not unique, if only Qbar has. In practice the
weights are left out. That changes nothing where Q_{A_1} is the same for all splits: when all pixels are measured (denoising),
and on the range of A^T when each split gives g away. Nor does it for pixels that A misses when all are asked about alike.
"""

from functools import cache

import pytest
import torch
from helpers import randn
from normal_equations import expected_loss, minimise
from theory_cases import (
    DIFFERENCE_SETS,
    SQUARES_19,
    Table,
    conditional_grams,
    energy,
    every_draw,
    every_split,
    indicator,
    invariant_covariance,
    measured_covariance,
    rows_of,
    shown,
    wiener,
)

from es_medical.groups import Shifts
from es_medical.inferers import Inferer
from es_medical.networks import ReynoldsAveraging
from es_medical.physics import Batch, Inpainting
from es_medical.splits import Split

CASES = {
    "each Q of rank 7 of 10": (10, (0, 1, 3), 1),
    "4 of 13 pixels": (13, DIFFERENCE_SETS[13], 1),
    "two of the squares modulo 19": (19, SQUARES_19, 2),
}


class Solved:
    """The minimiser of least norm for one case; its estimators B_S and Q of the splits S of A itself, and Qbar."""

    def __init__(self, n, places, n1):
        self.physics, group = Inpainting(indicator(n, places), (1, n)), Shifts((1, n))
        draws = every_draw(self.physics, group, n1)
        self.covariance = invariant_covariance(group, self.physics.img_size)
        self.f = Table(draws)
        seen = measured_covariance(self.physics, self.covariance)
        minimise(self.f, lambda: expected_loss(self.f, draws, seen, weight=0.1))
        self.masks = every_split(self.physics.mask, n1)
        self.splits = [tuple(sites) for sites in shown(self.physics.masked(self.masks), len(self.masks)).tolist()]
        grams = conditional_grams(draws)
        self.q = {sites: grams[sites] for sites in self.splits}
        self.q_bar = torch.stack([self.q[sites] for sites in self.splits]).mean(0)

    def average(self, estimators, weighted):
        """The average over splits as a matrix of A^T y, (n, n)."""
        terms = {sites: estimators[sites] @ rows_of(sites, self.physics) for sites in self.splits}
        if weighted:
            terms = {sites: torch.linalg.solve(self.q_bar, self.q[sites] @ term) for sites, term in terms.items()}
        return torch.stack(list(terms.values())).mean(0)

    @property
    def wieners(self):
        return {sites: wiener(self.covariance, rows_of(sites, self.physics)) for sites in self.splits}

    @property
    def other_minimiser(self):
        """One that differs from the first by anything in the null space of each Q."""
        free = {}
        for sites, matrix in self.f.estimators().items():
            if sites in self.q:
                kept = torch.linalg.pinv(self.q[sites], hermitian=True) @ self.q[sites]
                free[sites] = matrix + (torch.eye(len(kept), dtype=kept.dtype) - kept) @ randn(*matrix.shape, dtype=kept.dtype)
        return free

    def error(self, matrix):
        """E |B A^T y - x|^2 / n."""
        a = torch.diag(self.physics.mask.double().flatten())
        return energy(matrix @ a - torch.eye(len(a), dtype=a.dtype), self.covariance) / len(a)


@cache
def solved(name):
    return Solved(*CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_weighted_average_of_any_minimiser_is_the_convex_combination_of_wiener_estimators(name):
    case = solved(name)
    ranks = {int(torch.linalg.matrix_rank(q, hermitian=True)) for q in case.q.values()}
    assert torch.linalg.matrix_rank(case.q_bar, hermitian=True) == len(case.q_bar)
    weights = torch.stack([torch.linalg.solve(case.q_bar, q) for q in case.q.values()]).mean(0)
    torch.testing.assert_close(weights, torch.eye(len(weights), dtype=weights.dtype))  # a convex combination
    combination = case.average(case.wieners, weighted=True)
    for estimators in (case.f.estimators(), case.other_minimiser):
        assert (case.average(estimators, weighted=True) - combination).norm() < 1e-6 * combination.norm()
    without = case.average(case.other_minimiser, weighted=False) - case.average(case.f.estimators(), weighted=False)
    assert (without.norm() > 0.1) == (ranks == {7})  # the plain average keeps what the loss does not determine


def test_plain_average_is_the_combination_on_missing_pixels_and_blurs_the_measured_ones():
    """Splits of one pixel of a perfect difference set: each missing pixel is asked about by every split alike.

    A measured pixel has the weight 1 / m in the plain average of its m reconstructions, and m / (2 m - 1) in the weighted one.
    """
    case = solved("4 of 13 pixels")
    plain, weighted = (case.average(case.f.estimators(), weighted) for weighted in (False, True))
    measured, m = torch.tensor(DIFFERENCE_SETS[13]), 4
    missing = 1 - indicator(13, DIFFERENCE_SETS[13])
    torch.testing.assert_close(missing[:, None] * plain, missing[:, None] * weighted)
    torch.testing.assert_close(plain[measured, measured], torch.full((m,), 1 / m, dtype=torch.float64))
    torch.testing.assert_close(weighted[measured, measured], torch.full((m,), m / (2 * m - 1), dtype=torch.float64))
    assert case.error(weighted) < case.error(plain)


def test_plain_average_of_pairs_is_near_the_combination():
    """Squares modulo 19, two pixels of nine: 1.5 % apart on the pixels that A misses, 30 % on the others (root mean square).

    Neither is the MMSE estimator of all nine (mean square error 0.40; images 1.19): 0.68 weighted, 0.78 plain, 0.93 one split.
    """
    case = solved("two of the squares modulo 19")
    plain, weighted = (case.average(case.f.estimators(), weighted) for weighted in (False, True))
    a, missing = torch.diag(case.physics.mask.double().flatten()), (1 - case.physics.mask.double()).flatten()[:, None]
    seen = a @ case.covariance @ a

    def apart(rows):
        return (energy(rows * (plain - weighted), seen) / energy(rows * weighted, seen)) ** 0.5

    assert apart(missing) < 0.03
    assert 0.2 < apart(1 - missing) < 0.4
    single = [case.error(case.f.estimators()[sites] @ rows_of(sites, case.physics)) for sites in case.splits]
    full = wiener(case.covariance, rows_of(SQUARES_19, case.physics)) @ rows_of(SQUARES_19, case.physics)
    assert case.error(full) < case.error(weighted) < case.error(plain) < sum(single) / len(single)


SAME = {"denoising": (8, range(8), 5), "g given away": (16, (0, 1, 2, 4, 7, 8, 11, 15), 7)}


@pytest.mark.parametrize(("n", "places", "n1"), SAME.values(), ids=SAME.keys())
def test_plain_average_is_the_combination_where_q_is_the_same_for_all_splits(n, places, n1):
    """Denoising: Q = I. A split that gives g away: Q = A^T A, so the weights are 1 on the range of A^T; no more is known."""
    draws = every_draw(Inpainting(indicator(n, places), (1, n)), Shifts((1, n)), n1)
    grams, mask = conditional_grams(draws), draws.physics.mask.double().flatten()
    own = [grams[tuple(sites)] for sites in draws.sites[: len(every_split(draws.physics.mask, n1))].tolist()]
    q_bar = torch.stack(own).mean(0)
    weights = [torch.linalg.pinv(q_bar, hermitian=True) @ q for q in own]
    for weight in weights:
        torch.testing.assert_close(weight, torch.diag(mask))


class InTurn(Split):
    """The given masks one after another, the same for all items."""

    def __init__(self, masks):
        super().__init__("pixels", 0.5)
        self.masks = iter(masks)

    def __call__(self, physics, batch, generator):
        mask = next(self.masks)
        return mask.expand(batch, *mask.shape)


def measured(case, n=3):
    root = torch.linalg.cholesky(case.covariance)
    x = randn(n, len(root), seed=3, dtype=torch.float64) @ root.T
    return case.physics.A(x.view(n, *case.physics.img_size))


def test_inferer_over_every_split_is_the_plain_average():
    case = solved("two of the squares modulo 19")
    y = measured(case)
    found = Inferer(InTurn(case.masks), len(case.masks))(case.f, Batch(y, case.physics, ids=["a", "b", "c"])).image
    expected = y.flatten(1) @ case.average(case.f.estimators(), weighted=False).T
    torch.testing.assert_close(found.flatten(1), expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sigma", [0.0, 0.2])
def test_inferer_of_random_splits_noise_and_g_converges_to_the_plain_average(sigma):
    """Within 4.5 standard errors, by its own spread, for each of 57 pixels; omega has no mean, and f is linear."""
    case, n = solved("two of the squares modulo 19"), 200
    y = measured(case)
    network = ReynoldsAveraging(case.f, Shifts((1, 19))).eval()
    inferer = Inferer(Split("pixels", 2 / 9), n, sigma, group=Shifts((1, 19)))
    found = inferer(network, Batch(y, case.physics, ids=["a", "b", "c"]))
    expected = (y.flatten(1) @ case.average(case.f.estimators(), weighted=False).T).view_as(y)
    assert ((found.image - expected).abs() <= 4.5 * found.spread / n**0.5 + 1e-9).all()
    assert (found.image - expected).norm() < 0.2 * expected.norm()
    combination = (y.flatten(1) @ case.average(case.wieners, weighted=True).T).view_as(y)
    assert ((found.image - combination).abs() > 4.5 * found.spread / n**0.5).any()  # the test would see the difference
