"""Where a run came from: code, package versions, machine. Nothing here ever fails."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("es_medical", "torch", "deepinv", "monai", "pytorch-ignite", "mlflow", "numpy", "h5py")


def git_commit(folder: Path | None = None) -> str | None:
    """The commit checked out in `folder`, or in the working directory, or where the package lies.

    Returns:
        40 hexadecimal digits; None outside a repository and where git is absent.
    """
    folders = [folder] if folder is not None else [Path.cwd(), Path(__file__).parent]
    return next((commit for place in folders if (commit := _head(place)) is not None), None)


def environment() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result, and the device (a GPU's name or `cpu`)."""
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
