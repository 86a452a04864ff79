"""Mean Gram matrices in closed form: diagonal in pixels or k-space, a block for each frequency, means over permutations.

Means over shifts and permutations are made of sums over the rows of an operator's matrix, which are at the end.
"""

from collections.abc import Iterator
from itertools import product

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn.functional import pad

from es_medical.diagnostics.base import Eigenvalues, ExactGram, Support, share
from es_medical.physics import CompressedSensing, Operator
from es_medical.physics.fourier import filter_kspace
from es_medical.physics.sparse import Csr
from es_medical.types import Image, PerItem

ROWS = 64
"""Rows of A that are held in memory at once."""


class PixelDiagonal(ExactGram):
    """H = diag(w): operators that measure single values of an image.

    Args:
        weights: w (C, H, W).
        support: the pixels that can differ from zero; None for all.
    """

    def __init__(self, weights: Tensor, support: Support | None = None) -> None:
        channels, height, width = weights.shape
        super().__init__((channels, height, width), support)
        self.weights = weights.double()

    def _apply(self, x: Image) -> Image:
        return self.weights.to(x) * x

    def eigenvalues(self) -> Eigenvalues:
        """Return the weights on the support."""
        chosen = self.weights if self.support is None else self.weights[:, self.support > 0]
        return _counted(chosen.flatten())

    def share_below(self, x: Image, level: float) -> PerItem:
        """Return the share of the energy at values whose weight is at most `level`."""
        x = x if self.support is None else x * self.support.to(x)
        return share(x * (self.weights <= level), x)


