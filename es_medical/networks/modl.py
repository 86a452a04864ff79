"""MoDL: a few unrolled steps that alternate a learned denoiser with the proximal step of the operator."""

import math
from typing import Literal, get_args

import torch
from torch import nn

from es_medical.physics.base import Operator
from es_medical.types import Generator, Image, Measurement

Start = Literal["initial", "estimate"]


class MoDL(nn.Module):
    """Unrolled network with shared weights (Aggarwal et al. 2019; section "Network architectures" of the paper).

    x_0 = A^T y (filtered backprojection in CT);  z_k = phi(x_k);  x_{k+1} = argmin_x gamma/2 |A x - y|^2 + 1/2 |x - z_k|^2.

    With `start="estimate"`, x_0 is a better linear reconstruction where the operator has one: missing pixels filled in from
    their neighbours, for example. Both are equivariant, x_0 of A T_g is T_g^-1 x_0 of A, so f is as equivariant as phi.

    Args:
        denoiser: phi, any module from images to images of the same shape (of deepinv, MONAI, ...).
        n_iterations: number of unrolled steps K.
        step: initial value of the learnable positive step gamma.
        noise_level: second argument of denoisers that take one (deepinv's DRUNet, DnCNN); None calls phi(x).
        start: x_0, the operator's "initial" (the paper's) or "estimate".

    Raises:
        ValueError: the step is not positive, or an unknown start.
    """

    def __init__(
        self,
        denoiser: nn.Module,
        n_iterations: int = 3,
        step: float = 1.0,
        noise_level: float | None = None,
        start: Start = "initial",
    ) -> None:
        super().__init__()
        if step <= 0:
            raise ValueError(f"step must be positive, got {step}")
        if start not in get_args(Start):
            raise ValueError(f"start must be initial or estimate, got {start!r}")
        self.denoiser, self.start = denoiser, start
        self.n_iterations = n_iterations
        self.noise_level = noise_level
        self.log_step = nn.Parameter(torch.tensor(math.log(step)))

    def forward(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Reconstruct y measured by `physics`; `generator` is not used (nothing here is random)."""
        gamma, level = self.log_step.exp(), () if self.noise_level is None else (self.noise_level,)
        x = physics.estimate(y) if self.start == "estimate" else physics.initial(y)
        for _ in range(self.n_iterations):
            z = self.denoiser(x, *level)  # phi(x_k)
            x = physics.prox_l2(z, y, gamma)
        return x
