"""The image-domain denoiser phi, and how it is made fast on a GPU."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from deepinv.models import UNet
from torch import Tensor, nn

GRAPHS = "reduce-overhead"
"""torch.compile's mode that captures CUDA graphs."""


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

    Only the denoiser is compiled, or captured as a CUDA graph: splits, noise and group elements are drawn outside of it, anew
    in each step. If torch can't compile it, it runs uncompiled, with a warning.

    Args:
        denoiser: image-to-image module; its parameters keep their names in checkpoints.
        autocast: run the denoiser in bfloat16.
        channels_last: use the channels-last memory format.
        compiled: `torch.compile` the denoiser, one graph for each input shape; "reduce-overhead" also captures CUDA graphs,
            which spare small networks the launch of each kernel.

    Raises:
        ValueError: another `compiled`.
    """

    def __init__(
        self, denoiser: nn.Module, autocast: bool = True, channels_last: bool = True, compiled: bool | str = False
    ) -> None:
        super().__init__()
        if compiled not in (True, False, GRAPHS):
            raise ValueError(f"compiled must be true, false, null or {GRAPHS}, got {compiled!r}")
        self.denoiser = denoiser.to(memory_format=torch.channels_last) if channels_last else denoiser
        self.autocast = autocast
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.graphs = compiled == GRAPHS
        if compiled:
            self.denoiser.compile(dynamic=False, mode=GRAPHS if self.graphs else None)
        self._shapes: set[tuple[Any, ...]] = set()
        self.register_state_dict_post_hook(_drop_wrapper_name)
        self.register_load_state_dict_pre_hook(_add_wrapper_name)

    def forward(self, x: Tensor, noise_level: float | Tensor | None = None) -> Tensor:
        """Return the denoised x, (B, C, H, W) in the dtype of x; `noise_level` is for denoisers that take one."""
        inputs = (x.contiguous(memory_format=self.memory_format), *([] if noise_level is None else [noise_level]))
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.autocast):
            denoised = self.denoiser(*inputs) if self.denoiser._compiled_call_impl is None else self._compiled(*inputs)
            return denoised.to(x.dtype, copy=self.graphs)  # a graph's own memory is overwritten by its next run

    def _compiled(self, *inputs: Any) -> Tensor:  # noqa: ANN401 - as the denoiser takes them
        """Run the compiled denoiser; where it is not what was asked for, say so once."""
        x = inputs[0]
        kind = (tuple(x.shape), x.dtype, self.training, torch.is_grad_enabled(), x.requires_grad)
        if kind in self._shapes:
            return self.denoiser(*inputs)
        self._shapes.add(kind)
        try:
            self._compile_backward(*inputs)
            denoised = self.denoiser(*inputs)
        except RuntimeError as error:
            if not type(error).__module__.startswith("torch._"):
                raise
            denoised = self.denoiser._call_impl(*inputs)  # raises what is the denoiser's own error
            self.denoiser._compiled_call_impl = None
            warnings.warn(f"torch.compile failed, the denoiser runs uncompiled: {_first_line(error)}", stacklevel=2)
            return denoised
        from torch._dynamo import config, utils

        if len(self._shapes) == config.recompile_limit + 1:
            limit = f"more than {config.recompile_limit} kinds of batches (shapes, training, evaluation)"
            warnings.warn(f"{limit}: torch runs the denoiser uncompiled on further ones", stacklevel=2)
        if self.graphs and (x.device.type != "cuda" or utils.counters["inductor"]["cudagraph_skips"]):
            self.graphs = x.device.type == "cuda"
            warnings.warn(f"torch makes no CUDA graph of the denoiser on {x.device}: it is compiled without", stacklevel=2)
        return denoised

    def _compile_backward(self, x: Tensor, *others: Any) -> None:  # noqa: ANN401
        """Run and differentiate the denoiser, without further effect: torch compiles a backward pass when it first runs."""
        x = x.detach().requires_grad_(x.requires_grad)
        wanted = [one for one in (x, *self.denoiser.parameters()) if one.requires_grad]
        if torch.is_grad_enabled() and wanted:
            with torch.random.fork_rng([x.device] if x.is_cuda else []):
                torch.autograd.grad(self.denoiser(x, *others).sum(), wanted, allow_unused=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _drop_wrapper_name(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    for name in [name for name in state_dict if name.startswith(f"{prefix}denoiser.")]:
        state_dict[prefix + name.removeprefix(f"{prefix}denoiser.")] = state_dict.pop(name)


def _add_wrapper_name(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:  # noqa: ANN401 - unused
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[f"{prefix}denoiser.{name.removeprefix(prefix)}"] = state_dict.pop(name)
