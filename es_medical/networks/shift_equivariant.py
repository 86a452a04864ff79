"""A UNet that is equivariant to every cyclic shift of the pixel grid."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from es_medical.groups.shifts import roll_items
from es_medical.networks.denoisers import start_at_zero
from es_medical.networks.polyphase import Offset, keep_symmetry, largest_of_blocks, strongest_component, wrap
from es_medical.types import Image


class ShiftUNet(nn.Module):
    r"""UNet phi with phi(T_g x) = T_g phi(x) for every cyclic shift T_g, by adaptive polyphase sampling.

    Layers, widths, residual and number of weights are those of `unet`, with circular padding. A plain UNet samples its
    feature maps at [2i, 2j], so a shift by one pixel gives other samples. Here each scale samples the polyphase
    component a = (a_y, a_x) of the largest norm, [2i + a_y, 2j + a_x], and the decoder puts its result back to that place
    (Chaman and Dokmanic 2021). The 2 x 2 max pooling takes its windows from the same places, which is a maximum at every
    pixel (equivariant) and then sampling: for a given choice the network is `unet`, layer for layer. The norms are
    those before pooling, as a maximum can make different components alike.

    All layers commute with shifts, so "sample at a, and put back to a" at every scale is one shift of the image:

        phi(x) = T_t psi(T_-t x),   t = a_1 + 2 a_2 + 4 a_3 + ...,

    with the circular UNet psi that samples at [2i, 2j]. The choice t is made first, item by item and without gradient; it
    costs one more pass of the encoder. In exact arithmetic nothing else differs, and no state is kept.

    Ties. Components of equal norm leave the choice open. They are shifts of one another for images with T_h x = x:
    constant ones, those constant along a line, periodic ones of even or odd period. Then phi(x) = T_h phi(x) must hold, and
    phi(x) is averaged over all such h (`keep_symmetry`), which makes the choice irrelevant: no image with such a symmetry is
    left out. What remains: components whose norms agree to rounding by accident (the two largest squared norms of 1,600
    feature maps of natural images, generic weights, were never closer than 9e-8 of their value, one in a hundred closer
    than 1e-5), and layers that can't see how the image varies (first kernels that are blind along an axis).

    Args:
        channels: channels of the images.
        widths: feature maps at each scale, from fine to coarse, at least two.

    Raises:
        ValueError: fewer than two widths.
    """

    exports = False  # torch.export: the choice of a component depends on the values

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        if len(widths) < 2:
            raise ValueError(f"a UNet has at least two scales, got widths {tuple(widths)}")
        inputs, fine, coarse = [channels, *widths[:-1]], list(widths[:-1]), list(widths[1:])
        self.scales = len(widths)
        self.encoder = nn.ModuleList(_pair(n, width) for n, width in zip(inputs, widths, strict=True))
        self.up = nn.ModuleList(Convolution(n, width) for n, width in zip(coarse, fine, strict=True))
        self.decoder = nn.ModuleList(_pair(2 * width, width) for width in fine)
        self.last = nn.Conv2d(widths[0], channels, kernel_size=1)

    def forward(self, x: Image) -> Image:
        """Return phi(x), (B, C, H, W). Raises ValueError for sides that are not divisible by 2^(scales - 1) (see `check`)."""
        self.check((x.shape[-2], x.shape[-1]))
        with torch.no_grad():
            t = self.polyphase_offset(x)
        return keep_symmetry(roll_items(self.psi(roll_items(x, -t)), t), x.detach())

    def polyphase_offset(self, x: Image) -> Offset:
        """Return t = a_1 + 2 a_2 + 4 a_3 + ..., (B, 2): where each item is sampled, its components chosen scale by scale."""
        t = torch.zeros(len(x), 2, dtype=torch.long, device=x.device)
        for i, block in enumerate(self.encoder[:-1]):
            features = block(x)
            a = strongest_component(features)
            x = largest_of_blocks(roll_items(features, -a))
            t = t + 2**i * a
        return t

    def psi(self, x: Image) -> Image:
        """Apply the circular UNet that samples at [2i, 2j]; it commutes with shifts by 2^(scales - 1) pixels."""
        features, skips = x, []
        for block in self.encoder[:-1]:
            skips.append(block(features))
            features = functional.max_pool2d(skips[-1], 2)
        features = self.encoder[-1](features)
        for i in reversed(range(self.scales - 1)):
            features = self.up[i](functional.interpolate(features, scale_factor=2))
            features = self.decoder[i](torch.cat((skips[i], features), 1))
        return x + self.last(features)

    def check(self, size: tuple[int, int]) -> None:
        """Raise ValueError when a side of `size` (H, W) is not divisible by 2^(scales - 1): padding would break the shifts."""
        height, width = size
        step = 2 ** (self.scales - 1)
        if height % step or width % step:
            fit = min((side & -side).bit_length() for side in size)  # 1 + factors of two
            way_out = f"give at most {fit} widths, or crop" if fit > 1 else "crop to even sides"
            raise ValueError(
                f"images of {height} x {width} do not fit a shift-equivariant UNet of {self.scales} scales, whose sides are "
                f"divisible by {step}: {way_out}"
            )


class Convolution(nn.Conv2d):
    """3 x 3 convolution with circular padding and bias, and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, kernel_size=3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        return functional.relu_(super().forward(wrap(x)))


def _pair(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Convolution(inputs, outputs), Convolution(outputs, outputs))


def shift_unet(channels: int = 2, widths: Sequence[int] = (64, 128, 256, 512), zero_residual: bool = False) -> ShiftUNet:
    """Make the shift-equivariant counterpart of `unet`: the same widths, residual, bias, no normalisation.

    Args:
        channels: channels of the images, 3 for RGB, 2 for complex MR images.
        widths: feature maps at each scale, from fine to coarse; image sides must be divisible by 2^(scales - 1).
        zero_residual: start as the identity (see `start_at_zero`).

    >>> x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> phi = shift_unet(1, (2, 4))
    >>> bool(torch.allclose(phi(x.roll(1, -1)), phi(x).roll(1, -1), atol=1e-5))
    True
    """
    network = ShiftUNet(channels, widths)
    if zero_residual:
        start_at_zero(network.last)
    return network
