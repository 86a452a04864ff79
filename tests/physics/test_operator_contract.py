"""What every operator promises, whatever is made of it: one list of properties for the table of `operator_table`."""

import copy

import deepinv
import pytest
import torch
from helpers import (
    assert_adjoint,
    assert_gradients,
    assert_prox_equals_cg,
    assert_pseudo_inverse,
    assert_unchanged,
    coil_maps,
    line_mri,
    per_item,
    randn,
    rng,
    snapshot,
)
from operator_table import PLAIN, TABLE, Entry, bits, own_mask

from es_medical.physics import MRI, Inpainting, MultiCoilMRI, VirtualPhysics, recorruption
from es_medical.physics.virtual import TurnedPhysics

PARTS = (": M A", ": A T_g", ": A turned")
"""Forms that "M A T_g" and "M A turned" hold: what takes many products is tested of those, and of A and A T_g of shifts."""
WHOLE = {name: entry for name, entry in TABLE.items() if not name.endswith(PARTS)}
SOLVED = [name for name, entry in WHOLE.items() if entry.inverse]
each = pytest.mark.parametrize("entry", TABLE.values(), ids=TABLE)
each_whole = pytest.mark.parametrize("entry", WHOLE.values(), ids=WHOLE)
each_solved = pytest.mark.parametrize("entry", [TABLE[name] for name in SOLVED], ids=SOLVED)
each_plain = pytest.mark.parametrize("entry", [TABLE[name] for name in PLAIN], ids=PLAIN)
SHARED = ["mri", "mri, odd", "coils", "one coil", "parallel", "fan", "inpainting", "decimation", "sensing"]
each_virtual = pytest.mark.parametrize(
    "entry", [entry for name, entry in TABLE.items() if ": A " in name], ids=[name for name in TABLE if ": A " in name]
)
GAMMAS = {"small": 1e-3, "scalar": torch.tensor(2.5).double(), "of each item": torch.logspace(-1, 1.7, 8).double()}


def images(entry: Entry, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return randn(entry.n, *entry.physics.img_size, seed=seed, dtype=dtype)


def case(entry: Entry, dtype: torch.dtype = torch.float64):
    """The operator, z and any y, also outside the range of A."""
    physics = entry.physics if dtype == torch.float64 else copy.deepcopy(entry.physics).to(dtype)
    z = images(entry, 3, dtype)
    return physics, z, randn(*physics.A(z).shape, seed=4, dtype=dtype)


def everything(physics, z, y, gamma, inverse=True):
    """What an operator computes of z and y."""
    found = [physics.A(z), physics.A_adjoint(y), physics.A_adjoint_A(z), physics.prox_l2(z, y, gamma), physics.estimate(y)]
    return [*found, physics.A_dagger(y)] if inverse else found


def largest(x):
    return float(x.abs().max())


# A, its transpose, its inverse and the proximal step


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each
def test_adjoint_in_the_precision_of_the_image(entry, dtype):
    physics, z, y = case(entry, dtype)
    assert_adjoint(physics, z)
    assert {one.dtype for one in everything(physics, z, y, 1.0, inverse=False)} == {dtype}


@each
def test_normal_operator_is_a_then_its_adjoint(entry):
    physics, z, _ = case(entry)
    expected = physics.A_adjoint(physics.A(z))
    torch.testing.assert_close(physics.A_adjoint_A(z), expected, rtol=0, atol=1e-12 * (largest(expected) + 1))


@pytest.mark.parametrize("gamma", GAMMAS.values(), ids=GAMMAS)
@each_whole
def test_prox_equals_cg(entry, gamma):
    gamma = gamma[: entry.n] if isinstance(gamma, torch.Tensor) and gamma.ndim else gamma
    assert_prox_equals_cg(entry.physics, images(entry), gamma, 1e-9)


@each
def test_prox_in_single_precision(entry):
    physics, z, y = case(entry)
    expected = physics.prox_l2(z, y, 1.0)
    found = copy.deepcopy(physics).float().prox_l2(z.float(), y.float(), 1.0)
    assert (found - expected).abs().max() <= 2e-5 * largest(expected)


@each_solved
def test_pseudo_inverse(entry):
    assert_pseudo_inverse(entry.physics, images(entry), entry.inverse)


@each_whole
def test_gradients(entry):
    physics, z, y = case(entry)
    assert_gradients(physics, z)
    gamma = torch.linspace(0.1, 5, entry.n).double().requires_grad_()
    assert torch.autograd.gradcheck(physics.prox_l2, (z.requires_grad_(), y.requires_grad_(), gamma), fast_mode=True)


@each_plain
def test_gradient_of_the_pseudo_inverse(entry):
    physics, _, y = case(entry)
    if entry.inverse:
        assert torch.autograd.gradcheck(physics.A_dagger, (y.requires_grad_(),), fast_mode=True, atol=1e-4)


@pytest.mark.filterwarnings("ignore:least squares by conjugate gradients:UserWarning")
@each_whole
def test_scaling(entry):
    """prox(s z, s y) = s prox(z, y) and A^dagger s y = s A^dagger y for s from 1e-20 to 1e20, which change no digit."""
    physics, z, _ = case(entry, torch.float32)
    y, n = physics.A(images(entry, dtype=torch.float32)), entry.n
    expected, inverse = physics.prox_l2(z, y, 3.0), physics.A_dagger(y) if entry.inverse else None
    factors = torch.tensor([2.0**k for k in (-66, -20, 30, 66)])
    for s in (factors[0], factors[3], factors[torch.arange(n) % 4]):
        found = physics.prox_l2(per_item(s, z) * z, per_item(s, y) * y, 3.0) / per_item(s, z)
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-6 * largest(expected))
        if inverse is not None:
            found = physics.A_dagger(per_item(s, y) * y) / per_item(s, z)
            torch.testing.assert_close(found, inverse, rtol=0, atol=1e-4 * largest(inverse))


