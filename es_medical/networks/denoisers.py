"""The image-domain denoiser phi, and how it is made fast on a GPU."""

from collections.abc import Sequence
from typing import Any

import torch
from deepinv.models import UNet
from torch import Tensor, nn


def unet(channels: int = 2, widths: Sequence[int] = (64, 128, 256, 512), zero_residual: bool = False) -> UNet:
    """Make the paper's residual UNet: one scale for each width, bias, no normalisation (section "Network architectures").

    Args:
        channels: channels of the images, 2 for complex MR images.
        widths: feature maps at each scale, from fine to coarse; image sides divisible by 2^(scales - 1) need no padding.
        zero_residual: start as the identity (see `start_at_zero`).
    """
    network = UNet(channels, channels, residual=True, bias=True, batch_norm=False, channels_per_scale=list(widths))
    if zero_residual:
        start_at_zero(network.Conv_1x1)
    return network


def start_at_zero(last: nn.Conv2d) -> None:
    """Set the last convolution of a residual branch, with bias, to zero: phi(x) = x until it is trained.

    Random weights would first destroy a good start, which training then has to find again.
    """
    for parameter in last.parameters():
        nn.init.zeros_(parameter)


class Accelerated(nn.Module):
    """Run a denoiser in bfloat16 and channels-last, optionally compiled; everything around it stays float32.

    Args:
        denoiser: image-to-image module; its parameters keep their names in checkpoints.
        autocast: run the denoiser in bfloat16.
        channels_last: use the channels-last memory format.
        compiled: `torch.compile` the denoiser, one graph for each input shape.
    """

    def __init__(self, denoiser: nn.Module, autocast: bool = True, channels_last: bool = True, compiled: bool = False) -> None:
        super().__init__()
        self.denoiser = denoiser.to(memory_format=torch.channels_last) if channels_last else denoiser
        self.autocast = autocast
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        if compiled:
            self.denoiser.compile(dynamic=False)
        self.register_state_dict_post_hook(_drop_wrapper_name)
        self.register_load_state_dict_pre_hook(_add_wrapper_name)

    def forward(self, x: Tensor, noise_level: float | Tensor | None = None) -> Tensor:
        """Return the denoised x, (B, C, H, W) in the dtype of x; `noise_level` is for denoisers that take one."""
        inputs = (x.contiguous(memory_format=self.memory_format), *([] if noise_level is None else [noise_level]))
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocast):
            return self.denoiser(*inputs).to(x.dtype)


def _drop_wrapper_name(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    for name in [name for name in state_dict if name.startswith(f"{prefix}denoiser.")]:
        state_dict[prefix + name.removeprefix(f"{prefix}denoiser.")] = state_dict.pop(name)


def _add_wrapper_name(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:  # noqa: ANN401 - unused
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f"{prefix}denoiser.{name.removeprefix(prefix)}"] = state_dict.pop(name)