class KSpaceDiagonal(ExactGram):
    """H = F^T diag(w) F on complex images (2, H, W): MRI, whose k-space samples are moved by flips and rotations.

    As a real matrix H has each weight twice.

    Args:
        weights: w (H, W), zero frequency at index n//2.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__((2, weights.shape[0], weights.shape[1]))
        self.weights = weights.double()

    def _apply(self, x: Image) -> Image:
        return filter_kspace(x, self.weights.to(x)[None, None])

    def eigenvalues(self) -> Eigenvalues:
        """Return the weights, each twice."""
        return _counted(self.weights.flatten(), 2)

    def share_below(self, x: Image, level: float) -> PerItem:
        """Return the share of the energy at frequencies whose weight is at most `level`."""
        return share(filter_kspace(x.double(), (self.weights <= level).double()[None, None]), x)


class Circulant(ExactGram):
    """H with a Hermitian block (C, C) for each frequency: the mean over all cyclic shifts of any matrix.

    Args:
        blocks: (H, W, C, C) complex, frequencies in the order of `torch.fft.fft2`.
    """

    def __init__(self, blocks: Tensor) -> None:
        height, width, channels, _ = blocks.shape
        super().__init__((channels, height, width))
        self.blocks = blocks

    def _apply(self, x: Image) -> Image:
        return self._filter(x, self.blocks)

    def eigenvalues(self) -> Eigenvalues:
        """Return the eigenvalues of all blocks."""
        return _counted(torch.linalg.eigvalsh(self.blocks).flatten())

    def share_below(self, x: Image, level: float) -> PerItem:
        """Return the share of the energy in eigenvectors of the blocks with eigenvalues of at most `level`."""
        return share(self._filter(x.double(), _below(self.blocks, level)), x)

    def _filter(self, x: Image, blocks: Tensor) -> Image:
        spectrum = torch.fft.fft2(x)  # (B, C, H, W)
        product = torch.einsum("hwcd,bdhw->bchw", blocks.to(spectrum), spectrum)
        return torch.fft.ifft2(product).real


class Exchangeable(ExactGram):
    """The mean over all permutations of the N pixels, the same for every channel, of a matrix G.

    A block of channels c, d is then (D - O) I + O J, where D is the mean of the block's diagonal, O that of its other
    entries, and J is all ones: D - O acts on images of mean zero, and D + (N - 1) O = (sum of the block) / N on constant ones.

    Args:
        diagonal: D (C, C).
        total: sum of each block (C, C).
        size: (H, W).
        support: the pixels that are permuted; None for all.
    """

    def __init__(self, diagonal: Tensor, total: Tensor, size: tuple[int, int], support: Support | None = None) -> None:
        super().__init__((len(diagonal), *size), support)
        self.n_pixels = self.n // len(diagonal)
        rest = (total - self.n_pixels * diagonal) / max(self.n_pixels * (self.n_pixels - 1), 1)  # O
        self.contrast, self.constant = _symmetric(diagonal - rest), _symmetric(total / self.n_pixels)

    def _apply(self, x: Image) -> Image:
        mean, rest = self._parts(x)
        return _mix(self.constant, mean) + _mix(self.contrast, rest)

    def eigenvalues(self) -> Eigenvalues:
        """Return C eigenvalues of constant images, and C of images of mean zero, each N - 1 times."""
        constant, contrast = torch.linalg.eigvalsh(self.constant), torch.linalg.eigvalsh(self.contrast)
        counts = torch.cat((torch.ones_like(constant), torch.full_like(contrast, self.n_pixels - 1)))
        return _sorted(torch.cat((constant, contrast)), counts)

    def share_below(self, x: Image, level: float) -> PerItem:
        """Return the share of the energy in eigenvectors with eigenvalues of at most `level`."""
        support = torch.ones(self.shape[1:], dtype=x.dtype) if self.support is None else self.support.to(x)
        x = x.double() * support
        mean, rest = self._parts(x)
        return share(_mix(_below(self.constant, level), mean) + _mix(_below(self.contrast, level), rest), x)

    def _parts(self, x: Image) -> tuple[Image, Image]:
        """Split images into a constant and a remainder of mean zero, both on the support."""
        support = torch.ones_like(x[0, 0]) if self.support is None else self.support.to(x)
        mean = (support * x).sum((-2, -1), keepdim=True) / self.n_pixels * support
        return mean, support * x - mean


def coil_shift_weights(mask: Tensor, maps: Tensor) -> Tensor:
    """Return w (H, W) of the mean over all cyclic shifts of S^H F^H M F S: M correlated with |F S_c|^2, summed over coils.

    Args:
        mask: M (H, W), zero frequency at index n//2.
        maps: S_c, complex (coils, H, W).
    """
    energy = torch.fft.fft2(maps.to(torch.complex128), norm="ortho").abs().square().sum(0)
    m = torch.fft.ifftshift(mask).double()
    correlation = torch.fft.ifft2(torch.fft.fft2(m) * torch.fft.fft2(energy).conj()).real
    return torch.fft.fftshift(correlation) / m.numel()


def _mix(matrix: Tensor, x: Image) -> Image:
    return torch.einsum("cd,bdhw->bchw", matrix.to(x), x)


def _below(matrices: Tensor, level: float) -> Tensor:
    """Project on the eigenvectors of each Hermitian matrix (..., C, C) with eigenvalues of at most `level`."""
    values, vectors = torch.linalg.eigh(matrices)
    return (vectors * (values <= level)[..., None, :]) @ vectors.mH


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _counted(values: Tensor, times: int = 1) -> Eigenvalues:
    found, counts = torch.unique(values.double(), return_counts=True)
    return _sorted(found, times * counts.double())


def _sorted(values: Tensor, counts: Tensor) -> Eigenvalues:
    """Sort, the largest first; values that are negative by rounding become 0."""
    order = values.argsort(descending=True)
    return Eigenvalues(values[order].clamp(min=0), counts[order])


def frequency_blocks(physics: Operator) -> Complex[Tensor, "h w c c"]:
    """Return the blocks f^H A^T A f of all pairs of channels, for each Fourier vector f in the order of `torch.fft.fft2`.

    They are those of the mean of T_g^T A^T A T_g over all cyclic shifts, which does not mix frequencies.
    """
    channels, height, width = (int(side) for side in physics.img_size)
    blocks = torch.zeros(channels, channels, height, width, dtype=torch.complex128, device=physics.mask.device)
    for rows in operator_rows(physics):
        pairs = pad(rows, (0, 0, 0, 0, 0, 0, 0, len(rows) % 2))
        spectra = torch.fft.fft2(torch.complex(pairs[::2], pairs[1::2]))  # two real rows in one transform
        for c, d in product(range(channels), repeat=2):
            blocks[c, d] += _inner(spectra[:, c], spectra[:, d])
    mirrored = blocks.flip(2, 3).roll((1, 1), (2, 3)).conj()  # at -k: the products of the two rows cancel
    return ((blocks + mirrored) / (2 * height * width)).movedim((0, 1), (2, 3))


def diagonal_sums(physics: Operator, keep: Support) -> Float[Tensor, "c c"]:
    """Sum the diagonal of each block (c, d) of A^T A over the pixels that are kept."""
    matrix = _sparse(physics)
    if matrix is not None:
        squares = matrix._replace(values=matrix.values.double().square())
        return (_ray_factors(physics).square() @ squares.matmul(keep.double().view(-1, 1))).view(1, 1)
    each = (rows.double() for rows in operator_rows(physics))
    return torch.stack([torch.einsum("rchw,rdhw,hw->cd", rows, rows, keep) for rows in each]).sum(0)


def operator_rows(physics: Operator) -> Iterator[Tensor]:
    """Yield the measured rows of A as images, several at a time: (R, C, H, W) in its precision."""
    shape = tuple(int(side) for side in physics.img_size)
    matrix = _sparse(physics)
    if matrix is not None:
        yield from (rows.view(-1, *shape) for rows in _sparse_rows(matrix, _ray_factors(physics)))
    elif isinstance(physics, CompressedSensing):
        for mask, matrix in zip(physics.mask[0].split(ROWS), physics.matrix.split(ROWS), strict=True):
            yield (mask[:, None].double() * matrix.double()).view(-1, *shape)
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
    """Yield the rows of diag(factors) M, several at a time: (R, n) in the precision of M."""
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
    """Return the factor of each row of the system matrix, its mask over the norm: (views detectors,) float64."""
    return (physics.mask[0, 0].double() / physics.norm).expand(physics.grid).flatten()


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """Return sum_r a_r conj(b_r) of complex a and b (R, H, W)."""
    if a.data_ptr() == b.data_ptr():  # takes most of the time for a single channel
        return torch.view_as_real(a).square().sum((0, -1))
    return (a * b.conj()).sum(0)
