import warnings

import pytest
import torch
from helpers import dot, randn

from es_medical.physics import conjugate_gradient as module
from es_medical.physics.conjugate_gradient import MAX_ITERATIONS, TOLERANCE, conjugate_gradient, least_squares, proximal_step

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    monkeypatch.setattr(module, "_WARNED", set())


def diagonal(values):
    """B = diag(values), and a list that counts its calls."""
    calls = []

    def B(x):
        calls.append(len(x))
        return values * x

    return B, calls


def matrix(n, dtype, condition=10.0, seed=0):
    """Hermitian positive definite with eigenvalues from 1 to `condition`."""
    q = torch.linalg.qr(randn(n, n, seed=seed, dtype=torch.float64).to(dtype) + 1j * randn(n, n, seed=9, dtype=torch.float64)
                        if dtype.is_complex else randn(n, n, seed=seed, dtype=dtype)).Q.to(dtype)  # fmt: skip
    return (q * torch.linspace(1, condition, n).to(dtype)) @ q.mH


def relative(residual, b):
    return torch.linalg.vector_norm(residual.flatten(1), dim=1) / torch.linalg.vector_norm(b.flatten(1), dim=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solution_is_that_of_a_direct_solver(dtype):
    M = matrix(12, dtype)
    b = randn(3, 12, dtype=torch.float64).to(dtype) + (1j * randn(3, 12, seed=1).to(dtype) if dtype.is_complex else 0)
    x = conjugate_gradient(lambda p: p @ M.mT, b)
    assert x.dtype == dtype
    expected = torch.linalg.solve(M, b.mT).mT
    accuracy = 20 * TOLERANCE[x.real.dtype]
    torch.testing.assert_close(x, expected, rtol=0, atol=accuracy * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_is_below_the_tolerance_relative_to_each_right_side(dtype):
    values = torch.linspace(1, 30, 40).view(4, 10).to(dtype)
    b = torch.logspace(-6, 6, 3).view(3, 1, 1) * randn(3, 4, 10).to(dtype)
    for tolerance in (1e-2, 1e-4):
        B, calls = diagonal(values)
        x = conjugate_gradient(B, b, tolerance)
        assert (relative(b - values * x, b) <= 1.1 * tolerance).all()
        assert len(calls) < 30
    assert (relative(b - values * conjugate_gradient(B, b), b) < 3 * TOLERANCE[x.real.dtype]).all()


def test_as_many_iterations_as_different_eigenvalues():
    B, calls = diagonal(torch.tensor([2.0, 5.0, 2.0, 5.0], dtype=torch.float64))
    conjugate_gradient(B, randn(3, 4, dtype=torch.float64))
    assert len(calls) == 2


def test_zero_right_side_gives_zero_at_once():
    B, calls = diagonal(torch.ones(4))
    assert torch.equal(conjugate_gradient(B, torch.zeros(3, 4)), torch.zeros(3, 4))
    assert calls == []


def test_zero_item_among_others():
    b = randn(3, 4)
    b[1] = 0
    B, _ = diagonal(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    x = conjugate_gradient(B, b)
    assert (x[1] == 0).all()
    torch.testing.assert_close(B(x), b, rtol=1e-5, atol=1e-5)


def test_items_that_are_done_do_not_change_while_others_go_on():
    easy, hard = torch.full((40,), 3.0), torch.logspace(0, 3, 40)
    b = randn(2, 40)
    alone, first = diagonal(easy[None])
    together, both = diagonal(torch.stack((easy, hard)))
    assert torch.equal(conjugate_gradient(together, b)[:1], conjugate_gradient(alone, b[:1]))
    assert len(both) > 10 * len(first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-3, 1e20, 1e30])
def test_solution_scales_with_the_right_side(scale, dtype):
    B, _ = diagonal(torch.linspace(1, 9, 20).to(dtype))
    b = randn(3, 20).to(dtype)
    expected, close = conjugate_gradient(B, b), {"rtol": 0, "atol": 10 * TOLERANCE[b.real.dtype]}
    torch.testing.assert_close(conjugate_gradient(B, scale * b) / scale, expected, **close)
    factors = torch.tensor([[scale], [1.0], [1 / scale]], dtype=b.real.dtype)
    torch.testing.assert_close(conjugate_gradient(B, factors * b) / factors, expected, **close)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_item_that_is_not_finite_stays_so_and_leaves_the_others_alone(bad):
    b = randn(3, 20)
    B, _ = diagonal(torch.linspace(1, 9, 20))
    expected = conjugate_gradient(B, b)
    b[1, 3] = bad
    x = conjugate_gradient(B, b)
    assert not x[1].isfinite().any()
    assert torch.equal(x[[0, 2]], expected[[0, 2]])


def test_right_side_is_left_alone():
    b = randn(2, 3, 4).transpose(1, 2)  # not contiguous
    before = b.clone()
    B, _ = diagonal(torch.linspace(1, 9, 12).view(4, 3))
    torch.testing.assert_close(B(conjugate_gradient(B, b)), b)
    assert torch.equal(b, before)


def test_no_convergence_is_told_once_with_the_residual():
    B, _ = diagonal(torch.logspace(0, 6, 50))
    with pytest.warns(UserWarning, match=r"relative residual \d\.\de-?\+?\d+ after 5 iterations, 1e-06 wanted"):
        x = conjugate_gradient(B, randn(2, 50), max_iter=5)
    assert x.isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conjugate_gradient(B, randn(2, 50), max_iter=5)  # told already
        conjugate_gradient(diagonal(torch.ones(3))[0], randn(2, 3), max_iter=1)  # done in time


def test_reported_residual_is_the_worst_of_the_batch():
    values = torch.stack((torch.ones(50), torch.logspace(0, 6, 50)))
    b = randn(2, 50)
    with pytest.warns(UserWarning, match="relative residual") as told:
        x = conjugate_gradient(diagonal(values)[0], b, max_iter=5)
    stated = float(str(told[0].message).split("relative residual ")[1].split()[0])
    assert stated == pytest.approx(float(relative(b - values * x, b)[1]), rel=0.1)


class Event:
    """Stands for a CUDA event: nothing is late on a CPU."""

    def record(self):
        pass

    def synchronize(self):
        pass


@pytest.fixture
def lagging(monkeypatch):
    """Look at the progress as on a GPU, some iterations late."""
    monkeypatch.setattr(module._Progress, "on_gpu", property(lambda self: True, lambda self, value: None), raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)


@pytest.mark.parametrize("max_iter", [3, 8, 9, 11, 200])
def test_iterations_in_vain_on_a_gpu_change_nothing(max_iter, request):
    values, b = torch.stack((torch.full((40,), 3.0), torch.linspace(1, 2, 40))), randn(2, 40)
    B, calls = diagonal(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, needed = conjugate_gradient(B, b, max_iter=max_iter), len(calls)
        request.getfixturevalue("lagging")
        assert torch.equal(conjugate_gradient(B, b, max_iter=max_iter), expected)
    assert len(calls) - needed == min(needed + module.LAG, max_iter)


def test_no_convergence_on_a_gpu_is_told(lagging):
    B, b = diagonal(torch.logspace(0, 6, 50))[0], randn(2, 50)
    with pytest.warns(UserWarning, match="after 20 iterations"):
        conjugate_gradient(B, b, max_iter=20)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_agrees_with_cpu_and_is_never_waited_for():
    values, b = torch.linspace(1, 9, 400), randn(3, 400)
    expected = proximal_step(lambda x: values * x, b, 2 * b, 0.7)
    on_gpu, z = values.cuda(), b.cuda().requires_grad_()
    gamma = torch.tensor(0.7, device="cuda", requires_grad=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        x = proximal_step(lambda x: on_gpu * x, z, 2 * z, gamma)
        x.square().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(x.cpu(), expected, rtol=1e-5, atol=1e-5)


def normal(dtype, n=6, rank=4):
    """A^T A of a random A of this rank."""
    a = randn(rank, n, dtype=torch.float64).to(dtype)
    if dtype.is_complex:
        a = a + 1j * randn(rank, n, seed=1, dtype=torch.float64)
    N = a.mH @ a
    return lambda x: x @ N.mT


@pytest.mark.parametrize("gamma", [0.0, 1e-3, 0.7, 30.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_proximal_step_solves_its_equation(dtype, gamma):
    N, z, v = normal(dtype), randn(3, 6, dtype=torch.float64).to(dtype), randn(3, 6, seed=4, dtype=torch.float64).to(dtype)
    x = proximal_step(N, z, v, gamma)
    residual = x + gamma * N(x) - (z + gamma * v)
    assert (relative(residual, z + gamma * (v.abs() + N(z).abs())) <= 3e-12).all()


@pytest.mark.parametrize("gamma", [0.0, 1e-3, 0.7, 30.0, [0.1, 2.0, 9.0]])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_derivatives_of_the_proximal_step(dtype, gamma):
    z = randn(3, 6, dtype=torch.float64).to(dtype).requires_grad_()
    v = randn(3, 6, seed=4, dtype=torch.float64).to(dtype).requires_grad_()
    step = torch.tensor(gamma, dtype=torch.float64)
    step = (step.view(-1, 1) if step.ndim else step).requires_grad_()
    N = normal(dtype)
    assert torch.autograd.gradcheck(lambda *a: proximal_step(N, *a), (z, v, step))


def test_derivative_of_a_tiny_step_does_not_drown_in_rounding():
    """dx/dgamma = (I + gamma N)^-1 e: in float32 the difference (x - z) / gamma would be lost."""
    N, z, v = normal(torch.float64), randn(3, 6, dtype=torch.float64), randn(3, 6, seed=4, dtype=torch.float64)

    def slope(dtype):
        gamma = torch.tensor(1e-7, dtype=dtype, requires_grad=True)
        proximal_step(lambda x: N(x.double()).to(dtype), z.to(dtype), v.to(dtype), gamma).square().sum().backward()
        return float(gamma.grad)

    assert slope(torch.float32) == pytest.approx(slope(torch.float64), rel=1e-5)


def test_backward_solves_one_system_for_all_derivatives():
    calls, N = [], normal(torch.float64)

    def counted(x):
        calls.append(1)
        return N(x)

    z, v, gamma = randn(3, 6, dtype=torch.float64), randn(3, 6, seed=4, dtype=torch.float64), torch.tensor(0.7).double()
    x = proximal_step(counted, z.requires_grad_(), v.requires_grad_(), gamma.requires_grad_())
    forward = len(calls)
    x.sum().backward()
    assert forward <= 1 + 5  # N z, and one for each eigenvalue
    assert len(calls) - forward <= 5


def test_second_derivatives_are_refused_not_wrong():
    z = randn(3, 6, dtype=torch.float64).requires_grad_()
    (grad,) = torch.autograd.grad(proximal_step(normal(torch.float64), z, z, 1.0).square().sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_least_squares_solution_has_the_least_norm_and_right_derivatives(dtype):
    N = normal(dtype)
    v = N(randn(3, 6, dtype=torch.float64).to(dtype))
    x = least_squares(N, v)
    dense = N(torch.eye(6, dtype=dtype)).mT
    torch.testing.assert_close(x, v @ torch.linalg.pinv(dense, hermitian=True).mT, rtol=1e-8, atol=1e-8)
    u = randn(3, 6, seed=2, dtype=torch.float64).to(dtype).requires_grad_()
    assert torch.autograd.gradcheck(lambda u: least_squares(N, N(u)), (u,))


def test_bound_is_far_from_what_usual_steps_need():
    """Steps up to 100 with normalised maps have a condition number up to 101."""
    values = torch.linspace(1, 101, 2000, dtype=torch.float64)
    B, calls = diagonal(values)
    b = randn(1, 2000, dtype=torch.float64)
    x = conjugate_gradient(B, b)
    assert len(calls) < MAX_ITERATIONS / 3
    assert float(dot(b - values * x, b - values * x).sqrt()) < 1e-11 * float(b.norm())
