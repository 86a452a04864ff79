"""The splitting loss of photon counts: what it estimates before and after the logarithm, and what the network sees."""

import math

import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import Recorder, rng, within
from scipy.stats import poisson

from es_medical.groups import D4
from es_medical.losses import LOG_DOMAINS, PhotonSplitting, RampWeighting, mean_square
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch
from es_medical.physics.noise import target_share
from es_medical.physics.transmission import Transmission
from es_medical.splits import Split

ALPHA, WEIGHT, SCAN = 0.5, 0.7, Transmission(300.0, 2.0)
SHARE = target_share(ALPHA)
SPLIT = Split("views", 0.6)
each_domain = pytest.mark.parametrize("domain", LOG_DOMAINS)


def scanner(dtype=torch.float32, size=6, views=5):
    one = DenseCT(size, even_views(views))
    one.matrices = [matrix.to(dtype) for matrix in one.matrices]
    return one


def image(dtype=torch.float32):
    """Rays lose between 49 and 94 % of their photons."""
    grid = torch.linspace(-1, 1, 6, dtype=dtype)
    disc = (grid[:, None].square() + grid.square() < 1.2).to(dtype)
    return (1.2 * disc + 0.3 * disc * grid).view(1, 1, 6, 6)


def nonlinear(y, physics, generator=None):
    """A fixed nonlinear reconstructor that reads the operator and follows the noise: some steps of least squares, bent."""
    x = torch.zeros(len(y), 1, *physics.image_size, dtype=y.dtype)
    for _ in range(10):
        x = x + 1.8 * physics.A_adjoint(y - physics.A(x))
    return 0.7 * x + 0.3 * torch.tanh(x + torch.linspace(-0.5, 1.0, 6, dtype=x.dtype)) + 0.1 * x.roll(1, -1).square()


def measured(n=1, seed=0, scan=SCAN):
    """Post-log sinograms of n scans of the image, and the noiseless one."""
    clean = scanner().A(image()).expand(n, -1, -1, -1)
    return scan.post_log(scan.sample(clean, rng(seed))), clean


def entries(values, mask):
    """Mean over the rays of a mask, of each item."""
    return mean_square(values.sqrt(), mask)


def excess(domain, loss_scan=SCAN, alpha=ALPHA, n=6_000, **options):
    """Loss of n scans, less the error that it stands for and the constant of the noise: of mean 0."""
    physics, f = scanner(), Recorder(nonlinear)
    y, clean = measured(n)
    total = PhotonSplitting(SPLIT, loss_scan, alpha, WEIGHT, log_domain=domain, **options)(f, Batch(y, physics), rng(1)).total
    t, a = SCAN.transmitted(clean), target_share(alpha)
    prediction, m1 = physics.A(f.gave[-1]), f.physics[-1].mask
    m2 = physics.mask.expand_as(m1) - m1
    if domain == "pre":
        error, noise = (SCAN.transmitted(prediction) - t).square(), [t / (share * 300) for share in (a, 1)]
    else:
        error, noise = t * 4 * (prediction - clean).square(), [floor_of_logarithm(t, share) for share in (a, 1)]
    return total - WEIGHT * entries(error + noise[0], m1) - entries(error + noise[1], m2)


def floor_of_logarithm(t, share):
    """E of the "post" loss at the truth, from the Poisson distribution: t E (psi(k + 1) - ln lambda)^2."""
    means = share * 300 * t[0].double()
    k = torch.arange(0, 700, dtype=torch.float64)
    chance = torch.from_numpy(poisson.pmf(k.numpy(), means.flatten()[:, None].numpy()))
    spread = (torch.digamma(k + 1) - means.flatten()[:, None].log()).square()
    return (t[0].flatten() * (chance * spread).sum(1).float()).view_as(t[0]).expand_as(t)


@each_domain
@pytest.mark.parametrize("alpha", [ALPHA, 1.0])
def test_mean_is_the_error_of_clean_counts_or_the_weighted_one_of_the_clean_sinogram_and_a_constant(domain, alpha):
    """Within 4 standard errors, also at 18 photons on the darkest ray; counts, thinning and split are drawn anew each time."""
    assert within(excess(domain, alpha=alpha), 0.0)


@each_domain
@pytest.mark.parametrize("wrong", [Transmission(225.0, 2.0), Transmission(390.0, 2.0), Transmission(300.0, 2.4)])
def test_wrong_number_of_photons_or_attenuation_is_noticed_by_the_same_test(domain, wrong):
    assert not within(excess(domain, wrong), 0.0, standard_errors=8)


@each_domain
def test_input_that_shares_photons_with_the_target_would_bias_the_loss(domain, monkeypatch):
    """The network sees all of the photons: the same test notices."""

    def all_photons(self, y, alpha, generator):
        _, kept = thinned(self, y, alpha, generator)
        return y, kept

    thinned = Transmission.recorrupt
    monkeypatch.setattr(Transmission, "recorrupt", all_photons)
    assert not within(excess(domain), 0.0, standard_errors=8)


