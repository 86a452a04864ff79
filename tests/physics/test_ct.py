import copy
import warnings

import pytest
import torch
from helpers import (
    assert_adjoint,
    assert_gradients,
    assert_prox_equals_cg,
    assert_scaling,
    assert_unchanged,
    randn,
    rng,
    snapshot,
    virtual_batch,
)

from es_medical.groups import D4, Flips
from es_medical.physics import ct as module
from es_medical.physics import measure
from es_medical.physics.ct import CT, ray_mask
from es_medical.physics.ct_matrix import FanBeam, ParallelBeam, geometry_from_dict, system_matrix

GEOMETRIES = {
    "parallel": ParallelBeam((12, 12), n_views=5),
    "parallel odd": ParallelBeam((11, 13), n_views=4, pitch=1.5),
    "fan": FanBeam((12, 12), n_views=5, source_distance=30, detector_distance=15, pitch=1.5),
    "fan odd": FanBeam((13, 11), n_views=4, source_distance=30, detector_distance=15, pitch=1.5, n_detectors=15),
}
geometries = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
GAMMAS = [1e-3, 1.0, 50.0, torch.tensor([0.1, 3.0, 20.0])]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_MEDICAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < 0.6).float()


def masks(geometry):
    """Views, bins and rays, of the whole batch or of each of three items."""
    views, bins = geometry.shape
    shared = [random_mask(views), random_mask(1, bins), random_mask(views, bins)]
    return shared + [random_mask(3, 1, views, 1), random_mask(3, 1, 1, bins), random_mask(3, 1, views, bins)]


