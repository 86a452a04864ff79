"""Sums over the rows of an operator's matrix, which closed forms of means over shifts and permutations are made of."""

from collections.abc import Iterator
from itertools import product

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn.functional import pad

from es_medical.diagnostics.base import Support
from es_medical.physics import CompressedSensing, Operator
from es_medical.physics.sparse import Csr

ROWS = 64
"""Rows of A that are held at once."""


def frequency_blocks(physics: Operator) -> Complex[Tensor, "h w c c"]:
    """Return the blocks f^H A^T A f of all pairs of channels, for each Fourier vector f in the order of `torch.fft.fft2`.

    They are those of the mean of T_g^T A^T A T_g over all cyclic shifts, which mix no frequencies.
    """
    channels, height, width = (int(side) for side in physics.img_size)
    blocks = torch.zeros(channels, channels, height, width, dtype=torch.complex128, device=physics.mask.device)
    for rows in operator_rows(physics):
        pairs = pad(rows, (0, 0, 0, 0, 0, 0, 0, len(rows) % 2))
        spectra = torch.fft.fft2(torch.complex(pairs[::2], pairs[1::2]))  # two real rows in one transform
        for c, d in product(range(channels), repeat=2):
            blocks[c, d] += _inner(spectra[:, c], spectra[:, d])
    mirrored = blocks.flip(2, 3).roll((1, 1), (2, 3)).conj()  # at -k: what mixes the two rows cancels
    return ((blocks + mirrored) / (2 * height * width)).movedim((0, 1), (2, 3))


def diagonal_sums(physics: Operator, keep: Support) -> Float[Tensor, "c c"]:
    """Sum the diagonal of each block (c, d) of A^T A over the pixels that are kept."""
    matrix = _sparse(physics)
    if matrix is not None:
        rays = _ray_factors(physics).square().repeat_interleave(matrix.rows.diff())
        kept = keep.flatten()[matrix.columns.long()]
        return (matrix.values.double().square() * rays * kept).sum().view(1, 1)
    each = (rows.double() for rows in operator_rows(physics))
    return torch.stack([torch.einsum("rchw,rdhw,hw->cd", rows, rows, keep) for rows in each]).sum(0)


def operator_rows(physics: Operator) -> Iterator[Tensor]:
    """Yield the rows of A that measure something as images, some at once: (R, C, H, W) in its precision."""
    shape = tuple(int(side) for side in physics.img_size)
    matrix = _sparse(physics)
    if matrix is not None:
        yield from (rows.view(-1, *shape) for rows in _sparse_rows(matrix, _ray_factors(physics)))
    elif isinstance(physics, CompressedSensing):
        yield (physics.mask[0, :, None].double() * physics.matrix.double()).view(-1, *shape)
    else:
        yield from _adjoint_rows(physics, shape)


def _adjoint_rows(physics: Operator, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Back-project every measured entry."""
    y = torch.zeros_like(physics.A(torch.zeros(1, *shape, dtype=torch.float64, device=physics.mask.device)))
    measured = physics.mask.to(y).expand_as(y).flatten().nonzero()[:, 0]
    for rows in measured.split(ROWS):
        units = torch.zeros(len(rows), y.numel(), dtype=y.dtype, device=y.device).scatter_(1, rows[:, None], 1.0)
        yield physics.A_adjoint(units.view(len(rows), *y.shape[1:]))


def _sparse_rows(matrix: Csr, factors: Tensor) -> Iterator[Tensor]:
    """Yield the rows of diag(factors) M, some at once: (R, n) in the precision of M."""
    for start in range(0, matrix.shape[0], ROWS):
        pointers = matrix.rows[start : start + ROWS + 1]
        some = slice(int(pointers[0]), int(pointers[-1]))
        values = matrix.values[some] * factors[start : start + ROWS].to(matrix.values).repeat_interleave(pointers.diff())
        shape = (len(pointers) - 1, matrix.shape[1])
        parts = (pointers - pointers[0], matrix.columns[some], values, shape)
        yield torch.sparse_csr_tensor(*parts, check_invariants=False).to_dense()


def _sparse(physics: Operator) -> Csr | None:
    """The system matrix of a CT scanner; None for other operators."""
    matrix = getattr(physics, "matrix", None)
    return matrix if isinstance(matrix, Csr) else None


def _ray_factors(physics: Operator) -> Tensor:
    """What each row of the system matrix is multiplied by, its mask over the norm: (views detectors,) float64."""
    return (physics.mask[0, 0].double() / physics.norm).expand(physics.grid).flatten()


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return sum_r a_r conj(b_r) of complex a and b (R, H, W)."""
    if a.data_ptr() == b.data_ptr():  # most of the time of a single channel
        return torch.view_as_real(a).square().sum((0, -1))
    return (a * b.conj()).sum(0)
