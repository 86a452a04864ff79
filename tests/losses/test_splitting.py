import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import Recorder, line_mri, randn, rng, virtual_batch, within

from es_medical.groups import D4
from es_medical.losses import EquivariantSplitting, FrequencyWeighting, RampWeighting, SeveralSplits, mean_square
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import MRI, Batch, measure
from es_medical.splits import Split

SIGMA, ALPHA = 0.4, 0.5


def nonlinear(y, physics, generator=None):
    """A fixed nonlinear reconstructor that reads the operator and is not equivariant."""
    x = physics.A_adjoint(y)
    ramp = torch.linspace(-0.5, 1.0, x.shape[-1]) + torch.linspace(0, 0.7, x.shape[-2])[:, None].square()
    return torch.tanh(1.5 * x + ramp) + 0.3 * x.flip(1).square()


class Chosen(D4):
    """D4 whose random element is a given one, drawn without using the generator."""

    def __init__(self, g):
        self.g = g

    def sample(self, n, generator, device="cpu"):
        return torch.full((n,), self.g, device=device)


def equivariant(seed=0):
    torch.manual_seed(seed)
    network = MoDL(unet(2, (4, 8)), n_iterations=2)
    for parameter in network.denoiser.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return ReynoldsAveraging(network, D4()).eval()


PROBLEMS = {
    "lines": (line_mri((8, 8), seed=1), Split("lines", 0.6), None),
    "samples": (line_mri((8, 8), seed=1), Split("samples", 0.6), None),
    "lines, weighted": (line_mri((8, 8)), Split("lines", 0.5), FrequencyWeighting()),
    **{
        f"{unit}, weighted": (DenseCT(6, even_views(4)), Split(unit, 0.6), RampWeighting())
        for unit in ("views", "rays", "bins")
    },
}
each_problem = pytest.mark.parametrize("problem", PROBLEMS)


def excess(problem, alpha, assumed, constant_of=None, n=6_000):
    """Loss of n noisy measurements of one image, less what it stands for: the noiseless one, and a constant of the noise.

    With the mean t = tr(M W^2 M) / m of what white noise costs, 1 without a weighting and with the ramp, the constant is
    w (sigma^2 + sigma_assumed^2 / alpha^2) t_1 + sigma^2 t_2.
    """
    (physics, split, weighting), w, generator = PROBLEMS[problem], 0.7, rng(3)
    dtype = torch.float64 if isinstance(physics, DenseCT) else torch.float32
    x = randn(1, *physics.img_size, seed=5, dtype=dtype).expand(n, -1, -1, -1)
    f, y = Recorder(nonlinear), measure(physics, x, SIGMA, generator)
    total = EquivariantSplitting(split, assumed, alpha, w, weighting=weighting)(f, Batch(y, physics), generator).total
    error, m1 = physics.A(f.gave[-1]) - physics.A(x), f.physics[-1].mask
    m2, ones = physics.mask - m1, torch.ones_like(y)
    noiseless = w * mean_square(error, m1, weighting) + mean_square(error, m2, weighting)
    t1, t2 = (mean_square(ones, m, weighting) if "lines" in problem else 1.0 for m in (m1, m2))
    believed = SIGMA if constant_of is None else constant_of
    return (total - noiseless - w * (SIGMA**2 + believed**2 / alpha**2) * t1 - SIGMA**2 * t2).double()


@pytest.mark.parametrize("alpha", [0.3, ALPHA, 1.5])
@each_problem
def test_mean_of_gaussian_es_is_the_noiseless_quantity_and_a_constant(problem, alpha):
    """Within 4 standard errors (99.99 %); noise of y, recorruption and split are all drawn anew each time."""
    assert within(excess(problem, alpha, SIGMA), 0.0)


@pytest.mark.parametrize("wrong", [0.0, 0.5 * SIGMA, 2 * SIGMA])
@each_problem
def test_wrong_noise_level_biases_the_loss(problem, wrong):
    """The same test notices: the recorruption no longer cancels the noise that the network saw."""
    assert not within(excess(problem, ALPHA, wrong, wrong), 0.0, standard_errors=8)  # with the right constant: the bias is left


