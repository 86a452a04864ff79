"""Mean Gram matrices in closed form: diagonal in pixels or k-space, a block for each frequency, means over permutations."""

import torch
from torch import Tensor

from es_medical.diagnostics.base import Eigenvalues, ExactGram, Support, share
from es_medical.physics.fourier import filter_kspace
from es_medical.types import Image, PerItem


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
        """The weights of the support."""
        chosen = self.weights if self.support is None else self.weights[:, self.support > 0]
        return _counted(chosen.flatten())

    def share_below(self, x: Image, level: float) -> PerItem:
        """Share of the energy at values whose weight is at most `level`."""
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
        """The weights, each twice."""
        return _counted(self.weights.flatten(), 2)

    def share_below(self, x: Image, level: float) -> PerItem:
        """Share of the energy at frequencies whose weight is at most `level`."""
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
        """The eigenvalues of every block."""
        return _counted(torch.linalg.eigvalsh(self.blocks).flatten())

    def share_below(self, x: Image, level: float) -> PerItem:
        """Share of the energy in the eigenvectors of each block with eigenvalues of at most `level`."""
        values, vectors = torch.linalg.eigh(self.blocks)
        below = (vectors * (values <= level)[..., None, :]) @ vectors.mH
        return share(self._filter(x.double(), below), x)

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
        """C eigenvalues for constant images, and C more that N - 1 images of mean zero share."""
        constant, contrast = torch.linalg.eigvalsh(self.constant), torch.linalg.eigvalsh(self.contrast)
        counts = torch.cat((torch.ones_like(constant), torch.full_like(contrast, self.n_pixels - 1)))
        return _sorted(torch.cat((constant, contrast)), counts)

    def share_below(self, x: Image, level: float) -> PerItem:
        """Share of the energy in eigenvectors with eigenvalues of at most `level`."""
        support = torch.ones(self.shape[1:], dtype=x.dtype) if self.support is None else self.support.to(x)
        x = x.double() * support
        mean, rest = self._parts(x)
        return share(_mix(_below(self.constant, level), mean) + _mix(_below(self.contrast, level), rest), x)

    def _parts(self, x: Image) -> tuple[Image, Image]:
        """Split images into a constant and a rest of mean zero, both on the support."""
        support = torch.ones_like(x[0, 0]) if self.support is None else self.support.to(x)
        mean = (support * x).sum((-2, -1), keepdim=True) / self.n_pixels * support
        return mean, support * x - mean


def moved_mask(mask: Tensor, elements: Tensor) -> Tensor:
    """Return the mean over elements of D4 of the k-space masks of A T_g, for a mask (H, W) with its origin at n//2.

    A T_g samples A's pattern moved by T_g^-1. A flip of an image reverses the frequencies, k to -k, up to phases that cancel
    in A^T A. About n//2 of an even side that is a reversed index and a shift by one: -n/2 is its own negative.
    """
    origin = torch.fft.ifftshift(mask)  # the zero frequency at index 0
    moved = []
    for g in elements.tolist():
        one = origin.mT if g & 1 else origin
        one = _reversed(one, 0) if g >> 1 & 1 else one
        moved.append(_reversed(one, 1) if g >> 2 & 1 else one)
    return torch.fft.fftshift(torch.stack(moved).mean(0))


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


def _reversed(x: Tensor, axis: int) -> Tensor:
    return x.flip(axis).roll(1, axis)


def _mix(matrix: Tensor, x: Image) -> Image:
    return torch.einsum("cd,bdhw->bchw", matrix.to(x), x)


def _below(matrix: Tensor, level: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * (values <= level)) @ vectors.mT


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _counted(values: Tensor, times: int = 1) -> Eigenvalues:
    found, counts = torch.unique(values.double(), return_counts=True)
    return _sorted(found, times * counts.double())


def _sorted(values: Tensor, counts: Tensor) -> Eigenvalues:
    """Largest first; what rounding makes negative is 0."""
    order = values.argsort(descending=True)
    return Eigenvalues(values[order].clamp(min=0), counts[order])
