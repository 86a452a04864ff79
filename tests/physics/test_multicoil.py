import pytest
import torch
from helpers import coil_maps, line_mri, randn, rng, virtual_batch

from es_medical.groups import D4
from es_medical.losses import EquivariantSplitting
from es_medical.networks import MoDL, ReynoldsAveraging
from es_medical.physics import MRI, MultiCoilMRI, MultiCoilProtocol, measure
from es_medical.physics.batch import Batch
from es_medical.splits import Split

SIZES = [(8, 8), (7, 9)]
sizes = pytest.mark.parametrize("size", SIZES)


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < 0.5).float()


def masks(size):
    """Lines and points, of the whole batch or of each of three items, in each rank."""
    height, width = size
    return [random_mask(width), random_mask(*size), random_mask(3, 1, 1, 1, width), random_mask(3, 1, *size)]


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


# masks, sizes, immutability


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


def test_masked_shares_the_maps_which_are_the_operators_own():
    maps, x = coil_maps(3, 2, (8, 8)), randn(3, 2, 8, 8)
    physics = MultiCoilMRI(random_mask(8), maps)
    before = physics.A(x)
    assert physics.masked(random_mask(3, 1, 1, 1, 8, seed=1)).maps.data_ptr() == physics.maps.data_ptr()
    maps.zero_()
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


# training


def test_training_step_on_several_coils_learns_the_step_and_the_network():
    physics, x = MultiCoilMRI(random_mask(8) + torch.eye(8)[4] > 0, coil_maps(3, 4, (8, 8))), randn(3, 2, 8, 8)
    y = measure(physics, x, 0.1, rng())
    denoiser = torch.nn.Conv2d(2, 2, 3, padding=1)
    network = ReynoldsAveraging(MoDL(denoiser), D4())
    value = EquivariantSplitting(Split(split_ratio=0.6), sigma=0.1)(network, Batch(y, physics), rng(1))
    value.total.mean().backward()
    for parameter in network.parameters():
        assert parameter.grad.isfinite().all()
        assert (parameter.grad != 0).any()
