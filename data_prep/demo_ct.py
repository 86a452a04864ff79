"""Demo CT without a download: lung CT of an installed pycerr, or a chest phantom, both read as DICOM archives are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from data_prep import lidc
from data_prep.ct_phantom import write_archive
from data_prep.manifest import PrepError, default_salt
from data_prep.workers import worker_pool

if TYPE_CHECKING:
    from rich.console import Console

Archive = Literal["auto", "pycerr", "phantom"]

FOLDER = ("datasets", "radiomics_phantom_dicom")
INSTALL = "pip install --no-deps pycerr==2.5.1"
PATIENTS, SLICES = 10, 20  # of the phantom


@dataclass(frozen=True)
class Options:
    """Knobs of the demo: see `python -m data_prep demo ct --help`."""

    size: int = 64
    views: int = 16
    sigma: float = 0.001
    seed: int = 0
    source: Archive = "auto"
    with_image: bool = True
    photons: float | None = None

    def prepared(self, real: bool) -> lidc.Options:
        """Those of `lidc`: every slice, one patient for validation and one (phantom: two) for test."""
        train, test = (3, 1) if real else (PATIENTS - 2, 2)
        return lidc.Options(
            "all", "all", self.size, self.views, self.sigma, self.seed, train, test, 1, None, self.with_image,
            self.photons,
        )  # fmt: skip


def pycerr_folder() -> Path | None:
    """The CT slices inside an installed pycerr, found without importing it; None without one."""
    found = util.find_spec("cerr")
    roots = list(found.submodule_search_locations or ()) if found else []
    folders = [Path(root).joinpath(*FOLDER) for root in roots]
    return next((folder for folder in folders if folder.is_dir()), None)


@contextmanager
def archive(options: Options, console: Console) -> Iterator[tuple[Path, bool]]:
    """The folder to read, and whether it holds real CT; a phantom is written for the time being.

    Raises:
        PrepError: pycerr was asked for and is not there.
    """
    folder = None if options.source == "phantom" else pycerr_folder()
    if folder is not None:
        console.print("real lung CT of pycerr (CC BY-NC: not for commercial use)")
        yield folder, True
        return
    if options.source == "pycerr":
        raise PrepError(f"no pycerr with CT slices is installed: {INSTALL} (images CC BY-NC)")
    why = f"; for real CT (4 patients, CC BY-NC): {INSTALL}" if options.source == "auto" else ""
    console.print(f"parametric chest phantom, {PATIENTS} patients{why}", soft_wrap=True, markup=False)
    with TemporaryDirectory() as temporary:
        write_archive(Path(temporary), PATIENTS, SLICES, 2 * options.size, options.seed)
        yield Path(temporary), False


def run(out: Path, options: Options, overwrite: bool, console: Console) -> bool:
    """Writes the demo data set to OUT, unless it is there already; see `lidc.run`."""
    with archive(options, console) as (folder, real), worker_pool(2) as pool:
        command = f"demo ct ({'pycerr' if real else 'phantom'})"
        job = lidc.Job(folder, out, options.prepared(real), default_salt(options.seed), 2, pool, console, command)
        return lidc.run(job, overwrite=overwrite)