def operators(geometry):
    """A, A with every mask, and M A with a mask of each item; a batch of three."""
    A = CT(geometry)
    restricted = [A.masked(mask) for mask in masks(geometry)]
    return [A, *restricted, restricted[0].masked(random_mask(3, 1, *geometry.shape, seed=1)), CT(geometry, unit_norm=False)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@geometries
def test_adjoint(geometry, dtype):
    for physics in operators(geometry):
        for x in (randn(3, 1, *geometry.size, dtype=dtype), randn(3, 1, *geometry.size, dtype=dtype, seed=1).mT.mT):
            assert_adjoint(physics.to(dtype), x)


@geometries
def test_products_are_those_of_the_matrix(geometry):
    L = torch.from_numpy(system_matrix(geometry).toarray()).double()
    x, y = randn(3, 1, *geometry.size).double(), randn(3, 1, *geometry.shape, seed=1).double()
    for physics, norm in ((CT(geometry).double(), torch.linalg.matrix_norm(L, 2)), (CT(geometry, unit_norm=False).double(), 1)):
        expected, back = (L @ x.flatten(1).mT).mT / norm, (L.mT @ y.flatten(1).mT).mT / norm
        tolerance = 1e-12 if norm == 1 else 1e-5
        assert (physics.A(x).flatten(1) - expected).abs().max() <= tolerance * expected.abs().max()
        assert (physics.A_adjoint(y).flatten(1) - back).abs().max() <= tolerance * back.abs().max()
        assert (physics.A(x).flatten(1) * physics.norm - expected * norm).abs().max() <= 1e-12 * expected.abs().max() * norm


@geometries
def test_norm_is_the_largest_singular_value(geometry):
    expected = torch.linalg.matrix_norm(torch.from_numpy(system_matrix(geometry).toarray()).double(), 2)
    physics = CT(geometry)
    assert abs(float(physics.norm / expected) - 1) < 1e-4
    assert float(CT(geometry).norm) == float(physics.norm)  # the same each time
    assert float(CT(geometry, random_mask(geometry.shape[0])).norm) == float(physics.norm)  # whatever the mask
    assert float(CT(geometry, unit_norm=False).norm) == 1


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_each_item_is_measured_as_if_alone(batch):
    physics = CT(GEOMETRIES["parallel"])
    x = randn(batch, 1, 12, 12)
    y, alone = physics.A(x), torch.cat([physics.A(one[None]) for one in x])
    torch.testing.assert_close(y, alone)
    assert y.is_contiguous()
    back = torch.cat([physics.A_adjoint(one[None]) for one in y])
    torch.testing.assert_close(physics.A_adjoint(y), back)


@geometries
def test_masks_remove_rays_and_leave_the_others(geometry):
    A, x = CT(geometry), randn(3, 1, *geometry.size)
    y = A.A(x)
    for mask in masks(geometry):
        shaped = ray_mask(mask, geometry)
        physics = A.masked(mask)
        torch.testing.assert_close(physics.A(x), shaped * y, rtol=0, atol=0)
        torch.testing.assert_close(CT(geometry, mask).A(x), shaped * y)
        torch.testing.assert_close(physics.mask, shaped)
        twice = physics.masked(random_mask(geometry.shape[0], seed=3))
        torch.testing.assert_close(twice.mask, shaped * random_mask(geometry.shape[0], seed=3)[:, None])


def test_restrictions_share_the_matrices_and_the_norm():
    A = CT(GEOMETRIES["parallel"])
    part = A.masked(random_mask(5))
    for name in ("matrix", "transpose"):
        for a, b in zip(getattr(A, name)[:3], getattr(part, name)[:3], strict=True):
            assert a.data_ptr() == b.data_ptr()
    assert A.norm.data_ptr() == part.norm.data_ptr()


def test_moving_a_restriction_leaves_the_operator_alone():
    A = CT(GEOMETRIES["parallel"]).with_turns([0.0, 9.0])
    part = A.masked(random_mask(5)).double()
    assert part.matrix.values.dtype == part.turned(1).matrix.values.dtype == torch.float64
    assert A.matrix.values.dtype == A.turned(1).matrix.values.dtype == torch.float32


@pytest.mark.parametrize("gamma", GAMMAS, ids=str)
@geometries
def test_prox_equals_cg(geometry, gamma):
    for physics in operators(geometry):
        tolerance = 1e-10 if float(physics.norm) != 1 else 1e-8  # not of unit norm: 100 times the condition number
        assert_prox_equals_cg(physics.double(), randn(3, 1, *geometry.size, dtype=torch.float64), gamma, tolerance)


@geometries
def test_prox_in_single_precision(geometry):
    z = randn(3, 1, *geometry.size, seed=1)
    for physics in operators(geometry)[:-1]:
        y = physics.A(randn(3, 1, *geometry.size))
        expected = copy.deepcopy(physics).double().prox_l2(z.double(), y.double(), 1.0)
        assert (physics.prox_l2(z, y, 1.0) - expected).abs().max() <= 3e-6 * expected.abs().max()


@pytest.mark.parametrize("beam", ["parallel", "fan"])
def test_gradients(beam):
    for physics in operators(GEOMETRIES[beam])[:-1]:
        assert_gradients(physics.double(), randn(3, 1, 12, 12, dtype=torch.float64))


def test_second_derivatives():
    physics = CT(GEOMETRIES["fan"]).double()
    x = randn(2, 1, 12, 12).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: physics.A(x.square()), (x,), fast_mode=True)