@each
def test_nothing_measured_gives_zero_and_no_step_moves_nothing(entry):
    physics, z, y = case(entry)
    assert all(largest(one) == 0 for one in everything(physics, 0 * z, 0 * y, 2.0))
    assert largest(physics.initial(0 * y)) == 0
    torch.testing.assert_close(physics.prox_l2(z, y, 0.0), z, rtol=0, atol=1e-15)


# where networks start


@each_whole
def test_starts_are_linear_but_for_the_estimate_of_mri_which_scales(entry):
    physics, _, y = case(entry)
    other, factor = randn(*y.shape, seed=9, dtype=y.dtype), torch.linspace(-2, 3, entry.n).double()
    for start in (physics.initial, physics.estimate):
        more = 0 if physics.measured == "k-space" and start == physics.estimate else other
        expected = per_item(factor, start(y)) * start(y) + start(0 * y + more)
        found = start(per_item(factor, y) * y + more)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8 * (largest(expected) + 1))


@each_whole
def test_derivative_of_the_estimate(entry):
    physics, _, y = case(entry)
    assert torch.autograd.gradcheck(physics.estimate, (y.requires_grad_(),), fast_mode=True)


# masks


@each_whole
def test_entries_that_are_not_measured_do_not_matter(entry):
    physics, z, y = case(entry)
    seen = physics.mask.expand(y.shape) == 1
    other = torch.where(seen, y, 7.0)
    for one, two in zip(everything(physics, z, y, 2.0, False)[1:], everything(physics, z, other, 2.0, False)[1:], strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-13)
    noise = recorruption(physics, y, 0.5, rng())
    assert (physics.A(z)[~seen] == 0).all()
    assert (noise[~seen] == 0).all()
    assert (noise[seen] != 0).all()


