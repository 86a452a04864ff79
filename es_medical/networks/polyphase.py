"""Polyphase components of feature maps, which one to sample, and images that leave this choice open."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function

from es_medical.types import Image

Offset = Int[Tensor, "b 2"]
"""Place (a, b) of a polyphase component, or a shift (dy, dx), of each item."""

SAME = 1e-6
"""Two images are the same when |x - x'| <= SAME |x|: the rounding of a few float32 operations."""

TIE = 1e-3
"""Components whose squared norms differ by less than this share of themselves are distinguished by their arrangement."""


def strongest_component(x: Image) -> Offset:
    """Return for each item the place (a, b) of the polyphase component x[2i + a, 2j + b] with the largest Euclidean norm.

    A shift of x exchanges and shifts the components but keeps their norms, so it selects the same one (adaptive polyphase
    sampling, Chaman and Dokmanic 2021, section 4.1). Squared norms are added up in float64, in which their order has no effect.

    Two equal objects at an odd distance give components of equal norm that are not shifts of each other. So where squared
    norms differ by less than `TIE` of themselves, the spread of the energy counts as well: the norm of the map of energy
    after a cyclic filter that mixes all places (`_mixing`), which a shift does not change either.

    Args:
        x: feature maps (B, C, H, W), H and W even.
    """
    height, width = x.shape[-2:]
    energy = x.square().sum(1, dtype=torch.float64)  # (B, H, W)
    parts = energy.view(len(x), height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3)  # (B, 2, 2, H/2, W/2)
    varied = parts - parts.mean((-2, -1), keepdim=True)
    spread = _mixing(height // 2, x.device) @ varied @ _mixing(width // 2, x.device).mT
    strength = parts.sum((-2, -1)) + TIE * torch.linalg.vector_norm(spread, dim=(-2, -1))
    place = strength.flatten(1).argmax(1)
    return torch.stack((place // 2, place % 2), 1)


def _mixing(n: int, device: torch.device) -> Float[Tensor, "n n"]:
    """Circulant matrix of a fixed irregular filter with norm at most 1, whose frequencies all count differently."""
    places = torch.arange(n, device=device)
    kernel = (43758.5453 * torch.sin(12.9898 * (places + 1).double())).frac().abs()  # a hash of the place, in [0, 1)
    return (kernel / kernel.sum())[(places[:, None] - places) % n]


def largest_of_blocks(x: Image) -> Float[Tensor, "b c half_h half_w"]:
    """Return the maximum of each block of 2 x 2, as `max_pool2d` does, but several times faster on a CPU without gradients."""
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def wrap(x: Image) -> Float[Tensor, "b c h+2 w+2"]:
    """Pad by one pixel a side, cyclic (torch's own circular padding takes several times as long and drops channels-last)."""
    return _Wrap.apply(x)


class _Wrap(Function):
    """Copy the border cyclically; the derivative adds the copies up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401 - torch's context
        batch, channels, height, width = x.shape
        last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        padded = torch.empty((batch, channels, height + 2, width + 2), dtype=x.dtype, device=x.device, memory_format=layout)
        padded[..., 1:-1, 1:-1] = x
        padded[..., 0, 1:-1], padded[..., -1, 1:-1] = x[..., -1, :], x[..., 0, :]
        padded[..., 0], padded[..., -1] = padded[..., -2], padded[..., 1]
        return padded

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        folded = grad[..., 1:-1].clone()  # (B, C, H + 2, W)
        folded[..., 0] += grad[..., -1]
        folded[..., -1] += grad[..., 0]
        grad_x = folded[..., 1:-1, :]
        grad_x[..., 0, :] += folded[..., -1, :]
        grad_x[..., -1, :] += folded[..., 0, :]
        return grad_x


def same_shifts(x: Image) -> Bool[Tensor, "b h w"]:
    """Mark the cyclic shifts h with T_h x = x, those where |x|^2 - <x, T_h x> vanishes; h = 0 is always one.

    They form a group: all shifts for a constant image, those along a line for an image that is constant along it, the
    multiples of the period for a periodic one. Its order is 1 for any other image. T_h x differs from x by at most `SAME`.
    """
    wide = x.double()
    centred = wide - wide.mean((-2, -1), keepdim=True)
    spectrum = torch.fft.rfft2(centred)
    correlation = torch.fft.irfft2((spectrum.real.square() + spectrum.imag.square()).sum(1), s=x.shape[-2:])
    difference = 2 * (correlation[:, :1, :1] - correlation)  # |x - T_h x|^2
    return difference <= SAME**2 * wide.square().sum((1, 2, 3)).view(-1, 1, 1)


@torch.library.custom_op("es_medical::keep_symmetry", mutates_args=())
def keep_symmetry(u: Tensor, x: Tensor) -> Tensor:
    """Give u the shift symmetry of x: the mean of T_h u over all cyclic shifts h with T_h x = x, item by item.

    Linear in u, whose derivative is the same mean; x only defines the shifts. Where h = 0 is the only one, u is returned bit by
    bit. The mean is a convolution with the marks of `same_shifts`, a projection onto the frequencies of unchanged images.
    `torch.compile` takes this as one operator, as it generates no code for complex numbers.

    Args:
        u: images (B, C, H, W).
        x: images (B, C', H, W).
    """
    same = same_shifts(x)
    count = same.sum((1, 2)).view(-1, 1, 1, 1)
    kept = torch.fft.rfft2(same.to(torch.float64)).real[:, None] / count  # 0 or 1
    wide = u.to(torch.promote_types(u.dtype, torch.float32))
    mean = torch.fft.irfft2(torch.fft.rfft2(wide) * kept.to(wide.dtype), s=u.shape[-2:])
    return torch.where(count > 1, mean.to(u.dtype), u).contiguous()


@keep_symmetry.register_fake
def _like(u: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(u, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ANN401 - torch's context
    ctx.save_for_backward(inputs[1])


def _derivative(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
    return keep_symmetry(grad, *ctx.saved_tensors), None


keep_symmetry.register_autograd(_derivative, setup_context=_save)
