"""Read and check the masks of 0 and 1 of all operators."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from es_medical.types import Mask

GivenMask = Tensor | np.ndarray | Sequence[float]
"""A mask as a caller gives it: bool, integer or float."""


def read_mask(mask: GivenMask, sizes: Sequence[tuple[int, ...]], ranks: Sequence[int], wanted: str) -> Mask:
    """Copy a mask of 0 and 1 to a float32 tensor (B or 1, ...), and refuse one that does not fit.

    Args:
        mask: bool, integer or float.
        sizes: the sizes that each axis after the batch may have.
        ranks: the numbers of axes that the mask may have; missing ones are added in front.
        wanted: what the mask has to fit, and the shapes that fit, for the error message.

    Raises:
        ValueError: the mask does not fit, or holds values other than 0 and 1 (not checked on a GPU, which would have to wait).

    >>> read_mask([0, 1, 1], [(3,)], (1, 2), "3 rows")
    tensor([[0., 1., 1.]])
    """
    given = torch.as_tensor(mask)
    shaped = given.view(*[1] * (len(sizes) + 1 - given.ndim), *given.shape)
    if given.ndim not in ranks or any(n not in fitting for n, fitting in zip(shaped.shape[1:], sizes, strict=True)):
        raise ValueError(f"mask of shape {tuple(given.shape)} does not fit {wanted}")
    shaped = shaped.to(torch.float32, copy=True)  # a copy: the operator owns its mask; float32: y keeps the precision of x
    if shaped.device.type == "cpu" and not bool(((shaped == 0) | (shaped == 1)).all()):
        raise ValueError(f"mask values must be 0 or 1, got values from {shaped.min():g} to {shaped.max():g}")
    return shaped