@pytest.mark.parametrize(("photons", "unbiased"), [(6.0, True), (2.0, False)])
def test_logarithm_of_few_counts_is_unbiased(photons, unbiased):
    """s that the "post" loss of one ray asks for: within 4 standard errors at 6 photons, where ln N is off by 1 / (2 N)."""
    scan, n = Transmission(photons, 1.0), 200_000
    counts = scan.sample(torch.zeros(n, 1), rng()).flatten()

    def bias(logarithm):
        return counts * logarithm - counts * math.log(photons)  # of mean 0 where s = 0 is asked for

    assert within(bias(torch.digamma(counts.clamp(min=1))), 0.0) == unbiased
    assert within(bias(counts.clamp(min=1).log()), 0.5, standard_errors=40)
    assert not within(bias(counts.clamp(min=1).log()), 0.0, standard_errors=40)


@each_domain
def test_rays_without_any_photon_have_a_finite_loss_and_gradient(domain):
    physics, scan = scanner(), Transmission(2.0, 2.0)
    y, _ = measured(50, scan=scan)
    assert (scan.counts(y) == 0).float().mean() > 0.3
    x_hat = image().repeat(50, 1, 1, 1).requires_grad_()
    total = PhotonSplitting(SPLIT, scan, log_domain=domain)(lambda y, physics, generator: x_hat, Batch(y, physics), rng()).total
    total.sum().backward()
    assert total.isfinite().all()
    assert x_hat.grad.isfinite().all()
    assert (x_hat.grad != 0).any()


def test_a_ray_without_photon_weighs_nothing_after_the_logarithm():
    physics, y = scanner(), SCAN.post_log(torch.zeros(3, 1, 5, 6))
    total = PhotonSplitting(SPLIT, SCAN, log_domain="post")(nonlinear, Batch(y, physics), rng()).total
    assert (total == 0).all()


def test_network_sees_thinned_photons_of_m1_and_nothing_of_m2():
    physics, f = scanner(), Recorder(nonlinear)
    y, _ = measured(100)
    PhotonSplitting(SPLIT, SCAN, ALPHA)(f, Batch(y, physics), rng())
    inside = f.physics[-1].mask.expand_as(y) == 1
    assert (f.given[-1][~inside] == 0).all()
    photons = (1 - SHARE) * 300 * torch.exp(-2 * f.given[-1][inside])
    none = photons < 0.75
    torch.testing.assert_close(photons[~none], photons[~none].round(), rtol=1e-4, atol=1e-3)
    before = SCAN.counts(y)[inside]
    assert (photons[~none] <= before[~none] + 1e-2).all()
    assert within((photons - (1 - SHARE) * before)[~none], 0.0)


@each_domain
def test_with_many_photons_a_perfect_reconstruction_costs_next_to_nothing(domain):
    physics, scan = scanner(), Transmission(1e7, 2.0)
    y, _ = measured(8, scan=scan)
    loss = PhotonSplitting(SPLIT, scan, log_domain=domain)
    perfect = loss(lambda y, physics, generator: image().expand(8, -1, -1, -1), Batch(y, physics), rng()).total
    other = loss(lambda y, physics, generator: 0.9 * image().expand(8, -1, -1, -1), Batch(y, physics), rng()).total
    assert (perfect < 1e-5).all()
    assert (other > 1e-3).all()


def test_weighting_is_of_the_residual_of_counts():
    """Exact for an image of air: the residual is 1 - n / I0."""
    physics, y = scanner(), measured(4)[0]
    air = Recorder(lambda y, physics, generator: torch.zeros(4, 1, 6, 6))
    value = PhotonSplitting(SPLIT, SCAN, weighting=RampWeighting())(air, Batch(y, physics), rng())
    m2 = 1 - air.physics[-1].mask
    torch.testing.assert_close(value.parts["prediction"], mean_square(1 - SCAN.counts(y) / 300, m2, RampWeighting()))


@each_domain
def test_training_on_photons_lowers_the_error_without_ground_truth(domain):
    torch.manual_seed(0)
    physics, scan = scanner(size=12, views=6), Transmission(2e3, 3.0)
    grid = torch.linspace(-1, 1, 12)
    x = (0.5 * (grid[:, None] ** 2 + grid**2 < 0.6).float() + 0.3 * (grid.abs() < 0.3).float()).expand(4, 1, 12, 12)
    y = scan.post_log(scan.sample(physics.A(x), rng()))
    network = ReynoldsAveraging(MoDL(unet(1, (4, 8)), n_iterations=1), D4())
    loss, optimiser = PhotonSplitting(SPLIT, scan, log_domain=domain), torch.optim.Adam(network.parameters(), 1e-2)

    def error():
        with torch.no_grad():
            return float((network.eval()(y, physics) - x).square().mean())

    before, generator = error(), rng(1)
    network.train()
    for _ in range(80):
        optimiser.zero_grad()
        loss(network, Batch(y, physics), generator).total.mean().backward()
        optimiser.step()
    assert error() < 0.5 * before
