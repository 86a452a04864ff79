"""Command line of the report: `python -m es_medical.report tables ...`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from es_medical.report.running.reproduce import Reproduction

app = typer.Typer(
    help="The paper's tables and figures, built from MLflow runs.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)

TrackingUri = Annotated[
    str | None, typer.Option(help="MLflow store.", show_default="MLFLOW_TRACKING_URI, else sqlite:///mlflow.db")
]
Scale = Annotated[Literal["demo", "paper"] | None, typer.Option(help="Use only runs of this scale.", show_default="all")]
Bundles = Annotated[Path, typer.Option(help="Folder of the bundles, for the defaults that commands need not repeat.")]


@app.callback()
def main() -> None:
    """Build the paper's tables and figures from MLflow runs."""


@app.command()
def tables(
    tracking_uri: TrackingUri = None,
    out: Annotated[Path, typer.Option(help="Folder for the report, made if absent.")] = Path("report"),
    scale: Scale = None,
    experiment: Annotated[
        list[str] | None, typer.Option(help="Name of an MLflow experiment; may be repeated.", show_default="all")
    ] = None,
    bundles: Bundles = Path("bundles"),
) -> None:
    """Write every table of the paper with our numbers next to the paper's: HTML, Markdown, CSV and LaTeX.

    Reads finished, tested runs. A method without a run is an empty row with the command that fills it.
    """
    from es_medical.report.formats import write_report
    from es_medical.report.reading.runs import read_runs
    from es_medical.report.reading.store import ReportError
    from es_medical.report.report import make_report
    from es_medical.report.tables import Context

    try:
        found = read_runs(tracking_uri, experiment, scale)
        report = make_report(found, Context(tracking_uri, bundles), scale, everything=not experiment)
        files = write_report(report, out)
    except (ReportError, OSError) as error:
        stop(error)
    for remark in report.remarks:
        typer.echo(remark)
    typer.echo(f"{len(found.runs)} runs, {len(report.sections)} sections, {len(files)} files: {files[0]}")


ScaleOf = Annotated[
    Literal["demo", "paper"],
    typer.Option(help="demo: small networks on packaged images, minutes a run. paper: your data files, for GPUs."),
]
Work = Annotated[Path, typer.Option(help="Folder for the demo's data, and weights and logs of the runs.")]
Parallel = Annotated[int, typer.Option(help="Runs at a time.", min=1)]
Devices = Annotated[
    str, typer.Option(help="Numbers of the GPUs that runs take in turn: 0,1,2,3.", show_default="what there is")
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Knob of every run as NAME=VALUE; may be repeated.")]
Effort = Annotated[float, typer.Option(help="Factor of the epochs of every training.", min=0.001)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the commands of the missing runs.")]


@app.command()
def reproduce(
    scale: ScaleOf = "demo",
    only: Annotated[
        list[str] | None, typer.Option(help="Experiment (mri_x8, ct, ...) or bundle; may be repeated.", show_default="all")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Method; may be repeated.", show_default="the paper's")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the trainings.", min=0)] = 0,
    effort: Effort = 1.0,
    tracking_uri: TrackingUri = None,
    work: Work = Path("reproduction"),
    bundles: Bundles = Path("bundles"),
    parallel: Parallel = 1,
    devices: Devices = "",
    knobs: Set = None,
    data_ready: Annotated[bool, typer.Option("--data-ready", help="The demo's data files are in WORK already.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Run the trainings that the paper's tables lack; `tables` then builds them.

    A run that is in the MLflow store is not repeated; an interrupted one is resumed. At demo scale all data are made
    first. At the paper's scale each bundle reads its own data file (see the bundle's page).
    """
    from es_medical.report.reading.store import ReportError
    from es_medical.report.running.plan import plan
    from es_medical.report.running.reproduce import reproduce as run

    try:
        how = _how(scale, seed, tracking_uri, bundles, work, parallel, devices, knobs, data_ready)
        complete = run(plan(scale, only or [], method or [], bundles, effort), how, dry_run)
    except (ReportError, OSError) as error:
        stop(error)
    if not complete and not dry_run:
        raise typer.Exit(1)


@app.command()
def sweep(
    method: Annotated[
        list[str] | None, typer.Option(help="Method; may be repeated.", show_default="es, supervised, ei")
    ] = None,
    scale: ScaleOf = "demo",
    seed: Annotated[int, typer.Option(help="Seed of the trainings.", min=0)] = 0,
    effort: Effort = 1.0,
    tracking_uri: TrackingUri = None,
    work: Work = Path("reproduction"),
    bundles: Bundles = Path("bundles"),
    parallel: Parallel = 1,
    devices: Devices = "",
    knobs: Set = None,
) -> None:
    """Run compressed sensing at its five compression levels, as child runs of one MLflow run that gets the paper's figure.

    Runs that are in the store already are not repeated.
    """
    from es_medical.report.reading.store import ReportError
    from es_medical.report.running.plan import plan
    from es_medical.report.running.sweep import sweep as run

    try:
        how = _how(scale, seed, tracking_uri, bundles, work, parallel, devices, knobs)
        complete = run(plan(scale, ["sensing"], method or ["es", "supervised", "ei"], bundles, effort), how)
    except (ReportError, OSError) as error:
        stop(error)
    if not complete:
        raise typer.Exit(1)


def _how(
    scale: str,
    seed: int,
    tracking_uri: str | None,
    bundles: Path,
    work: Path,
    parallel: int,
    devices: str,
    knobs: list[str] | None,
    data_ready: bool = False,
) -> Reproduction:
    """Convert the options of a reproduction."""
    from rich.console import Console

    from es_medical.report.running.reproduce import Reproduction, parse_knobs, store

    chosen = tuple(device.strip() for device in devices.split(",") if device.strip())
    given = parse_knobs(knobs or [])
    return Reproduction(scale, seed, store(tracking_uri), bundles, work, parallel, chosen, Console(), given, data_ready)


def stop(error: Exception) -> NoReturn:
    """Print an error and exit with status 1."""
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a terminated command also ends its runs
    app(prog_name="python -m es_medical.report")
