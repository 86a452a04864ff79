"""Simulate what a scanner adds to a magnitude image: a smooth phase, and receive coils in a ring around the body."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from data_prep.mri.coils import rss
from es_medical.randomness import item_generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

COARSE = 32  # rows and columns of the grid on which the maps of larger images are computed: they are smooth
RING = 0.65  # radius of the ring of coils, in fields of view; the head reaches to 0.5
SEGMENTS = 24  # of a wire loop
WIRE = 0.05  # radius of the wire, in fields of view: keeps the field finite
ORDERS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0))  # half periods of the phase along rows and columns


def smooth_phase(size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Phase in radians, (size, size): an offset and the lowest spatial harmonics, about 1 rad across the image."""
    rows, columns = np.mgrid[:size, :size] / size - 0.5
    phase = np.full((size, size), rng.uniform(-np.pi, np.pi))
    for p, q in ORDERS:
        phase += rng.normal(0, 1 / (p * p + q * q)) * np.sin(np.pi * (p * rows + q * columns) + rng.uniform(0, np.pi))
    return phase


def loop_field(points: NDArray[np.float64], angle: float, radius: float) -> NDArray[np.complex128]:
    """Transverse field B_x - i B_y (the receive sensitivity) of a wire loop that faces the axis: Biot-Savart.

    B(r) = sum over segments of dl x (r - l) / |r - l|^3; the wire has a finite radius, so that B stays finite.

    Args:
        points: (..., 3) positions x, y, z in fields of view.
        angle: position of the loop on the ring, radians.
        radius: radius of the loop, in fields of view.
    """
    s = 2 * np.pi * np.arange(SEGMENTS) / SEGMENTS
    outward, along = np.array([np.cos(angle), np.sin(angle), 0]), np.array([-np.sin(angle), np.cos(angle), 0])
    axis = np.array([0, 0, 1.0])
    wire = RING * outward + radius * (np.cos(s)[:, None] * along + np.sin(s)[:, None] * axis)  # (segments, 3)
    direction = np.cos(s)[:, None] * axis - np.sin(s)[:, None] * along
    field = np.zeros(points.shape[:-1], np.complex128)
    for (dx, dy, dz), position in zip(direction, wire, strict=True):
        x, y, z = np.moveaxis(points - position, -1, 0)
        field += ((dy * z - dz * y) - 1j * (dz * x - dx * z)) / (x**2 + y**2 + z**2 + WIRE**2) ** 1.5
    return field


def coil_maps(coils: int, shape: tuple[int, int], height: float, rng: np.random.Generator) -> NDArray[np.complex128]:
    """Sensitivities of a ring of loops with sum_c |S_c|^2 = 1, (C, H, W); the unit of length is H pixels.

    Args:
        coils: number of loops, C.
        shape: (H, W).
        height: height of the slice above the plane of the ring.
        rng: draws the rotation of the ring and the gains.
    """
    y, x = np.mgrid[: shape[0], : shape[1]].astype(float)
    points = np.stack([(x - shape[1] // 2) / shape[0], (y - shape[0] // 2) / shape[0], np.full_like(x, height)], -1)
    angles = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(coils) / coils
    radius = 1.1 * RING * np.sin(np.pi / max(coils, 5))  # neighbours overlap
    gains = rng.uniform(0.8, 1.25, coils)
    fields = np.stack([gain * loop_field(points, angle, radius) for gain, angle in zip(gains, angles, strict=True)])
    return fields / rss(fields)


def drawn_phase(size: int, seed: int, key: str) -> NDArray[np.float64]:
    """Phase (size, size) of a slice, in radians; it depends on (seed, key) alone."""
    return smooth_phase(size, _rng(seed, key, "phase"))


def drawn_maps(coils: int, size: int, height: float, seed: int, volume: str) -> Tensor:
    """Sensitivity maps (2, C, size, size) of a slice with sum_c |S_c|^2 = 1; the ring depends on (seed, volume) alone.

    Args:
        coils: number of coils, C.
        size: rows and columns.
        height: height of the slice above the plane of the ring, in fields of view.
        seed: seed of the data set.
        volume: identifier of the volume.
    """
    n = min(size, COARSE)
    maps = coil_maps(coils, (n, n), height, _rng(seed, volume, "coils"))  # (C, n, n)
    if n < size:
        finer = _interpolation(n, size)
        maps = finer @ maps @ finer.T
        maps /= rss(maps)
    return torch.from_numpy(np.stack([maps.real, maps.imag])).float()


@lru_cache(maxsize=4)
def _interpolation(n: int, size: int) -> NDArray[np.float64]:
    """Matrix (size, n) of cubic spline interpolation over the same field of view; index n//2 maps to size//2."""
    at = (np.arange(size) - size // 2) * (n / size) + n // 2
    return np.asarray(CubicSpline(np.arange(n), np.eye(n))(at))


def _rng(seed: int, key: str, stream: str) -> np.random.Generator:
    return np.random.default_rng(item_generator(seed, key, stream).initial_seed())
