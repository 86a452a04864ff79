"""The system matrix of a parallel beam from numpy alone, for machines without astra-toolbox."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from es_medical.physics.ct_geometry import ParallelBeam


def joseph_matrix(geometry: ParallelBeam) -> csr_array:
    """Return the matrix (views detectors, H W) by Joseph's method, astra's "linear", float32 with int32 indices.

    A ray x cos(t) + y sin(t) = s is followed row by row where it is closer to vertical, else column by column, with linear
    interpolation between the two nearest pixels.
    """
    height, width = geometry.size
    n = geometry.n_detectors
    s = geometry.pitch * (np.arange(n) - (n - 1) / 2) + geometry.shift
    x, y = np.arange(width) - (width - 1) / 2, (height - 1) / 2 - np.arange(height)
    rays, pixels, weights = [], [], []
    for view, angle in enumerate(np.deg2rad(geometry.angles)):
        cosine, sine = np.cos(angle), np.sin(angle)
        if abs(cosine) >= abs(sine):
            column = (s[:, None] - y * sine) / cosine + (width - 1) / 2  # (detectors, H)
            place, steps, stride, limit, length = column, np.arange(height) * width, 1, width, abs(cosine)
        else:
            row = (height - 1) / 2 - (s[:, None] - x * cosine) / sine  # (detectors, W)
            place, steps, stride, limit, length = row, np.arange(width), width, height, abs(sine)
        low = np.floor(place).astype(np.int64)
        for near, share in ((low, 1 - (place - low)), (low + 1, place - low)):
            inside = (near >= 0) & (near < limit) & (share > 0)
            rays.append(np.broadcast_to(view * n + np.arange(n)[:, None], near.shape)[inside])
            pixels.append((near * stride + steps)[inside])
            weights.append(share[inside] / length)
    return _csr(rays, pixels, weights, (geometry.shape[0] * n, height * width))


def _csr(rays: list[NDArray], pixels: list[NDArray], weights: list[NDArray], shape: tuple[int, int]) -> csr_array:
    places = np.concatenate(rays).astype(np.int32), np.concatenate(pixels).astype(np.int32)
    return csr_array((np.concatenate(weights).astype(np.float32), places), shape=shape)
