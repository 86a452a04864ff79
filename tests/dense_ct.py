"""A small parallel-beam scanner as a dense matrix, for tests that need no astra: exact, symmetric, of any angles."""

import torch
from torch import Tensor

from es_medical.physics import Operator
from es_medical.physics.ct_geometry import ParallelBeam


def system_matrix(geometry: ParallelBeam) -> Tensor:
    """Project each pixel's centre on the detector and share it between the two nearest bins: (views * detectors, pixels)."""
    position = torch.arange(geometry.size[0], dtype=torch.float64) - (geometry.size[0] - 1) / 2
    up, right = torch.meshgrid(-position, position, indexing="ij")
    angles = torch.tensor(geometry.angles, dtype=torch.float64)[:, None].deg2rad()
    t = right.flatten() * angles.cos() + up.flatten() * angles.sin()  # (views, pixels)
    return (1 - (t[:, None] - torch.from_numpy(geometry.bins)[:, None]).abs()).clamp(min=0).flatten(0, 1)


class DenseCT(Operator):
    """Views of square images (B, 1, size, size) and the same views turned; y is (B, 1, views, detectors).

    Args:
        size: pixels along a side.
        angles: of every view in degrees, (views,), or a row for each turn, the first of them for A itself.
        detectors: bins of one pixel, as many as `size` unless given.
    """

    def __init__(self, size, angles, detectors=None, mask=None, matrices=None):
        super().__init__(img_size=(1, size, size))
        self.size, self.angles, self.detectors = size, torch.atleast_2d(torch.as_tensor(angles)), detectors or size
        scanners = [ParallelBeam((size, size), tuple(row.tolist()), self.detectors) for row in self.angles]
        self.geometry = scanners[0]
        self.matrices = matrices or [one / torch.linalg.matrix_norm(one, 2) for one in map(system_matrix, scanners)]
        self.register_buffer("mask", torch.ones(1, 1, 1, 1) if mask is None else mask)

    measured, units = "a sinogram", ("views", "rays", "bins")

    @property
    def grid(self):
        return self.geometry.shape

    @property
    def matrix(self):
        return self.matrices[0]

    def A(self, x):
        return self.mask.to(x.dtype) * (x.flatten(1) @ self.matrix.T).view(-1, 1, *self.geometry.shape)

    def A_adjoint(self, y):
        return ((self.mask.to(y.dtype) * y).flatten(1) @ self.matrix).view(-1, 1, self.size, self.size)

    def A_dagger(self, y):
        """Pseudo-inverse, item by item."""
        return (torch.linalg.pinv(self._rows(len(y))) @ y.flatten(1)[..., None]).view(-1, 1, self.size, self.size)

    def prox_l2(self, z, y, gamma):
        """Solve (I + gamma A^T A) x = z + gamma A^T y, item by item."""
        rows, gamma = self._rows(len(z)), torch.as_tensor(gamma, dtype=z.dtype).expand(len(z)).view(-1, 1, 1)
        system = torch.eye(self.size**2, dtype=z.dtype) + gamma * rows.mT @ rows
        right = z.flatten(1)[..., None] + gamma * rows.mT @ y.flatten(1)[..., None]
        return torch.linalg.solve(system, right).view_as(z)

    def masked(self, m):
        return DenseCT(self.size, self.angles, self.detectors, self.mask * m, self.matrices)

    def turned(self, k):
        return DenseCT(self.size, self.angles[k:], self.detectors, self.mask, self.matrices[k:])

    def _rows(self, n):
        """The measured rows of every item, zero elsewhere: (n, views * detectors, pixels)."""
        return self.mask.expand(n, 1, *self.geometry.shape).flatten(1).to(self.matrix)[..., None] * self.matrix


def even_views(n: int, n_sub: int = 1) -> Tensor:
    """n angles evenly over 180 degrees, and the same turned by fractions of their spacing: (n_sub, n)."""
    return torch.arange(n) * 180 / n - torch.arange(n_sub)[:, None] * 180 / n / n_sub
