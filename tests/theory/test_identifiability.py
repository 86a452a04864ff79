"""What the theorem asks for is more than a mean Gram matrix of full rank.

The mean over g of (A T_g)^T A T_g has full rank for every mask of pixels under shifts: some g shows each pixel. Q_{A_1} is
the mean over those g alone that could have shown A_1. A split that keeps most of an irregular mask gives g away, and Q_{A_1}
is then (A T_g)^T A T_g itself, with the null space of one operator; in MRI a split into lines tells upright from transposed.
The minimiser over all functions of (y_1, A_1) is then not unique. Networks are not all functions: what they learn for one
A_1 they carry over to the others, and the last test shows a small one that has a unique minimiser all the same.
"""

import torch
from helpers import rng
from normal_equations import expected_loss, hessian, minimise
from theory_cases import (
    SQUARES_19,
    Table,
    conditional_grams,
    dense,
    every_draw,
    every_split,
    eye,
    indicator,
    invariant_covariance,
    measured_covariance,
    root,
)
from torch import nn

from es_medical.diagnostics.conditional_gram import conditional_gram
from es_medical.groups import D4, Shifts
from es_medical.losses import Supervised
from es_medical.physics import MRI, Batch, Inpainting, VirtualPhysics


def irregular(n=16, kept=8, seed=1):
    """Half of the pixels, whose shifts no seven of them leave open."""
    return Inpainting(indicator(n, torch.randperm(n, generator=rng(seed))[:kept].tolist()), (1, n)), Shifts((1, n))


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix, hermitian=True))


def mean_gram(physics, group):
    """mean_g (A T_g)^T A T_g."""
    n = len(eye(physics.img_size))
    matrices = [dense(VirtualPhysics(physics, group, g.expand(n, *g.shape))) for g in group.elements()]
    return torch.stack([a.T @ a for a in matrices]).mean(0)


def test_conditional_gram_of_the_diagnosis_is_that_of_all_draws():
    for physics, group, n1 in (
        (*irregular(), 2),
        (Inpainting(indicator(12, range(0, 12, 2)), (1, 12)), Shifts((1, 12)), 1),
        (Inpainting((torch.rand(3, 4, generator=rng(3)) < 0.6).float(), (3, 4)), Shifts((3, 4)), 2),
    ):
        shape = physics.img_size
        for sites, q in conditional_grams(every_draw(physics, group, n1)).items():
            seen = indicator(len(q), sites).view(shape)
            found = conditional_gram(physics.mask.view(shape), seen)
            torch.testing.assert_close(torch.diag(found.flatten()), q)


def test_split_of_most_of_an_irregular_mask_gives_g_away():
    """Mean Gram of full rank; Q_{A_1} the projection on the pixels of one shift, for each of the splits that keep 7 of 8."""
    physics, group = irregular()
    draws = every_draw(physics, group, 7)
    assert rank(mean_gram(physics, group)) == 16
    grams = conditional_grams(draws)
    assert len(grams) == len(draws.g)  # no two draws show the same pixels
    for q in grams.values():
        assert rank(q) == 8
        torch.testing.assert_close(q @ q, q)


def test_minimiser_over_all_functions_is_then_not_unique():
    physics, group = irregular(10, 5, seed=0)
    draws, covariance = every_draw(physics, group, 4), invariant_covariance(group, physics.img_size)
    f, seen = Table(draws), measured_covariance(physics, covariance)
    flat = {matrix.shape[1] - rank(matrix) for matrix in hessian(f, lambda: expected_loss(f, draws, seen))}
    assert flat == {4 * (10 - 5)}  # five pixels that no draw compares with anything, from each of four numbers


def test_few_pixels_leave_g_open_and_rank_falls_with_every_pixel_more():
    """The squares modulo 19: one or two pixels leave all others in question, seven its own nine alone."""
    physics, group = Inpainting(indicator(19, SQUARES_19), (1, 19)), Shifts((1, 19))
    ranks = [list(map(rank, conditional_grams(every_draw(physics, group, n1)).values())) for n1 in (1, 2, 3, 7)]
    means = [sum(one) / len(one) for one in ranks]
    assert means[0] == means[1] == 19
    assert 9 < means[2] < 19
    assert means[3] == 9


def test_even_columns_have_a_full_mean_gram_and_half_of_every_conditional_one():
    """Evenly spaced columns are a subgroup: their differences, and so all that a split asks about, lie on it."""
    physics, group = Inpainting(indicator(12, range(0, 12, 2)), (1, 12)), Shifts((1, 12))
    torch.testing.assert_close(mean_gram(physics, group), 0.5 * torch.eye(12, dtype=torch.float64))
    for n1 in (1, 3, 5):
        for sites, q in conditional_grams(every_draw(physics, group, n1)).items():
            assert rank(q) == 6
            assert (q.diagonal().nonzero() % 2 == sites[0] % 2).all()


def test_lines_of_kspace_tell_upright_from_transposed():
    """D4 covers columns and rows, but no split into lines compares them: Q_{A_1} has no more than the mask and its mirror.

    A split into points can: the origin alone leaves all eight g open, and its Q is the mean Gram matrix.
    """
    physics, group = MRI([0, 1, 0, 0, 1, 1, 1, 0], (8, 8)), D4()  # the origin is at 4, and i mirrors 8 - i
    assert rank(mean_gram(physics, group)) == 2 * (8 * 8 - 1)  # all but one corner; real and imaginary parts
    ranks = [rank(q) for n1 in (1, 2, 3) for q in conditional_grams(every_draw(physics, group, n1)).values()]
    assert set(ranks) == {2 * 8 * 4, 2 * 8 * 7}  # of 128: four lines, or seven when the line of the origin is all that is shown
    points = MRI(physics.mask.expand(1, 1, 8, 8), (8, 8))
    origin = conditional_grams(every_draw(points, group, 1))[4 * 8 + 4,]
    torch.testing.assert_close(origin, mean_gram(physics, group))


class Filter(nn.Module):
    """f(y_1, A_1) = w * A_1^T y_1: one cyclic filter of as many numbers as pixels, the same for every split."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, n, dtype=torch.float64))

    def forward(self, y, physics, generator=None):
        n = self.weight.shape[1]
        places = (torch.arange(n)[:, None] - torch.arange(n)) % n
        return physics.A_adjoint(y) @ self.weight[0][places].T


def test_a_filter_shared_by_all_splits_is_determined_all_the_same():
    """No Q_{A_1} has full rank, but what the filter learns where one split compares it serves all; it is near the best one.

    Not the best one exactly: the loss weighs each error by how often it is seen beside the split, the supervised does not.
    """
    physics, group = irregular()
    covariance = invariant_covariance(group, physics.img_size)
    draws, seen, f = every_draw(physics, group, 7), measured_covariance(physics, covariance), Filter(16)
    assert max(map(rank, conditional_grams(draws).values())) == 8
    x = root(covariance).view(-1, *physics.img_size)
    splits = every_split(physics.mask, 7)

    def error():
        """Mean over images and splits of |f(y_1, A_1) - x|^2 / n."""
        masks, images = splits.repeat_interleave(len(x), 0), x.repeat(len(splits), 1, 1, 1)
        return Supervised()(f, Batch(masks * images, physics.masked(masks), image=images)).total.sum() / len(splits)

    def value():
        return expected_loss(f, draws, seen, explicit=False)

    assert rank(hessian(f, value)[0]) == 16
    minimise(f, value)
    found = error()
    minimise(f, error)
    best, nothing = error(), covariance.diagonal().mean()
    assert best < found < best + 0.03 * (nothing - best)
