"""Focal least squares: an estimate that keeps an image where its first reconstruction already shows something."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from es_medical.physics.conjugate_gradient import Apply, conjugate_gradient
from es_medical.physics.estimates.normalised_convolution import gaussian
from es_medical.types import Image

WIDTH = 1.0
"""Standard deviation of the Gaussian that smooths |A^T y|^2, in pixels."""

FLOOR = 1e-3
"""Smallest s^2, as a share of its largest value: nothing is ruled out."""

WEIGHT = 0.01
"""w as a share of the largest diagonal entry of A^T A. The best at 0.5 % noise is a tenth of it, at 10 % three times it."""

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-11}
"""Relative residual of the normal equations at which the estimate stops."""

NAME = f"focal least squares {WIDTH} {FLOOR} {WEIGHT}"
"""Name and constants, kept with weights that were trained from this estimate: they fit no other."""


def focal_least_squares(normal: Apply, v: Image, diagonal: Tensor) -> Image:
    """argmin_x |A x - y|^2 + w sum_i |x_i / s_i|^2, where s_i^2 is |A^T y|^2 around pixel i, at most 1.

    An undersampled k-space says nothing about its missing samples if the image may be anything: the linear estimate is
    zero there. But a head ends in air. Where A^T y is dark the image is probably dark as well, and this determines missing
    samples from the measured ones beside them. It is not linear (s depends on y), but scales with y, and commutes with
    rotations by 90 degrees and flips. Differentiable in v, also through s.

    Args:
        normal: A^T A, from (B, C, H, W) to (B, C, H, W).
        v: A^T y, (B, C, H, W).
        diagonal: largest diagonal entry of A^T A when everything is measured, positive, of each item or one, (B or 1,).

    Source: one iteration of FOCUSS, Gorodnitsky and Rao (1997), IEEE TSP 45(3), in MRI Jung et al. (2009), MRM 61(1); there
    without the Gaussian.
    """
    with torch.autocast(v.device.type, enabled=False):
        return _Focal.apply(normal, v, _spread(v), WEIGHT * diagonal.to(v).view(-1, 1, 1, 1))


def _spread(v: Image) -> Tensor:
    """Return s, (B, 1, H, W): the square root of |v|^2 around each pixel relative to the largest, and the floor."""
    rows, columns = (gaussian(n, WIDTH, v.device).to(v) for n in v.shape[-2:])
    rows, columns = rows / rows.sum(1, keepdim=True), columns / columns.sum(0)  # of fewer pixels at the border
    energy = rows @ v.square().sum(1, keepdim=True) @ columns
    largest = energy.amax((1, 2, 3), keepdim=True)
    return ((energy / torch.where(largest > 0, largest, 1) + FLOOR) / (1 + FLOOR)).sqrt()


class _Focal(Function):
    """x = s z with B z = s v, B = s N s + w and N = A^T A.

    With lambda = B^-1 s grad x: grad v = s lambda, grad s = z (grad x - N s lambda) + lambda (v - N s z).
    """

    @staticmethod
    def forward(ctx: Any, normal: Apply, v: Tensor, s: Tensor, weight: Tensor) -> Tensor:  # noqa: ANN401 - torch's
        def B(z: Tensor) -> Tensor:
            return s * normal(s * z) + weight * z

        z = conjugate_gradient(B, s * v, TOLERANCE[v.dtype], solver="focal least squares")
        ctx.normal, ctx.B = normal, B
        ctx.save_for_backward(z, v, s)
        return s * z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        z, v, s = ctx.saved_tensors
        solution = conjugate_gradient(ctx.B, s * grad, TOLERANCE[grad.dtype], solver="gradient of focal least squares")
        slope = z * (grad - ctx.normal(s * solution)) + solution * (v - ctx.normal(s * z))
        return None, s * solution, slope.sum(1, keepdim=True), None
