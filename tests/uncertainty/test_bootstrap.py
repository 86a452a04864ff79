"""The equivariant bootstrap against closed forms of linear estimators, and its draws."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import line_mri, randn, rng
from scipy import stats

from es_medical.groups import D4, Shifts
from es_medical.inferers import Inferer
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import MRI, Batch, Inpainting, measure
from es_medical.physics.transmission import Transmission
from es_medical.splits import Split
from es_medical.uncertainty import EquivariantBootstrap, Passes, estimator, with_level

SIGMA, SIZE, IDS = 0.1, (4, 4), ["a", "b", "c"]


def adjoint(batch):
    """The zero-filled image, for what is fully sampled the unbiased estimator."""
    return batch.physics.A_adjoint(batch.y)


def shrinking(share):
    """Wiener's estimator of white images under inpainting: measured values times `share`, zero elsewhere."""

    def f(batch):
        return share * batch.physics.A_adjoint(batch.y)

    return f


def resampled(bootstrap, f, x_hat, physics, sigma=SIGMA, ids=None):
    ids = [f"item{i}" for i in range(len(x_hat))] if ids is None else ids
    level = torch.full((len(x_hat),), sigma, dtype=x_hat.dtype)
    return errors(bootstrap(f, x_hat, Batch(x_hat, physics, level, ids=ids)))


def errors(replicas):
    """x_i - x_hat, (N, B, C, H, W)."""
    return torch.stack([one.error for one in replicas])


def energy(x):
    return x.square().flatten(-3).sum(-1)


def test_error_norms_of_an_unbiased_estimator_have_the_true_law():
    """A = F, f = F^T: |x_hat - x|^2 / sigma^2 is chi-square with 2 H W degrees of freedom, and so is |x_i - x_hat|^2."""
    physics = MRI(torch.ones(SIZE[1]), SIZE)
    x_hat = randn(1, 2, *SIZE, dtype=torch.float64).expand(100, -1, -1, -1)
    found = energy(resampled(EquivariantBootstrap(D4(), 20), adjoint, x_hat, physics)).flatten() / SIGMA**2
    assert stats.kstest(found.numpy(), stats.chi2(2 * 16).cdf).pvalue > 0.01


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_mean_error_of_a_linear_estimator_is_the_closed_form(sigma):
    """E |x_i - x_hat|^2 = mean_g |(W A - I) T_g x_hat|^2 + sigma^2 tr(W^T W), within 4 standard errors of 2000 draws."""
    mask = torch.rand(1, *SIZE, generator=rng(1)) < 0.5
    physics, group, share = Inpainting(mask, SIZE, 1), Shifts(SIZE), 0.8
    x_hat = randn(1, 1, *SIZE, dtype=torch.float64)
    many = x_hat.expand(100, -1, -1, -1)
    each = energy(resampled(EquivariantBootstrap(group, 20), shrinking(share), many, physics, sigma)).flatten()
    turned = group.apply(x_hat.expand(group.order, -1, -1, -1), group.elements())
    bias = energy((share * mask - 1) * turned).mean()
    expected = bias + sigma**2 * share**2 * mask.sum()
    assert abs(each.mean() - expected) < 4 * each.std() / math.sqrt(len(each))


def test_error_that_a_white_image_hides_is_underestimated_by_the_measured_share():
    """White images, noiseless inpainting of a share rho: true error (1 - rho) n, resampled rho (1 - rho) n, exactly on average.

    Why intervals need calibration: what x_hat lacks, no resampling of x_hat can show.
    """
    group, n = Shifts(SIZE), 16
    mask = (torch.rand(1, *SIZE, generator=rng(3)) < 0.5).double()
    rho = float(mask.mean())
    physics = Inpainting(mask, SIZE, 1)
    total = 0.0
    for pixel in range(n):  # E over white images of a quadratic form: the sum over an orthonormal basis
        x_hat = mask * torch.eye(n, dtype=torch.float64)[pixel].view(1, 1, *SIZE)
        for g in group.elements():
            moved = group.apply(x_hat, g[None])
            total += float(energy(group.inverse(adjoint(Batch(physics.A(moved), physics)), g[None]) - x_hat)) / group.order
    assert total == pytest.approx(rho * (1 - rho) * n)


@pytest.fixture(scope="module")
def setting():
    """A network with its inferer, and measurements of three items."""
    torch.manual_seed(0)
    network = ReynoldsAveraging(MoDL(unet(2, (4, 8)), n_iterations=1), D4()).eval()
    physics = line_mri((8, 8))
    y = measure(physics, randn(3, 2, 8, 8), SIGMA, rng())
    return network, Inferer(Split(split_ratio=0.5), 2, SIGMA, group=D4()), Batch(y, physics, ids=IDS)


def kinds(setting):
    network, inferer, _ = setting
    return {"bootstrap": EquivariantBootstrap(D4(), 3), "passes": Passes(estimator(inferer, network, 1), 3)}


