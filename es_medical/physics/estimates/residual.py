"""Noise level of measurements from what no image explains: noise, and what the operator leaves out."""

import warnings

from es_medical.physics.base import Operator, recorruption
from es_medical.physics.estimates.smooth import smooth_least_squares
from es_medical.types import Generator, Measurement, PerItem

LIGHTER = 0.01
"""Weight of the smoothness / that of `CT.estimate`: so small that the image fits all that an image can."""


def residual_level(physics: Operator, y: Measurement, diagonal: float, generator: Generator | None = None) -> PerItem:
    """Estimate sigma of each item (B,) by sigma^2 = |y - H y|^2 / tr(I - H), H y = A x the fit of smooth least squares.

    Noise that differs from ray to ray counts with its root mean square, and so does a mismatch of operator and scanner: beam
    hardening, scatter, a wrong centre, structure within a pixel. It needs more rays than an image explains, such as bins
    narrower than a pixel. The trace is estimated by one white vector (Hutchinson 1990).

    Args:
        physics: A.
        y: measurements (B, ...), zero where nothing was measured.
        diagonal: mean diagonal of A^T A with all rays.
        generator: of the white vector.

    Source: Wahba, Spline models for observational data (1990), section 4.7.
    """

    def residual(z: Measurement) -> Measurement:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "smooth least squares: relative residual")  # the level needs no exact fit
            x = smooth_least_squares(physics.A_adjoint_A, physics.A_adjoint(z), LIGHTER * diagonal)
        return z - physics.A(x)

    white = recorruption(physics, y, 1.0, generator)
    freedom = (white * residual(white)).flatten(1).sum(1)
    return (residual(y).square().flatten(1).sum(1) / freedom.clamp(min=1)).sqrt()
