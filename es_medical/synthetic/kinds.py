"""The kinds of synthetic images, and the function that draws them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from es_medical.randomness import item_generator
from es_medical.synthetic.ct import ct
from es_medical.synthetic.digits import digit
from es_medical.synthetic.mr import complex_mr, real_mr
from es_medical.synthetic.part import part
from es_medical.synthetic.photograph import leaves, photograph
from es_medical.synthetic.sampler import Sampler

BLOCK_PIXELS = 32 * 64 * 64  # a block of images is drawn together; this many pixels stay in a core's cache
LARGEST_BLOCK = 32


class Kind(NamedTuple):
    """A kind of images.

    Attributes:
        channels: number of channels; 2 are the real and imaginary part.
        family: draws a block of images, (b, channels, h, w), of a size (height, width).
    """

    channels: int
    family: Callable[[Sampler, tuple[int, int]], Tensor]


KINDS = {
    "mr": Kind(2, real_mr),
    "mr_phase": Kind(2, complex_mr),
    "ct": Kind(1, ct),
    "part": Kind(1, part),
    "photograph": Kind(3, photograph),
    "digit": Kind(1, digit),
    "leaves": Kind(1, leaves),
}


def draw(
    kind: str, n: int, size: int | tuple[int, int], seed: int, first: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw n synthetic images, numbers `first` ... `first` + n - 1 of an endless row.

    Image i depends on kind, size, seed and i alone, whatever n and `first`. All random numbers come from the CPU, so
    another device gives the same images up to rounding.

    Args:
        kind: a name of `KINDS`: "mr" (zero imaginary part), "mr_phase", "ct" (-1000 ... 1000 HU as 0 ... 1), "part",
            "photograph", "digit" or "leaves".
        n: number of images.
        size: side, or (height, width), in pixels; at least 16.
        seed: seed of the row.
        first: number of the first image.
        device: where the images are made.

    Returns:
        Images (n, channels, height, width), float32, in [0, 1]; complex ones have magnitudes of at most 1.

    Raises:
        ValueError: the kind is unknown, the size below 16, or n or `first` negative.

    >>> bool((draw("ct", 3, 16, seed=0)[2] == draw("ct", 1, 16, seed=0, first=2)[0]).all())
    True
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: give one of {', '.join(KINDS)}")
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 16 or n < 0 or first < 0:
        raise ValueError(f"size {height} x {width}, n {n}, first {first}: sides are at least 16, n and first at least 0")
    block = block_size((height, width))
    parts = [torch.empty(0, KINDS[kind].channels, height, width, device=device)]
    for number in range(first // block, -(-(first + n) // block)):
        start, stop = max(first - number * block, 0), min(first + n - number * block, block)
        parts.append(_block(kind, (height, width), seed, number, block, device)[start:stop])
    return torch.cat(parts)


def block_size(size: tuple[int, int]) -> int:
    """Return the number of images of a size that are drawn together: to ask for fewer costs as much.

    >>> block_size((64, 64)), block_size((320, 320))
    (32, 1)
    """
    return max(1, min(LARGEST_BLOCK, BLOCK_PIXELS // (size[0] * size[1])))


@torch.no_grad()
def _block(kind: str, size: tuple[int, int], seed: int, number: int, images: int, device: torch.device | str) -> Tensor:
    """Draw block `number` of a row as a whole: its random numbers never depend on which of its images are wanted."""
    generator = item_generator(seed, f"{size[0]}x{size[1]}/{number}", stream=f"synthetic {kind}")
    return KINDS[kind].family(Sampler(generator, images, device), size)
