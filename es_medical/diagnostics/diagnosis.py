"""What transformations can add to an operator: one finding for each set, and one for the operator alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from es_medical.diagnostics.actions import ACTIONS, MOVES, SAME, SETS, probe, turnable
from es_medical.diagnostics.base import ExactGram, MeanGram
from es_medical.diagnostics.conditional_gram import joint_rank
from es_medical.diagnostics.mean_gram import mean_gram, pixel_weights
from es_medical.diagnostics.null_space import lost_share, range_is_invariant
from es_medical.diagnostics.spectrum import Spectrum, estimated, spectrum_of
from es_medical.physics.base import Operator
from es_medical.physics.pixels import Pixels
from es_medical.types import Image, Mask

GROUPS = ("flips", "d4", "shifts")
"""Sets that images may be invariant to and that the package trains with, the smallest first. Permuted images are no images,
x -> c x never adds anything, and rotations by 90 degrees are in D4. Scanners that can be turned have fine rotations too."""

LITTLE = 0.01
"""Gain, as a share of n, below which a set of transformations counts as adding nothing."""

QUICK_SIZE, QUICK_STEPS = 1000, 80
"""For a quick diagnosis: unknowns up to which all eigenvalues are computed, and Lanczos steps of one random vector above."""


class Finding(NamedTuple):
    """What a set of transformations adds to an operator.

    Attributes:
        action: name of the set, "none" for the operator alone.
        spectrum: eigenvalues of the mean Gram matrix, mean_g T_g^T A^T A T_g.
        rank: number of eigenvalues above 1e-3 of the largest.
        effective_rank: exp of the entropy of the normalised eigenvalues (Roy & Vetterli 2007).
        gain: (rank - that of the operator alone) / n.
        lost: share of the images' energy where all A T_g are blind, the mean over the images; None without images.
        invariant: whether every T_g maps the range of A^T onto itself: then A T_g shows what A does, and no more; None where it
            was not computed.
        joint: for missing pixels, a bound on the mean rank of Q_{A_1}, as a share of n; the theorem needs full rank
            (see `conditional_gram.joint_rank`); None for other operators and sets.
    """

    action: str
    spectrum: Spectrum
    rank: float
    effective_rank: float
    gain: float
    lost: float | None
    invariant: bool | None
    joint: float | None = None

    @property
    def label(self) -> str:
        """Name of the set in a sentence."""
        return SETS[self.action].label

    @property
    def share(self) -> float:
        """Rank / n."""
        return self.rank / self.spectrum.n

    @property
    def usable(self) -> float:
        """Share of n within reach by the necessary conditions: rank / n, or the bound on that of Q_{A_1}."""
        return self.share if self.joint is None else min(self.share, self.joint)

    @property
    def share_error(self) -> float:
        """Standard error of rank / n, 0 where the spectrum is exact."""
        return self.spectrum.error / self.spectrum.n


@dataclass(frozen=True)
class Diagnosis:
    """Findings of one operator.

    Attributes:
        findings: that of "none" first.
        shape: (C, H, W) of the images.
        n: number of unknowns: C H W, or those in the support.
        turns: whether fine rotations turn a scanner, exactly; else they interpolate images.
        n_images: number of images whose lost energy was measured.
        refused: sets that do not act on this operator, with the reason.
    """

    findings: tuple[Finding, ...]
    shape: tuple[int, int, int]
    n: int
    turns: bool = False
    n_images: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def alone(self) -> Finding:
        """The operator without transformations."""
        return self.findings[0]

    def of(self, action: str) -> Finding:
        """Return the finding of a set; raises KeyError when it was not diagnosed."""
        return {finding.action: finding for finding in self.findings}[action]

    @property
    def best(self) -> Finding | None:
        """The set to train with; None if none adds 1 % of n.

        Of `GROUPS` (and the turns of a scanner), those that reach the most directions, to half a percent of n; of these, those
        with the most even spectrum, to 2 % of n in effective rank; of these, the smallest.
        """
        names = (*GROUPS, "fine_rotations") if self.turns else GROUPS
        found = [one for one in self.findings if one.action in names and one.usable - self.alone.usable >= LITTLE]
        if not found:
            return None
        most = max(found, key=lambda one: one.usable)
        found = [one for one in found if one.usable >= most.usable - max(0.005, 2 * most.share_error)]
        even = max(one.effective_rank for one in found)
        return min(
            (one for one in found if one.effective_rank >= even - 0.02 * self.n), key=lambda one: names.index(one.action)
        )

    @property
    def blind(self) -> tuple[str, ...]:
        """Sets that add nothing: each T_g maps what A sees onto itself."""
        return tuple(one.action for one in self.findings[1:] if one.invariant and one.gain < LITTLE)


def diagnose(
    physics: Operator,
    actions: Sequence[str] = ACTIONS,
    images: Image | None = None,
    support: Mask | None = None,
    seed: int = 0,
    quick: bool = False,
) -> Diagnosis:
    """Find the spectrum of the mean Gram matrix of an operator for each set of transformations.

    A full rank is necessary for a network to learn all of an image from measurements of the one operator (the paper's
    corollary); what no A T_g measures can't be learnt, whatever the network.

    Args:
        physics: the operator A.
        actions: names of sets; "none" is always included.
        images: typical images (B, C, H, W), for the energy that is lost.
        support: pixels (H, W) that can differ from zero; None for all, see `support_of`.
        seed: of random vectors, where the spectrum is estimated.
        quick: take only seconds: estimates have a larger error (reported), and invariance of the range of A^T is not computed.

    Raises:
        ValueError: an unknown set of transformations. A set that does not act on the operator is in `refused` instead.
    """
    for unknown in set(actions) - set(ACTIONS):
        raise ValueError(f"unknown transformations {unknown!r}: choose from {', '.join(ACTIONS)}")
    if "fine_rotations" in actions:
        physics = turnable(physics) or physics  # made once: a matrix for each turn
    look = _Look(physics, images, support, seed, quick)
    alone = look.finding("none", None)
    findings, refused = [alone], {}
    for action in [name for name in ACTIONS if name in actions and name != "none"]:
        if action == "shifts" and support is not None:
            refused[action] = "They take images out of the circle that every view sees."
            continue
        try:
            findings.append(look.finding(action, alone))
        except ValueError as error:  # D4 on an image that is not square, ...
            refused[action] = str(error)
    channels, height, width = physics.img_size
    n_images = 0 if images is None else len(images)
    turns = hasattr(physics, "with_turns")  # as `actions.turnable`, which would make the turned matrices
    return Diagnosis(tuple(findings), (channels, height, width), alone.spectrum.n, turns, n_images, refused)


class _Look(NamedTuple):
    """What the diagnoses of all sets share; see `diagnose`."""

    physics: Operator
    images: Image | None
    support: Mask | None
    seed: int
    quick: bool

    def finding(self, action: str, alone: Finding | None) -> Finding:
        """Diagnose one set; where its mean Gram matrix is A^T A itself there is nothing to compute."""
        gram, joint = mean_gram(self.physics, action, self.support), _joint(self.physics, action)
        if alone is not None and self._same(gram):
            return alone._replace(action=action, gain=0.0, invariant=True, joint=joint)
        found = self._spectrum(gram)
        lost = None if self.images is None else float(lost_share(gram, self.images).mean())
        rank = found.rank()
        gain = 0.0 if alone is None else (rank - alone.rank) / found.n
        return Finding(action, found, rank, found.effective_rank(), gain, lost, self._invariant(action), joint)

    def _spectrum(self, gram: MeanGram) -> Spectrum:
        if self.quick and not isinstance(gram, ExactGram) and gram.n > QUICK_SIZE:
            return estimated(gram, self.seed, 1, QUICK_STEPS)
        return spectrum_of(gram, self.seed)

    def _invariant(self, action: str) -> bool | None:
        if action == "none":
            return True
        return None if self.quick else range_is_invariant(self.physics, action, self.seed)

    def _same(self, mean: MeanGram) -> bool:
        """Whether mean_g T_g^T A^T A T_g = A^T A, by their products with a random image (others agree with probability 0).

        For orthogonal T_g, no A T_g then sees anything outside the range of A^T.
        """
        x = probe(self.physics, self.seed)
        alone = mean_gram(self.physics, "none", self.support).apply(x)
        return bool((mean.apply(x) - alone).norm() <= SAME * alone.norm())


def _joint(physics: Operator, action: str) -> float | None:
    if not isinstance(physics, Pixels) or action not in MOVES:
        return None
    seen = pixel_weights(physics).cpu() > 0
    return joint_rank(seen, action) if bool(seen.any()) else None


def support_of(physics: Operator) -> Tensor | None:
    """Return the pixels (H, W) that can differ from zero: for CT those in the inscribed circle that every view sees, else all.

    >>> from es_medical.physics import MRI
    >>> support_of(MRI([1, 0], (2, 2))) is None
    True
    """
    geometry = getattr(physics, "geometry", None)
    if geometry is None:
        return None
    height, width = physics.image_size
    radius = min(height / 2, width / 2, geometry.field_of_view)
    rows = torch.arange(height)[:, None] - (height - 1) / 2
    columns = torch.arange(width) - (width - 1) / 2
    return (torch.hypot(rows, columns) <= radius).to(physics.mask)
