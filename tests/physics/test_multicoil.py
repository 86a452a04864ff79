import copy

import deepinv
import pytest
import torch
from helpers import (
    assert_adjoint,
    assert_gradients,
    assert_prox_equals_cg,
    assert_pseudo_inverse,
    assert_scaling,
    assert_unchanged,
    coil_maps,
    line_mri,
    randn,
    rng,
    snapshot,
    virtual_batch,
)

from es_medical.groups import D4, Flips
from es_medical.losses import EquivariantSplitting
from es_medical.networks import MoDL, ReynoldsAveraging
from es_medical.physics import MRI, MultiCoilMRI, MultiCoilProtocol, VirtualPhysics, measure
from es_medical.physics.multicoil import coil_mask
from es_medical.splits import Split

SIZES = [(8, 8), (7, 9)]
COILS = [1, 3, 8]
GAMMAS = [1e-3, 1.0, 50.0, torch.tensor([0.1, 3.0, 20.0])]
sizes = pytest.mark.parametrize("size", SIZES)
coils = pytest.mark.parametrize("n_coils", COILS)


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < 0.5).float()


def masks(size):
    """Lines and points, of the whole batch or of each of three items, in each rank."""
    height, width = size
    return [random_mask(width), random_mask(*size), random_mask(3, 1, 1, 1, width), random_mask(3, 1, *size)]


def maps_of_every_kind(n_coils, size, dtype=torch.float32):
    """Shared or of each item; normalised, or not (|S| up to about 3) and zero outside a support."""
    support = torch.ones(size, dtype=dtype)
    support[:2], support[:, -1] = 0, 0
    free = support * randn(3, 2, n_coils, *size, seed=2, dtype=dtype)
    return [coil_maps(1, n_coils, size, dtype), coil_maps(3, n_coils, size, dtype), free]