@each
def test_masked_keeps_what_both_masks_keep_and_shares_nothing_that_can_be_written(entry):
    physics, z, _ = case(entry)
    before, m = snapshot(physics), own_mask(physics, seed=8, n=entry.n)
    child = physics.masked(m)
    m = m[:, :, None] if physics.mask.ndim == 5 else m
    assert type(child) is type(physics)
    assert torch.equal(child.mask.expand(m.shape), (physics.mask * m).expand(m.shape))
    torch.testing.assert_close(child.A(z), m * physics.A(z), rtol=0, atol=0)
    rest = physics.masked(own_mask(physics, seed=8, n=entry.n).neg() + 1)
    torch.testing.assert_close(child.A(z) + rest.A(z), physics.A(z), rtol=0, atol=0)
    child.mask.zero_()
    assert_unchanged(physics, before)


# a batch


@each_whole
def test_each_item_has_its_own_operator_and_does_not_see_the_others(entry):
    physics, z, y = case(entry)
    gamma = torch.linspace(0.1, 5, entry.n).double()
    together = everything(physics, z, y, gamma, bool(entry.inverse))
    for i in (0, entry.n - 1):
        one = slice(i, i + 1)
        alone = everything(entry.make(torch.tensor([i])), z[one], y[one], float(gamma[i]), bool(entry.inverse))
        for found, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(found[one], expected, rtol=0, atol=1e-9 * (largest(expected) + 1))


@each_whole
def test_item_that_is_not_finite_stays_so_and_leaves_the_others_alone(entry):
    physics, z, y = case(entry)
    expected = everything(physics, z, y, 2.0, False)
    z[1], y[1] = torch.nan, torch.nan
    for i, (found, one) in enumerate(zip(everything(physics, z, y, 2.0, False), expected, strict=True)):
        assert found[1].isnan().any(), i
        others = [k for k in range(entry.n) if k != 1]
        torch.testing.assert_close(found[others], one[others], rtol=0, atol=1e-12 * (largest(one) + 1))


@pytest.mark.usefixtures("unchecked")
@each
def test_images_and_measurements_of_another_shape_are_refused_with_both(entry):
    physics, z, y = case(entry)
    if isinstance(physics, VirtualPhysics):
        physics = physics.physics
    wide, more = torch.zeros(*z.shape[:-1], z.shape[-1] + 1), torch.zeros(entry.n, z.shape[1] + 2, *z.shape[2:])
    strict = len(physics.mask) > 1 and not isinstance(physics, (MRI, TurnedPhysics))  # an image may meet masks of several items
    of_others = [(v, apply) for v, apply in ((z[1:], physics.A), (y[1:], physics.A_adjoint)) if strict]
    for refused, apply in [
        *((x, apply) for x in (wide, more, z[..., :1]) for apply in (physics.A, lambda x: physics.prox_l2(x, y, 1.0))),
        *((v, apply) for v in (y[..., :-1], y[..., :1]) for apply in (physics.A_adjoint, physics.A_dagger)),
        *of_others,
    ]:
        with pytest.raises(ValueError, match=r"takes \(.*\), got") as refusal:
            apply(refused)
        assert str(tuple(refused.shape)) in str(refusal.value)


# nothing changes an operator


@each_whole
def test_nothing_that_is_computed_changes_operator_or_arguments(entry):
    physics, z, y = case(entry)
    before, given = snapshot(physics), (z.clone(), y.clone())
    for _ in range(2):
        physics.masked(own_mask(physics, n=entry.n)).prox_l2(z, y, 2.0)
        for one in everything(physics, z, y, 2.0, bool(entry.inverse)):
            one.zero_()  # what is returned is the caller's
        physics.prox_l2(z.requires_grad_(), y.requires_grad_(), 2.0).square().sum().backward()
        z, y = z.detach(), y.detach()
    assert torch.equal(z, given[0])
    assert torch.equal(y, given[1])
    assert_unchanged(physics, before)


@each_whole
def test_copies_compute_the_same_and_move_on_their_own(entry):
    physics, z, y = case(entry)
    other = copy.deepcopy(physics)
    for one, two in zip(everything(physics, z, y, 2.0, False), everything(other, z, y, 2.0, False), strict=True):
        assert torch.equal(one, two)
    other.to("meta")
    assert (other.mask.device.type, physics.mask.device.type) == ("meta", "cpu")


