"""Smooth least squares: a linear estimate for operators whose every measurement sees many pixels."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from es_medical.physics.conjugate_gradient import Apply, conjugate_gradient
from es_medical.physics.estimates.differences import differences, differences_adjoint
from es_medical.types import Image

WEIGHT = 0.1
"""w as a share of the mean diagonal of A^T A. Between 0.01 and 0.3, images of CT and digits change by less than 0.7 dB."""

RIDGE = 1e-3
"""Weight of |x|^2 as a share of w, which decides what no measurement and no difference does: where nothing was measured."""

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
"""Relative residual of the normal equations at which the estimate stops."""

NAME = f"smooth least squares {WEIGHT} {RIDGE}"
"""Name and constants, kept with weights that were trained from this estimate: they fit no other."""


def smooth_least_squares(normal: Apply, v: Image, diagonal: float | Tensor) -> Image:
    """argmin_x |A x - y|^2 + w |D x|^2, D the differences of neighbouring pixels; linear in v and differentiable.

    By conjugate gradients. The weight w is fixed: `es_medical.networks.Tikhonov` has the same with one that is chosen from
    images.

    Args:
        normal: A^T A, from (B, C, H, W) to (B, C, H, W).
        v: A^T y, (B, C, H, W).
        diagonal: mean diagonal of A^T A when everything is measured, a number.
    """
    with torch.autocast(v.device.type, enabled=False):
        return _Solve.apply(normal, v, WEIGHT * diagonal)


class _Solve(Function):
    """x = B^-1 v with B = A^T A + w (D^T D + RIDGE), which is symmetric: the derivative is B^-1 too."""

    @staticmethod
    def forward(ctx: Any, normal: Apply, v: Tensor, weight: float | Tensor) -> Tensor:  # noqa: ANN401 - torch's context
        def B(x: Tensor) -> Tensor:
            return normal(x) + weight * (differences_adjoint(differences(x)) + RIDGE * x)

        ctx.B = B
        return conjugate_gradient(B, v, TOLERANCE[v.dtype], solver="smooth least squares")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return None, conjugate_gradient(ctx.B, grad, TOLERANCE[grad.dtype], solver="gradient of smooth least squares"), None