def operators(n_coils, size):
    """A with every mask and map, and M A with a line or point mask for each item; a batch of three."""
    plain = [MultiCoilMRI(mask, maps) for mask in masks(size) for maps in maps_of_every_kind(n_coils, size)]
    second = [random_mask(3, 1, 1, 1, size[1], seed=1), random_mask(3, 1, *size, seed=1)]
    return plain + [A.masked(second[i % 2]) for i, A in enumerate(plain)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@coils
@sizes
def test_adjoint(size, n_coils, dtype):
    for physics in operators(n_coils, size):
        assert_adjoint(physics, randn(3, 2, *size, dtype=dtype))


@coils
@sizes
def test_normal_operator_is_a_then_its_adjoint(size, n_coils):
    x = randn(3, 2, *size, dtype=torch.float64)
    for physics in operators(n_coils, size):
        expected = physics.A_adjoint(physics.A(x))
        torch.testing.assert_close(physics.A_adjoint_A(x), expected, rtol=0, atol=1e-12 * float(expected.abs().max() + 1))


@pytest.mark.parametrize("gamma", GAMMAS, ids=str)
@coils
@sizes
def test_prox_equals_cg(size, n_coils, gamma):
    for physics in operators(n_coils, size)[GAMMAS.index(gamma) if isinstance(gamma, float) else 3 :: 4]:
        assert_prox_equals_cg(physics, randn(3, 2, *size, dtype=torch.float64), gamma)


@coils
@sizes
def test_prox_in_single_precision(size, n_coils):
    z = randn(3, 2, *size, seed=1)
    for physics in operators(n_coils, size)[::3]:
        y = physics.A(randn(3, 2, *size))
        expected = physics.prox_l2(z.double(), y.double(), 1.0)
        assert (physics.prox_l2(z, y, 1.0) - expected).abs().max() <= 3e-6 * expected.abs().max()


@coils
def test_gradients(n_coils):
    for physics in operators(n_coils, (3, 4))[::2]:
        assert_gradients(physics, randn(3, 2, 3, 4, dtype=torch.float64))


def test_derivatives_with_a_step_for_each_item():
    physics = operators(3, (3, 4))[5]
    z, y = randn(3, 2, 3, 4).double().requires_grad_(), randn(3, 2, 3, 3, 4, seed=1).double().requires_grad_()
    gamma = torch.tensor([0.1, 1.0, 7.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(physics.prox_l2, (z, y, gamma), fast_mode=True)
    assert torch.autograd.gradcheck(physics.A_dagger, (y,), fast_mode=True)
    assert torch.autograd.gradcheck(physics.A_adjoint_A, (z,), fast_mode=True)


@coils
@sizes
def test_pseudo_inverse(size, n_coils):
    """Singular values near zero are resolved to the tolerance of the iterations only."""
    for physics in operators(n_coils, size)[::2]:
        assert_pseudo_inverse(physics, randn(3, 2, *size, dtype=torch.float64), tolerance=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@coils
def test_scaling(n_coils, dtype):
    gamma = torch.tensor([0.1, 3.0, 1.0])
    for maps in (coil_maps(3, n_coils, (7, 9)), 2 * coil_maps(1, n_coils, (7, 9))):
        physics = MultiCoilMRI(torch.ones(9) if n_coils == 1 else random_mask(9), maps)
        assert_scaling(physics, randn(3, 2, 7, 9, dtype=dtype), gamma, 5e-6 if dtype == torch.float32 else 1e-11)


@coils
@sizes
def test_virtual_operators_are_as_exact(size, n_coils):
    group = D4() if size[0] == size[1] else Flips()
    x, n = randn(group.order, 2, *size, dtype=torch.float64), group.order
    for mask in (random_mask(size[1]), random_mask(n, 1, *size)):
        physics = virtual_batch(MultiCoilMRI(mask, coil_maps(n, n_coils, size)), group)
        for one in (physics, physics.masked(Split("samples", 0.6)(physics, n, rng(2)))):
            assert_adjoint(one, x)
            assert_prox_equals_cg(one, x, torch.linspace(0.1, 9.0, n, dtype=torch.float64))
            assert torch.equal(one.A(x), one.physics.A(group.apply(x, group.elements())))
    assert_gradients(physics, x)


@sizes
def test_one_coil_of_ones_is_single_coil_mri(size):
    maps = torch.zeros(1, 2, 1, *size)
    maps[:, 0] = 1
    x, z = randn(3, 2, *size), randn(3, 2, *size, seed=1)
    for mask in masks(size):
        one, single = MultiCoilMRI(mask, maps), MRI(mask[:, :, 0] if mask.ndim == 5 else mask, size)
        y = single.A(x)
        close = {"rtol": 0, "atol": 3e-6}
        torch.testing.assert_close(one.A(x), y[:, :, None], **close)
        torch.testing.assert_close(one.A_adjoint(y[:, :, None]), single.A_adjoint(y), **close)
        torch.testing.assert_close(one.A_dagger(y[:, :, None]), single.A_dagger(y), **close)
        torch.testing.assert_close(one.prox_l2(z, y[:, :, None], 0.7), single.prox_l2(z, y, 0.7), **close)


@pytest.mark.parametrize("n_coils", [3, 8])
@sizes
def test_fully_sampled_with_normalised_maps_is_unitary(size, n_coils):
    physics, x = MultiCoilMRI(torch.ones(size), coil_maps(3, n_coils, size)), randn(3, 2, *size)
    torch.testing.assert_close(physics.A_adjoint(physics.A(x)), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(physics.A_adjoint_A(x), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(physics.A_dagger(physics.A(x)), x, rtol=0, atol=1e-5)


def test_image_outside_the_support_of_the_maps_is_that_of_z_and_zero_in_the_pseudo_inverse():
    maps = coil_maps(1, 3, (8, 8))
    maps[..., :3, :] = 0
    physics, z, y = MultiCoilMRI(random_mask(8), maps), randn(2, 2, 8, 8), randn(2, 2, 3, 8, 8, seed=1)
    assert torch.equal(physics.prox_l2(z, y, 2.0)[..., :3, :], z[..., :3, :])
    assert (physics.A_dagger(y)[..., :3, :] == 0).all()


def test_zero_measurements_give_a_finite_zero_image():
    physics = MultiCoilMRI(random_mask(8), coil_maps(3, 3, (8, 8)))
    zero = torch.zeros(3, 2, 3, 8, 8)
    for image in (physics.A_adjoint(zero), physics.A_dagger(zero), physics.prox_l2(physics.A_adjoint(zero), zero, 1.0)):
        assert torch.equal(image, torch.zeros(3, 2, 8, 8))


def test_numbers_that_are_not_finite_are_not_hidden():
    physics, z = MultiCoilMRI(random_mask(8), coil_maps(3, 3, (8, 8))), randn(3, 2, 8, 8)
    y = physics.A(z)
    alone = physics.prox_l2(z, y, 1.0)
    y[1] = float("nan")
    x = physics.prox_l2(z, y, 1.0)
    assert x[1].isnan().all()
    assert torch.equal(x[[0, 2]], alone[[0, 2]])


@pytest.mark.parametrize("n_coils", [1, 3, 8])
def test_equals_deepinvs_multicoil_mri(n_coils):
    size, mask = (8, 6), random_mask(3, 1, 8, 6)
    maps = coil_maps(3, n_coils, size)
    theirs = deepinv.physics.MultiCoilMRI(mask=mask.expand(-1, 2, -1, -1), coil_maps=torch.complex(maps[:, 0], maps[:, 1]))
    ours, x = MultiCoilMRI(mask, maps), randn(3, 2, *size)
    y = theirs.A(x)
    torch.testing.assert_close(ours.A(x), y, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.A_adjoint(y), theirs.A_adjoint(y), rtol=0, atol=1e-5)


def test_deepinvs_tools_take_the_operator():
    physics, x = MultiCoilMRI(torch.ones(8), coil_maps(1, 3, (8, 8))), randn(2, 2, 8, 8)
    assert physics.adjointness_test(x) < 1e-4
    assert abs(float(physics.compute_sqnorm(x, verbose=False)) - 1) < 1e-3
    y, fidelity = physics(x), deepinv.optim.L2()
    assert float(deepinv.loss.MCLoss()(y=y, x_net=x, physics=physics).max()) < 1e-10
    torch.testing.assert_close(fidelity.prox(0 * x, y, physics, gamma=0.7), physics.prox_l2(0 * x, y, 0.7))


# masks, sizes, immutability


def test_masks_of_every_shape_and_type_give_the_same_operator():
    lines, size = torch.tensor([0, 1, 0, 1, 1, 1, 0, 0]), (6, 8)
    maps, x = coil_maps(3, 4, size), randn(3, 2, *size)
    full = lines.expand(size)
    given = [lines.tolist(), lines.numpy().astype(bool), lines, lines.double(), full, full[None, None], full[None, None, None]]
    given += [lines.view(1, 1, 1, 1, 8), full.expand(3, 1, 6, 8), full.expand(3, 1, 1, 6, 8).bool()]
    expected = MultiCoilMRI(lines, maps).A(x)
    assert expected.shape == (3, 2, 4, 6, 8)
    for mask in given:
        assert torch.equal(MultiCoilMRI(mask, maps).A(x), expected)
        child = MultiCoilMRI(torch.ones(8), maps).masked(torch.as_tensor(mask, dtype=torch.float32))
        assert torch.equal(child.A(x), expected)


@pytest.mark.parametrize("shape", [(28,), (16, 28), (1, 1, 16, 28), (3, 16, 32), (1, 1, 2, 16, 32), (1, 2, 1, 16, 32)])
def test_mask_that_does_not_fit_names_both_sizes(shape):
    for make in (lambda m: MultiCoilMRI(m, coil_maps(1, 2, (16, 32))), lambda m: MultiCoilProtocol(m, (16, 32))):
        with pytest.raises(ValueError, match=r"16 x 32") as refusal:
            make(torch.ones(shape))
        assert str(shape[-1]) in str(refusal.value)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(1, 2, 8, 8), (1, 3, 4, 8, 8), (2, 4, 8, 8), (1, 2, 0, 8, 8)])
def test_maps_of_another_layout_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(B or 1, 2, coils, H, W\), got") as refusal:
        MultiCoilMRI(torch.ones(8), torch.zeros(shape))
    assert str(shape) in str(refusal.value)
    with pytest.raises(ValueError, match="complex64"):
        MultiCoilMRI(torch.ones(8), torch.zeros(1, 2, 4, 8, 8, dtype=torch.complex64))


def test_masks_and_maps_for_different_batches_are_refused():
    with pytest.raises(ValueError, match="3 items and sensitivity maps for 2"):
        MultiCoilMRI(random_mask(3, 1, 1, 8), coil_maps(2, 4, (8, 8)))


@pytest.mark.usefixtures("unchecked")
def test_images_and_kspace_of_another_size_are_refused():
    physics = MultiCoilMRI(torch.ones(6), coil_maps(2, 3, (8, 6)))
    for shape in [(2, 2, 8, 1), (2, 2, 6, 8), (2, 1, 8, 6), (3, 2, 8, 6), (1, 2, 8, 6)]:
        for apply in (physics.A, physics.A_adjoint_A, lambda x: physics.prox_l2(x, torch.zeros(2, 2, 3, 8, 6), 1.0)):
            with pytest.raises(ValueError, match=r"takes \(2, 2, 8, 6\), got") as refusal:
                apply(torch.zeros(shape))
            assert str(shape) in str(refusal.value)
    for shape in [(2, 2, 8, 6), (2, 2, 4, 8, 6), (2, 2, 3, 8, 1), (1, 2, 3, 8, 6)]:
        for apply in (physics.A_adjoint, physics.A_dagger):
            with pytest.raises(ValueError, match=r"takes \(2, 2, 3, 8, 6\), got"):
                apply(torch.zeros(shape))


def test_masked_shares_the_maps_and_leaves_the_parent_alone():
    physics, m = MultiCoilMRI(random_mask(8), coil_maps(3, 2, (8, 8))), random_mask(3, 1, 1, 1, 8, seed=1)
    before = snapshot(physics)
    child = physics.masked(m)
    assert child.maps.data_ptr() == physics.maps.data_ptr()
    assert torch.equal(child.mask, physics.mask * m)
    virtual = virtual_batch(MultiCoilMRI(random_mask(8), coil_maps(1, 2, (8, 8))), D4())
    assert virtual.masked(torch.ones(8)).physics.maps.data_ptr() == virtual.physics.maps.data_ptr()
    child.mask.zero_()
    assert_unchanged(physics, before)


def test_nothing_that_is_computed_changes_operator_or_arguments():
    physics = MultiCoilMRI(random_mask(8), coil_maps(3, 2, (8, 8)))
    before, z, y = snapshot(physics), randn(3, 2, 8, 8), randn(3, 2, 2, 8, 8)
    given = z.clone(), y.clone()
    for _ in range(2):
        physics.A(z), physics.A_adjoint(y), physics.A_adjoint_A(z), physics.A_dagger(y)
        x = physics.prox_l2(z.requires_grad_(), y.requires_grad_(), 2.0)
        x.square().sum().backward()
    assert torch.equal(z, given[0])
    assert torch.equal(y, given[1])
    assert_unchanged(physics, before)


def test_operator_keeps_its_own_mask_and_maps():
    mask, maps, x = torch.ones(8), coil_maps(1, 2, (8, 8)), randn(1, 2, 8, 8)
    physics = MultiCoilMRI(mask, maps)
    before = physics.A(x)
    mask.zero_(), maps.zero_()
    assert torch.equal(physics.A(x), before)


def test_maps_survive_a_change_of_precision():
    maps = coil_maps(1, 2, (8, 8))
    physics = MultiCoilMRI(torch.ones(8), maps).to(torch.float64)
    assert torch.equal(physics.maps, maps.double())
    assert physics.A(randn(1, 2, 8, 8, dtype=torch.float64)).dtype == torch.float64


# what holds for a whole file


def test_operator_of_a_batch_has_its_maps():
    maps, x = coil_maps(3, 2, (6, 8)), randn(3, 2, 6, 8)
    protocol = MultiCoilProtocol(random_mask(8), (6, 8))
    assert protocol.mask.shape == (1, 1, 1, 1, 8)
    assert MultiCoilProtocol(random_mask(6, 8), (6, 8)).mask.shape == (1, 1, 1, 6, 8)
    assert protocol.image_size == (6, 8)
    assert protocol.img_size == (2, 6, 8)
    physics = protocol.of({"maps": maps, "measurement": x})
    assert torch.equal(physics.A(x), MultiCoilMRI(random_mask(8), maps).A(x))
    assert torch.equal(physics.mask, protocol.mask)
    m = random_mask(8, seed=1)
    assert torch.equal(protocol.masked(m).of({"maps": maps}).A(x), physics.masked(m).A(x))


def test_single_coil_operator_is_that_of_every_batch():
    physics = line_mri((8, 8))
    virtual = virtual_batch(physics, D4())
    assert physics.of({}) is physics
    assert virtual.of({"maps": torch.zeros(1)}) is virtual


def test_batch_without_maps_is_named():
    protocol = MultiCoilProtocol(torch.ones(8), (8, 8))
    with pytest.raises(ValueError, match="no sensitivity maps, only image, measurement"):
        protocol.of({"image": torch.zeros(1), "measurement": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"\(1, 2, 3, 6, 8\) for images of 8 x 8"):
        protocol.of({"maps": torch.zeros(1, 2, 3, 6, 8)})


def test_protocol_itself_measures_nothing():
    protocol, x = MultiCoilProtocol(torch.ones(8), (8, 8)), randn(1, 2, 8, 8)
    y = randn(1, 2, 3, 8, 8)
    for apply in (lambda: protocol.A(x), lambda: protocol.A_adjoint(y), lambda: protocol(x), lambda: protocol.A_dagger(y)):
        with pytest.raises(TypeError, match=r"make the operator of a batch with \.of\(batch\)"):
            apply()
    with pytest.raises(TypeError, match=r"make the operator of a batch with \.of\(batch\)"):
        protocol.prox_l2(x, y, 1.0)


def test_masks_move_with_the_operator():
    for physics in (MultiCoilProtocol(torch.ones(8), (8, 8)), MultiCoilMRI(torch.ones(8), coil_maps(1, 2, (8, 8)))):
        assert copy.deepcopy(physics).to("meta").mask.device.type == "meta"


def test_coil_mask_has_a_coil_axis():
    assert coil_mask(torch.ones(3, 1, 6, 8), (6, 8)).shape == (3, 1, 1, 6, 8)
    assert coil_mask(torch.ones(3, 1, 1, 1, 8), (6, 8)).shape == (3, 1, 1, 1, 8)


# training


def test_training_step_on_several_coils_learns_the_step_and_the_network():
    physics, x = MultiCoilMRI(random_mask(8) + torch.eye(8)[4] > 0, coil_maps(3, 4, (8, 8))), randn(3, 2, 8, 8)
    y = measure(physics, x, 0.1, rng())
    denoiser = torch.nn.Conv2d(2, 2, 3, padding=1)
    network = ReynoldsAveraging(MoDL(denoiser), D4())
    value = EquivariantSplitting(Split(split_ratio=0.6), sigma=0.1)(network, y, physics, rng(1))
    value.total.mean().backward()
    for parameter in network.parameters():
        assert parameter.grad.isfinite().all()
        assert (parameter.grad != 0).any()


def test_network_that_is_averaged_over_the_group_is_equivariant():
    physics, group = MultiCoilMRI(random_mask(8), coil_maps(2, 4, (8, 8))), D4()
    y = physics.A(randn(2, 2, 8, 8))
    torch.manual_seed(0)
    network = ReynoldsAveraging(MoDL(torch.nn.Conv2d(2, 2, 3, padding=1)), group).eval()
    for g in group.elements()[1::3]:
        moved = VirtualPhysics(physics, group, g.expand(2))
        torch.testing.assert_close(network(y, moved), group.inverse(network(y, physics), g.expand(2)), rtol=0, atol=1e-5)
