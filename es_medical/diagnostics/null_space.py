"""The energy of images in the null space of a mean Gram matrix, and whether a set of transformations moves that space."""

import numpy as np
import torch
from torch import Tensor

from es_medical.diagnostics.actions import generators, probe
from es_medical.diagnostics.base import RANK_THRESHOLD, ExactGram, MeanGram, share
from es_medical.diagnostics.lanczos import lanczos
from es_medical.diagnostics.mean_gram import mean_gram
from es_medical.diagnostics.spectrum import DENSE, STEPS, dense_matrix
from es_medical.physics import Operator
from es_medical.types import Image, PerItem

INVARIANT = 1e-3
"""Share of energy outside the range of A^T up to which the range counts as unchanged."""
RANGE_STEPS = 60
"""Steps of Lanczos' recurrence for estimating the change of the range."""


def lost_energy(physics: Operator, action: str, images: Image, support: Tensor | None = None) -> PerItem:
    """Return the share of each image's energy in eigenspaces of H with eigenvalues of at most 1e-3 of the largest.

    Exact where H is known in closed form or small, else by Lanczos' recurrence started at the image. Energy outside the support
    is not counted.

    Args:
        physics: the operator A, one for all images.
        action: name of the transformations (see `mean_gram`).
        images: (B, C, H, W).
        support: (H, W), as for `mean_gram`.

    Returns:
        Shares from 0 to 1, (B,); 0 for an image of zeros.

    Raises:
        ValueError: as `mean_gram`, or the images have another shape.
    """
    gram = mean_gram(physics, action, support)
    if tuple(images.shape[1:]) != gram.shape:
        raise ValueError(f"the operator takes images {gram.shape}, got {tuple(images.shape)}")
    return lost_share(gram, images)


def lost_share(gram: MeanGram, images: Image, steps: int = STEPS) -> PerItem:
    """Return the share of each image's energy in eigenspaces of H with eigenvalues of at most 1e-3 of the largest."""
    x = images if gram.support is None else images * gram.support.to(images)
    if isinstance(gram, ExactGram):
        return gram.share_below(x.double(), RANK_THRESHOLD * float(gram.eigenvalues().values.max()))
    if gram.n <= DENSE:
        return _dense_share(gram, x.double())
    return _estimated_share(gram, x, steps)


def _dense_share(gram: MeanGram, x: Image) -> PerItem:
    values, vectors = torch.linalg.eigh(dense_matrix(gram))
    flat = x.flatten(1)
    if gram.support is not None:
        flat = flat[:, gram.support.expand(gram.shape).flatten() > 0]
    hidden = vectors[:, values <= RANK_THRESHOLD * values[-1]]
    return share(flat @ hidden, flat)


def _estimated_share(gram: MeanGram, x: Image, steps: int) -> PerItem:
    """Estimate by quadrature from each image, and from a constant image, so that the largest eigenvalue is not missed."""
    start = torch.cat((x.float(), torch.ones_like(x[:1], dtype=torch.float32)))
    start = (start if gram.support is None else start * gram.support.float()).flatten(1)
    empty = start.norm(dim=1) == 0
    start = torch.where(empty[:, None], start[-1], start)
    measures = lanczos(gram.product, start, min(steps, gram.n)).measures()
    level = RANK_THRESHOLD * float(measures.nodes.max())
    result = torch.from_numpy(measures.below(np.array([level]))[:, 0]).to(x.device)
    return torch.where(empty, 0, result)[:-1]


def range_change(physics: Operator, action: str, seed: int = 0) -> float:
    """Return how far the transformations move the range of A^T: 0 when each T_g^T maps it into itself.

    Images in the range of (A T_g)^T are made from noise. Returned is the largest share of their energy, over g, that A does
    not see, less that share for images in the range of A^T itself. Where T_g^T A^T A T_g = A^T A it is 0.

    Raises:
        ValueError: as `mean_gram`.
    """
    seen = [term.gram(probe(physics, seed)) for term in generators(physics, action, seed)]
    if len(seen) == 1:
        return 0.0
    shares = lost_share(mean_gram(physics, "none"), torch.cat(seen), RANGE_STEPS)
    return max(0.0, float((shares[1:] - shares[0]).max()))


def range_is_invariant(physics: Operator, action: str, seed: int = 0) -> bool:
    """Whether every T_g leaves the range of A^T unchanged: then the transformations show nothing that A misses.

    Raises:
        ValueError: as `mean_gram`.
    """
    return range_change(physics, action, seed) <= INVARIANT
