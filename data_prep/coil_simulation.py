"""What a scanner adds to a magnitude image, simulated: a smooth phase, the sensitivities of a ring of coils, their noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from data_prep.coils import rss

if TYPE_CHECKING:
    from numpy.typing import NDArray

RING = 0.65  # radius of the ring of coils, in fields of view; the head reaches to 0.5
SEGMENTS = 24  # of a wire loop
THICKNESS = 0.05  # of the wire, in fields of view: keeps the field finite
COUPLING = 0.2  # share of a neighbour's noise in each coil
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

    B(r) = sum over segments of dl x (r - l) / |r - l|^3, the wire being a little thick so that it stays finite.

    Args:
        points: (..., 3) positions x, y, z in fields of view.
        angle: where on the ring the loop is, radians.
        radius: of the loop, in fields of view.
    """
    s = 2 * np.pi * np.arange(SEGMENTS) / SEGMENTS
    outward, along = np.array([np.cos(angle), np.sin(angle), 0]), np.array([-np.sin(angle), np.cos(angle), 0])
    axis = np.array([0, 0, 1.0])
    wire = RING * outward + radius * (np.cos(s)[:, None] * along + np.sin(s)[:, None] * axis)  # (segments, 3)
    direction = np.cos(s)[:, None] * axis - np.sin(s)[:, None] * along
    field = np.zeros(points.shape[:-1], np.complex128)
    for (dx, dy, dz), position in zip(direction, wire, strict=True):
        x, y, z = np.moveaxis(points - position, -1, 0)
        field += ((dy * z - dz * y) - 1j * (dz * x - dx * z)) / (x**2 + y**2 + z**2 + THICKNESS**2) ** 1.5
    return field


def coil_maps(coils: int, shape: tuple[int, int], height: float, rng: np.random.Generator) -> NDArray[np.complex128]:
    """Sensitivities of a ring of loops with sum_c |S_c|^2 = 1, (C, H, W), the unit of length being H pixels.

    Args:
        coils: number of loops, C.
        shape: (H, W).
        height: of the slice above the plane of the ring.
        rng: turns the ring and sets the gains.
    """
    y, x = np.mgrid[: shape[0], : shape[1]].astype(float)
    points = np.stack([(x - shape[1] // 2) / shape[0], (y - shape[0] // 2) / shape[0], np.full_like(x, height)], -1)
    angles = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(coils) / coils
    radius = 1.1 * RING * np.sin(np.pi / max(coils, 5))  # neighbours overlap
    gains = rng.uniform(0.8, 1.25, coils)
    fields = np.stack([gain * loop_field(points, angle, radius) for gain, angle in zip(gains, angles, strict=True)])
    return fields / rss(fields)


def noise_mixing(coils: int, rng: np.random.Generator) -> NDArray[np.complex128]:
    """(C, C) matrix L with noise covariance L L^H: neighbours are correlated, levels differ, their mean square is 1."""
    phases = np.exp(1j * rng.uniform(-np.pi, np.pi, (2, coils)))
    levels = rng.uniform(0.8, 1.25, coils)
    neighbours = np.roll(np.diag(phases[0]), 1, axis=1) + np.roll(np.diag(phases[1]), -1, axis=1)
    mixed = np.eye(coils) + COUPLING * neighbours * (coils > 2)
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return levels[:, None] / np.sqrt((levels**2).mean()) * mixed
