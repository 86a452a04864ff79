"""Computed tomography, A x = line integrals of an image, as a sparse matrix; its proximal step by conjugate gradients."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from es_medical.physics.base import Operator, per_item
from es_medical.physics.conjugate_gradient import Apply, conjugate_gradient, proximal_step
from es_medical.physics.ct_geometry import Geometry
from es_medical.physics.ct_matrix import system_matrix
from es_medical.physics.estimates import smooth
from es_medical.physics.estimates.smooth import smooth_least_squares
from es_medical.physics.fbp import Filter, fbp
from es_medical.physics.masks import GivenMask, read_mask
from es_medical.physics.sparse import Csr, csr_pair, largest_singular_value, product
from es_medical.types import Image, Mask, Measurement

INVERSE_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
"""Relative residual of the normal equations at which `A_dagger` stops."""
_WARNED: set[str] = set()


class CT(Operator):
    """CT with a parallel or fan beam: y = M L x / |L|, where L is the scanner's system matrix and M its mask.

    Images are (B, 1, H, W), sinograms (B, 1, views, detectors), zero where nothing was measured. L and L^T are held as
    compressed sparse rows and multiply a whole batch at once; A^T is the exact transpose. Restrictions M1 A share them.
    Images of another precision than the operator's are multiplied in the higher of the two, which costs a copy of the
    matrix: convert the operator instead, for example with `.double()`.

    Args:
        geometry: the scanner.
        mask: measured views (V,), or rays (V, D), (1, D) for bins, (1, 1, V or 1, D or 1) or one for each item of a batch,
            (B, 1, V or 1, D or 1); 0 or 1. None for all.
        unit_norm: divide by the operator norm |L| (of all views and bins, whatever the mask); else |L| stays as it is and
            y is in pixels times the image's values.
        matrix: L (views detectors, H W), rays view by view and pixels row by row, in pixels; None builds it by astra-toolbox.

    Raises:
        ValueError: mask or matrix do not fit, or the mask holds values other than 0 and 1.
        ImportError: astra-toolbox, which builds the matrix, is not installed.
    """

    baseline = "FBP"
    estimated = smooth.NAME
    measured = "a sinogram"
    units = ("views", "rays", "bins")

    norm: Tensor
    """|L|, what L is divided by, or 1 without `unit_norm`; float64, 0-dimensional."""
    _turned: tuple["CT", ...] = ()
    _diagonal: float
    """Mean diagonal of A^T A with all rays."""

    def __init__(
        self, geometry: Geometry, mask: GivenMask | None = None, unit_norm: bool = True, matrix: csr_array | None = None
    ) -> None:
        wanted = (math.prod(geometry.shape), math.prod(geometry.size))
        if matrix is not None and matrix.shape != wanted:
            raise ValueError(f"a system matrix of shape {matrix.shape}: this scanner's has {wanted}")
        rows, transpose = csr_pair(system_matrix(geometry) if matrix is None else matrix)
        norm = largest_singular_value(rows, transpose) if unit_norm else torch.ones((), dtype=torch.float64)
        self._setup(geometry, rows, transpose, norm, ray_mask(torch.ones(1) if mask is None else mask, geometry))
        energy = sum(float(some.double().square().sum()) for some in rows.values.split(2**20))  # without a copy of the matrix
        self._diagonal = energy / float(norm) ** 2 / math.prod(geometry.size)

    def _setup(self, geometry: Geometry, matrix: Csr, transpose: Csr, norm: Tensor, mask: Mask) -> None:
        super().__init__(img_size=(1, *geometry.size))
        self.geometry = geometry
        self.register_buffer("mask", mask)
        self.register_buffer("norm", norm)
        for name, csr in (("matrix", matrix), ("transpose", transpose)):  # a checkpoint need not hold them
            for part in ("rows", "columns", "values"):
                self.register_buffer(f"{name}_{part}", getattr(csr, part), persistent=False)

    @property
    def matrix(self) -> Csr:
        """L, (views detectors, H W)."""
        shape = len(self.matrix_rows) - 1, len(self.transpose_rows) - 1
        return Csr(self.matrix_rows, self.matrix_columns, self.matrix_values, shape)

    @property
    def transpose(self) -> Csr:
        """L^T."""
        return Csr(self.transpose_rows, self.transpose_columns, self.transpose_values, self.matrix.shape[::-1])

    @property
    def grid(self) -> tuple[int, int]:
        """(views, detectors) of the sinogram."""
        return self.geometry.shape

    def A(self, x: Image) -> Measurement:
        """M L x / |L|: image (B, 1, H, W) to sinogram (B, 1, V, D). Raises ValueError for images of another size."""
        self._check(x, self.img_size)
        return self.mask / self.norm * product(self.matrix, self.transpose, x.flatten(1)).view(len(x), 1, *self.geometry.shape)

    def A_adjoint(self, y: Measurement) -> Image:
        """L^T M y / |L|, unfiltered back-projection (B, 1, H, W). Raises ValueError for sinograms of another size."""
        self._check(y, (1, *self.geometry.shape))
        x = product(self.transpose, self.matrix, (self.mask / self.norm * y).flatten(1))
        return x.view(len(x), 1, *self.image_size)

    def A_dagger(self, y: Measurement) -> Image:
        """Least-squares image by conjugate gradients, of least norm; differentiable.

        The iterations stop at a relative residual of the normal equations of 1e-4 (float64: 1e-10), so that components
        that the measurements hardly determine stay near zero. `fbp` is faster.
        """
        self._check(y, (1, *self.geometry.shape))
        return _LeastSquares.apply(self.A, self.A_adjoint, y)

    def prox_l2(self, z: Image, y: Measurement, gamma: float | Tensor) -> Image:
        """argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z|^2, gamma a number or (B,); differentiable in z, y and gamma.

        By conjugate gradients from z: 7, 15 and 35 iterations for gamma = 1, 10 and 100 at unit norm (256 x 256, 50 views).
        """
        self._check(z, self.img_size)
        return proximal_step(self.A_adjoint_A, z, self.A_adjoint(y), per_item(gamma, z))

    def initial(self, y: Measurement) -> Image:
        """Return the filtered back-projection with a ramp filter, where networks start."""
        return self.fbp(y)

    def estimate(self, y: Measurement) -> Image:
        """Return the smooth least-squares image (see `smooth_least_squares`), with fewer streaks than filtered back-projection.

        Raises ValueError for sinograms of another size.
        """
        return smooth_least_squares(self.A_adjoint_A, self.A_adjoint(y), self._diagonal)

    def fbp(self, y: Measurement, filter: Filter = "ramp") -> Image:
        """Filtered back-projection with a "ramp" or "hann" filter, in the units of the image; see `physics.fbp`."""
        self._check(y, (1, *self.geometry.shape))
        return fbp(y * self.norm, self.geometry, self.mask, filter)

    def masked(self, m: Mask) -> "CT":
        """Return M1 A for a mask m of any shape that the constructor takes; matrices and norm are shared."""
        return self._shared(self.geometry, self.matrix, self.transpose, self.mask * ray_mask(m, self.geometry).to(self.mask))

    def turned_by(self, angle: float) -> "CT":
        """Return A T, where T turns the image counter-clockwise by `angle` degrees about its centre.

        It is the same scanner with its views turned by -angle and its own matrix: no image is interpolated. Mask and
        norm are this operator's.
        """
        geometry = self.geometry.turned(angle)
        matrix, transpose = (csr.to(self.matrix_values) for csr in csr_pair(system_matrix(geometry)))
        return self._shared(geometry, matrix, transpose, self.mask)

    def with_turns(self, angles: Sequence[float]) -> "CT":
        """Return A with `turned(k)` for the angles of `es_medical.groups.Rotations`, in degrees; the first one is 0.

        Raises:
            ValueError: the first angle is not 0.
        """
        if not angles or angles[0] != 0:
            raise ValueError(f"the first of the angles must be 0, A itself; got {list(angles)}")
        other = self._shared(self.geometry, self.matrix, self.transpose, self.mask)
        other._turned = tuple(self.turned_by(angle) for angle in angles[1:])
        return other

    def turned(self, k: int) -> "CT":
        """Return A T for the k-th angle of `with_turns`; the 0-th is A itself. Matrices are shared.

        Raises:
            IndexError: there is no k-th angle.
        """
        if not 0 <= k <= len(self._turned):
            raise IndexError(f"this operator has {len(self._turned) + 1} angles, got k={k}: use with_turns(angles)")
        if k == 0:
            return self
        scanner = self._turned[k - 1]
        return self._shared(scanner.geometry, scanner.matrix, scanner.transpose, self.mask)

    def _shared(self, geometry: Geometry, matrix: Csr, transpose: Csr, mask: Mask) -> "CT":
        other = CT.__new__(CT)
        other._setup(geometry, matrix, transpose, self.norm, mask)
        other._turned = self._turned if geometry is self.geometry else ()
        other._diagonal = self._diagonal
        return other

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "CT":
        """Move or convert (torch's hook); the turned operators are copied first, as other operators share them."""
        self._turned = tuple(scanner.masked(torch.ones(1))._apply(fn, recurse) for scanner in self._turned)
        return super()._apply(fn, recurse)

    def warn_outside(self, x: Image, air: float = 0.01) -> None:
        """Warn once when pixels above `air` lie outside the circle that every view sees; synchronises a GPU.

        Some views are truncated there, which no reconstruction can correct.
        """
        radius = self.geometry.field_of_view
        height, width = self.image_size
        rows = torch.arange(height, device=x.device)[:, None] - (height - 1) / 2
        columns = torch.arange(width, device=x.device) - (width - 1) / 2
        outside = (x > air) & (torch.hypot(rows, columns) > radius)
        count, worst = int(outside.sum()), int(outside.flatten(1).sum(1).max())
        if count and "outside" not in _WARNED:
            _WARNED.add("outside")
            warnings.warn(
                f"{count} pixels of {len(x)} images (up to {worst} of {height * width} in one) are above {air:g} outside the "
                f"circle of radius {radius:.1f} pixels that every view sees: some views are truncated; reported once",
                stacklevel=2,
            )


class _LeastSquares(Function):
    """x = (A^T A)^+ A^T y; the derivative of A^+ is its transpose, (A A^T)^+ A."""

    @staticmethod
    def forward(ctx: Any, A: Apply, A_adjoint: Apply, y: Tensor) -> Tensor:  # noqa: ANN401 - torch's context
        ctx.A, ctx.A_adjoint = A, A_adjoint
        v = A_adjoint(y)
        return conjugate_gradient(lambda x: A_adjoint(A(x)), v, INVERSE_TOLERANCE[v.dtype], solver="A_dagger of CT")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:  # noqa: ANN401
        v = ctx.A(grad)
        solver = "gradient of A_dagger of CT"
        return None, None, conjugate_gradient(lambda u: ctx.A(ctx.A_adjoint(u)), v, INVERSE_TOLERANCE[v.dtype], solver=solver)


def ray_mask(mask: GivenMask, geometry: Geometry) -> Mask:
    """Bring a mask of views (V,) or rays to float (B or 1, 1, V or 1, D or 1) and refuse one that does not fit.

    >>> from es_medical.physics.ct_geometry import ParallelBeam
    >>> ray_mask([0, 1, 1, 0], ParallelBeam((8, 8), n_views=4)).shape
    torch.Size([1, 1, 4, 1])
    """
    given = torch.as_tensor(mask)
    views, bins = geometry.shape
    wanted = f"{views} views of {bins} bins: give (V,), (V or 1, D or 1) or (B or 1, 1, V or 1, D or 1)"
    return read_mask(given[:, None] if given.ndim == 1 else given, [(1,), (1, views), (1, bins)], range(5), wanted)
