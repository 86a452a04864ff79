"""Command line of the benchmarks: `python -m es_medical.benchmark COMMAND` (step, gpu, import, prep, memory, data, ct, ...)."""

import argparse
import json
import platform
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from es_medical.data.atomic import whole_or_not

NEEDS = (
    "Needs torch and deepinv with the wheels that deepinv needs, and jaxtyping with its only dependency wadler-lindig "
    "(small, pure Python); neither MONAI nor MLflow, and no installation: run it in the source tree. prep needs data_prep."
)
MODULES = {"import": "imports"}  # modules not named like their command
SEVERAL = ("step", "shift", "gpu")  # commands that time several settings
FLAG = argparse.BooleanOptionalAction
Commands = Any  # argparse has no public name for what `add_subparsers` returns


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, run the benchmark, print a table per result and, if requested, write JSON."""
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(getattr(options, "device", "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU on this machine: try --device cpu (gpu: with --tiny)")
    machine = _machine(device)
    print(", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    module = import_module(f"es_medical.benchmark.{MODULES.get(options.command, options.command)}")
    results = []
    for result in module.run(options):
        print(module.table(result), flush=True)
        results.append(_named(result))
        if options.json:  # after each result, so that nothing is lost when the next one ends the process
            report = {"machine": machine, options.command: results if options.command in SEVERAL else results[0]}
            with whole_or_not(options.json) as temporary:
                temporary.write_text(json.dumps(report, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m es_medical.benchmark", description=__doc__, epilog=NEEDS)
    commands = parser.add_subparsers(required=True, dest="command")
    step = commands.add_parser("step", help="one training step next to its denoiser alone and to deepinv's loss", epilog=NEEDS)
    step.add_argument("--size", type=int, help="side of the images: times this one setting in place of the default ones")
    step.add_argument("--batch", type=int, default=2, help="images in a batch, with --size (default 2)")
    step.add_argument("--widths", type=_widths, default=(64, 128, 256, 512), help="feature maps at each scale, with --size")
    step.add_argument("--coils", type=int, default=0, help="receive coils (default: the single-coil operator)")
    step.add_argument("--iterations", type=int, default=3, help="unrolled steps K (default 3)")
    step.add_argument("--repeats", type=int, help="timed rounds (default 20; at 256 x 256 and more on the CPU 3)")
    step.add_argument("--amp", action=FLAG, help="bfloat16 in the denoiser (default: on CUDA)")
    step.add_argument("--channels-last", action=FLAG, help="channels-last memory format (default: on CUDA)")
    step.add_argument("--compile", action=FLAG, help="torch.compile the denoiser (default: no on the CPU, both on CUDA)")
    step.add_argument("--deepinv", action=FLAG, help="time deepinv's loss too (default: below 256 x 256, and with --size)")
    imports = commands.add_parser("import", help="`import es_medical` next to `import torch, deepinv`", epilog=NEEDS)
    imports.add_argument("--repeats", type=int, default=5, help="timed rounds (default 5)")
    prep = commands.add_parser("prep", help="data_prep fastmri (real) and lidc (all slices) next to plainly reading the slices")
    prep.add_argument("--slices", type=int, default=36, help="slices of each volume (default 36)")
    prep.add_argument("--volumes", type=int, default=2, help="volumes (default 2)")
    prep.add_argument("--repeats", type=int, default=5, help="timed rounds (default 5)")
    memory = _add_memory(commands)
    data = _add_data(commands)
    ct = commands.add_parser("ct", help="A, A^T and a training step of sparse-view CT next to deepinv's Tomography")
    ct.add_argument("--size", type=int, default=256, help="side of the images (default 256)")
    ct.add_argument("--views", type=int, default=50, help="views over 180 degrees (default 50)")
    ct.add_argument("--batch", type=int, default=4, help="images in a batch (default 4)")
    ct.add_argument("--repeats", type=int, default=9, help="timed rounds; a quarter of them for the step (default 9)")
    ct.add_argument("--step", action=FLAG, default=True, help="time a training step as well, minutes (default: yes)")
    draw = commands.add_parser("draw", help="synthetic images drawn in a second")
    draw.add_argument("--repeats", type=int, default=5, help="timed rounds (default 5)")
    shift = commands.add_parser("shift", help="the shift-equivariant UNet next to the plain one", epilog=NEEDS)
    shift.add_argument("--size", type=int, default=128, help="side of the images (default 128)")
    shift.add_argument("--batch", type=int, default=4, help="images in a batch (default 4)")
    shift.add_argument("--channels", type=int, default=3, help="channels of the images (default 3)")
    shift.add_argument("--widths", type=_widths, action="append", help="(default 16,32,64 and then 64,128,256,512)")
    shift.add_argument("--repeats", type=int, default=9, help="timed rounds (default 9)")
    shift.add_argument("--amp", action=FLAG, default=False, help="bfloat16 (default: no)")
    shift.add_argument("--channels-last", action=FLAG, default=False, help="channels-last memory format (default: no)")
    shift.add_argument("--compile", action=FLAG, default=False, help="torch.compile both (default: no)")
    gpu = _add_gpu(commands)
    for command in (step, data, ct, shift, gpu):
        command.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    for command in (step, imports, prep, memory, data, ct, shift, draw, gpu):
        command.add_argument("--threads", type=int, help="CPU threads of torch (default: torch's)")
        command.add_argument("--json", type=Path, help="write the results to this file")
    gpu.set_defaults(device="cuda", json=Path("gpu.json"))
    return parser


def _add_data(commands: Commands) -> argparse.ArgumentParser:
    data = commands.add_parser("data", help="slices a second that a training can read, next to reading the bytes", epilog=NEEDS)
    data.add_argument("--file", type=Path, help="a slice file of your own, in place of a temporary one of noise")
    data.add_argument("--slices", type=int, default=48, help="slices of the temporary file (default 48)")
    data.add_argument("--size", type=int, default=320, help="side of its images (default 320)")
    data.add_argument("--coils", type=int, default=8, help="its receive coils, 0 for one without maps (default 8)")
    data.add_argument("--batch", type=int, default=4, help="slices in a batch (default 4)")
    data.add_argument("--workers", type=_widths, default=(0, 2, 4), help="numbers of worker processes (default 0,2,4)")
    data.add_argument("--repeats", type=int, default=5, help="timed rounds (default 5)")
    return data


def _add_memory(commands: Commands) -> argparse.ArgumentParser:
    memory = commands.add_parser("memory", help="peak memory of every command on 10 x the volumes and on 4 x the pixels")
    memory.add_argument("--volumes", type=int, default=4, help="volumes of the small run, at least 4 (default 4)")
    memory.add_argument("--slices", type=int, default=8, help="slices of each volume (default 8)")
    memory.add_argument("--size", type=int, default=160, help="side of the images of the small run (default 160)")
    memory.add_argument("--only", action="append", metavar="COMMAND", help="after preparation and training; repeated")
    return memory


def _add_gpu(commands: Commands) -> argparse.ArgumentParser:
    gpu = commands.add_parser("gpu", help="everything of a training on a GPU, within a given time", epilog=NEEDS)
    gpu.add_argument("--minutes", type=float, default=8.0, help="time for all parts (default 8); imports come on top")
    gpu.add_argument("--only", action="append", metavar="PART", help="a part to run in place of all; may be repeated")
    gpu.add_argument("--tiny", action="store_true", help="tiny images and networks: a test of the report itself")
    gpu.add_argument("--repeats", type=int, default=10, help="timed rounds at most (default 10)")
    return gpu


def _widths(text: str) -> tuple[int, ...]:
    return tuple(int(width) for width in text.split(","))


def _machine(device: torch.device) -> dict[str, str | int]:
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        name = f"{found.name} ({found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda})"
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__, "python": platform.python_version()}


def _named(value: object) -> Any:  # noqa: ANN401 - what JSON holds
    """Convert records to dictionaries, recursively."""
    if isinstance(value, dict):
        return {key: _named(entry) for key, entry in value.items()}
    return {key: _named(entry) for key, entry in value._asdict().items()} if hasattr(value, "_asdict") else value


if __name__ == "__main__":
    main()
