"""Recorded k-space (`--measurements real`): the interface of raw file readers, and the check which files can be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from data_prep.mri.array_file import SUFFIXES as ARRAYS
from data_prep.mri.array_file import ArrayVolume
from data_prep.mri.fastmri_file import CheckedVolume, FastMRIVolume, open_volume, reconstructed_size
from data_prep.mri.ismrmrd_file import AcquisitionVolume, is_ismrmrd, open_ismrmrd
from data_prep.mri.options import Chosen, Coils
from data_prep.mri.partitions import SlabVolume
from data_prep.mri.sampling import Span, encoding_doubts, measured_extent
from data_prep.mri.twix_file import TWIX, open_twix
from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_prep.mri.ismrmrd_header import Encoding
    from es_medical.data.geometry import Geometry

RecordedTarget = Literal["auto", "rss"]


class RawVolume(Protocol):
    """A volume of recorded k-space, one slice in memory at a time.

    Rows (H) are the readout with its oversampling, columns (W) the phase encoding; k = 0 is at index n//2 of each axis.
    The centred orthonormal inverse FFT of a slice is its image.

    Attributes:
        n_slices: number of slices.
        coils: number of coils, 0 for single-coil data without a coil axis.
        size: (H, W) of the recorded grid.
        encoding: pixel size of the recorded grid, size and spacing of the reconstruction, measured columns.
        noise_covariance: (coils, coils) complex Hermitian: covariance of the real, and of the imaginary, parts of the noise
            in `kspace` (half the covariance of the complex noise), or None.
        mask: (W,) bool, the acquired columns; None if all inside `encoding.measured` (or all W) were acquired.
            Columns outside `encoding.measured` are zero-padding: False if there is a mask.
        subject: patient identifier, "" if unknown. Never stored as it is.
        note: what a user should know about how the file was read, or "".
    """

    n_slices: int
    coils: int
    size: tuple[int, int]
    encoding: Encoding
    noise_covariance: NDArray[np.complexfloating] | None
    mask: NDArray[np.bool_] | None
    subject: str
    note: str

    def kspace(self, index: int) -> NDArray[np.complexfloating]:
        """K-space of one slice, (H, W) or (coils, H, W), complex64.

        Raises:
            PrepError: it cannot be read, is not complex, or holds NaN or infinite values.
        """
        ...

    def geometry(self, index: int) -> Geometry | None:
        """Plane of the recorded grid of one slice in the patient, or None if the file does not give it."""
        ...


class Layout(NamedTuple):
    """How arrays without a header (.npy, .mat) hold k-space: their axes, see `read_axes`, and the name of the array."""

    axes: tuple[str, ...] = ()
    variable: str = ""


NO_LAYOUT = Layout()


@contextmanager
def open_raw(path: Path, layout: Layout = NO_LAYOUT) -> Iterator[RawVolume]:
    """Open raw data: fastMRI's layout, ISMRMRD, Siemens twix, or an array of the given layout. 3-D data come as slices.

    Raises:
        SkipError: a slice file of es_medical.
        PrepError: the file cannot be read, or is none of these.
    """
    if path.suffix.lower() in ARRAYS and layout.axes:
        yield _slices_of(ArrayVolume(path, layout.axes, layout.variable), path)
    elif path.suffix.lower() == TWIX:
        yield _slices_of(open_twix(path), path)
    else:
        with open_volume(path) as file:
            yield _slices_of(open_ismrmrd(file) if is_ismrmrd(file) else FastMRIVolume(file), path)


def _slices_of(raw: AcquisitionVolume | FastMRIVolume | ArrayVolume, path: Path) -> RawVolume:
    """The volume itself, or the slices of a 3-D acquisition."""
    if not raw.slices:
        return raw
    return SlabVolume(raw, max(raw.encoding.partitions, len(raw.slices)), path)


@dataclass(frozen=True, kw_only=True)
class RecordedVolume(CheckedVolume):
    """A volume of recorded k-space that passed the checks of its header and its middle slice.

    Attributes:
        layout: of an array without a header.
        recorded: (H, W) of the k-space grid.
        coils: number of receive coils, 0 without a coil axis.
        rows: first and one past the last row that was measured.
        encoded: first and one past the last column that was encoded; the others are zero-padded.
        mask: (W,) columns that were measured, or None for all that were encoded.
        pixel: row and column spacing in mm of the recorded grid, if unknown that of the reconstruction; NaN where unknown.
        spacing: that of the reconstruction.
    """

    layout: Layout = NO_LAYOUT
    recorded: tuple[int, int]
    coils: int
    rows: tuple[int, int]
    encoded: tuple[int, int]
    mask: tuple[bool, ...] | None
    pixel: tuple[float, float]
    spacing: tuple[float, float]


def inspect_recorded(
    path: Path,
    name: str,
    digest: str,
    coils: Coils,
    chosen: Chosen,
    target: RecordedTarget,
    layout: Layout = NO_LAYOUT,
) -> RecordedVolume:
    """Check a file by its header and its middle slice; the other slices are checked when they are prepared.

    Raises:
        SkipError: a slice file of es_medical.
        PrepError: the file cannot be used; the message says why.
    """
    with open_raw(path, layout) as volume:
        _check_coils(volume, coils)
        middle, k = middle_slice(volume)
        extent = measured_extent(k, volume.encoding.measured, volume.mask, middle)
        rows, columns = extent
        mask = volume.mask if leaves_out(volume.mask, columns) else None
        return RecordedVolume(
            path=path,
            name=name,
            digest=digest,
            layout=layout,
            subject=volume.subject or digest,
            slices=(middle,) if chosen == "middle" else tuple(range(volume.n_slices)),
            whole=chosen == "all" or volume.n_slices == 1,
            recorded=volume.size,
            size=reconstructed_size(volume.encoding, volume.size),
            coils=volume.coils,
            rows=(rows.start, rows.stop),
            encoded=(columns.start, columns.stop),
            mask=None if mask is None else tuple(bool(measured) for measured in mask),
            pixel=volume.encoding.pixel if np.isfinite(volume.encoding.pixel).all() else volume.encoding.spacing,
            spacing=volume.encoding.spacing,
            target="none (undersampled)" if mask is not None else _target(volume.coils, target),
            note="; ".join(
                note for note in (volume.note, _middle_note(volume, middle, chosen), *encoding_doubts(k, extent)) if note
            ),
        )


def middle_slice(volume: RawVolume) -> tuple[int, NDArray[np.complexfloating]]:
    """The middle slice, or of blank ones the nearest that is not, and its k-space. Raises PrepError if all are blank."""
    n = volume.n_slices
    for i in sorted(range(n), key=lambda i: (abs(i - n // 2), i)):
        k = volume.kspace(i)
        if k.any():
            return i, k
    raise PrepError("kspace is zero everywhere")


def _middle_note(volume: RawVolume, taken: int, chosen: Chosen) -> str:
    middle = volume.n_slices // 2
    return f"middle slice {middle} is blank: slice {taken} is taken" if chosen == "middle" and taken != middle else ""


def leaves_out(mask: NDArray[np.bool_] | None, columns: Span) -> bool:
    """Whether a mask (W,) leaves out any of these columns; None leaves out none."""
    return mask is not None and not bool(mask[columns.start : columns.stop].all())


def _check_coils(volume: RawVolume, coils: Coils) -> None:
    if bool(volume.coils) != (coils == "multi"):
        found, other = (f"multi-coil ({volume.coils} coils)", "multi") if volume.coils else ("single-coil", "single")
        raise PrepError(f"kspace is {found}, expected {coils}-coil: give --coils {other} for such files")


def _target(coils: int, target: RecordedTarget) -> str:
    """Name of the ground truth, which is always computed from the recorded k-space."""
    if not coils:
        return "image of kspace"
    return "rss of kspace" if target == "rss" else "coil-combined image of kspace"
