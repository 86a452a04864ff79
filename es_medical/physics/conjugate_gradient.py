"""Conjugate gradients for a batch, and the proximal step that they solve, with its derivatives."""

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
MAX_ITERATIONS = 500
LAG = 4
"""Iterations by which a GPU may lag behind the CPU: its queue is never empty, and few iterations are wasted."""
_WARNED: set[str] = set()

Apply = Callable[[Tensor], Tensor]


def conjugate_gradient(
    B: Apply, b: Tensor, tolerance: float | None = None, max_iter: int = MAX_ITERATIONS, solver: str = "conjugate gradients"
) -> Tensor:
    """Solve B x = b for each item of a batch (Hestenes and Stiefel 1952), from x = 0; not differentiable.

    An item has converged when |r| <= tolerance |b|, and does not change after that; b = 0 gives x = 0 at once. Each item is
    solved for b / max|b|, so the result scales with b without under- or overflow. Warns once when an item does not converge.

    Args:
        B: symmetric (Hermitian) positive definite, or semi-definite with b in its range; from (B, ...) to (B, ...).
        b: right-hand side (B, ...), real or complex.
        tolerance: relative residual; None for 1e-6 in float32 and 1e-12 in float64.
        max_iter: largest number of iterations.
        solver: name of the solver in the warning.

    >>> b = torch.tensor([[4.0, 9.0], [0.0, 0.0]])
    >>> conjugate_gradient(lambda x: x * torch.tensor([2.0, 3.0]), b)
    tensor([[2., 3.],
            [0., 0.]])
    """
    scale = _largest(b)
    x, r = torch.zeros_like(b, memory_format=torch.contiguous_format), (b / scale).contiguous()
    p = r.clone()
    xs, rs, ps = _flat(x), _flat(r), _flat(p)  # real views, (B, n): updated in place
    rr = _dot(rs, rs)  # |r|^2
    tolerance = TOLERANCE[xs.dtype] if tolerance is None else tolerance
    target, progress = tolerance**2 * rr, _Progress(b.device)
    active = rr > target
    for _ in range(max_iter):
        if progress.done(torch.where(active, rr / target, 0).amax()):
            return x * scale
        Bp = _flat(B(p))
        alpha = torch.where(active, rr / _dot(ps, Bp), 0)
        xs.addcmul_(alpha, ps)  # x + alpha p
        rs.addcmul_(alpha, Bp, value=-1)  # r - alpha B p
        rr, previous = _dot(rs, rs), rr
        beta = torch.where(active, rr / previous, 0)
        ps.mul_(beta).add_(rs)  # r + beta p
        active = active & (rr > target)
    worst = progress.last(torch.where(active, rr / target, 0).amax())
    if worst > 0:
        _warn(solver, max_iter, tolerance * worst**0.5, tolerance)
    return x * scale


class _ProximalStep(Function):
    """x = z + gamma e with (I + gamma N) e = c = v - N z, where N = A^T A and v = A^T y.

    Its derivatives need one solution of the same system, lambda = (I + gamma N)^-1 grad x:
    grad z = lambda, grad v = gamma lambda, and grad gamma = <lambda, e>, since dx/dgamma = (I + gamma N)^-1 e.
    """

    @staticmethod
    def forward(ctx: Any, normal: Apply, z: Tensor, v: Tensor, gamma: Tensor) -> Tensor:  # noqa: ANN401 - torch's context
        def B(x: Tensor) -> Tensor:
            return x + gamma * normal(x)

        e = conjugate_gradient(B, v - normal(z), solver="proximal step by conjugate gradients")
        ctx.B = B
        ctx.save_for_backward(e, gamma)
        return z + gamma * e

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        e, gamma = ctx.saved_tensors
        solution = conjugate_gradient(ctx.B, grad, solver="gradient of the proximal step by conjugate gradients")
        slope = (solution.conj() * e).real.sum_to_size(gamma.shape) if ctx.needs_input_grad[3] else None
        return None, solution, gamma * solution, slope


def proximal_step(normal: Apply, z: Tensor, v: Tensor, gamma: Tensor | float) -> Tensor:
    """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2 = (I + gamma A^T A)^-1 (z + gamma v), differentiable in z, v and gamma.

    The solution is sought as z + gamma e, which starts the iterations at z and stays accurate for small gamma.

    Args:
        normal: A^T A, from (B, ...) to (B, ...).
        z: where the step starts (B, ...), real or complex.
        v: A^T y, of the shape and type of z.
        gamma: step, not negative: a number, or a tensor that broadcasts to z.
    """
    if not isinstance(gamma, Tensor):
        gamma = torch.full((), gamma, dtype=z.real.dtype, device=z.device)
    return _ProximalStep.apply(normal, z, v, gamma)


class _LeastSquares(Function):
    """x = N^+ v for v in the range of N = A^T A; the derivative is N^+ N^+ N, as a gradient may lie outside the range."""

    @staticmethod
    def forward(ctx: Any, normal: Apply, v: Tensor) -> Tensor:  # noqa: ANN401
        ctx.normal = normal
        return conjugate_gradient(normal, v, solver="least squares by conjugate gradients")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        solver = "gradient of least squares by conjugate gradients"
        projected = conjugate_gradient(ctx.normal, ctx.normal(grad), solver=solver)
        return None, conjugate_gradient(ctx.normal, projected, solver=solver)


def least_squares(normal: Apply, v: Tensor) -> Tensor:
    """Return the x of least norm among the minimisers of |A x - y|^2, differentiable in v.

    Args:
        normal: A^T A, from (B, ...) to (B, ...).
        v: A^T y (B, ...), real or complex.
    """
    return _LeastSquares.apply(normal, v)


class _Progress:
    """Report when every item has converged: at once on a CPU; on a GPU `LAG` iterations later, without synchronising."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.sent: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def done(self, worst: Tensor) -> bool:
        """Return whether `worst` is 0, or was `LAG` iterations ago; converged items no longer change."""
        if not self.on_gpu:
            return not worst > 0
        self._send(worst)
        return len(self.sent) > LAG and not self._receive() > 0

    def last(self, worst: Tensor) -> float:
        """Return `worst` as a number, without a lag."""
        if self.on_gpu:
            self.sent.clear()
            self._send(worst)
            return self._receive()
        return float(worst)

    def _send(self, worst: Tensor) -> None:
        value, event = worst.to("cpu", non_blocking=True), torch.cuda.Event()
        event.record()
        self.sent.append((value, event))

    def _receive(self) -> float:
        value, event = self.sent.popleft()
        event.synchronize()  # the value has arrived; the queue still holds the later iterations
        return float(value)


def _warn(solver: str, max_iter: int, residual: float, tolerance: float) -> None:
    if solver in _WARNED:
        return
    _WARNED.add(solver)
    warnings.warn(
        f"{solver}: relative residual {residual:.1e} after {max_iter} iterations, {tolerance:.0e} wanted. The system is "
        "ill-conditioned (a large step, an operator of large norm, few measurements); further cases are not reported",
        stacklevel=3,
    )


def _largest(b: Tensor) -> Tensor:
    """Greatest absolute real or imaginary part of each item, (B, 1, ...), 1 where it is zero."""
    largest = _flat(b).abs().amax(1)
    return torch.where(largest == 0, 1, largest).view(-1, *[1] * (b.ndim - 1))


def _flat(x: Tensor) -> Tensor:
    """Real view (B, n) of real or complex numbers."""
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).flatten(1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Real part of the inner product of each item, (B, 1)."""
    return torch.linalg.vecdot(a, b)[:, None]