def test_without_noise_the_loss_is_the_splitting_loss():
    physics, x = line_mri((8, 8)), randn(4, 2, 8, 8)
    f, y = Recorder(nonlinear), line_mri((8, 8)).A(x)
    value = EquivariantSplitting(Split(split_ratio=0.6), consistency_weight=0.1)(f, Batch(y, physics), rng())
    m1 = f.physics[-1].mask
    assert torch.equal(f.given[-1], m1 * y)
    error = physics.A(f.gave[-1]) - y
    torch.testing.assert_close(value.parts["consistency"], mean_square(error, m1))
    torch.testing.assert_close(value.parts["prediction"], mean_square(error, physics.mask - m1))
    torch.testing.assert_close(value.total, 0.1 * value.parts["consistency"] + value.parts["prediction"])


def test_exact_reconstructor_has_no_noiseless_loss():
    physics, x = line_mri((8, 8)), randn(4, 2, 8, 8)

    def oracle(y, physics, generator=None):
        return x

    assert (EquivariantSplitting(Split())(oracle, Batch(physics.A(x), physics), rng()).total < 1e-12).all()


def test_network_sees_the_recorrupted_m1_part_and_nothing_of_m2():
    """y_1 + alpha omega, and the target y_1 - omega / alpha of the same omega."""
    physics, x = line_mri((8, 8), seed=1), randn(400, 2, 8, 8)
    y, f = physics.A(x), Recorder(lambda y, physics, generator=None: torch.zeros_like(x))
    value = EquivariantSplitting(Split(split_ratio=0.6), SIGMA, ALPHA)(f, Batch(y, physics), rng())
    m1 = f.physics[-1].mask
    assert (f.given[-1][(m1 == 0).expand_as(y)] == 0).all()
    omega = (f.given[-1] - m1 * y) / ALPHA
    assert within(omega[m1.expand_as(y) == 1].square(), SIGMA**2)
    torch.testing.assert_close(value.parts["consistency"], mean_square(y - omega / ALPHA, m1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(value.parts["prediction"], mean_square(y, physics.mask - m1))


@pytest.mark.parametrize("sigma", [0.0, SIGMA])
@pytest.mark.parametrize("unit", ["lines", "samples"])
def test_es_of_an_equivariant_reconstructor_is_the_splitting_loss(unit, sigma):
    """Theorem 3: for the same split and noise the term of every g is the splitting loss, and so is their mean."""
    f, physics, split = equivariant(), line_mri((8, 8)), Split(unit, 0.6)
    y = measure(physics, randn(4, 2, 8, 8), 0.1, rng())
    with torch.no_grad():
        splitting = EquivariantSplitting(split, sigma)(f, Batch(y, physics), rng(1)).total
        terms = [EquivariantSplitting(split, sigma, group=Chosen(g))(f, Batch(y, physics), rng(1)).total for g in range(8)]
    for term in terms:
        torch.testing.assert_close(term, splitting, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.stack(terms).mean(0), splitting, rtol=1e-4, atol=1e-5)


def test_es_of_another_reconstructor_is_not_the_splitting_loss():
    physics, split = line_mri((8, 8)), Split(split_ratio=0.6)
    y = physics.A(randn(4, 2, 8, 8))
    splitting = EquivariantSplitting(split)(nonlinear, Batch(y, physics), rng(1)).total
    terms = torch.stack(
        [EquivariantSplitting(split, group=Chosen(g))(nonlinear, Batch(y, physics), rng(1)).total for g in range(8)]
    )
    torch.testing.assert_close(terms[0], splitting)  # the identity
    assert ((terms[1:] - splitting).norm(dim=1) > 1e-2 * splitting.norm()).all()
    assert (terms.mean(0) - splitting).norm() > 5e-2 * splitting.norm()


def test_expectation_over_g_of_the_drawn_loss_is_the_mean_of_its_terms():  # 4 standard errors
    physics, split = line_mri((8, 8)), Split(split_ratio=0.6)
    y = physics.A(randn(1, 2, 8, 8)).expand(4_000, -1, -1, -1)
    drawn = EquivariantSplitting(split, group=D4())(nonlinear, Batch(y, physics), rng(1)).total
    virtual = virtual_batch(physics, D4())
    exact = [EquivariantSplitting(split)(nonlinear, Batch(y[:8], virtual), rng(100 + i)).total.mean() for i in range(150)]
    exact = torch.stack(exact)  # every g once, random splits
    error = (drawn.var() / len(drawn) + exact.var() / len(exact)).sqrt()
    assert (drawn.mean() - exact.mean()).abs() < 4 * error


def test_terms_are_normalised_by_their_own_entries():
    """A constant error costs the same wherever the split falls."""
    physics = MRI(torch.ones(8), (8, 8))
    y = torch.ones(4, 2, 8, 8)

    def zero(y, physics, generator=None):
        return torch.zeros_like(y)

    for s in (0.2, 0.5, 0.9):
        value = EquivariantSplitting(Split(split_ratio=s), consistency_weight=0.3)(zero, Batch(y, physics), rng())
        torch.testing.assert_close(value.total, torch.full((4,), 1.3))


def test_training_lowers_the_error_without_ground_truth():
    torch.manual_seed(0)
    network, physics = ReynoldsAveraging(MoDL(unet(2, (8, 16)), n_iterations=2), D4()), line_mri((16, 16))
    grid = torch.linspace(-1, 1, 16)
    disc = (grid[:, None] ** 2 + grid**2 < 0.5).float()
    x = torch.stack((disc, 0.5 * disc)).expand(4, -1, -1, -1)
    y = measure(physics, x, 0.02, rng())
    loss, optimiser = (
        EquivariantSplitting(Split(split_ratio=0.5, n_center=3), 0.02, consistency_weight=0.1),
        torch.optim.Adam(network.parameters(), 1e-2),
    )

    def error():
        with torch.no_grad():
            return float((network.eval()(y, physics) - x).square().mean())

    zero_filled = float((physics.A_adjoint(y) - x).square().mean())
    generator = rng(1)
    network.train()
    for _ in range(120):
        optimiser.zero_grad()
        loss(network, Batch(y, physics), generator).total.mean().backward()
        optimiser.step()
    assert error() < 0.6 * zero_filled


def test_rectangular_images_are_refused_by_name():
    physics = line_mri((8, 16))
    with pytest.raises(ValueError, match="8 x 16"):
        EquivariantSplitting(Split(), group=D4())(nonlinear, Batch(torch.zeros(2, 2, 8, 16), physics), rng())
    with pytest.raises(ValueError, match="8 x 16"):
        EquivariantSplitting(Split())(equivariant(), Batch(torch.zeros(2, 2, 8, 16), physics), rng())


def test_several_splits_are_the_mean_of_as_many_draws_from_one_generator():
    physics = line_mri((8, 8))
    y = measure(physics, randn(3, 2, 8, 8), SIGMA, rng())
    loss, once, several = EquivariantSplitting(Split(), SIGMA, ALPHA, 0.3), rng(5), rng(5)
    draws = [loss(nonlinear, Batch(y, physics), once) for _ in range(4)]
    value = SeveralSplits(loss, 4)(nonlinear, Batch(y, physics), several)
    torch.testing.assert_close(value.total, torch.stack([draw.total for draw in draws]).mean(0))
    for name in draws[0].parts:
        torch.testing.assert_close(value.parts[name], torch.stack([draw.parts[name] for draw in draws]).mean(0))
    assert torch.equal(torch.rand(3, generator=once), torch.rand(3, generator=several))
    assert not torch.equal(draws[0].total, draws[1].total)


def test_gradient_of_several_splits_spreads_less():
    """The variance of n independent draws' mean is that of one over n."""
    physics = line_mri((8, 8))
    y = measure(physics, randn(1, 2, 8, 8), SIGMA, rng()).expand(400, -1, -1, -1)
    gain = torch.full((400, 1, 1, 1), 0.7, requires_grad=True)  # of each item, which has draws of its own

    def scaled(y, physics, generator=None):
        return gain * nonlinear(y, physics)

    def variance(loss):
        value = loss(scaled, Batch(y, physics), [rng(seed) for seed in range(400)])
        return torch.autograd.grad(value.total.sum(), gain)[0].var()

    loss = EquivariantSplitting(Split(), SIGMA, ALPHA)
    assert 0.18 < variance(SeveralSplits(loss, 4)) / variance(loss) < 0.33  # s.e. of the quarter: 0.025
