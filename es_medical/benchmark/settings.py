"""Problems timed by the step benchmark."""

from argparse import Namespace
from typing import NamedTuple

PAPER_WIDTHS = (64, 128, 256, 512)
LARGE = 256
"""Image side in pixels from which a step takes seconds on a CPU."""


class Setting(NamedTuple):
    """A problem, a network, and its execution settings."""

    size: int
    """Side of the square images."""
    batch: int
    widths: tuple[int, ...] = PAPER_WIDTHS
    """Feature maps at each scale of the UNet."""
    iterations: int = 3
    """Unrolled steps K."""
    repeats: int = 3
    """Timed rounds."""
    amp: bool = False
    channels_last: bool = False
    compiled: bool = False
    deepinv: bool = False
    """Whether deepinv's loss is timed as well."""
    coils: int = 0
    """Receive coils of `MultiCoilMRI`; 0 for the single-coil `MRI`."""

    def __str__(self) -> str:
        """Return one line for the table."""
        coils = f" {self.coils} coils" if self.coils else ""
        return describe(f"{self.size}x{self.size} batch {self.batch}{coils}", self.widths, self)


def describe(problem: str, widths: tuple[int, ...], setting: object) -> str:
    """Return one line for the table: the problem, the UNet, and the speed knobs that are on."""
    knobs = [name for name in ("amp", "channels_last", "compiled") if getattr(setting, name)]
    return " ".join([problem, "UNet", "-".join(map(str, widths)), *knobs])


def chosen_settings(options: Namespace) -> list[Setting]:
    """Return the settings for the command line options (see `python -m es_medical.benchmark step --help`).

    With several coils, deepinv's loss is not timed.

    Defaults on the CPU: the paper's network on 2 slices of 320 x 320, and a small one on 4 of 64 x 64. Defaults on CUDA:
    the paper's network on 4 and 16 slices of 320 x 320, with and without `torch.compile`.
    """
    on_gpu = options.device.startswith("cuda")
    if options.size:
        problems = [Setting(options.size, options.batch, options.widths)]
    elif on_gpu:
        problems = [Setting(320, 4), Setting(320, 16)]
    else:
        problems = [Setting(320, 2), Setting(64, 4, (16, 32, 64))]
    compiled = [options.compile] if options.compile is not None else [False, True] if on_gpu else [False]
    return [_with_knobs(problem, options, on_gpu)._replace(compiled=on) for problem in problems for on in compiled]


def _with_knobs(problem: Setting, options: Namespace, on_gpu: bool) -> Setting:
    slow = problem.size >= LARGE and not on_gpu
    return problem._replace(
        iterations=options.iterations,
        repeats=options.repeats or (3 if slow else 20),
        coils=options.coils,
        amp=_choice(options.amp, on_gpu),
        channels_last=_choice(options.channels_last, on_gpu),
        deepinv=not options.coils and _choice(options.deepinv, bool(options.size) or not slow),
    )


def _choice(given: bool | None, default: bool) -> bool:
    return default if given is None else given
