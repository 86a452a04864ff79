import math

import pytest
import torch
from helpers import line_mri, randn, rng
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from es_medical.engine import step
from es_medical.engine.step import Pass, apply_gradient
from es_medical.groups import D4
from es_medical.losses import EquivariantSplitting, Supervised
from es_medical.losses.base import LossValue
from es_medical.networks import Accelerated, MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch
from es_medical.splits import Split


def training_step(loss, f, optimizer, batch, generator, clip=1.0):
    """One step of one pass."""
    return step.training_step(loss, f, optimizer, [Pass(batch, generator)], clip)


def network(seed=0, autocast=False):
    torch.manual_seed(seed)
    return ReynoldsAveraging(MoDL(Accelerated(unet(2, (4, 8)), autocast=autocast), 2), D4())


def problem():
    physics, x = line_mri((16, 16)), randn(3, 2, 16, 16)
    return Batch(physics.A(x), physics, image=x)


def es():
    return EquivariantSplitting(Split(), sigma=0.1)


class Poisoned:
    """Loss whose value, and so its gradient, is not finite for one item."""

    needs_image = False

    def __init__(self, value):
        self.value = value

    def __call__(self, reconstructor, batch, generator=None):
        error = reconstructor(batch.y, batch.physics, generator).square().flatten(1).mean(1)
        scale = torch.ones_like(error)
        scale[1] = self.value
        return LossValue(error * scale, {"error": error})


@pytest.mark.parametrize("loss", [es(), Supervised()])
def test_step_descends_and_reports_detached_scalars(loss):
    f, batch = network(), problem()
    optimizer = torch.optim.AdamW(f.parameters(), lr=3e-3)
    outputs = [training_step(loss, f, optimizer, batch, rng()) for _ in range(8)]  # the same split in each
    assert outputs[-1]["loss"] < outputs[0]["loss"]
    for value in outputs[0].values():
        assert value.ndim == 0
        assert not value.requires_grad
        assert value.dtype == torch.float32


def test_outputs_are_means_over_items_of_the_loss_and_its_parts():
    f, loss, batch = network(), es(), problem()
    expected = loss(f, batch, rng(1))
    output = training_step(loss, f, torch.optim.SGD(f.parameters(), lr=0.1), batch, rng(1))
    assert set(output) == {"loss", "consistency", "prediction", "grad_norm"}
    torch.testing.assert_close(output["loss"], expected.total.mean())
    torch.testing.assert_close(output["prediction"], expected.parts["prediction"].mean())


def test_step_equals_the_textbook_step():
    f, g, loss, batch = network(), network(), es(), problem()
    output = training_step(loss, f, torch.optim.SGD(f.parameters(), lr=0.1), batch, rng(2), clip=None)
    loss(g, batch, rng(2)).total.mean().backward()
    torch.testing.assert_close(output["grad_norm"], torch.cat([p.grad.flatten() for p in g.parameters()]).norm())
    for p, q in zip(f.parameters(), g.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), q.detach() - 0.1 * q.grad)


def test_clipping_limits_the_step_and_reports_the_norm_before():
    f, clip, batch = network(), 1e-3, problem()
    before = torch.cat([p.detach().flatten().clone() for p in f.parameters()])
    output = training_step(es(), f, torch.optim.SGD(f.parameters(), lr=1.0), batch, rng(), clip=clip)
    change = torch.cat([p.detach().flatten() for p in f.parameters()]) - before
    assert output["grad_norm"] > clip
    assert change.norm() == pytest.approx(clip, rel=1e-3)


def test_gradients_of_earlier_steps_do_not_add_up():
    f, g, batch = network(), network(), problem()
    for p in f.parameters():
        p.grad = torch.ones_like(p)
    first, second = (training_step(es(), h, torch.optim.SGD(h.parameters(), 0.1), batch, rng()) for h in (f, g))
    assert torch.equal(first["grad_norm"], second["grad_norm"])


def test_same_generator_state_gives_the_same_step_bitwise():
    f, g, batch = network(), network(), problem()
    for h in (f, g):
        training_step(es(), h, torch.optim.AdamW(h.parameters()), batch, rng(5))
    assert all(torch.equal(a, b) for a, b in zip(f.parameters(), g.parameters(), strict=True))


def test_measurements_images_and_operator_are_left_alone():
    f, batch = network(), problem()
    physics, x, y = batch.physics, batch.image, batch.y
    copies = physics.mask.clone(), x.clone(), y.clone()
    training_step(es(), f, torch.optim.AdamW(f.parameters()), batch, rng())
    assert all(torch.equal(a, b) for a, b in zip(copies, (physics.mask, x, y), strict=True))
    assert not any(tensor.requires_grad for tensor in (physics.mask, x, y))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("clip", [1.0, None])
def test_broken_gradient_is_reported_and_never_reaches_the_weights(value, clip):
    f, batch = network(), problem()
    optimizer = torch.optim.AdamW(f.parameters(), lr=1e-3)
    training_step(es(), f, optimizer, batch, rng(), clip=clip)  # so that the optimizer has a momentum
    output = training_step(Poisoned(value), f, optimizer, batch, rng(), clip=clip)
    assert not output["loss"].isfinite()
    assert not output["grad_norm"].isfinite()
    assert all(p.isfinite().all() for p in f.parameters())
    assert all(v.isfinite().all() for held in optimizer.state.values() for v in held.values())
    assert training_step(es(), f, optimizer, batch, rng(), clip=clip)["loss"].isfinite()


def test_broken_gradient_under_a_finite_loss_shows_in_the_norm():
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    weight.grad = torch.tensor([math.inf, 1.0])
    norm = apply_gradient(torch.optim.SGD([weight], lr=1.0), clip=1.0)
    assert not norm.isfinite()
    assert weight.tolist() == [1.0, 2.0]


def test_parameters_without_a_gradient_are_no_obstacle():
    f, batch = network(), problem()
    unused = nn.Parameter(torch.ones(3))
    training_step(es(), f, torch.optim.AdamW([*f.parameters(), unused]), batch, rng())
    assert unused.grad is None
    assert unused.tolist() == [1.0, 1.0, 1.0]


class OneDevice(TorchDispatchMode):
    """Refuse operations whose result is on another device than what they are given: copies make the GPU wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {value.device for value in args if isinstance(value, torch.Tensor) and value.ndim}
        if isinstance(result, torch.Tensor):
            assert given <= {result.device}, f"{func}: {given} to {result.device}"
        return result


@pytest.mark.parametrize("unit", ["lines", "samples"])
@pytest.mark.parametrize("mode", ["exact", "bernoulli"])
def test_step_neither_reads_a_value_nor_copies_between_devices(unit, mode):
    """Tensors on the meta device have no values: whatever looks at one raises."""
    batch = Batch(problem().y.to("meta"), problem().physics.to("meta"))
    f = ReynoldsAveraging(MoDL(unet(2, (4, 8)), 2), D4()).to("meta")
    optimizer = torch.optim.AdamW(f.parameters())
    with OneDevice():
        output = training_step(EquivariantSplitting(Split(unit, mode=mode), sigma=0.1), f, optimizer, batch, None)
    assert all(value.device.type == "meta" and value.ndim == 0 for value in output.values())


def test_everything_around_a_bfloat16_denoiser_stays_float32():
    f, batch = network(autocast=True), problem()
    output = training_step(es(), f, torch.optim.AdamW(f.parameters()), batch, rng())
    assert f(batch.y, batch.physics).dtype == torch.float32
    assert {value.dtype for value in output.values()} == {torch.float32}
    assert {p.grad.dtype for p in f.parameters()} == {torch.float32}
