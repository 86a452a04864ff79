"""Checks shared by the tests of all groups and operators."""

from collections.abc import Callable

import torch
from torch import Tensor

from es_medical.groups import Group
from es_medical.physics import MRI, Operator, VirtualPhysics, gaussian_line_mask

ADJOINT_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=rng(seed), dtype=dtype)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each item, (B,)."""
    return (a * b).flatten(1).sum(1)


def per_item(value: float | Tensor, x: Tensor) -> float | Tensor:
    """One number per item, (B,), reshaped to broadcast to x (B, ...)."""
    return value.view(-1, *[1] * (x.ndim - 1)) if isinstance(value, Tensor) and value.ndim else value


class Recorder:
    """A reconstructor that records the inputs and outputs of another one, call by call."""

    def __init__(self, reconstructor: Callable[..., Tensor]) -> None:
        self.reconstructor = reconstructor
        self.given: list[Tensor] = []
        self.physics: list[Operator] = []
        self.gave: list[Tensor] = []

    def __call__(self, y: Tensor, physics: Operator, generator: object = None) -> Tensor:
        self.given.append(y)
        self.physics.append(physics)
        self.gave.append(self.reconstructor(y, physics, generator))
        return self.gave[-1]


def bent(y: Tensor, physics: Operator, generator: object = None) -> Tensor:
    """A fixed nonlinear reconstructor that uses the operator, couples the measurements and is not equivariant."""
    x = physics.A_adjoint(y)
    ramp = torch.linspace(-0.5, 1.0, x.shape[-1], dtype=x.dtype) + torch.linspace(0, 0.7, x.shape[-2], dtype=x.dtype)[:, None]
    return torch.tanh(1.5 * x + ramp) + 0.3 * x.roll(1, -1).square()


def line_mri(size: tuple[int, int], acceleration: float = 2.0, seed: int = 0) -> MRI:
    return MRI(gaussian_line_mask(size[1], acceleration, 0.1, seed), size)


def coil_maps(n: int, coils: int, size: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Random sensitivity maps (n, 2, coils, H, W) with sum |S|^2 = 1 at every pixel."""
    maps = randn(n, 2, coils, *size, seed=11, dtype=dtype)
    return maps / maps.square().sum((1, 2), keepdim=True).sqrt()


def virtual_batch(physics: Operator, group: Group) -> VirtualPhysics:
    """A T_g with every g of the group, one for each item of a batch."""
    return VirtualPhysics(physics, group, group.elements())


def assert_group_axioms(group: Group, size: tuple[int, int]) -> None:
    """Closure, associativity with T_gh = T_g T_h, identity, inverse, orthogonality: T_g^-1 = T_g^T."""
    n, elements = group.order, group.elements()
    x, z = randn(1, 2, *size).expand(n, -1, -1, -1), randn(n, 2, *size, seed=1)
    images = group.apply(x, elements)
    assert elements.shape[0] == n
    assert len({tuple(image.flatten().tolist()) for image in images}) == n  # the elements differ
    assert torch.equal(images[0], x[0])  # identity first
    for h in elements:
        hs = h.expand(n, *h.shape)
        products = group.compose(elements, hs)
        assert _distinct(products) == _distinct(elements)
        assert torch.equal(group.apply(x, products), group.apply(group.apply(x, hs), elements))
    assert torch.equal(group.inverse(images, elements), x)
    assert torch.equal(group.apply(group.inverse(x, elements), elements), x)
    torch.testing.assert_close(dot(images, z), dot(x, group.inverse(z, elements)))
    torch.testing.assert_close(dot(images, group.apply(z, elements)), dot(x, z))


def _distinct(elements: Tensor) -> set[tuple[int, ...]]:
    return {tuple(element) for element in elements.flatten().view(len(elements), -1).tolist()}


def assert_adjoint(physics: Operator, x: Tensor) -> None:
    """<A x, y> = <x, A^T y> relative to |A x| |y|, in the precision of x."""
    measured = physics.A(x)
    y = randn(*measured.shape, seed=7, dtype=x.dtype)
    gap = (dot(measured, y) - dot(x, physics.A_adjoint(y))).abs()
    assert (gap <= ADJOINT_TOLERANCE[x.dtype] * measured.norm() * y.norm()).all(), gap


