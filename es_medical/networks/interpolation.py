"""Biharmonic interpolation of missing pixels, by scikit-image."""

from importlib.util import find_spec

import numpy as np
import torch
from torch import nn

from es_medical.physics.base import Operator
from es_medical.physics.pixels import Pixels
from es_medical.physics.virtual import VirtualPhysics
from es_medical.types import Generator, Image, Measurement


class Biharmonic(nn.Module):
    """Fill missing pixels u by the biharmonic equation, Laplace^2 u = 0, between the measured ones, which stay as they are.

    Each channel of each image is filled separately, as it may have its own mask (Damelin and Hoang 2018;
    `skimage.restoration.inpaint_biharmonic`, in float64). Values stay within the range of the measured ones. A
    channel without measured pixels is zero.

    Raises:
        ImportError: scikit-image is not installed.
    """

    start = "biharmonic"

    def __init__(self) -> None:
        super().__init__()
        if find_spec("skimage") is None:
            raise ImportError("the method biharmonic needs scikit-image: pip install 'scikit-image>=0.24'")

    @torch.no_grad()
    def forward(self, y: Measurement, physics: Operator, generator: Generator | None = None) -> Image:
        """Reconstruct y measured by `physics`; `generator` is not used (nothing here is random).

        Raises:
            TypeError: the operator does not measure pixels.
        """
        _check(physics)
        x = physics.A_adjoint(y)
        known = physics.A_adjoint(torch.ones_like(y)) > 0
        channels = zip(x.flatten(0, 1).cpu(), known.flatten(0, 1).cpu(), strict=True)
        filled = [_filled(channel, measured) for channel, measured in channels]
        return torch.stack(filled).view(x.shape).to(x)


def _filled(x: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Fill one channel (H, W)."""
    if bool(known.all()) or not bool(known.any()):
        return x
    from skimage.restoration import inpaint_biharmonic

    return torch.from_numpy(inpaint_biharmonic(x.numpy().astype(np.float64), ~known.numpy())).to(x)


def _check(physics: Operator) -> None:
    while isinstance(physics, VirtualPhysics):
        physics = physics.physics
    if not isinstance(physics, Pixels):
        raise TypeError(
            f"biharmonic interpolates between measured pixels, so it is for inpainting and decimation; "
            f"{type(physics).__name__} measures no pixels: use --method tv, tikhonov or pseudo_inverse"
        )
