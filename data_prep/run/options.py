"""Options that several commands share, and the decorator that turns a dataclass of annotated options into command options.

The fields of the dataclass decide what a file holds; each has its help next to it:

    @dataclass(frozen=True, kw_only=True)
    class DemoOptions:
        size: Annotated[int, typer.Option(help="Rows and columns.", min=16)] = 64
        with_image: WithImage = True

    @command(app)
    def demo(out: Out, options: DemoOptions, overwrite: Overwrite = False) -> bool: ...

makes the command `demo OUT --size 64 --without-image --overwrite`. These modules import nothing heavy, so `--help` is fast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from data_prep.run.manifest import MAX_SEED, default_salt, output_path

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from data_prep.run.runner import O, PrepRun

Out = Annotated[Path, typer.Argument(help="File to write (.h5 or .hdf5); a folder, or a name without suffix, gets one.")]
WithImage = Annotated[bool, typer.Option("--without-image", help="Store no ground truth, as for users who have none.")]
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
Acceleration = Annotated[float, typer.Option(help="Width / measured lines of the one sampling mask.", min=1)]
CenterFraction = Annotated[float, typer.Option(help="Fraction of the lines that the centre always measures.", min=0, max=1)]


class CommandLineType(NamedTuple):
    """Type of an option on the command line, if it differs from that of the field."""

    type: Any


def seed_option(help: str, show_default: bool | str = True) -> OptionInfo:
    """An option for a seed in the range that torch's generator distinguishes."""
    return typer.Option(help=help, min=0, max=MAX_SEED, show_default=show_default)


MaskSeed = Annotated[int | None, seed_option("Seed of the mask.", "that of --seed")]


def train_option(what: str, more: str = "") -> OptionInfo:
    """Number or share of `what` for training and validation."""
    return typer.Option(help=f"{what} for training and validation. With fewer than TRAIN + TEST, only the ratio counts.{more}")


def test_option(what: str) -> OptionInfo:
    """Number or share of `what` for test."""
    return typer.Option(help=f"{what} for test. TRAIN + TEST of at most 1 are fractions.")


def val_option(what: str) -> OptionInfo:
    """Number of `what` for validation."""
    return typer.Option(help=f"Validation {what}, taken from the training ones.", show_default="about 5 %")


@contextmanager
def prep_run(
    name: str, out: Path, default_name: str, options: O, salt: str | None = None, workers: int | None = 0
) -> Iterator[PrepRun[O]]:
    """The preparation run of a command, with its threads.

    Args:
        name: name of the command in the stored configuration.
        out: where to write.
        default_name: name of the file if OUT is a folder.
        options: the options of the command.
        salt: secret behind the hashed ids; None derives one from the seed.
        workers: number of threads; None takes the number of cores (8 at most), 0 uses only torch's own threads.
    """
    from rich.console import Console

    from data_prep.run.runner import PrepRun
    from data_prep.run.workers import default_workers, worker_pool

    path, secret = output_path(out, default_name), salt or default_salt(options.seed)
    threads = default_workers() if workers is None else workers
    with worker_pool(threads) if threads else nullcontext() as pool:
        yield PrepRun(name, options, path, secret, max(threads, 1), pool, Console())


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """End the command with a message and status 1 on an error that the user can fix."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a function as a command; each annotated field of its parameter `options` becomes a command-line option.

    The command ends with status 1 if the function returns False (a file failed) or raises an error that the user can fix.
    """

    def register(function: Callable[..., bool]) -> Callable[..., bool]:
        @wraps(function)
        def call(**given: Any) -> bool:  # noqa: ANN401  whatever typer passes
            with exit_on_user_error():
                knobs = {knob: not given.pop(knob) if _is_inverted(one) else given.pop(knob) for knob, one in spread.items()}
                succeeded = function(**given, options=options(**knobs))
            if not succeeded:
                raise typer.Exit(1)
            return succeeded

        signature = inspect.signature(function, eval_str=True)
        options = signature.parameters["options"].annotation
        spread = option_parameters(options)
        parameters = list(signature.parameters.values())
        place = list(signature.parameters).index("options")
        parameters[place : place + 1] = spread.values()
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        app.command(name)(call)
        return function

    return register


def option_parameters(options: type) -> dict[str, inspect.Parameter]:
    """One parameter for each field of a dataclass that is annotated with a `typer.Option`, in order.

    A flag `--without-...` is the negation of its field, and so is its default.
    """
    hints = get_type_hints(options, include_extras=True)
    found = {}
    for name, field in inspect.signature(options).parameters.items():
        kind, *marks = get_args(getattr(hints[name], "type", hints[name])) or (None,)  # an InitVar holds its type
        info = next((mark for mark in marks if isinstance(mark, OptionInfo)), None)
        if info is not None:
            kind = next((mark.type for mark in marks if isinstance(mark, CommandLineType)), kind)
            parameter = field.replace(annotation=Annotated[kind, info], kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
            found[name] = parameter.replace(default=not parameter.default) if _is_inverted(parameter) else parameter
    return found


def _is_inverted(parameter: inspect.Parameter) -> bool:
    return str(get_args(parameter.annotation)[1].default).startswith("--without-")


def known_options(options: type[DataclassInstance], preparation: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the training data that a command also has, see `es_medical.engine.training_data.preparation`."""
    made = preparation["configuration"]
    return {field.name: made[field.name] for field in fields(options) if field.name in made}
