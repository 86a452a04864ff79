"""Commands of the package in forked children of a process that has imported them: a start takes milliseconds, not seconds."""

import functools
import importlib
import os
import random
import runpy
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

MODULES = (
    *("data_prep.cli", "data_prep.ct.lidc", "data_prep.mri.fastmri", "data_prep.inference", "es_medical.reconstruct"),
    *(
        "es_medical.jobs.training",
        "es_medical.jobs.calibration",
        "es_medical.output.dicom.writer",
        "es_medical.tracking.__main__",
    ),
    *(
        "monai.bundle",
        "mlflow.pytorch",
        "mlflow.tracking",
        "highdicom",
        "skimage.metrics",
        "scipy.sparse",
        "astra",
        "matplotlib",
    ),
    *(
        "mlflow.store.tracking.sqlalchemy_store",
        "mlflow.store.model_registry.sqlalchemy_store",
        "mlflow.pyfunc",
        "mlflow.server",
    ),
    *(
        "alembic.command",
        "mlflow.system_metrics.metrics.cpu_monitor",
        "fire",
        "torchio",
        "jinja2",
        "PIL.WebPImagePlugin",
        "pygments.lexers.python",
    ),
)
LIMIT = 900.0  # seconds after which a child counts as hanging


class Ended(NamedTuple):
    """How a command ended: exit status (minus the signal, if one ended it), seconds, and what it printed."""

    code: int
    seconds: float
    output: str

    @property
    def tail(self) -> str:
        """The last lines of the output."""
        return "\n".join(self.output.strip().splitlines()[-12:])


class Moment(NamedTuple):
    """When a command is killed: `delay` seconds after call number `call` of a function began, or after the start if ""."""

    function: str
    call: int
    delay: float


def import_all() -> None:
    """Import what the commands need, without starting a thread."""
    import warnings

    warnings.simplefilter("ignore")
    for name in MODULES:
        importlib.import_module(name)
    from es_medical.tracking.server import import_mlflow

    import_mlflow()
    from mlflow.utils import requirements_utils

    requirements_utils._init_modules_to_packages_map()  # reads the metadata of every package: seconds
    assert threading.active_count() == 1, threading.enumerate()


def run(
    command: list[str],
    folder: Path,
    moment: Moment | None = None,
    before: Callable[[], None] | None = None,
    limit: float = LIMIT,
) -> Ended:
    """Run `python -m COMMAND` in a folder, to its end or until it is killed.

    Args:
        command: module and arguments.
        folder: working directory.
        moment: when to kill -9 it; None lets it end.
        before: called in the child before the command: limits, rights, patched functions.
        limit: seconds after which it is killed and counts as hanging (exit status -14).
    """
    (told, tell), (heard, speak) = os.pipe(), os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.close(heard)
        _child(command, folder, speak, tell, moment, before)
    os.close(tell)
    os.close(speak)
    code, said = _ended(child, told, heard, moment, limit)
    os.close(told)
    os.close(heard)
    return Ended(code, time.monotonic() - start, said.decode(errors="replace"))


def _ended(child: int, told: int, heard: int, moment: Moment | None, limit: float) -> tuple[int, bytes]:
    """Wait for the child's end, or kill it at its moment; return its exit status and what it printed."""
    end = time.monotonic() + limit
    kill = end if moment is None or moment.function else time.monotonic() + moment.delay
    said, open_ones = b"", {told, heard}
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        pause = 0.0 if found else min(0.05, max(0.0, kill - time.monotonic()))
        for ready in select.select(open_ones, [], [], pause)[0]:
            read = os.read(ready, 65536)
            if not read:
                open_ones.remove(ready)
            elif ready == told and moment is not None:
                kill = time.monotonic() + moment.delay
            said += read if ready == heard else b""
        if found and not select.select(open_ones & {heard}, [], [], 0)[0]:
            return (-signal.SIGALRM if time.monotonic() > end else os.waitstatus_to_exitcode(status)), said
        if not found and time.monotonic() >= kill:
            os.kill(child, signal.SIGKILL)
            kill = end + limit


def _child(
    command: list[str], folder: Path, speak: int, tell: int, moment: Moment | None, before: Callable[[], None] | None
) -> NoReturn:
    code = 1
    try:
        os.chdir(folder)
        os.dup2(speak, 1)
        os.dup2(speak, 2)
        sys.stdout, sys.stderr = open(1, "w", buffering=1, closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115, PTH123
        os.environ["PYTHONWARNINGS"] = "ignore"
        if moment is not None and moment.function:
            _watch(moment, tell)
        if before is not None:
            before()
        random.seed()
        sys.argv = [command[0], *command[1:]]
        try:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 0 if stopped.code is None else 1
            if isinstance(stopped.code, str):
                print(stopped.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)  # a bundle has one of its own
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch(moment: Moment, tell: int) -> None:
    """Die when the chosen call of the function begins, or say by a pipe that it does."""
    place, last = found(moment.function)
    function, count = getattr(place, last), [0]

    def watched(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        if count[0] == moment.call:
            if moment.delay == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(tell, b".")
        return function(*arguments, **named)

    setattr(place, last, watched)


def found(function: str) -> tuple[Any, str]:
    """Where `module:Class.function` stands, and its last name."""
    module, _, name = function.partition(":")
    *parents, last = name.split(".")
    place: Any = functools.reduce(getattr, parents, importlib.import_module(module))
    return place, last