@pytest.mark.parametrize("kind", ["bootstrap", "passes"])
def test_images_of_an_item_do_not_depend_on_its_batch(setting, kind):
    network, inferer, batch = setting
    f, draw, batch = estimator(inferer, network), kinds(setting)[kind], with_level(inferer, batch)
    x_hat = f(batch)
    together = errors(draw(f, x_hat, batch))
    for order in ([2, 0], [1]):
        part = Batch(batch.y[order], batch.physics, batch.sigma[order], ids=[IDS[i] for i in order])
        part = draw(f, x_hat[order], part)
        torch.testing.assert_close(errors(part), together[:, order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bootstrap", "passes"])
def test_same_seed_same_images_whatever_the_global_state(setting, kind):
    network, inferer, batch = setting
    f, draw, batch = estimator(inferer, network), kinds(setting)[kind], with_level(inferer, batch)
    x_hat = f(batch)
    first = errors(draw(f, x_hat, batch))
    torch.manual_seed(5)
    assert torch.equal(errors(draw(f, x_hat, batch)), first)
    assert all(not torch.equal(first[0], one) for one in first[1:])


def test_error_where_it_was_measured_is_what_the_operator_lost():
    """f = A^T without noise: the error of a replica is in the null space of A there, in that of A T_g^-1 as it is returned."""
    physics, x_hat = line_mri((8, 8)), randn(3, 2, 8, 8, dtype=torch.float64)
    replicas = list(EquivariantBootstrap(D4(), 6)(adjoint, x_hat, Batch(x_hat, physics, torch.zeros(3), ids=IDS)))
    for one in replicas:
        torch.testing.assert_close(physics.A(one.measured), torch.zeros_like(x_hat))
        torch.testing.assert_close(energy(one.measured), energy(one.error))
    assert max(float(energy(physics.A(one.error)).max()) for one in replicas) > 0.1


def test_seed_and_id_decide_the_images():
    physics, x_hat = line_mri((8, 8)), randn(1, 2, 8, 8)
    first = resampled(EquivariantBootstrap(D4(), 4), adjoint, x_hat, physics, ids=["a"])
    assert not torch.equal(resampled(EquivariantBootstrap(D4(), 4, seed=1), adjoint, x_hat, physics, ids=["a"]), first)
    assert not torch.equal(resampled(EquivariantBootstrap(D4(), 4), adjoint, x_hat, physics, ids=["b"]), first)


def test_more_images_begin_with_the_same_ones():
    physics, x_hat = line_mri((8, 8)), randn(1, 2, 8, 8)
    few, many = (resampled(EquivariantBootstrap(D4(), n), adjoint, x_hat, physics) for n in (3, 5))
    assert torch.equal(many[:3], few)


def test_every_element_of_a_small_group_comes_equally_often():
    """f = A^T of a mask that all eight of D4 change: 16 noiseless replicas are eight different ones, each of them twice."""
    physics = Inpainting(torch.arange(16).view(SIZE) < 2, SIZE, 1)
    x_hat = torch.ones(2, 1, *SIZE)
    found = resampled(EquivariantBootstrap(D4(), 16), adjoint, x_hat, physics, sigma=0.0)
    for item in (0, 1):
        for part in (found[:8, item], found[8:, item]):
            assert len(torch.unique(part.flatten(1), dim=0)) == 8
    assert not torch.equal(found[:, 0], found[:, 1])  # each item has its own order


def test_without_a_group_noise_alone_is_new():
    physics, x_hat = line_mri((8, 8)), randn(1, 2, 8, 8)
    still = resampled(EquivariantBootstrap(None, 3), adjoint, x_hat, physics, sigma=0.0)
    assert all(torch.equal(one, still[0]) for one in still)
    moved = resampled(EquivariantBootstrap(D4(), 8), adjoint, x_hat, physics, sigma=0.0)
    assert len(torch.unique(moved.flatten(1), dim=0)) > 1


def test_photons_are_counted_behind_the_moved_image():
    """Standard deviation of the logarithm of Poisson counts, 1 / (c sqrt(N)), within 5 % for 64 x 50 rays."""
    counted, size = Transmission(1000.0, 1.0), (8, 8)
    physics, x_hat = Inpainting(torch.ones(size), size, 1), torch.full((1, 1, *size), 0.5, dtype=torch.float64)
    found = resampled(EquivariantBootstrap(D4(), 50, transmission=counted), adjoint, x_hat, physics, 0.0)
    expected = 1 / math.sqrt(1000 * math.exp(-0.5))
    assert float(found.std()) == pytest.approx(expected, rel=0.05)


def test_noise_level_is_the_inferers_own_or_that_of_the_data_times_its_factor():
    batch = Batch(torch.zeros(2, 2, 8, 8), line_mri((8, 8)), torch.tensor([0.1, 0.2]))
    assert with_level(Inferer(Split(), sigma=0.3), batch).sigma.tolist() == pytest.approx([0.3, 0.3])
    assert with_level(Inferer(Split(), sigma=None, sigma_factor=2.0), batch).sigma.tolist() == pytest.approx([0.2, 0.4])
    with pytest.raises(ValueError, match="no noise level"):
        with_level(Inferer(Split(), sigma=None), replace(batch, sigma=None))


def test_estimator_is_the_inferer_with_the_level_of_the_batch(setting):
    network, inferer, batch = setting
    assert torch.equal(estimator(inferer, network)(with_level(inferer, batch)), inferer(network, batch).image)
    other = Inferer(Split(split_ratio=0.5), 1, 0.7, group=D4())(network, batch).image
    torch.testing.assert_close(estimator(inferer, network, 1)(replace(batch, sigma=torch.full((3,), 0.7))), other)


@pytest.mark.parametrize("n", [1, 2.5])
def test_one_image_or_half_an_image_is_refused(unchecked, n):
    with pytest.raises(ValueError, match=f"n_samples must be a whole number, at least 2, got {n}"):
        EquivariantBootstrap(D4(), n)
    with pytest.raises(ValueError, match=f"n_samples must be a whole number, at least 2, got {n}"):
        Passes(adjoint, n)
