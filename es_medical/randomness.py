"""Seeded random draws: one generator for a batch, or one for each item so that an item's numbers never depend on its batch."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from es_medical.types import Generator, PartGenerator


def item_generator(seed: int, key: str, stream: str = "") -> torch.Generator:
    """Make the generator of one item: the same for the same seed, stream and key, in any batch, worker or folder.

    Torch's CPU generator keeps 32 bits of a seed, so two of 10,000 items share their numbers with a chance of about 1 %.

    Args:
        seed: seed of the run or the data set.
        key: identifier of the item, for example its salted hash.
        stream: what the numbers are for ("noise", "split", ...); streams are independent.

    Returns:
        A CPU generator.

    >>> bool(torch.rand(1, generator=item_generator(0, "a")) == torch.rand(1, generator=item_generator(0, "a")))
    True
    """
    digest = hashlib.sha256(f"{seed}/{stream}/{key}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def uniform(shape: tuple[int, ...], generator: Generator | None, device: torch.device | str) -> Tensor:
    """Draw uniform numbers in [0, 1) of `shape`, whose first axis is the batch, on `device`."""
    return _draw(torch.rand, shape, generator, device)


def normal(shape: tuple[int, ...], generator: Generator | None, device: torch.device | str) -> Tensor:
    """Draw standard normal numbers of `shape`, whose first axis is the batch, on `device`."""
    return _draw(torch.randn, shape, generator, device)


def uniform_on_cpu(n: int, generator: Generator | None) -> Tensor:
    """Draw one uniform number for a batch, shape (1,), or n for n generators, on the CPU, without waiting for a GPU."""
    if isinstance(generator, PartGenerator):
        generator = generator.generator
    if generator is None or (isinstance(generator, torch.Generator) and generator.device.type == "cpu"):
        return torch.rand(1, generator=generator)
    if not isinstance(generator, torch.Generator):
        return uniform((n,), generator, "cpu")
    return torch.rand(1, generator=_next(generator))


def generators_of_items(drawn: PartGenerator) -> list[torch.Generator]:
    """Return a generator for each item of a part: for draws whose number of random numbers depends on the item."""
    seed, device = _next(drawn.generator).initial_seed(), drawn.generator.device
    places = range(drawn.part.first, drawn.part.last)
    return [torch.Generator(device).manual_seed(item_generator(seed, str(i), "item").initial_seed()) for i in places]


def _next(generator: torch.Generator) -> torch.Generator:
    """Return a CPU generator that is seeded by the state of another one, which is advanced; a GPU does not wait."""
    state = generator.get_state()  # seed and position: a GPU's generator keeps them on the CPU
    torch.rand(1, generator=generator, device=generator.device)  # so that no two draws are equal
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:7], "big"))


def whole_numbers(drawn: Tensor, n: int) -> Tensor:
    """Turn uniform numbers in [0, 1) into whole numbers 0 ... n - 1."""
    return (n * drawn).long().clamp_(max=n - 1)


def _draw(
    draw: Callable[..., Tensor], shape: tuple[int, ...], generator: Generator | None, device: torch.device | str
) -> Tensor:
    if isinstance(generator, PartGenerator):
        part = generator.part
        if len(part) != shape[0]:
            raise ValueError(f"{part} has {len(part)} items, and numbers are asked for {shape[0]}")
        return _draw(draw, (part.n, *shape[1:]), generator.generator, device)[part.first : part.last]
    if generator is None or isinstance(generator, torch.Generator):
        source = device if generator is None else generator.device
        return draw(shape, generator=generator, device=source).to(device, non_blocking=True)
    if len(generator) != shape[0]:
        raise ValueError(f"{len(generator)} generators for a batch of {shape[0]} items: give one for each item")
    rows = [draw(shape[1:], generator=own, device=own.device) for own in generator]
    return torch.stack(rows).to(device, non_blocking=True)
