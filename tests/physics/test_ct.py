import copy
import warnings

import pytest
import torch
from helpers import randn, rng

from es_medical.physics import ct as module
from es_medical.physics.ct import CT
from es_medical.physics.ct_matrix import FanBeam, ParallelBeam, geometry_from_dict, system_matrix

GEOMETRIES = {
    "parallel": ParallelBeam((12, 12), n_views=5),
    "parallel odd": ParallelBeam((11, 13), n_views=4, pitch=1.5),
    "fan": FanBeam((12, 12), n_views=5, source_distance=30, detector_distance=15, pitch=1.5),
    "fan odd": FanBeam((13, 11), n_views=4, source_distance=30, detector_distance=15, pitch=1.5, n_detectors=15),
    "parallel shifted": ParallelBeam((12, 12), n_views=5, shift=1.3),
    "fan shifted": FanBeam((12, 12), n_views=5, source_distance=30, detector_distance=15, pitch=1.5, shift=-2.2),
}
geometries = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())


def random_mask(*shape, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < 0.6).float()


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


def test_second_derivatives():
    physics = CT(GEOMETRIES["fan"]).double()
    x = randn(2, 1, 12, 12).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: physics.A(x.square()), (x,), fast_mode=True)


def test_pseudo_inverse_stops_in_time_on_an_ill_conditioned_problem_and_explains_the_data():
    geometry = ParallelBeam((32, 32), n_views=20)
    physics = CT(geometry)
    y = physics.A(torch.rand(2, 1, 32, 32, generator=rng()))
    assert (physics.A(physics.A_dagger(y)) - y).norm() < 0.01 * y.norm()


def test_checkpoint_holds_the_norm_but_no_matrix():
    physics = CT(GEOMETRIES["parallel"])
    assert {name for name in physics.state_dict() if "." not in name} == {"mask", "norm"}


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
    with pytest.raises(ValueError, match="first of the angles must be 0"):
        physics.with_turns([9.0])


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
