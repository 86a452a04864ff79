"""IDX files for the tests, made by hand."""

import gzip
import struct
from pathlib import Path

import numpy as np


def idx(pixels: np.ndarray, kind: int = 8, shape: tuple[int, ...] | None = None) -> bytes:
    """Content of an IDX file; `shape` is what its header says, where that is to differ."""
    shape = pixels.shape if shape is None else shape
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + pixels.tobytes()


def images(n: int, size: tuple[int, int] = (6, 5), seed: int = 0) -> np.ndarray:
    """Random grey values (n, H, W), all images different."""
    return np.random.default_rng(seed).integers(0, 256, (n, *size), np.uint8)


def put(path: Path, content: bytes | np.ndarray) -> Path:
    """Writes bytes, or images as IDX; packed where the name says so."""
    data = idx(content) if isinstance(content, np.ndarray) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" and isinstance(content, np.ndarray) else data)
    return path
