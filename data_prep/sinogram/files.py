"""Open a file of sinograms, whatever its format, found by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_prep.run.manifest import PrepError, SkipError
from data_prep.sinogram.helsinki import helsinki_data, helsinki_scan
from data_prep.sinogram.scan import Scan

MATLAB = b"MATLAB 5.0 MAT-file"


def open_scan(path: Path) -> Scan:
    """The scan in a file.

    Raises:
        SkipError: not a file of sinograms.
        PrepError: the file is damaged, or its content does not fit.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(MATLAB))
    except OSError as error:
        raise PrepError(f"cannot be read ({error.strerror})") from error
    if start == MATLAB:
        return _matlab_scan(path)
    raise SkipError("no sinogram: expected a Helsinki .mat file")


def _matlab_scan(path: Path) -> Scan:
    data = helsinki_data(matlab_variables(path))
    if data is None:
        raise SkipError("a .mat file without CtDataFull")
    return helsinki_scan(data)


def matlab_variables(path: Path) -> dict[str, Any]:
    """The variables of a MATLAB file before version 7.3. Raises PrepError for a damaged one."""
    from scipy.io import loadmat

    try:
        return dict(loadmat(path, simplify_cells=True))
    except Exception as error:  # scipy raises many kinds on damaged bytes
        raise PrepError(f"damaged MATLAB file ({type(error).__name__})") from error
