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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from data_prep.run.manifest import MAX_SEED, PrepError, default_salt, output_path

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from data_prep.run.cluster import Cluster
    from data_prep.run.runner import O, PrepRun
    from data_prep.run.store import Store

SMALL = 10**9  # bytes below which threads are done before processes have started
Out = Annotated[Path, typer.Argument(help="File to write (.h5 or .hdf5); a folder, or a name without suffix, gets one.")]
WithImage = Annotated[bool, typer.Option("--without-image", help="Store no ground truth, as for users who have none.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Make it anew even if up to date, and replace any file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and check every file; write nothing.")]
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
Licence = Annotated[
    str | None,
    typer.Option(
        help="Licence or terms of the images, in words: kept in the file, stated in the card of its weights.",
        show_default=False,
    ),
]
CenterFraction = Annotated[float, typer.Option(help="Fraction of the lines that the centre always measures.", min=0, max=1)]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Who does the work; the file is the same.

    Raises:
        PrepError: `scheduler` and `workers` are both given.
    """

    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes on this machine (extra `cluster`); threads where SRC holds less than 1 GB.",
            min=1,
            show_default="threads, as many as there are cores, 8 at most",
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(help="Use the processes of this dask scheduler, tcp://HOST:8786; all see SRC and OUT at the same paths."),
    ] = None
    parts: Annotated[
        Literal["gather", "keep"] | None,
        typer.Option(
            help="Processes write each volume as a part of its own in OUT.parts, so that an interrupted run goes on. "
            "gather: join them in OUT and remove them. keep: OUT is a virtual data set over them; move both together.",
            show_default="gather",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.scheduler and self.workers:
            raise PrepError("--workers and --scheduler: expected one of them, as the scheduler has its own processes")

    def processes(self, source: Path | Store | None) -> bool:
        """Whether processes do the work: they take some seconds to start, so not where there is little to do."""
        asked = self.scheduler is not None or self.parts is not None
        return asked or (source is not None and (self.workers or 0) > 1 and holds(source, SMALL))


def holds(source: Path | Store, least: int) -> bool:
    """Whether a file, or the files below a folder, have so many bytes together; stops as soon as that is clear."""
    from data_prep.run.folders import walk
    from data_prep.run.manifest import Outcome

    if not isinstance(source, Path):
        return sum(least if one.size is None else one.size for one in source.objects) >= least
    total = 0
    for path in (item.path for item in walk(source) if not isinstance(item, Outcome)) if source.is_dir() else [source]:
        total += path.stat().st_size if path.is_file() else 0
        if total >= least:
            return True
    return False


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
    name: str,
    out: Path,
    default_name: str,
    options: O,
    salt: str | None = None,
    workers: int | None = 0,
    engine: Engine | None = None,
    source: Path | Store | None = None,
) -> Iterator[PrepRun[O]]:
    """The preparation run of a command, with its threads or processes.

    Args:
        name: name of the command in the stored configuration.
        out: where to write.
        default_name: name of the file if OUT is a folder.
        options: the options of the command.
        salt: secret behind the hashed ids; None derives one from the seed.
        workers: number of threads; None takes the number of cores (8 at most), 0 uses only torch's own threads.
        engine: in place of `workers`.
        source: what will be read.

    Raises:
        PrepError: there are no such processes, or the extra `cluster` is missing.
    """
    from rich.console import Console

    from data_prep.run.runner import PrepRun
    from data_prep.run.workers import default_workers, worker_pool

    path, secret = output_path(out, default_name), salt or default_salt(options.seed)
    workers = engine.workers if engine else workers
    threads = default_workers() if workers is None else workers
    with worker_pool(threads) if threads else nullcontext() as pool:
        prep = PrepRun(name, options, path, secret, max(threads, 1), pool, Console())
        if engine is None or not engine.processes(source):
            yield prep
            return
        with _processes(engine)(threads, engine.scheduler, path, prep.pseudonyms, engine.parts == "keep", prep.say) as cluster:
            yield replace(prep, cluster=cluster)


def _processes(engine: Engine) -> Callable[..., AbstractContextManager[Cluster]]:
    try:
        from data_prep.run.cluster import cluster
    except ImportError as error:
        named = next(f"--{name}" for name in ("scheduler", "parts", "workers") if getattr(engine, name))
        raise PrepError(f"{named} needs dask: pip install 'es_medical[cluster]'") from error
    return cluster


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """End the command with a message and status 1 on an error that the user can fix."""
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a function as a command; each annotated field of its dataclasses becomes a command-line option.

    The command ends with status 1 if the function returns False (a file failed) or raises an error that the user can fix.
    """

    def register(function: Callable[..., bool]) -> Callable[..., bool]:
        @wraps(function)
        def call(**given: Any) -> bool:  # noqa: ANN401  whatever typer passes
            with exit_on_user_error():
                for record, (kind, spread) in records.items():
                    knobs = {key: not given.pop(key) if _is_inverted(one) else given.pop(key) for key, one in spread.items()}
                    given[record] = kind(**knobs)
                succeeded = function(**given)
            if not succeeded:
                raise typer.Exit(1)
            return succeeded

        signature = inspect.signature(function, eval_str=True)
        records = {
            key: (one.annotation, option_parameters(one.annotation))
            for key, one in signature.parameters.items()
            if isinstance(one.annotation, type) and is_dataclass(one.annotation)
        }
        spread = [records[key][1].values() if key in records else [one] for key, one in signature.parameters.items()]
        parameters = [one for some in spread for one in some]
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
    """Options of the training data that a command also has, but no licence; see `engine.training_data.preparation`."""
    made = preparation["configuration"]
    return {field.name: made[field.name] for field in fields(options) if field.name in made and field.name != "licence"}
