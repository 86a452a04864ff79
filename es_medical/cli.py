"""`es-medical`: short commands for the jobs of a bundle. Each prints the long command that it runs, and runs it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from es_medical import __version__
from es_medical.knobs import BUNDLES, typed_options
from es_medical.report.__main__ import app as report_app

WITH_KNOBS: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
PASSED_ON = WITH_KNOBS | {"help_option_names": []}

app = typer.Typer(
    help="Equivariant splitting: train, test and use the bundles. Knobs follow as --NAME VALUE, for example --epochs 10.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(report_app, name="report")

Bundle = Annotated[str, typer.Argument(help="Name of a bundle (`es-medical bundles`), or its folder.")]
Demo = Annotated[bool, typer.Option("--demo", help="Small network and images; makes the data file where it is missing.")]
Overlay = Annotated[list[str] | None, typer.Option(help="Further configuration of the bundle, as x6_10db; may be repeated.")]
Processes = Annotated[int, typer.Option(help="Processes, on as many CPU cores or GPUs.", min=1)]
Restarts = Annotated[int, typer.Option(help="How often lost processes are replaced; all go on after the last epoch.", min=0)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the commands.")]


def main() -> None:
    """Run the command line."""
    app(prog_name="es-medical")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)


@app.command()
def bundles() -> None:
    """List the bundles with their overlays, and the folder that they are in."""
    for folder in _folders():
        others = sorted(path.stem for path in (folder / "configs").glob("*.yaml"))
        typer.echo(f"{folder.name}: {', '.join(name for name in others if name not in ('train', 'evaluate', 'calibrate'))}")
    typer.echo(f"in {_folders()[0].parent}")


@app.command(context_settings=WITH_KNOBS)
def train(
    context: typer.Context,
    bundle: Bundle,
    demo: Demo = False,
    overlay: Overlay = None,
    processes: Processes = 1,
    max_restarts: Restarts = 3,
    dry_run: DryRun = False,
) -> None:
    """Train a bundle and test its best weights; everything is written to a folder with the bundle's name."""
    _job(bundle, (), context.args, demo, overlay, processes, dry_run, max_restarts)


@app.command(context_settings=WITH_KNOBS)
def evaluate(
    context: typer.Context,
    bundle: Bundle,
    demo: Demo = False,
    overlay: Overlay = None,
    processes: Processes = 1,
    dry_run: DryRun = False,
) -> None:
    """Test the weights of a bundle on the test slices."""
    _job(bundle, ("evaluate",), context.args, demo, overlay, processes, dry_run)


@app.command(context_settings=WITH_KNOBS)
def calibrate(
    context: typer.Context, bundle: Bundle, demo: Demo = False, overlay: Overlay = None, dry_run: DryRun = False
) -> None:
    """Calibrate the intervals of the weights of a bundle on held-out measurements."""
    _job(bundle, ("calibrate",), context.args, demo, overlay, 1, dry_run)


@app.command(context_settings=PASSED_ON)
def diagnose(
    context: typer.Context, bundle: Bundle, demo: Demo = False, overlay: Overlay = None, dry_run: DryRun = False
) -> None:
    """Show, without training, what a group can add to a bundle's operator; options of `python -m es_medical.diagnose`."""
    folder = _folder(bundle)
    files = _configs(folder, [*(["demo"] * demo), *(overlay or [])])
    _run(_demo_data(folder.name, demo), ("es_medical.diagnose", "--config_file", str(files), *context.args), 1, dry_run)


