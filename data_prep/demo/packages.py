"""Find images that installed packages ship, without importing the packages."""

from importlib import util
from pathlib import Path

from data_prep.run.manifest import PrepError

EXTRA = "'es_medical[demo]'"


def package_folders(package: str) -> list[Path]:
    """The folders of an installed package; empty if it is not installed."""
    found = util.find_spec(package)
    return [Path(root) for root in found.submodule_search_locations or ()] if found else []


def shipped(package: str, place: str, what: str, distribution: str = "") -> Path:
    """The path of a file inside an installed package.

    Args:
        package: name by which it is imported.
        place: path below its folder.
        what: what the file holds, for the error message.
        distribution: name by which it is installed, if different.

    Raises:
        PrepError: the package is not installed, or no longer holds the file; the message says how to install it.
    """
    folders, name = package_folders(package), distribution or package
    if not folders:
        raise PrepError(f"the demo needs the {what} that {name} ships: pip install {EXTRA}")
    path = folders[0] / place
    if not path.is_file():
        raise PrepError(f"this {name} holds no {path.name}: pip install --force-reinstall {EXTRA}")
    return path