def test_pseudo_inverse_and_its_derivative_are_those_of_the_matrix():
    geometry = ParallelBeam((4, 4), n_views=9, pitch=0.7)
    physics = CT(geometry).double()
    L = torch.from_numpy(system_matrix(geometry).toarray()).double() / physics.norm
    assert torch.linalg.cond(L) < 100
    y = randn(2, 1, *geometry.shape).double().requires_grad_()
    expected = torch.linalg.lstsq(L, y.detach().flatten(1).mT).solution.mT
    torch.testing.assert_close(physics.A_dagger(y).flatten(1), expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    assert torch.autograd.gradcheck(physics.A_dagger, (y,), fast_mode=True, atol=1e-4)


def test_pseudo_inverse_stops_in_time_on_an_ill_conditioned_problem_and_explains_the_data():
    geometry = ParallelBeam((32, 32), n_views=20)
    physics = CT(geometry)
    y = physics.A(torch.rand(2, 1, 32, 32, generator=rng()))
    assert (physics.A(physics.A_dagger(y)) - y).norm() < 0.01 * y.norm()


@pytest.mark.filterwarnings("ignore:A_dagger of CT:UserWarning")  # the last digits of 500 iterations differ between machines
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@geometries
def test_scaling(geometry, dtype):
    """`A_dagger` to where its iterations stop."""
    tolerance = {torch.float32: 5e-3, torch.float64: 1e-4}[dtype]
    for physics in operators(geometry)[:2]:
        assert_scaling(physics.to(dtype), randn(3, 1, *geometry.size, dtype=dtype), 2.0, tolerance)


@pytest.mark.parametrize("beam", ["parallel", "fan"])
def test_virtual_operators(beam):
    for physics in operators(GEOMETRIES[beam])[:4]:
        virtual = virtual_batch(physics.double(), D4())
        x = randn(8, 1, 12, 12, dtype=torch.float64)
        assert_adjoint(virtual, x)
        assert_prox_equals_cg(virtual, x, torch.linspace(0.1, 5, 8))
        assert_gradients(virtual, x)


def test_virtual_operators_on_rectangles():
    virtual = virtual_batch(CT(GEOMETRIES["parallel odd"]).double(), Flips())
    assert_adjoint(virtual, randn(4, 1, 11, 13, dtype=torch.float64))
    assert_prox_equals_cg(virtual, randn(4, 1, 11, 13, dtype=torch.float64), 1.0)


@geometries
def test_using_an_operator_does_not_change_it(geometry):
    x = randn(3, 1, *geometry.size)
    for physics in operators(geometry):
        before, values = snapshot(physics), physics.matrix.values.clone()
        y = physics.A(x)
        physics.A_adjoint(y), physics.A_dagger(y), physics.prox_l2(x, y, 1.0), physics.fbp(y)
        physics.masked(random_mask(geometry.shape[0])), physics.with_turns([0.0, 5.0]).turned(1)
        measure(physics, x, 0.1, rng())
        assert_unchanged(physics, before)
        assert torch.equal(physics.matrix.values, values)


def test_operator_keeps_its_own_mask():
    mask = torch.ones(5)
    physics = CT(GEOMETRIES["parallel"], mask)
    mask[:] = 0
    assert (physics.mask == 1).all()


def test_checkpoint_holds_the_norm_but_no_matrix():
    physics = CT(GEOMETRIES["parallel"])
    assert {name for name in physics.state_dict() if "." not in name} == {"mask", "norm"}


def test_copies_are_independent_and_equal():
    physics = CT(GEOMETRIES["parallel"], random_mask(5))
    x = randn(1, 1, 12, 12)
    torch.testing.assert_close(copy.deepcopy(physics).A(x), physics.A(x), rtol=0, atol=0)


@geometries
def test_turned_scanner_sees_what_the_scanner_sees_of_a_turned_image(geometry):
    """At 90 degrees the turned image is exact; square images only."""
    if geometry.size[0] != geometry.size[1]:
        geometry = geometry_from_dict({**geometry.to_dict(), "size": (11, 11)})
    physics = CT(geometry, random_mask(geometry.shape[0]))
    x = randn(2, 1, *geometry.size)
    for quarter in (1, 2, 3):
        turned = physics.turned_by(90.0 * quarter)
        torch.testing.assert_close(turned.A(x), physics.A(torch.rot90(x, quarter, (-2, -1))), rtol=0, atol=1e-3)
        assert (turned.A(x) - physics.A(torch.rot90(x, -quarter, (-2, -1)))).abs().max() > 0.05 or quarter == 2
        assert float(turned.norm) == float(physics.norm)


def test_turned_views_are_those_of_a_scanner_with_more_views():
    fine, coarse = CT(ParallelBeam((16, 16), n_views=8)), CT(ParallelBeam((16, 16), n_views=4))
    x = randn(1, 1, 16, 16)
    torch.testing.assert_close(coarse.turned_by(-22.5).A(x) * coarse.norm, fine.A(x)[:, :, 1::2] * fine.norm, rtol=0, atol=1e-4)


def test_turns_are_kept_through_masks_and_conversions():
    physics = CT(GEOMETRIES["parallel"]).with_turns([0.0, 9.0, 18.0])
    mask = random_mask(2, 1, 5, 1)
    part, x = physics.masked(mask).double(), randn(2, 1, 12, 12).double()
    assert part.turned(0) is part
    expected = CT(GEOMETRIES["parallel"]).turned_by(18.0).masked(mask).double().A(x)
    torch.testing.assert_close(part.turned(2).A(x), expected, rtol=0, atol=0)
    assert part.turned(2).matrix.values.data_ptr() == part.turned(2).masked(mask).matrix.values.data_ptr()
    with pytest.raises(IndexError, match="has 3 angles, got k=3"):
        physics.turned(3)
    with pytest.raises(ValueError, match="first of the angles is 0"):
        physics.with_turns([9.0])


@pytest.mark.parametrize("mask", [torch.ones(4), torch.ones(5, 4), torch.ones(2, 2, 5, 1), torch.ones(1, 1, 1, 5, 1)])
def test_mask_that_does_not_fit_is_refused(mask):
    with pytest.raises(ValueError, match=r"does not fit 5 views of 17 bins"):
        CT(GEOMETRIES["parallel"], mask)


def test_mask_of_other_values_is_refused():
    with pytest.raises(ValueError, match="values from 0.* to 0.5"):
        CT(GEOMETRIES["parallel"], [0, 0.5, 0, 0, 0])


@pytest.mark.parametrize("shape", [(2, 1, 12, 11), (2, 2, 12, 12), (3, 1, 12, 12)])
def test_images_that_do_not_fit_are_refused(shape):
    physics = CT(GEOMETRIES["parallel"], torch.ones(2, 1, 5, 1))
    with pytest.raises(ValueError, match=r"takes \(2, 1, 12, 12\), got"):
        physics.A(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"takes \(2, 1, 5, 17\), got"):
        physics.A_adjoint(torch.zeros(shape))


def test_double_numbers_through_a_single_precision_operator_stay_accurate():
    physics, x = CT(GEOMETRIES["fan"]), randn(1, 1, 12, 12).double()
    torch.testing.assert_close(physics.A(x), copy.deepcopy(physics).double().A(x), rtol=1e-7, atol=1e-7)


def test_autocast_does_not_round_the_products():
    physics, x = CT(GEOMETRIES["fan"]), randn(2, 1, 12, 12)
    expected = physics.A(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(physics.A(x), expected, rtol=0, atol=0)
        assert physics.A(x.bfloat16()).dtype == torch.float32


def test_objects_outside_the_field_of_view_are_told_once_with_the_numbers(monkeypatch):
    monkeypatch.setattr(module, "_WARNED", set())
    physics = CT(ParallelBeam((12, 12), n_views=5, n_detectors=8))
    x = torch.zeros(2, 1, 12, 12)
    x[:, :, 4:8, 4:8] = 1
    physics.warn_outside(x)
    x[1, 0, 0, :3] = 0.5
    with pytest.warns(UserWarning, match=r"3 pixels of 2 images \(up to 3 of 144 in one\) .* radius 4.0"):
        physics.warn_outside(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        physics.warn_outside(x)
    CT(GEOMETRIES["parallel"]).warn_outside(torch.ones(1, 1, 12, 12))  # a detector that sees the corners


def test_geometry_agrees_with_deepinv():
    """deepinv turns about the centre of the image as well, and puts detectors before views."""
    from deepinv.physics import Tomography

    rows, columns = torch.arange(32)[:, None] - 15.5, torch.arange(32) - 15.5
    x = torch.exp(-((rows + 5) ** 2 + (columns - 3) ** 2) / 18) + 0.5 * torch.exp(-((rows - 6) ** 2 + columns**2) / 30)
    physics = CT(ParallelBeam((32, 32), n_views=6), unit_norm=False)
    expected = Tomography(6, 32, normalize=False).A(x[None, None]).mT
    found = physics.A(x[None, None])
    assert found.shape == expected.shape
    assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@geometries
def test_cuda_agrees_with_the_cpu(geometry):
    x, mask = randn(3, 1, *geometry.size), random_mask(3, 1, *geometry.shape)
    physics = CT(geometry).with_turns([0.0, 9.0]).masked(mask)
    on_gpu = copy.deepcopy(physics).cuda()
    y = physics.A(x)
    for one, other in ((physics, on_gpu), (physics.turned(1), on_gpu.turned(1))):
        for apply in (lambda A, x, y: A.A(x), lambda A, x, y: A.A_adjoint(y), lambda A, x, y: A.prox_l2(x, y, 3.0)):
            expected = apply(one, x, y)
            torch.testing.assert_close(apply(other, x.cuda(), y.cuda()).cpu(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(on_gpu.A_dagger(y.cuda()).cpu(), physics.A_dagger(y), rtol=0, atol=0.05)
    found, expected = on_gpu.fbp(y.cuda()).cpu(), physics.fbp(y)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