@app.command(context_settings=PASSED_ON, add_help_option=False)
def reconstruct(
    context: typer.Context,
    demo: Annotated[bool, typer.Option("--demo", help="BUNDLE in place of WEIGHTS; INPUT and OUT may be left out.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Reconstruct scans by trained weights: WEIGHTS INPUT OUT, and options of `python -m es_medical.reconstruct`.

    `BUNDLE --demo` takes the small weights that come with a bundle, and without INPUT the first 20 test slices of its demo.
    """
    arguments, before = context.args, list[tuple[str, ...]]()
    if demo and arguments and "--help" not in arguments:
        folder, given = _folder(arguments[0]), arguments[1:]
        weights = folder / "models" / "demo"
        if not weights.is_dir():
            _stop(f"no weights come with {folder.name}: train it by `es-medical train {folder.name} --demo`")
        if not given or given[0].startswith("--"):
            before, data = _demo_data(folder.name, True), _demo_file(folder.name)
            few = ("--data_split", "test", "--dataset#limit", "20", "--n_samples", "3", "--dicom", "false")  # needs an extra
            given = [str(data), f"{folder.name}/demo", *few, *given]
        arguments = [str(weights), *given]
    _run(before, ("es_medical.reconstruct", *arguments), 1, dry_run)


@app.command()
def export(
    weights: Annotated[Path, typer.Argument(help="Folder of a training's weights.")],
    out: Annotated[Path, typer.Argument(help="TorchScript file to write.")],
    dry_run: DryRun = False,
) -> None:
    """Write the denoiser of trained weights as TorchScript, by MONAI's ckpt_export with the knobs of the weights."""
    from es_medical.jobs.trained_weights import export_command

    try:
        command = export_command(weights, out)
    except (ValueError, OSError) as error:
        _stop(str(error))
    _run([], ("monai.bundle", *command), 1, dry_run)


@app.command(context_settings=PASSED_ON, add_help_option=False)
def benchmark(context: typer.Context) -> None:
    """Time the steps of a training and of the preparation beside peers; options of `python -m es_medical.benchmark`."""
    _run([], ("es_medical.benchmark", *context.args), 1, dry_run=False)


def _job(
    bundle: str,
    job: Sequence[str],
    knobs: Sequence[str],
    demo: bool,
    overlay: list[str] | None,
    processes: int,
    dry_run: bool,
    max_restarts: int = 0,
) -> None:
    """Run a job of a bundle as monai.bundle does; a bundle that was named writes to a folder of its name."""
    folder = _folder(bundle)
    files = _configs(folder, [*(["demo"] * demo), *(overlay or []), *(["multi_gpu_train"] * (processes > 1)), *job])
    root = folder if Path(bundle).resolve() == folder else Path(folder.name)
    given = typed_options(knobs)
    places = [] if "bundle_root" in given else ["--bundle_root", str(root)]
    data = _demo_data(folder.name, demo and "data_file" not in given)
    _run(data, ("monai.bundle", "run", "--config_file", str(files), *places, *knobs), processes, dry_run, max_restarts)


def _run(
    before: list[tuple[str, ...]], module: tuple[str, ...], processes: int, dry_run: bool, max_restarts: int = 0
) -> NoReturn:
    """Print and run `python -m` commands: what makes the data, then, in this process's place, the job."""
    options = ("--standalone", f"--nproc_per_node={processes}", f"--max-restarts={max_restarts}")
    launcher = ("torch.distributed.run", *options, "-m") if processes > 1 else ()
    for arguments in before:
        typer.echo(_shown(arguments))
        if not dry_run and (code := subprocess.run([sys.executable, "-m", *arguments], check=False).returncode):
            raise typer.Exit(code)
    typer.echo(_shown((*launcher, *module)))
    if dry_run:
        raise typer.Exit
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # see es_medical.engine.distributed
    warnings = os.environ.get("PYTHONWARNINGS")  # MONAI's, at every start, that a configuration can run code
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (warnings, "ignore:parsing config_file:UserWarning")))
    sys.stdout.flush()
    if launcher:
        raise typer.Exit(_launch((*options, "-m", *module)))
    os.execv(sys.executable, [sys.executable, "-m", *module])


def _launch(arguments: Sequence[str]) -> int:
    """Run torchrun in this process; after Ctrl-C its processes have said what there is to say, so its traceback is left out.

    torchrun does not know a process that it was just starting when the signal came: that one is ended here.
    """
    import psutil
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main as torchrun

    try:
        torchrun(list(arguments))
    except SignalException as stopped:
        for process in psutil.Process().children(recursive=True):
            process.kill()
        return 128 + stopped.sigval
    return 0


def _shown(arguments: Sequence[str]) -> str:
    """Write a command as the README does: lists of configurations in double quotes."""
    return " ".join(["python", "-m", *(f'"{part}"' if part.startswith("['") else shlex.quote(part) for part in arguments)])


def _demo_data(bundle: str, demo: bool) -> list[tuple[str, ...]]:
    """Return the commands that make the demo's data file, where it is to be made."""
    from es_medical.report.catalogue import STUDIES

    commands = next(study.demo_data for study in STUDIES if study.bundle == bundle) if demo else ""
    parts = [tuple(shlex.split(command)[2:]) for command in commands.split("&&") if command]
    return [] if not demo or _demo_file(bundle).is_file() else parts


def _demo_file(bundle: str) -> Path:
    """Return the path of a demo's data file, in the working directory."""
    from es_medical.knobs import read_knobs

    return Path(read_knobs(_folder(bundle) / "configs", ["demo"])["data_file"])


def _folders() -> list[Path]:
    """Return the folders of the bundles."""
    place = next((place for place in BUNDLES if place.is_dir()), None)
    if place is None:
        _stop(f"no bundles in {BUNDLES[0]}: install es_medical from a wheel or from its source tree")
    return sorted(path.parents[1] for path in place.glob("*/configs/train.yaml") if path.parents[1].name != "template")


def _folder(bundle: str) -> Path:
    """Return the folder of a bundle by its path or name."""
    known = {folder.name: folder for folder in _folders()}
    if (Path(bundle) / "configs" / "train.yaml").is_file():
        return Path(bundle).resolve()
    if bundle not in known:
        _stop(f"no bundle {bundle!r}: give its folder, or one of {', '.join(known)}")
    return known[bundle]


def _configs(folder: Path, overlays: Sequence[str]) -> list[str]:
    """Return the paths of train.yaml and overlays, from the working directory where they are below it."""
    folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    files = [folder / "configs" / f"{name}.yaml" for name in ("train", *overlays)]
    for path in files:
        if not path.is_file():
            _stop(f"{folder.name} has no {path.name}: `es-medical bundles` lists what it has")
    return [str(path) for path in files]


def _stop(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
