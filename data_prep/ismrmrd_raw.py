"""ISMRMRD raw files: HDF5 with a group ``dataset`` of an XML header and acquisitions, read as k-space slice by slice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from data_prep.fastmri_file import open_volume
from data_prep.ismrmrd import Encoding, Scan, parse_header, parse_scan
from data_prep.ismrmrd_geometry import stack_slices
from data_prep.ismrmrd_heads import Lines, encoding_space, flagged, plan_lines
from data_prep.ismrmrd_records import check_records, read_heads, read_samples
from data_prep.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_prep.volume import RawVolume
    from es_medical.data.geometry import Geometry

GROUP = "dataset"


def is_ismrmrd(path: Path) -> bool:
    """Whether a file is an HDF5 file with a group ``dataset`` that holds ``xml`` or ``data``; no data are read."""
    try:
        with h5py.File(path, "r") as file:
            group = file.get(GROUP)
            return isinstance(group, h5py.Group) and ("xml" in group or "data" in group)
    except OSError:
        return False


@contextmanager
def open_ismrmrd(path: Path) -> Iterator[RawVolume]:
    """Opens a Cartesian 2-D scan, of one or more slices, as a `RawVolume`.

    The heads of all acquisitions are read at once, samples of one slice at a time.

    Raises:
        PrepError: the file cannot be read, or is not such a scan; the message says what was found and what was expected.
    """
    with open_volume(path) as file:
        group = file.get(GROUP)
        if not isinstance(group, h5py.Group):
            raise PrepError(f"not an ISMRMRD file: no group {GROUP} (found: {len(file)} others)")
        data = check_records(group.get("data"), f"{GROUP}/data", ", ".join(sorted(group)))
        xml, heads = _header(group), read_heads(data)
        yield IsmrmrdVolume(data, heads, xml)


class IsmrmrdVolume:
    """The k-space of an open ISMRMRD file: see `RawVolume` for the attributes.

    Lines are sorted onto the encoded grid of the header with k = 0 at index n//2 of both axes; readout oversampling stays.
    Readouts of one line with several values of the counter ``average`` give their mean. Slices stand in the order of their
    positions along the normal where these are known, else of their counters.
    """

    def __init__(self, data: h5py.Dataset, heads: NDArray, xml: bytes | str) -> None:
        self._data = data
        scan = parse_scan(xml)
        self.encoding: Encoding = parse_header(xml, encoding_space(heads))
        self._lines = lines = plan_lines(heads, self.encoding)
        by_slice = {int(number): heads[lines.index[lines.slice == number]] for number in np.unique(lines.slice)}
        self._stack = stack_slices(by_slice, self.encoding, lines.size, forward_fft="siemens" in scan.vendor)
        self.n_slices: int = len(self._stack.order)
        self.coils: int = lines.readout.coils if lines.readout.coils > 1 else 0
        self.size: tuple[int, int] = lines.size
        self.mask: NDArray[np.bool_] | None = _mask(lines, self.encoding.measured)
        self.subject: str = scan.patient
        self.noise_covariance: NDArray[np.complexfloating] | None
        self.noise_covariance, noise_note = _noise_covariance(data, heads, lines, scan)
        self.note: str = "; ".join(note for note in (*lines.notes, *self._stack.notes, noise_note) if note)

    def kspace(self, index: int) -> NDArray[np.complex64]:
        """One slice, (H, W), or (coils, H, W) when there is more than one channel.

        Raises:
            PrepError: it cannot be read, or holds NaN or infinite values.
        """
        lines, readout = self._lines, self._lines.readout
        here = np.flatnonzero(lines.slice == self._stack.order[index])
        here = here[np.argsort(lines.index[here])]
        samples = read_samples(self._data, lines.index[here], readout.coils, readout.recorded, f"slice {index}")
        kept, rows = slice(*readout.samples), slice(*readout.rows)
        k = np.zeros((self.size[1], readout.coils, self.size[0]), np.complex64)  # a line is written in one piece
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values are refused below
            for line, column, reverse in zip(samples, lines.column[here], lines.reverse[here], strict=True):
                k[column, :, rows] += (line[:, ::-1] if reverse else line)[:, kept]
        if not np.isfinite(k.view(np.float32)).all():
            raise PrepError(f"slice {index} holds NaN or infinite values")
        if lines.averages[1] > 1:
            count = np.bincount(lines.column[here], minlength=self.size[1])
            k /= np.maximum(count, 1).astype(np.float32)[:, None, None]
        k = np.ascontiguousarray(k.transpose(1, 2, 0))  # (coils, H, W)
        return k if self.coils else k[0]

    def geometry(self, index: int) -> Geometry | None:
        """Plane of the recorded grid of one slice, or None when the heads do not say."""
        return self._stack.planes[index]


def _header(group: h5py.Group) -> bytes | str:
    xml = group.get("xml")
    if not isinstance(xml, h5py.Dataset) or xml.size == 0:
        raise PrepError(f"ISMRMRD file without a header: no {GROUP}/xml")
    try:
        value = np.asarray(xml[()]).reshape(-1)[0]
    except OSError as error:
        raise PrepError(f"{GROUP}/xml cannot be read: damaged or truncated data") from error
    if not isinstance(value, bytes | str):
        raise PrepError(f"{GROUP}/xml holds {xml.dtype}, expected text")
    return value


def _mask(lines: Lines, measured: tuple[int, int] | None) -> NDArray[np.bool_] | None:
    """(W,) acquired columns, None when these are all inside the encoding limits.

    Raises:
        PrepError: the slices have different columns.
    """
    numbers = np.unique(lines.slice)
    acquired = lines.columns(int(numbers[0]))
    for number in numbers[1:]:
        other = lines.columns(int(number))
        if (other != acquired).any():
            raise PrepError(
                f"slices have different lines: {acquired.sum()} of slice {numbers[0]}, {other.sum()} of slice {number}, "
                f"{(acquired & other).sum()} of them in common; expected the same lines in all"
            )
    first, stop = measured or (0, lines.size[1])
    return None if acquired[first:stop].all() else acquired


def _noise_covariance(
    data: h5py.Dataset, heads: NDArray, lines: Lines, scan: Scan
) -> tuple[NDArray[np.complex128] | None, str]:
    """(coils, coils) covariance of the real, and of the imaginary, parts of the noise in `kspace`, and a note.

    Noise of variance V recorded with dwell time t has in samples of dwell time T the variance V t / (T b), where b is the
    header's relativeReceiverNoiseBandwidth (1 when not given): Kellman and McVeigh, Magn. Reson. Med. 54:1439, 2005 (erratum
    58:211, 2007). The mean of n readouts has 1/n of it; where n differs between lines the smallest n counts.
    """
    noise = np.flatnonzero(flagged(heads, ["NOISE_MEASUREMENT"]))
    if len(noise) == 0:
        return None, ""
    coils, dwell = lines.readout.coils, float(heads["sample_time_us"][lines.index[0]])
    total, outer, n, known = np.zeros(coils, complex), np.zeros((coils, coils), complex), 0, True
    for i in noise.tolist():
        x, factor = _noise_samples(data, heads[i], i, coils, dwell)
        total, outer, n, known = total + x.sum(1), outer + x @ x.conj().T, n + x.shape[1], known and factor
    if n <= coils:
        return None, f"{n} noise samples of {coils} channels are too few for a covariance"
    mean = total / n
    covariance = np.asarray(outer - n * np.outer(mean, mean.conj()), np.complex128) / (2 * (n - 1) * lines.averages[0])
    covariance = (covariance + covariance.conj().T) / 2  # Hermitian to the last digit
    if 0 < scan.noise_bandwidth <= 1:
        covariance /= scan.noise_bandwidth
    if np.linalg.eigvalsh(covariance)[0] <= 1e-12 * np.trace(covariance).real:
        return None, "the noise measurement is empty in some channel: no noise covariance"
    return covariance, "" if known else "dwell times are not all known: noise covariance taken without a bandwidth correction"


def _noise_samples(
    data: h5py.Dataset, head: np.void, index: int, coils: int, dwell: float
) -> tuple[NDArray[np.complex128], bool]:
    """(coils, n) samples of one noise readout in the bandwidth of the imaging readouts, and whether that was known."""
    recorded, own = int(head["number_of_samples"]), int(head["active_channels"])
    if own != coils:
        raise PrepError(f"the noise measurement has {own} channels, the imaging readouts have {coils}")
    x = read_samples(data, np.array([index]), coils, recorded, "the noise measurement")[0].astype(complex)
    x = x[:, int(head["discard_pre"]) : recorded - int(head["discard_post"])]
    if not np.isfinite(x).all():
        raise PrepError("the noise measurement holds NaN or infinite values")
    ratio = float(head["sample_time_us"]) / dwell if dwell > 0 else 0.0
    known = bool(np.isfinite(ratio) and ratio > 0)
    return x * np.sqrt(ratio if known else 1.0), known
