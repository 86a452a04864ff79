"""Any linear operator of deepinv with a mask on its measurements, so that they can be split."""

import copy
from collections.abc import Sequence

import torch
from deepinv.physics import MRI, LinearPhysics, MultiCoilMRI
from torch import Tensor

from es_medical.physics.base import Operator, per_item
from es_medical.physics.conjugate_gradient import least_squares, proximal_step
from es_medical.physics.estimates import smooth
from es_medical.physics.estimates.smooth import smooth_least_squares
from es_medical.physics.masks import GivenMask, read_mask
from es_medical.physics.mri import KSpaceOperator
from es_medical.types import Image, Mask, Measurement

ADJOINT = 1e-3
"""Largest difference of <A x, u> and <x, A^T u>, as a share of |A x| |u|."""


class MaskedPhysics(Operator):
    """y = M A x for any `deepinv.physics.LinearPhysics` A and a mask M of 0 and 1 on its measurements.

    Proximal step and pseudo-inverse are solved by conjugate gradients, so A needs `A` and `A_adjoint` only. Its noise model is
    not used (see `es_medical.measure`). A is copied: changing it later changes nothing here. It computes in its own precision.

    A split divides y by "pixels" (points of its last two axes), "columns" (its last axis) or "values" (of its last three axes);
    y (B, m) by "rows", and k-space of deepinv's MRI operators by "lines" or "samples".

    Args:
        physics: A, from images (B, C, H, W) to one real tensor (B, ...).
        mask: 0 or 1, of the shape of the trailing axes of y, or with a batch axis; None for all. What A never measures (its own
            mask, as of `deepinv.physics.MRI`) is left out in any case.
        img_size: (C, H, W) of the images; None for `physics.img_size`.

    Raises:
        TypeError: A is no linear operator of deepinv, or does not return one real tensor.
        ValueError: `img_size` is not known, the mask does not fit or keeps nothing, or `A_adjoint` is not the adjoint of `A`.

    >>> from deepinv.physics import Blur
    >>> physics = MaskedPhysics(Blur(torch.ones(1, 1, 3, 3) / 9, padding="circular"), [1, 0, 1, 1], (1, 4, 4))
    >>> physics.A(torch.ones(1, 1, 4, 4))[0, 0, 0]
    tensor([1., 0., 1., 1.])
    """

    baseline = "adjoint"

    def __init__(self, physics: LinearPhysics, mask: GivenMask | None = None, img_size: Sequence[int] | None = None) -> None:
        if not isinstance(physics, LinearPhysics):
            raise TypeError(f"expected a deepinv.physics.LinearPhysics, got {type(physics).__name__}")
        shape = tuple(img_size or getattr(physics, "img_size", None) or ())
        if len(shape) != 3:
            raise ValueError(f"{type(physics).__name__} has img_size {shape or None}: give img_size=(C, H, W)")
        physics = copy.deepcopy(physics)
        seen, diagonal = _probed(physics, shape)
        grid = tuple(seen.shape[1:])
        wanted = f"measurements of shape {grid}, which are those of images {shape}"
        given = torch.ones(grid) if mask is None else mask
        kept = read_mask(given, [(1, n) for n in grid], range(1, len(grid) + 2), wanted).to(seen) * seen
        if not bool(kept.any()):
            raise ValueError(f"the mask keeps nothing of what {type(physics).__name__} measures")
        self._setup(physics, kept, shape, grid, diagonal)

    def _setup(
        self, physics: LinearPhysics, mask: Mask, img_size: tuple[int, ...], grid: tuple[int, ...], diagonal: float
    ) -> None:
        super().__init__(img_size=img_size)
        self.physics, self._grid, self._diagonal = physics, grid, diagonal
        self.register_buffer("mask", mask)

    @property
    def grid(self) -> tuple[int, ...]:
        """Shape of the measurements of one item."""
        return self._grid

    @property
    def units(self) -> tuple[str, ...]:  # type: ignore[override]
        """Units into which a split can divide y."""
        if isinstance(self.physics, MRI | MultiCoilMRI):
            return KSpaceOperator.units
        return ("pixels", "columns", "values")[: len(self.grid)] if len(self.grid) > 1 else ("rows",)

    @property
    def measured(self) -> str:  # type: ignore[override]
        """Name of the measurements y, for messages."""
        return f"measurements of {type(self.physics).__name__} of shape {self.grid}"

    @property
    def estimated(self) -> str:  # type: ignore[override]
        """Name of `estimate`."""
        return smooth.NAME

    @property
    def fingerprint(self) -> list[float]:
        """Three sums over A of a fixed random image, with random weights: another operator has others."""
        draws = [torch.randn(4, *shape, generator=torch.Generator().manual_seed(1)) for shape in (self.img_size, self.grid)]
        x, weights = (draw.to(self.mask) for draw in draws)
        return (self.physics.A(x[:1]) * weights[:3]).flatten(1).sum(1).tolist()

    def A(self, x: Image) -> Measurement:
        """M A x. Raises ValueError for images of another size."""
        self._check(x, self.img_size)
        with torch.autocast(x.device.type, enabled=False):
            return self.mask * self.physics.A(x.to(self.mask.dtype)).to(x.dtype)

    def A_adjoint(self, y: Measurement) -> Image:
        """A^T M y. Raises ValueError for measurements of another size."""
        self._check(y, self.grid)
        with torch.autocast(y.device.type, enabled=False):
            return self.physics.A_adjoint((self.mask * y).to(self.mask.dtype)).to(y.dtype)

    def A_adjoint_A(self, x: Image) -> Image:
        """A^T M A x. Raises ValueError for images of another size."""
        return self.A_adjoint(self.A(x))

    def A_dagger(self, y: Measurement) -> Image:
        """Least-squares image of least norm, to the tolerance of conjugate gradients."""
        return least_squares(self.A_adjoint_A, self.A_adjoint(y))

    def prox_l2(self, z: Image, y: Measurement, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |M A x - y|^2 + 1/2 |x - z|^2, gamma a number or (B,); differentiable in z, y and gamma."""
        return proximal_step(self.A_adjoint_A, z, self.A_adjoint(y), per_item(gamma, z))

    def estimate(self, y: Measurement) -> Image:
        """Return the smooth least-squares image (see `smooth_least_squares`)."""
        return smooth_least_squares(self.A_adjoint_A, self.A_adjoint(y), self._diagonal)

    def masked(self, m: Mask) -> "MaskedPhysics":
        """Return M1 M A for a mask m of any shape that the constructor takes; A is shared."""
        other = MaskedPhysics.__new__(MaskedPhysics)
        wanted = f"measurements of shape {self.grid}"
        m1 = read_mask(m, [(1, n) for n in self.grid], range(1, len(self.grid) + 2), wanted)
        other._setup(self.physics, self.mask * m1.to(self.mask), tuple(self.img_size), self.grid, self._diagonal)
        return other


@torch.no_grad()
def _probed(physics: LinearPhysics, img_size: tuple[int, ...]) -> tuple[Mask, float]:
    """Return what A measures, 0 or 1 (1, ...), and the mean diagonal of A^T A.

    Raises:
        TypeError, ValueError: A is not as `MaskedPhysics` wants it.
    """
    name, random = type(physics).__name__, torch.Generator().manual_seed(0)
    like = next((buffer for buffer in physics.buffers() if buffer.is_floating_point()), torch.zeros(1))
    x = torch.randn(1, *img_size, generator=random).to(like)
    y = physics.A(x)
    if not isinstance(y, Tensor) or y.is_complex() or y.ndim < 2:
        found = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"{name} must return one real tensor (B, ...) (complex numbers as two channels), got {found}")
    u = y + y.square().mean().sqrt() * torch.randn(y.shape, generator=random).to(y)
    back = physics.A_adjoint(u)
    if back.shape != x.shape:
        raise ValueError(f"the adjoint of {name} returns {tuple(back.shape[1:])} for images {img_size}: is img_size right?")
    left, right = float((y * u).sum()), float((x * back).sum())
    if not abs(left - right) <= ADJOINT * float(y.norm() * u.norm()):
        raise ValueError(f"A_adjoint of {name} is not the adjoint of A: <A x, u> = {left:g}, <x, A_adjoint u> = {right:g}")
    return (y != 0).to(x), float(y.square().sum()) / x.numel()
