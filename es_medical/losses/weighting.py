"""Fixed linear weightings W of a measurement residual, for losses |W r|^2 in place of |r|^2."""

import torch
from jaxtyping import Float
from torch import Tensor

from es_medical.losses.base import Weighting
from es_medical.types import Measurement

WEIGHTINGS = ("none", "ramp", "frequency")


class RampWeighting:
    """Square root of the ramp filter along the detector: |W r|^2 = <r, R r>, with R = max(|f| / f_max, floor) / c.

    A sinogram weighs an image frequency f by 1 / |f|, so |A e|^2 is hardly sensitive to fine structure, which is learnt
    last. By the Fourier slice theorem A^T R A is near the identity for a ramp R, so |W A e|^2 counts the error e of an image
    as the supervised loss does. The floor keeps R positive definite (condition number 1 / floor), so the mean counts too.

    W is applied to the masked residual, |W M r|^2, for any mask M. Whatever W is, that is a positive definite form of M r:

    - Prediction: with zero-mean noise in y_2 that is independent of x_hat, E |W M2 (A x_hat - y_2)|^2
      = E |W M2 A (x_hat - x)|^2 + E |W M2 epsilon|^2. Over all functions, the conditional mean of x minimises it for every W.
    - R2R: the noise of input and target, epsilon + alpha omega and epsilon - omega / alpha, is independent, so the
      same holds for the consistency term.
    - The two constants are sigma^2 and (1 + 1 / alpha^2) sigma^2, times tr(M W^2 M) / m. R is circulant and c makes its
      diagonal 1, so this trace is m for every mask: white noise has the same mean loss as without a weighting.

    The Fourier transform is periodic, without zero padding: W is then symmetric and its diagonal exactly constant. That
    couples the two ends of a view, which changes the form, not its minimiser. In a split by views W commutes with M.
    In splits by rays or bins, M2 has few neighbours to compare, R is nearly diagonal on them, and the weighting does little.
    It changes what is learnt first, and the result of a network of limited capacity or of least squares with noise.

    Args:
        floor: smallest value of the ramp relative to its largest one, in (0, 1]; 1 gives W = I.

    Raises:
        ValueError: the floor is out of range.

    >>> RampWeighting(floor=1.0)(torch.ones(1, 1, 1, 3)).flatten().tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, floor: float = 0.05) -> None:
        if not 0 < floor <= 1:
            raise ValueError(f"floor must lie in (0, 1], got {floor}: with 0, W has a null space")
        self.floor = floor

    def __call__(self, residual: Measurement) -> Measurement:
        """Return W r of sinograms (B, 1, views, detectors). Raises ValueError for another shape."""
        if residual.ndim != 4 or residual.shape[1] != 1:
            raise ValueError(f"the ramp weights sinograms (B, 1, views, detectors), got {tuple(residual.shape)}")
        n = residual.shape[-1]
        gain = power(n, self.floor, residual.device).sqrt().to(residual.dtype)
        return torch.fft.irfft(torch.fft.rfft(residual) * gain, n=n)


def power(n: int, floor: float, device: torch.device | str = "cpu") -> Float[Tensor, " half"]:
    """Return R at the n//2 + 1 frequencies of the real Fourier transform, with mean 1 over all n frequencies.

    >>> power(4, 0.05)
    tensor([0.0976, 0.9756, 1.9512], dtype=torch.float64)
    """
    index = torch.arange(n // 2 + 1, device=device, dtype=torch.float64)
    ramp = (index / max(n // 2, 1)).clamp(min=floor)
    twice = (index > 0) & (2 * index < n)  # frequencies with a negative twin
    return ramp / ((ramp * (1 + twice.double())).sum() / n)


class FrequencyWeighting:
    """W multiplies k-space at frequency k by max(|k|, 1)^p / c, |k| in cycles per field of view, from its centre n//2.

    Amplitudes of images fall about as 1 / |k| (Field, J. Opt. Soc. Am. A 4, 2379, 1987), so an unweighted residual of
    k-space is dominated by its centre until that is learnt. With p = 1 all frequencies contribute from the first step on.
    The minimiser is unchanged, as with `RampWeighting`: W is injective, and diagonal, so it commutes with every mask. c makes
    the mean of W^2 over the grid 1; a mask with more of the centre than of the rest gives white noise less weight than that.

    Args:
        exponent: p.

    Raises:
        ValueError: the exponent is negative.

    >>> FrequencyWeighting()(torch.ones(1, 2, 1, 4))[0, 0]
    tensor([[1.5119, 0.7559, 0.7559, 0.7559]])
    """

    def __init__(self, exponent: float = 1.0) -> None:
        if not exponent >= 0:
            raise ValueError(f"the exponent of the weighting must be >= 0, got {exponent}")
        self.exponent = exponent

    def __call__(self, residual: Measurement) -> Measurement:
        """Return W r of k-space (B, 2, H, W) or (B, 2, coils, H, W). Raises ValueError for another shape."""
        if residual.ndim not in (4, 5) or residual.shape[1] != 2:
            raise ValueError(
                f"the weighting by frequency takes k-space (B, 2, H, W) or (B, 2, coils, H, W), got {tuple(residual.shape)}"
            )
        ky, kx = (torch.arange(n, device=residual.device, dtype=residual.dtype) - n // 2 for n in residual.shape[-2:])
        gain = torch.hypot(ky[:, None], kx).clamp(min=1.0) ** self.exponent
        return residual * (gain / gain.square().mean().sqrt())


def build_weighting(name: str) -> Weighting | None:
    """Make the weighting "none" (None), "ramp" or "frequency". Raises ValueError for another name."""
    if name not in WEIGHTINGS:
        raise ValueError(f"unknown weighting {name!r}: choose one of {', '.join(WEIGHTINGS)}")
    return {"none": None, "ramp": RampWeighting(), "frequency": FrequencyWeighting()}[name]
