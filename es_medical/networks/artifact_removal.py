"""A denoiser after a linear reconstruction, the simplest network that takes the operator."""

from typing import Literal

from torch import nn

from es_medical.physics.base import Operator
from es_medical.types import Generator, Image, Measurement

Start = Literal["adjoint", "pseudo_inverse"]


class ArtifactRemoval(nn.Module):
    """f(y, A) = phi(A^T y) or phi(A^+ y) (section "Network architectures" of the paper).

    If phi is equivariant to T_g, so is f: f(y, A T_g) = T_g^-1 f(y, A), as (A T_g)^T = T_g^-1 A^T and
    (A T_g)^+ = T_g^-1 A^+ for an orthogonal T_g.

    Args:
        denoiser: phi, any module from images to images of the same shape.
        start: "adjoint" for A^T y, "pseudo_inverse" for A^+ y.

    Raises:
        ValueError: an unknown start.
    """

    def __init__(self, denoiser: nn.Module, start: Start = "adjoint") -> None:
        super().__init__()
        if start not in ("adjoint", "pseudo_inverse"):
            raise ValueError(f"start must be adjoint or pseudo_inverse, got {start!r}")
        self.denoiser, self.start = denoiser, start

    def forward(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Reconstruct y measured by `physics`; `generator` is not used (nothing here is random)."""
        return self.denoiser(physics.A_adjoint(y) if self.start == "adjoint" else physics.A_dagger(y))
