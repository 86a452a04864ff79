"""What the commands have in common: their usual options, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Argument(help="File to write (.h5 or .hdf5); a folder, or a name without suffix, gets one.")]
WithoutImage = Annotated[bool, typer.Option("--without-image", help="Store no ground truth, as for users who have none.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Make it anew even if up to date, and replace any file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and check every file; write nothing.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Threads that read and transform.", min=1, show_default="as many as there are cores, 8 at most"),
]
Salt = Annotated[
    str | None,
    typer.Option(
        help="Secret behind the hashed ids; never stored. The default can be derived by anyone from the seed, so give "
        "one where patient numbers could be guessed; give the same again for the same ids.",
        envvar="ES_MEDICAL_SALT",
        show_default="from the seed",
    ),
]


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """End the command with a message and status 1 on an error that the user can put right."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


def end(succeeded: bool) -> None:
    """End the command with status 1 where a file failed."""
    if not succeeded:
        raise typer.Exit(1)
