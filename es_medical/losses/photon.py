"""Equivariant splitting of photon counts: the photons of a ray are divided, in place of Gaussian recorruption."""

import math

import torch

from es_medical.groups import Group, Rotations
from es_medical.losses.base import LossValue, Reconstructor, Weighting, mean_square
from es_medical.physics.batch import Batch
from es_medical.physics.noise import target_share
from es_medical.physics.transmission import Transmission
from es_medical.physics.virtual import draw_virtual
from es_medical.splits import Split
from es_medical.types import Generator, Mask, Measurement, PerItem

LOG_DOMAINS = ("pre", "post")


class PhotonSplitting:
    r"""G-ES with the R2R of Poisson noise (Monroy et al. 2025) for transmission counts N ~ Poisson(I0 exp(-c A x)).

    The views are split into M1 and M2, and the photons on M1 once more: each goes to N_b with probability a, else to N_a,
    which are independent. The network sees only the logarithm of N_a,

        x_hat = f(M1 -ln(N_a / ((1 - a) I0)) / c, A_1),        L = w l(N_b / a on M1) + l(N on M2),

    and l compares A x_hat with counts n that are independent of x_hat, each term divided by its number of rays:

        "pre":  l = |exp(-c A x_hat) - n / I0|^2, before the logarithm: with t = exp(-c A x),
                E l = E |exp(-c A x_hat) - t|^2 + a constant (the mean of t / (a I0) on M1, of t / I0 on M2);
        "post": l = (n / I0) c^2 (A x_hat - s_n)^2, after it, weighted by the counts, which are 1 / the variance of a logarithm,
                E l = E t c^2 (A x_hat - A x)^2 + a constant, for s_n = -(psi(k) - ln I) / c of k from I photons
                (N_b from a I0, N from I0).

    psi, the digamma function, takes the place of the logarithm in "post": E k psi(k) = lambda (ln lambda + E_1(lambda)) for
    Poisson counts k of mean lambda, where E_1(lambda) < exp(-lambda) / lambda. So counts may be low; a ray without a photon
    has weight zero and needs no special rule. With ln k in place of psi(k) the bias of A x_hat would be -1 / (2 c lambda).

    "pre" is hardly sensitive to rays through the whole object (the weight of an error of A x_hat is t^2); "post" weights
    them by their precision (t). The input's logarithm follows the rule of `Transmission`; sigma is not used.

    Args:
        split: draws M1.
        transmission: I0 and c.
        alpha: recorruption strength: a = alpha^2 / (1 + alpha^2), 0.2 for alpha = 0.5.
        consistency_weight: w.
        group: group from which an explicit g is drawn, as in `EquivariantSplitting`.
        log_domain: "pre" or "post".
        weighting: W of the residual in "pre"; None for the identity, the only one in "post": a weighting that combines rays
            of random weights would mix their noise.

    Raises:
        ValueError: an argument is out of range, or there is a weighting in "post".
    """

    needs_image = False

    def __init__(
        self,
        split: Split,
        transmission: Transmission,
        alpha: float = 0.5,
        consistency_weight: float = 1.0,
        group: Group | Rotations | None = None,
        log_domain: str = "pre",
        weighting: Weighting | None = None,
    ) -> None:
        if log_domain not in LOG_DOMAINS:
            raise ValueError(f"unknown log_domain {log_domain!r}: choose one of {', '.join(LOG_DOMAINS)}")
        if log_domain == "post" and weighting is not None:
            raise ValueError("log_domain post weighs rays by their counts: use weighting none")
        if consistency_weight < 0:
            raise ValueError(f"consistency_weight must be >= 0, got {consistency_weight}")
        self.split, self.transmission, self.alpha, self.share = split, transmission, alpha, target_share(alpha)
        self.consistency_weight, self.group = consistency_weight, group
        self.log_domain, self.weighting = log_domain, weighting

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item and its two parts, of post-log sinograms; the image and noise level are not used."""
        y, physics = batch.y, batch.physics
        if self.group is not None:
            physics = draw_virtual(physics, self.group, len(y), generator, y.device)  # A T_g
        m1 = self.split(physics, len(y), generator)
        m2 = physics.mask - m1
        y1, kept = self.transmission.recorrupt(y, self.alpha, generator)  # -ln(N_a / ((1 - a) I0)) / c, N_b / a
        prediction = physics.A(reconstructor(m1 * y1, physics.masked(m1), generator))
        consistency = self._distance(prediction, kept, self.share, m1)
        unseen = self._distance(prediction, self.transmission.counts(y), 1.0, m2)
        return LossValue(self.consistency_weight * consistency + unseen, {"consistency": consistency, "prediction": unseen})

    def _distance(self, sinogram: Measurement, n: Measurement, share: float, mask: Mask) -> PerItem:
        """Return l of one term: n are counts scaled to the mean of all, made of share * n photons."""
        i0, c = self.transmission.photons, self.transmission.attenuation
        if self.log_domain == "pre":
            return mean_square(self.transmission.transmitted(sinogram) - n / i0, mask, self.weighting)
        photons = share * n
        log = torch.digamma(photons.clamp(min=1)) - math.log(share * i0)  # -c s_n
        return mean_square((n / i0).sqrt() * (c * sinogram + log), mask)
