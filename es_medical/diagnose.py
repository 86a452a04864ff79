"""`python -m es_medical.diagnose --config_file bundles/<name>/configs/train.yaml`: will it work on my scanner?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from es_medical.jobs.diagnosis import Report

ConfigFiles = Annotated[
    list[str],
    typer.Option(
        "--config_file",
        "--config-file",
        help="train.yaml of a bundle; repeated, or a list as for monai.bundle: \"['train.yaml','demo.yaml']\".",
    ),
]

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def diagnose(
    context: typer.Context,
    config_file: ConfigFiles,
    bundle_root: Annotated[
        str | None, typer.Option("--bundle_root", "--bundle-root", help="Folder of the bundle, as for monai.bundle.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Slice file: its operator, and typical images.", show_default="that of the configuration, if it is there"
        ),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Set of transformations to look at; may be repeated.", show_default="all")
    ] = None,
    split_ratio: Annotated[
        list[float] | None,
        typer.Option(
            "--split-ratio",
            help="Share of the measurements that a split keeps; may be repeated.",
            show_default="that of the configuration",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Rows and columns of the images, where no data file is read.", min=4, show_default="the paper's"),
    ] = None,
    images: Annotated[int, typer.Option(help="Typical images to read from the file.", min=1)] = 4,
    out: Annotated[Path, typer.Option(help="Folder for the pictures, the table and the verdict; made if absent.")] = Path(
        "diagnosis"
    ),
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri", "--tracking_uri", help="MLflow store.", show_default="MLFLOW_TRACKING_URI, else mlflow.db"
        ),
    ] = None,
    track: Annotated[bool, typer.Option("--track/--no-track", help="Log to MLflow.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of random vectors, where a spectrum is estimated.", min=0)] = 0,
) -> None:
    """Show, without training, what transformations can add to an operator: a verdict, a table, and pictures.

    Reads the operator from the slice file or, without one, makes it from the configuration's knobs. Knobs may follow as for
    monai.bundle: --views 51.
    """
    from es_medical.jobs.bundle_operator import config_files, read_subject
    from es_medical.jobs.diagnosis import Sinks, report
    from es_medical.knobs import read_options

    try:
        overrides = read_options(context.args) | ({} if bundle_root is None else {"bundle_root": bundle_root})
        subject = read_subject(config_files(config_file), overrides, data, images, size)
        found = report(subject, group or None, seed, split_ratio or None)
        files = found.write(Sinks(out, tracking_uri or subject.tracking_uri, track))
    except (ValueError, OSError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    _print(found)
    typer.echo(f"{', '.join(path.name for path in files)} in {out}")


def _print(found: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    shown = Table(title=found.title, title_justify="left")
    for i, name in enumerate(found.table):
        shown.add_column(name, no_wrap=i == 0, justify="left" if i == 0 else "right")
    for row in zip(*found.table.values(), strict=True):
        shown.add_row(*row)
    console.print(shown)
    for paragraph in found.verdict:
        console.print(f"\n{paragraph}", markup=False, highlight=False)
    console.print()


if __name__ == "__main__":
    app(prog_name="python -m es_medical.diagnose")
