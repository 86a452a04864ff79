"""Load of the machine, versions of the packages, who runs what command, and how the process ends."""

import getpass
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

PACKAGES = ("es_medical", "torch", "deepinv", "monai", "pytorch-ignite", "mlflow", "numpy", "h5py")


class MachineMonitor:
    """Reads CPU, memory, disk, network and GPU with MLflow's sensors, under its names (`system/...`).

    MLflow's own monitoring thread is not used: it needs a live server.

    Args:
        interval: Seconds between two readings.
    """

    def __init__(self, interval: float) -> None:
        self._interval, self._next, self._step = interval, 0.0, 0
        self._sensors: list[Any] | None = None

    def read(self) -> tuple[dict[str, float], int] | None:
        """Return the readings and their running number; None if the interval is not over yet."""
        if time.monotonic() < self._next:
            return None
        self._sensors = self._sensors or _sensors()
        values: dict[str, float] = {}
        for sensor in self._sensors:
            sensor.collect_metrics()
            values |= {f"system/{name}": value for name, value in sensor.aggregate_metrics().items()}
            sensor.clear_metrics()
        self._next, self._step = time.monotonic() + self._interval, self._step + 1
        return values | _cuda_memory(), self._step - 1


def _sensors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    sensors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with suppress(ImportError, RuntimeError):  # no GPU, or nvidia-ml-py is not installed
        sensors.append(GPUMonitor())
    return sensors


def _cuda_memory() -> dict[str, float]:
    """Return the memory reserved by this process on each GPU, in MB; this needs no further package."""
    import torch

    if not torch.cuda.is_initialized():
        return {}
    devices = range(torch.cuda.device_count())
    return {f"system/gpu_{i}_reserved_megabytes": torch.cuda.memory_reserved(i) / 1e6 for i in devices}


def git_commit(folder: Path | None = None) -> str | None:
    """Return the commit checked out in `folder`, else in the working directory or the package's folder.

    Returns:
        40 hexadecimal digits; None outside a repository or without git.
    """
    folders = [folder] if folder is not None else [Path.cwd(), Path(__file__).parent]
    return next((commit for place in folders if (commit := _head(place)) is not None), None)


def environment() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results, and the device (GPU name or `cpu`)."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "device": _device()}
    return found | {package: _version(package) for package in PACKAGES}


def _head(folder: Path) -> str | None:
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def user() -> str:
    """Return the name of the user; "unknown" where the system has none, as in some containers."""
    with suppress(Exception):  # KeyError, OSError or ImportError, by platform and version
        return getpass.getuser()
    return "unknown"


def command() -> str:
    """Return the command of this process in one line, without folders: `monai.bundle run --config_file train.yaml`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name if spec is None else spec.name.removesuffix(".__main__")
    return " ".join([program, *(without_folders(text) for text in sys.argv[1:])])


def without_folders(text: str) -> str:
    """Return a word of a command without folders, quotes and passwords.

    >>> without_folders("['bundles/a/train.yaml','demo.yaml']"), without_folders("--uri=http://me:secret@host:5000")
    ('[train.yaml,demo.yaml]', '--uri=host:5000')
    """
    return re.sub(r"[^\s'\",\[\]=]*[/@]|['\"]", "", text)


class TerminatedError(SystemExit):
    """SIGTERM, raised as an exception so that files are closed and the run is marked; exit status 143."""


@contextmanager
def terminate_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise `TerminatedError` within the context; outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def status_of(error: BaseException | None) -> str:
    """Return MLflow's status of a run that ended with `error`: FINISHED, KILLED (Ctrl-C, SIGTERM) or FAILED."""
    if error is None or (type(error) is SystemExit and error.code in (None, 0)):
        return "FINISHED"
    return "KILLED" if isinstance(error, KeyboardInterrupt | TerminatedError) else "FAILED"


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise TerminatedError(128 + number)
