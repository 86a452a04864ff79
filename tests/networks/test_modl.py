import deepinv
import pytest
import torch
from deepinv.models import DnCNN, DRUNet
from helpers import line_mri, randn, rng
from operator_table import bits

from es_medical.groups import D4
from es_medical.inferers import Inferer
from es_medical.losses import EquivariantSplitting
from es_medical.networks import Accelerated, MoDL, ReynoldsAveraging, shift_unet, unet
from es_medical.physics import Batch, Inpainting, measure
from es_medical.splits import Split


def modl(seed=0, **arguments):
    torch.manual_seed(seed)
    return MoDL(unet(2, (4, 8)), **arguments)


@pytest.mark.parametrize("n_iterations", [0, 1, 3])
def test_iterations_are_denoiser_then_proximal_step(n_iterations):
    network, physics = modl(n_iterations=n_iterations, step=0.7), line_mri((8, 8))
    y = physics.A(randn(2, 2, 8, 8))
    x = physics.A_adjoint(y)
    for _ in range(n_iterations):
        x = physics.prox_l2(network.denoiser(x), y, 0.7)
    torch.testing.assert_close(network(y, physics), x)


@pytest.mark.usefixtures("unchecked")
def test_iterations_start_from_the_estimate_where_told():
    physics = Inpainting(bits(8, 8), (8, 8), 2)
    y = physics.A(randn(2, 2, 8, 8))
    assert torch.equal(modl(n_iterations=0, start="estimate")(y, physics), physics.estimate(y))
    assert torch.equal(modl(n_iterations=0)(y, physics), physics.initial(y))
    assert not torch.equal(physics.initial(y), physics.estimate(y))
    with pytest.raises(ValueError, match="start must be initial or estimate, got 'zero'"):
        modl(start="zero")


@pytest.mark.parametrize("make", [unet, shift_unet])
def test_untrained_network_with_a_zero_residual_keeps_its_start_and_can_learn(make):
    torch.manual_seed(0)
    network, physics = MoDL(make(1, (4, 8), zero_residual=True), start="estimate"), Inpainting(bits(8, 8), (8, 8))
    x = randn(2, 1, 8, 8)
    expected = physics.estimate(y := physics.A(x))
    assert torch.equal(network.denoiser(x), x)
    for _ in range(3):
        expected = physics.prox_l2(expected, y, 1.0)
    torch.testing.assert_close(network(y, physics), expected)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(2):  # the first step moves the last convolution only
        optimiser.zero_grad()
        (network(y, physics) - x).square().mean().backward()
        optimiser.step()
    assert all(p.grad.abs().max() > 0 for p in network.parameters())


def test_exact_denoiser_is_a_fixed_point():
    physics, x = line_mri((8, 8)), randn(2, 2, 8, 8)

    class Oracle(torch.nn.Module):
        def forward(self, _):
            return x

    torch.testing.assert_close(MoDL(Oracle())(physics.A(x), physics), x)


def test_weights_are_shared_between_iterations():
    assert len(list(modl(n_iterations=5).parameters())) == len(list(modl(n_iterations=1).parameters()))


@pytest.mark.parametrize("step", [1e-3, 1.0, 30.0])
def test_step_starts_where_told_and_stays_positive(step):
    network, physics = modl(step=step), line_mri((8, 8))
    torch.testing.assert_close(float(network.log_step.detach().exp()), step, rtol=1e-5, atol=0)
    optimiser = torch.optim.SGD([network.log_step], lr=50.0)
    y = measure(physics, randn(2, 2, 8, 8), 0.1, rng())
    before = float(network.log_step.detach())
    for _ in range(5):
        optimiser.zero_grad()
        network(y, physics).square().mean().backward()
        optimiser.step()
    assert float(network.log_step.detach()) != before
    assert network.log_step.exp() > 0


@pytest.mark.parametrize("step", [0.0, -1.0])
def test_step_that_is_not_positive_is_refused(step):
    with pytest.raises(ValueError, match=f"step must be positive, got {step}"):
        modl(step=step)


def test_zero_kspace_gives_a_zero_image_without_biases_and_a_finite_one_with_them():
    network, physics, y = modl(), line_mri((8, 8)), torch.zeros(2, 2, 8, 8)
    assert network(y, physics).isfinite().all()
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    found = network(y, physics)
    assert (found == 0).all()
    found.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("denoiser", [
    lambda: DnCNN(2, 2, depth=3, nf=4, pretrained=None),
    lambda: DRUNet(2, 2, nc=(4, 4, 8, 8), nb=1, pretrained=None),
    lambda: Accelerated(DRUNet(2, 2, nc=(4, 4, 8, 8), nb=1, pretrained=None), autocast=False),
    deepinv.models.MedianFilter,
])  # fmt: skip
def test_denoisers_of_deepinv_plug_in(denoiser):
    physics = line_mri((16, 16))
    y = physics.A(randn(2, 2, 16, 16))
    assert MoDL(denoiser(), noise_level=0.05)(y, physics).shape == (2, 2, 16, 16)


def test_the_mri_path_uses_no_iterative_solver(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("an iterative solver was called")

    names = ["conjugate_gradient", "least_squares", "least_squares_implicit_backward", "lsqr", "bicgstab", "minres"]
    places = [deepinv.optim.linear, deepinv.optim.linear.least_squares, deepinv.optim.utils, deepinv.physics.forward]
    places.append(__import__("sys").modules["deepinv.optim.linear.least_squares"])
    for place in places:
        for name in names:
            if hasattr(place, name):
                monkeypatch.setattr(place, name, refuse)
    physics = line_mri((8, 8))
    with pytest.raises(AssertionError, match="iterative solver"):  # the alarm works
        deepinv.physics.LinearPhysics.prox_l2(physics, randn(1, 2, 8, 8), randn(1, 2, 8, 8), 1.0)
    network, y = ReynoldsAveraging(modl(), D4()), measure(physics, randn(2, 2, 8, 8), 0.1, rng())
    for group in (None, D4()):
        EquivariantSplitting(Split(), 0.1, group=group)(network, Batch(y, physics), rng()).total.mean().backward()
    Inferer(Split(), 2, 0.1, group=D4())(network.eval(), Batch(y, physics, ids=["a", "b"]))
    physics.A_dagger(y)