@each_plain
def test_autocast_changes_no_measurement(entry):
    physics, z, y = case(entry, torch.float32)
    expected = [*everything(physics, z, y, 2.0, False)[:3], physics.estimate(y)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [*everything(physics, z, y, 2.0, False)[:3], physics.estimate(y)]
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


# A T_g


@each_virtual
def test_virtual_operator_is_the_operator_of_the_moved_image(entry):
    virtual, z, y = case(entry)
    physics, group, g = virtual.physics, virtual.group, virtual.g
    moved = group.apply(z, g)
    assert torch.equal(virtual.A(z), physics.A(moved))
    torch.testing.assert_close(virtual.A(group.inverse(z, g)), physics.A(z), rtol=0, atol=1e-14)  # (A T_g)(T_g^-1 x) = A x
    for found, expected in [
        (virtual.A_adjoint(y), physics.A_adjoint(y)),
        (virtual.A_dagger(y), physics.A_dagger(y)),
        (virtual.initial(y), physics.initial(y)),
        (virtual.estimate(y), physics.estimate(y)),
        (virtual.prox_l2(z, y, 2.0), physics.prox_l2(moved, y, 2.0)),
    ]:
        assert torch.equal(group.apply(found, g), expected)
    for name in ("mask", "grid", "units", "measured", "baseline", "img_size"):
        assert getattr(virtual, name) is getattr(physics, name) or getattr(virtual, name) == getattr(physics, name)


# deepinv's tools


@pytest.mark.parametrize("entry", [TABLE[name] for name in SHARED], ids=SHARED)
def test_deepinvs_tools_take_the_operator(entry):
    physics, z, _ = case(entry)
    y, fidelity = physics(z), deepinv.optim.L2()
    assert torch.equal(y, physics.A(z))
    assert physics.adjointness_test(z) < 1e-10
    assert float(deepinv.loss.MCLoss()(y=y, x_net=z, physics=physics).max()) == 0
    torch.testing.assert_close(fidelity.grad(0 * z, y, physics), -physics.A_adjoint(y))
    torch.testing.assert_close(fidelity.prox(0 * z, y, physics, gamma=0.7), physics.prox_l2(0 * z, y, 0.7))


def test_deepinv_optimiser_solves_with_our_operator():
    physics = line_mri((8, 8))
    x = randn(2, 2, 8, 8)
    y = physics(x)
    solver = deepinv.optim.HQS(
        data_fidelity=deepinv.optim.L2(), prior=deepinv.optim.Tikhonov(), stepsize=1.0, lambda_reg=1.0, max_iter=60
    )
    with torch.no_grad():
        found = solver(y, physics)
    expected = physics.A_adjoint(y)  # every minimiser lies in the range of A^T, a shrunken zero-filled image
    scale = (found * expected).sum() / expected.square().sum()
    assert 0.1 < scale < 1
    torch.testing.assert_close(found, scale * expected, rtol=1e-3, atol=1e-3)


MASK = bits(3, 1, 8, 6)
MAPS = coil_maps(3, 4, (8, 6))
THEIRS = {
    "mri": (MRI(MASK, (8, 6)), deepinv.physics.MRI(mask=MASK, img_size=(2, 8, 6))),
    "coils": (
        MultiCoilMRI(MASK, MAPS),
        deepinv.physics.MultiCoilMRI(mask=MASK.expand(-1, 2, -1, -1), coil_maps=torch.complex(MAPS[:, 0], MAPS[:, 1])),
    ),
    "inpainting": (Inpainting(MASK[0], (8, 6), 2), deepinv.physics.Inpainting((2, 8, 6), mask=MASK[0].expand(2, -1, -1))),
}


@pytest.mark.parametrize(("ours", "theirs"), THEIRS.values(), ids=THEIRS)
def test_operator_equals_that_of_deepinv(ours, theirs):
    x, y = randn(3, 2, 8, 6), theirs.A(randn(3, 2, 8, 6, seed=1))
    torch.testing.assert_close(ours.A(x), theirs.A(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.A_adjoint(y), theirs.A_adjoint(y), rtol=0, atol=1e-5)
