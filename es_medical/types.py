"""Shapes of the arrays that pass between the modules, in the field's words (checked while the tests run)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Image = Float[Tensor, "b c h w"]
"""Images; complex MR images have c = 2 (real, imaginary)."""

KSpace = Float[Tensor, "b 2 h w"]
"""k-space samples as (real, imaginary), zero frequency at index n//2 of each axis."""

CoilKSpace = Float[Tensor, "b 2 coils h w"]
"""k-space samples of every coil, as `KSpace`."""

CoilMaps = Float[Tensor, "b_or_1 2 coils h w"]
"""Complex sensitivity maps as (real, imaginary), of each item or of the whole batch."""

Measurement = Float[Tensor, "b ..."]
"""What an operator returns, zero where nothing was measured."""

Mask = Float[Tensor, "..."]
"""Indicator (0 or 1) of measured entries, broadcastable to the measurement."""

PerItem = Float[Tensor, " b"]
"""One number for each item of a batch."""

Elements = Int[Tensor, "n ..."]
"""Elements g of a group, one for each item of a batch."""

Generator = torch.Generator | Sequence[torch.Generator]
"""Source of randomness: one for the whole batch (training), or one for each item (evaluation)."""