def assert_pseudo_inverse(physics: Operator, x: Tensor, tolerance: float = 1e-10) -> None:
    """The four Penrose conditions: A A^+ A = A, A^+ A A^+ = A^+, A A^+ and A^+ A symmetric."""
    y = physics.A(x)
    z, v = randn(*x.shape, seed=8, dtype=x.dtype), randn(*y.shape, seed=9, dtype=x.dtype)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(physics.A(physics.A_dagger(y)), y, **close)
    back = physics.A_dagger(v)
    torch.testing.assert_close(physics.A_dagger(physics.A(back)), back, **close)
    torch.testing.assert_close(dot(physics.A(back), y), dot(v, physics.A(physics.A_dagger(y))), **close)
    torch.testing.assert_close(dot(physics.A_dagger(physics.A(x)), z), dot(x, physics.A_dagger(physics.A(z))), **close)


def conjugate_gradient(B: Callable[[Tensor], Tensor], b: Tensor, tolerance: float = 1e-14, max_iter: int = 500) -> Tensor:
    """Solve B x = b for a symmetric positive definite B, item by item, in float64."""
    x, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), dot(r, r)
    target = tolerance**2 * rr.clamp(min=1e-300)
    for _ in range(max_iter):
        if (rr <= target).all():
            return x
        Bp = B(p)
        step = per_item(rr / dot(p, Bp).clamp(min=1e-300), b)
        x, r = x + step * p, r - step * Bp
        new = dot(r, r)
        p, rr = r + per_item(new / rr.clamp(min=1e-300), b) * p, new
    raise AssertionError(f"no convergence: relative residual {(rr / target).sqrt().max() * tolerance:g}")


def cg_prox(physics: Operator, z: Tensor, y: Tensor, gamma: float | Tensor) -> Tensor:
    """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2 from A alone: A^T comes from automatic differentiation."""
    weight = per_item(gamma, z)

    def adjoint(v: Tensor) -> Tensor:
        return torch.autograd.functional.vjp(physics.A, torch.zeros_like(z), v)[1]

    return conjugate_gradient(lambda x: x + weight * adjoint(physics.A(x)), z + weight * adjoint(y))


def assert_prox_equals_cg(physics: Operator, x: Tensor, gamma: float | Tensor, tolerance: float = 1e-10) -> None:
    """The closed form at random z and y (y also outside the range of A) equals conjugate gradients in float64."""
    z = randn(*x.shape, seed=3, dtype=torch.float64)
    y = randn(*physics.A(x).shape, seed=4, dtype=torch.float64)
    expected = cg_prox(physics, z, y, gamma)
    assert (physics.prox_l2(z, y, gamma) - expected).abs().max() <= tolerance * expected.abs().max()


def assert_gradients(physics: Operator, x: Tensor) -> None:
    """Derivatives of A, A^T and the proximal step with respect to z, y and gamma."""
    z = x.double().requires_grad_()
    y = randn(*physics.A(x).shape, seed=5, dtype=torch.float64).requires_grad_()
    gamma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(physics.A, (z,), fast_mode=True)
    assert torch.autograd.gradcheck(physics.A_adjoint, (y,), fast_mode=True)
    assert torch.autograd.gradcheck(physics.prox_l2, (z, y, gamma), fast_mode=True)


def snapshot(physics: Operator) -> dict[str, object]:
    """A copy of an operator's state: tensors by value, the rest by identity."""
    tensors = {name: value.clone() for name, value in physics.named_buffers()}
    plain = {name: value for name, value in vars(physics).items() if not name.startswith("_")}
    modules = {name: (id(module), str(vars(module))) for name, module in physics.named_modules() if name}
    return {"tensors": tensors, "plain": plain, "modules": modules}


def assert_unchanged(physics: Operator, before: dict[str, object]) -> None:
    after = snapshot(physics)
    assert after["plain"] == before["plain"]
    assert after["modules"] == before["modules"]
    torch.testing.assert_close(after["tensors"], before["tensors"], rtol=0, atol=0)


def within(values: Tensor, expected: float | Tensor, standard_errors: float = 4.0) -> bool:
    """Whether the mean of independent values is within `standard_errors` standard errors of `expected` (4: 99.99 %)."""
    error = values.std() / len(values) ** 0.5
    return bool((values.mean() - expected).abs() <= standard_errors * error)
