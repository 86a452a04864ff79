import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import line_mri, randn, rng, within

from es_medical.groups import D4, FineRotations, Rotations, Shifts
from es_medical.losses import EquivariantImaging, Loss, MeasurementConsistency, RampWeighting, Sure
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch, Inpainting, measure
from es_medical.randomness import item_generator

SIGMA, DOUBLE = 0.2, torch.float64


class Recorder:
    """Hands a reconstructor on and keeps what it was given and gave."""

    def __init__(self, reconstructor):
        self.reconstructor, self.given, self.gave = reconstructor, [], []

    def __call__(self, y, physics, generator=None):
        self.given.append(y)
        self.gave.append(self.reconstructor(y, physics, generator))
        return self.gave[-1]


class Chosen(FineRotations):
    """Rotations whose random element is a given one, drawn without using the generator."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def sample(self, n, generator, device="cpu"):
        return torch.full((n,), self.k, device=device)


def nonlinear(y, physics, generator=None):
    """A fixed nonlinear reconstructor that is not equivariant."""
    x = physics.A_adjoint(y)
    ramp = torch.linspace(-0.5, 1.0, x.shape[-1], dtype=x.dtype) + torch.linspace(0, 0.7, x.shape[-2], dtype=x.dtype)[:, None]
    return torch.tanh(1.5 * x + ramp) + 0.3 * x.roll(1, -1).square()


def adjoint(y, physics, generator=None):
    return physics.A_adjoint(y)


def case(name):
    """An operator and the transformations that the paper has EI use for it."""
    if name == "mri":
        return line_mri((8, 8)), FineRotations()
    if name == "ct":
        return DenseCT(8, even_views(5)), FineRotations()
    return Inpainting((randn(1, 8, 8, seed=2) > 0).float(), (8, 8), 1), Shifts((8, 8))


CASES = ("mri", "ct", "inpainting")


def data(name, n=4, sigma=SIGMA):
    physics, transform = case(name)
    dtype = DOUBLE if name == "ct" else torch.float32  # that of the dense matrix
    return measure(physics, randn(n, physics.img_size[0], 8, 8, dtype=dtype), sigma, rng()), physics, transform


@pytest.mark.parametrize("transform", [D4(), Shifts((8, 8)), FineRotations()])
def test_exact_inverse_of_an_invertible_operator_has_no_loss(transform):
    """Consistent and equivariant: f(A T_g x) = T_g x = T_g f(A x)."""
    physics = Inpainting(torch.ones(8), (8, 8))
    value = EquivariantImaging(transform, sigma=0.0)(adjoint, Batch(physics.A(randn(4, 1, 8, 8)), physics), rng())
    assert (value.total < 1e-12).all()
    assert (
        EquivariantImaging(transform, sigma=0.0)(nonlinear, Batch(physics.A(randn(4, 1, 8, 8)), physics), rng()).total.min()
        > 0.01
    )


@pytest.mark.parametrize("name", CASES)
def test_consistent_reconstructor_that_leaves_holes_pays_for_equivariance_alone(name):
    """A^dagger y is consistent, so that measurement consistency has nothing to say; EI has."""
    y, physics, transform = data(name, sigma=0.0)
    value = EquivariantImaging(transform, sigma=0.0)(
        lambda y, physics, generator: physics.A_dagger(y), Batch(y, physics), rng()
    )
    assert (value.parts["consistency"] < 1e-11).all()
    assert (value.parts["equivariance"] > 1e-3).all()


@pytest.mark.parametrize("name", CASES)
def test_loss_is_its_formula_without_noise_in_two_passes(name):
    y, physics, transform = data(name, sigma=0.0)
    f, weight = Recorder(nonlinear), 0.3
    value = EquivariantImaging(transform, weight, sigma=0.0)(f, Batch(y, physics), rng(3))
    x1 = nonlinear(y, physics)
    x2 = transform.apply(x1, transform.sample(4, rng(3)))
    measured = physics.mask.expand(4, *y.shape[1:]).flatten(1).sum(1)
    equivariance = (nonlinear(physics.A(x2), physics) - x2).square().flatten(1).sum(1) / measured
    torch.testing.assert_close(value.parts["equivariance"], equivariance)
    torch.testing.assert_close(value.parts["consistency"], MeasurementConsistency()(nonlinear, Batch(y, physics)).total)
    torch.testing.assert_close(value.total, value.parts["consistency"] + weight * equivariance)
    assert len(f.given) == 2


@pytest.mark.parametrize("name", CASES)
def test_with_noise_the_first_term_is_sure_and_there_are_three_passes(name):
    y, physics, transform = data(name)
    f = Recorder(nonlinear)
    value = EquivariantImaging(transform, 0.3, SIGMA, tau=0.01)(f, Batch(y, physics), rng(3))
    sure = Sure(SIGMA, 0.01)(nonlinear, Batch(y, physics), rng(3))
    torch.testing.assert_close(value.parts["divergence"], sure.parts["divergence"])
    torch.testing.assert_close(value.total, sure.total + 0.3 * value.parts["equivariance"])
    assert len(f.given) == 3


@pytest.mark.parametrize("name", CASES)
def test_one_term_at_a_time_keeps_the_mean_in_two_passes(name):
    """The mean over draws of both losses agrees; each draw has one of the two terms, doubled."""
    y, physics, transform = data(name, n=1)
    drawn = {False: [], True: []}
    for alternating, totals in drawn.items():
        loss = EquivariantImaging(transform, 0.3, SIGMA, tau=0.01, alternating=alternating)
        for i in range(400):
            f = Recorder(nonlinear)
            value = loss(f, Batch(y, physics), rng(1000 + i if alternating else i))
            totals.append(value.total)
            assert len(f.given) == (2 if alternating else 3)
            if alternating:
                assert (value.parts["divergence"] == 0) != (value.parts["equivariance"] == 0)
    lot, whole = torch.cat(drawn[True]), torch.cat(drawn[False])
    error = (lot.var() / len(lot) + whole.var() / len(whole)).sqrt()
    assert (lot.mean() - whole.mean()).abs() < 4 * error
    assert error < 0.1 * whole.mean().abs()


def test_transformed_image_is_measured_with_noise_of_the_given_level():
    y, physics, _ = data("mri", n=300)
    f = Recorder(nonlinear)
    EquivariantImaging(Chosen(37), sigma=SIGMA)(f, Batch(y, physics), rng(3))
    x2 = FineRotations().apply(f.gave[0], torch.full((300,), 37))
    noise = f.given[2] - physics.A(x2)
    measured = (physics.mask == 1).expand_as(y)
    assert within(noise[measured], 0.0)
    assert within(noise[measured].square(), SIGMA**2)
    assert not within(noise[measured].square(), (1.1 * SIGMA) ** 2)
    assert (f.given[2][~measured] == 0).all()


def test_each_item_is_turned_by_its_own_g():
    physics, transform = case("mri")
    y = physics.A(randn(1, 2, 8, 8)).expand(16, -1, -1, -1)
    total = EquivariantImaging(transform, sigma=0.0)(nonlinear, Batch(y, physics), rng()).total
    assert len(set(total.tolist())) > 10


def test_gradient_flows_through_both_passes_and_the_transformed_image():
    """f(y) = c y on A = I: L = (c - 1)^2 |y|^2 + w c^2 (c - 1)^2 |T y|^2, whose slope needs x2's own dependence on c."""
    physics, weight = Inpainting(torch.ones(8), (8, 8)), 0.7
    y, c = randn(1, 1, 8, 8, dtype=DOUBLE), torch.tensor(1.5, dtype=DOUBLE, requires_grad=True)
    loss = EquivariantImaging(Chosen(20), weight, sigma=0.0)
    loss(lambda y, physics, generator: c * y, Batch(y, physics), rng()).total.sum().backward()
    turned = FineRotations().apply(y, torch.tensor([20])).square().mean()
    v = float(c.detach())
    expected = 2 * (v - 1) * y.square().mean() + weight * (2 * v * (v - 1) ** 2 + 2 * v**2 * (v - 1)) * turned
    torch.testing.assert_close(c.grad, expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sigma", [0.0, SIGMA])
def test_gradients_reach_every_parameter(name, sigma):
    torch.manual_seed(0)
    y, physics, transform = data(name)
    network = ReynoldsAveraging(MoDL(unet(physics.img_size[0], (4, 8)), n_iterations=2), D4()).to(y.dtype).train()
    EquivariantImaging(transform, sigma=sigma)(network, Batch(y, physics), rng()).total.mean().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad.abs().max() > 0, parameter_name


def test_training_fills_in_what_the_mask_hides():
    """Signals of three frequencies, unknown at two of eight pixels: EI finds them, measurement consistency does not."""
    position = torch.arange(8, dtype=DOUBLE) * 2 * torch.pi / 8
    basis = torch.stack([torch.ones(8, dtype=DOUBLE), position.cos(), position.sin()])
    physics = Inpainting(torch.tensor([1.0, 1, 0, 1, 1, 1, 0, 1]), (1, 8))
    x = (randn(64, 3, dtype=DOUBLE) @ basis).view(64, 1, 1, 8)

    def error_after_training(loss):
        matrix = torch.eye(8, dtype=DOUBLE).requires_grad_()
        optimizer, generator = torch.optim.Adam([matrix], 0.03), rng()
        for _ in range(300):
            optimizer.zero_grad()
            loss(lambda y, physics, generator: y @ matrix, Batch(physics.A(x), physics), generator).total.mean().backward()
            optimizer.step()
        hidden = (physics.A(x) @ matrix - x)[..., [2, 6]]
        return float(hidden.detach().norm() / x[..., [2, 6]].norm())

    assert error_after_training(EquivariantImaging(Shifts((1, 8)), sigma=0.0)) < 0.05
    assert error_after_training(MeasurementConsistency()) > 0.5


@pytest.mark.parametrize("sigma", [0.0, SIGMA])
def test_same_seed_same_loss_and_items_do_not_depend_on_their_batch(sigma):
    y, physics, transform = data("mri")
    loss, keys = EquivariantImaging(transform, sigma=sigma), "abcd"
    together = loss(nonlinear, Batch(y, physics), [item_generator(0, key) for key in keys]).total
    alone = loss(nonlinear, Batch(y[2:3], physics), [item_generator(0, "c")]).total
    torch.testing.assert_close(together[2:3], alone)
    assert torch.equal(loss(nonlinear, Batch(y, physics), rng(1)).total, loss(nonlinear, Batch(y, physics), rng(1)).total)
    assert not torch.equal(loss(nonlinear, Batch(y, physics), rng(1)).total, loss(nonlinear, Batch(y, physics), rng(2)).total)
    assert loss(nonlinear, Batch(y, physics)).total.isfinite().all()  # without a generator


def test_noise_level_of_each_item():
    """As with a loss of its own for each; an item without noise has the loss without noise."""
    physics, transform = case("mri")
    sigma, keys = torch.tensor([0.0, 0.1, 0.4]), "abc"
    y = measure(physics, randn(3, 2, 8, 8), sigma, rng())
    generators = [item_generator(0, key) for key in keys]
    total = EquivariantImaging(transform)(nonlinear, Batch(y, physics, sigma), generators).total
    for i in (1, 2):
        one = EquivariantImaging(transform, sigma=float(sigma[i]))
        found = one(nonlinear, Batch(y[i : i + 1], physics), [item_generator(0, keys[i])]).total
        torch.testing.assert_close(total[i : i + 1], found, rtol=1e-4, atol=1e-5)
    doubled = EquivariantImaging(transform, sigma_factor=2.0)(nonlinear, Batch(y, physics, sigma), rng()).total
    assert torch.equal(EquivariantImaging(transform)(nonlinear, Batch(y, physics, 2 * sigma), rng()).total, doubled)
    with pytest.raises(ValueError, match="no noise level"):
        EquivariantImaging(transform)(nonlinear, Batch(y, physics), rng())


def test_weighting_acts_on_the_measurements_alone():
    y, physics, transform = data("ct")
    plain = EquivariantImaging(transform, sigma=SIGMA)(nonlinear, Batch(y, physics), rng(1))
    ramp = EquivariantImaging(transform, sigma=SIGMA, weighting=RampWeighting())(nonlinear, Batch(y, physics), rng(1))
    assert torch.equal(plain.parts["equivariance"], ramp.parts["equivariance"])
    sure = Sure(SIGMA, weighting=RampWeighting())(nonlinear, Batch(y, physics), rng(1))
    torch.testing.assert_close(ramp.total, sure.total + ramp.parts["equivariance"])
    assert not torch.allclose(ramp.total, plain.total)


def test_ei_keeps_the_contract():
    assert isinstance(EquivariantImaging(D4()), Loss)
    assert not EquivariantImaging.needs_image


@pytest.mark.parametrize("arguments", [{"weight": -0.5}, {"sigma": -1.0}, {"sigma_factor": -2.0}, {"tau": 0.0}])
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=str(next(iter(arguments.values())))):
        EquivariantImaging(D4(), **arguments)


def test_angles_without_an_action_on_images_are_refused(unchecked):
    with pytest.raises(TypeError, match="Rotations has no sample and apply: use FineRotations"):
        EquivariantImaging(Rotations())
