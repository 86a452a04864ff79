"""The shift-equivariant UNet next to the plain one of the same widths."""

from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from es_medical.benchmark.timing import Job, Ratio, alternate, ratio
from es_medical.networks import Accelerated, shift_unet, unet

NETWORKS = (("plain", unet), ("shift", shift_unet))


class Setting(NamedTuple):
    """Images, networks, and how they run."""

    widths: tuple[int, ...]
    """Feature maps at each scale."""
    size: int = 128
    """Side of the square images."""
    batch: int = 4
    channels: int = 3
    repeats: int = 9
    amp: bool = False
    channels_last: bool = False
    compiled: bool = False

    def __str__(self) -> str:
        """Return one line for the table."""
        knobs = [name for name in ("amp", "channels_last", "compiled") if getattr(self, name)]
        problem = f"{self.size}x{self.size}, {self.channels} channels, batch {self.batch}"
        return " ".join([problem, "UNet", "-".join(map(str, self.widths)), *knobs])


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


def benchmark_shift(setting: Setting, device: torch.device) -> Result:
    """Time forward and backward of both networks, by turns."""
    torch.manual_seed(0)
    knobs = (setting.amp, setting.channels_last, setting.compiled)
    networks = {name: Accelerated(make(setting.channels, setting.widths).to(device), *knobs) for name, make in NETWORKS}
    x = torch.rand(setting.batch, setting.channels, setting.size, setting.size).to(device)
    on_gpu = device.type == "cuda"
    jobs = {name: _pass(network, x) for name, network in networks.items()}
    times = alternate(jobs, setting.repeats, 5 if on_gpu else 1, device, inner=5 if on_gpu else 1)
    milliseconds = {name: median(values) for name, values in times.items()}
    return Result(setting, milliseconds, ratio(times, "shift", "plain"), _gap(networks["shift"], x))


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
    """Lay a result out for reading."""
    times = ", ".join(f"{name} {value:.1f}" for name, value in result.milliseconds.items())
    return "\n".join(
        [
            f"{result.setting}  ({result.setting.repeats} rounds)",
            f"  ms                    {times}",
            f"  shift / plain         {result.to_plain}",
            f"  |phi(T x) - T phi(x)| {result.gap:.1e} of the largest value",
        ]
    )
