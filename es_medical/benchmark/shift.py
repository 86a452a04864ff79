"""Time of the shift-equivariant UNet, next to the plain one of the same widths."""

from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from es_medical.benchmark.settings import describe
from es_medical.benchmark.timing import Job, Ratio, alternate_networks, medians, ratio
from es_medical.networks import Accelerated, shift_unet, unet

NETWORKS = (("plain", unet), ("shift", shift_unet))


class Setting(NamedTuple):
    """Images, networks, and execution settings."""

    widths: tuple[int, ...]
    """Feature maps at each scale."""
    size: int
    """Side of the square images."""
    batch: int
    channels: int
    repeats: int
    amp: bool
    channels_last: bool
    compiled: bool

    def __str__(self) -> str:
        """Return one line for the table."""
        return describe(f"{self.size}x{self.size}, {self.channels} channels, batch {self.batch}", self.widths, self)


class Result(NamedTuple):
    """Medians in milliseconds of forward and backward, and the ratio of neighbouring runs."""

    setting: Setting
    milliseconds: dict[str, float]
    """By network: "plain" and "shift"."""
    to_plain: Ratio
    """Shift-equivariant / plain."""
    gap: float
    """Largest |phi(T x) - T phi(x)| of the shift-equivariant one for shifts by 1 and 3 pixels, relative to the largest
    value of phi(x)."""


def run(options: Namespace) -> Iterator[Result]:
    """Run the benchmark with the options of the command line; one result for each choice of widths."""
    problem = (options.size, options.batch, options.channels, options.repeats)
    for widths in options.widths or [(16, 32, 64), (64, 128, 256, 512)]:
        setting = Setting(widths, *problem, options.amp, options.channels_last, options.compile)
        yield benchmark_shift(setting, torch.device(options.device))


def benchmark_shift(setting: Setting, device: torch.device) -> Result:
    """Time forward and backward pass of both networks, in turn."""
    torch.manual_seed(0)
    knobs = (setting.amp, setting.channels_last, setting.compiled)
    networks = {name: Accelerated(make(setting.channels, setting.widths).to(device), *knobs) for name, make in NETWORKS}
    x = torch.rand(setting.batch, setting.channels, setting.size, setting.size).to(device)
    times = alternate_networks({name: _pass(network, x) for name, network in networks.items()}, setting.repeats, device)
    return Result(setting, medians(times), ratio(times, "shift", "plain"), _gap(networks["shift"], x))


def _pass(network: nn.Module, x: Tensor) -> Job:
    def job() -> None:
        network.zero_grad(set_to_none=True)
        network(x).square().mean().backward()

    return job


@torch.no_grad()
def _gap(network: nn.Module, x: Tensor) -> float:
    moved = network(x.roll((1, 3), (-2, -1))) - network(x).roll((1, 3), (-2, -1))
    return float(moved.abs().max() / network(x).abs().max())


def table(result: Result) -> str:
    """Return a result as a text table."""
    times = ", ".join(f"{name} {value:.1f}" for name, value in result.milliseconds.items())
    return "\n".join(
        [
            f"{result.setting}  ({result.setting.repeats} rounds)",
            f"  ms                    {times}",
            f"  shift / plain         {result.to_plain}",
            f"  |phi(T x) - T phi(x)| {result.gap:.1e} of the largest value",
        ]
    )
