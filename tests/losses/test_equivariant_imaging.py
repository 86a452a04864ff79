import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import Recorder, bent, line_mri, randn, rng, within

from es_medical.groups import D4, FineRotations, Rotations, Shifts
from es_medical.losses import EquivariantImaging, MeasurementConsistency, RampWeighting, Sure
from es_medical.physics import Batch, Inpainting, measure

SIGMA, DOUBLE = 0.2, torch.float64


class Chosen(FineRotations):
    """Rotations whose random element is a given one, drawn without using the generator."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def sample(self, n, generator, device="cpu"):
        return torch.full((n,), self.k, device=device)


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
        EquivariantImaging(transform, sigma=0.0)(bent, Batch(physics.A(randn(4, 1, 8, 8)), physics), rng()).total.min() > 0.01
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
    f, weight = Recorder(bent), 0.3
    value = EquivariantImaging(transform, weight, sigma=0.0)(f, Batch(y, physics), rng(3))
    x1 = bent(y, physics)
    x2 = transform.apply(x1, transform.sample(4, rng(3)))
    measured = physics.mask.expand(4, *y.shape[1:]).flatten(1).sum(1)
    equivariance = (bent(physics.A(x2), physics) - x2).square().flatten(1).sum(1) / measured
    torch.testing.assert_close(value.parts["equivariance"], equivariance)
    torch.testing.assert_close(value.parts["consistency"], MeasurementConsistency()(bent, Batch(y, physics)).total)
    torch.testing.assert_close(value.total, value.parts["consistency"] + weight * equivariance)
    assert len(f.given) == 2


@pytest.mark.parametrize("name", CASES)
def test_with_noise_the_first_term_is_sure_and_there_are_three_passes(name):
    y, physics, transform = data(name)
    f = Recorder(bent)
    value = EquivariantImaging(transform, 0.3, SIGMA, tau=0.01)(f, Batch(y, physics), rng(3))
    sure = Sure(SIGMA, 0.01)(bent, Batch(y, physics), rng(3))
    torch.testing.assert_close(value.parts["divergence"], sure.parts["divergence"])
    torch.testing.assert_close(value.total, sure.total + 0.3 * value.parts["equivariance"])
    assert len(f.given) == 3


@pytest.mark.parametrize("name", CASES)
def test_one_term_at_a_time_keeps_the_mean_in_two_passes(name):
    """The mean over draws of both losses agrees; each draw has one of the two terms, doubled."""
    y, physics, transform = data(name, n=1)
    f = Recorder(bent)
    many = Batch(y.expand(400, *y.shape[1:]), physics)
    whole = EquivariantImaging(transform, 0.3, SIGMA, tau=0.01)(f, many, [rng(i) for i in range(400)]).total
    assert len(f.given) == 3
    loss, drawn = EquivariantImaging(transform, 0.3, SIGMA, tau=0.01, alternating=True), []
    for i in range(400):  # a batch draws one term
        f = Recorder(bent)
        value = loss(f, Batch(y, physics), rng(1000 + i))
        drawn.append(value.total)
        assert len(f.given) == 2
        assert (value.parts["divergence"] == 0) != (value.parts["equivariance"] == 0)
    lot = torch.cat(drawn)
    error = (lot.var() / len(lot) + whole.var() / len(whole)).sqrt()
    assert (lot.mean() - whole.mean()).abs() < 4 * error
    assert error < 0.1 * whole.mean().abs()


def test_transformed_image_is_measured_with_noise_of_the_given_level():
    y, physics, _ = data("mri", n=300)
    f = Recorder(bent)
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
    total = EquivariantImaging(transform, sigma=0.0)(bent, Batch(y, physics), rng()).total
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


def test_weighting_acts_on_the_measurements_alone():
    y, physics, transform = data("ct")
    plain = EquivariantImaging(transform, sigma=SIGMA)(bent, Batch(y, physics), rng(1))
    ramp = EquivariantImaging(transform, sigma=SIGMA, weighting=RampWeighting())(bent, Batch(y, physics), rng(1))
    assert torch.equal(plain.parts["equivariance"], ramp.parts["equivariance"])
    sure = Sure(SIGMA, weighting=RampWeighting())(bent, Batch(y, physics), rng(1))
    torch.testing.assert_close(ramp.total, sure.total + ramp.parts["equivariance"])
    assert not torch.allclose(ramp.total, plain.total)


def test_angles_without_an_action_on_images_are_refused(unchecked):
    with pytest.raises(TypeError, match="Rotations has no sample and apply: use FineRotations"):
        EquivariantImaging(Rotations())
