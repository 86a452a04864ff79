"""Random states of a process, as they are kept in checkpoints."""

import random
from typing import Any

import numpy as np
import torch


def random_states(generator: torch.Generator) -> dict[str, Any]:
    """Return all random states of this process as tensors, numbers and lists (loadable with weights_only)."""
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - the global state is saved
    version, internal, gauss_next = random.getstate()
    return {
        "training": generator.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), gauss_next],
    }


def set_random_states(states: dict[str, Any], generator: torch.Generator) -> None:
    """Restore what `random_states` returned."""
    generator.set_state(states["training"])
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, internal, gauss_next = states["python"]
    random.setstate((version, tuple(internal), gauss_next))
