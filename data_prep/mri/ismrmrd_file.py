"""Read ISMRMRD raw files slice by slice: HDF5 with a group ``dataset`` that holds an XML header and acquisitions.

The record types and flags come from the `ismrmrd` package. Its readers are not used: `Dataset.read_acquisition` calls h5py once
per readout, and `ismrmrd.xsd` refuses headers that break the schema in parts that are not needed here. Here all acquisition
headers ("heads") are read at once, the samples of a slice in one call, and the XML header by `ismrmrd_header`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import h5py
import numpy as np

from data_prep.mri.ismrmrd_geometry import slab_heads, stack_slices
from data_prep.mri.ismrmrd_header import Encoding, Scan, parse_header, parse_scan
from data_prep.mri.ismrmrd_lines import Lines, encoding_space, flagged, plan_lines
from data_prep.run.manifest import PrepError
from es_medical.data.hdf5 import missing_filter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from es_medical.data.geometry import Geometry

GROUP = "dataset"
BLOCK = 64  # records at a time where heads cannot be read alone


def is_ismrmrd(file: h5py.File) -> bool:
    """Whether an HDF5 file has a group ``dataset`` with ``xml`` or ``data``; no data are read."""
    group = file.get(GROUP)
    return isinstance(group, h5py.Group) and ("xml" in group or "data" in group)


class Reader(Protocol):
    """Reads the samples (coils, samples) of each acquisition at increasing positions; raises PrepError with the name `what`."""

    def __call__(self, index: NDArray[np.int64], coils: int, recorded: int, what: str) -> list[NDArray[np.complex64]]:
        """Samples of each."""


def open_ismrmrd(file: h5py.File) -> AcquisitionVolume:
    """The scan in an open ISMRMRD file (see `is_ismrmrd`).

    The heads of all acquisitions are read at once, samples of one slice at a time.

    Raises:
        PrepError: the file holds another kind of scan, or is damaged; the message says what was found and what was expected.
    """
    group = file[GROUP]
    data = check_records(group.get("data"), f"{GROUP}/data", ", ".join(sorted(group)))
    xml, heads = _header(group), read_heads(data)
    return AcquisitionVolume(partial(read_samples, data), heads, parse_header(xml, encoding_space(heads)), parse_scan(xml))


class AcquisitionVolume:
    """A Cartesian scan of one or more slices, or of one 3-D slab, as a `RawVolume`.

    Lines are placed on the encoded grid of the header, with k = 0 at index n//2 of both axes; readout oversampling is kept.
    Readouts of one line that differ in the counter ``average`` are averaged. Slices are ordered by position along the normal
    where positions are known, else by slice counter. Of a slab, `kspace` gives partitions; see `data_prep.mri.partitions`.

    Args:
        read: reads samples.
        heads: (acquisitions,) heads of all acquisitions, with the fields of ISMRMRD.
        encoding: encoding space of the imaging readouts.
        scan: scanner and patient.

    Raises:
        PrepError: another kind of scan; the message says what was found and what was expected.
    """

    def __init__(self, read: Reader, heads: NDArray, encoding: Encoding, scan: Scan) -> None:
        self._read, self.encoding = read, encoding
        self._lines = lines = plan_lines(heads, encoding)
        by_slice = {int(number): heads[lines.index[lines.slice == number]] for number in np.unique(lines.slice)}
        siemens = "siemens" in scan.vendor
        if encoding.partitions > 1:
            by_slice = slab_heads(heads[lines.index[:1]], encoding, forward_fft=siemens)
        self._stack = stack_slices(by_slice, encoding, lines.size, forward_fft=siemens)
        self.n_slices: int = len(self._stack.order)
        self.slices = self._stack.order if encoding.partitions > 1 else ()
        self.coils: int = lines.readout.coils if lines.readout.coils > 1 else 0
        self.size: tuple[int, int] = lines.size
        self.mask: NDArray[np.bool_] | None = _mask(lines, encoding.measured)
        self.subject: str = scan.patient
        self.noise_covariance: NDArray[np.complexfloating] | None
        self.noise_covariance, noise_note = _noise_covariance(read, heads, lines, scan)
        self.note: str = "; ".join(note for note in (*lines.notes, *self._stack.notes, noise_note) if note)

    def kspace(self, index: int) -> NDArray[np.complex64]:
        """K-space of one slice or partition, (H, W), or (coils, H, W) if there is more than one channel.

        Raises:
            PrepError: it cannot be read, or holds NaN or infinite values.
        """
        lines, readout = self._lines, self._lines.readout
        chosen = np.flatnonzero(lines.slice == (index if self.slices else self._stack.order[index]))
        chosen = chosen[np.argsort(lines.index[chosen])]
        name = f"{'partition' if self.slices else 'slice'} {index}"
        samples = self._read(lines.index[chosen], readout.coils, readout.recorded, name) if len(chosen) else []
        kept, rows = slice(*readout.samples), slice(*readout.rows)
        k = np.zeros((self.size[1], readout.coils, self.size[0]), np.complex64)  # a line is written in one piece
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values are refused below
            for line, column, reverse in zip(samples, lines.column[chosen], lines.reverse[chosen], strict=True):
                k[column, :, rows] += (line[:, ::-1] if reverse else line)[:, kept]
        if not np.isfinite(k.view(np.float32)).all():
            raise PrepError(f"{name} holds NaN or infinite values")
        if lines.averages[1] > 1:
            count = np.bincount(lines.column[chosen], minlength=self.size[1])
            k /= np.maximum(count, 1).astype(np.float32)[:, None, None]
        k = np.ascontiguousarray(k.transpose(1, 2, 0))  # (coils, H, W)
        return k if self.coils else k[0]

    def geometry(self, index: int) -> Geometry | None:
        """Plane of the recorded grid of one slice, or None if the heads do not give it."""
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
    """(W,) acquired columns, or None if all columns inside the encoding limits were acquired.

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


def _noise_covariance(read: Reader, heads: NDArray, lines: Lines, scan: Scan) -> tuple[NDArray[np.complex128] | None, str]:
    """(coils, coils) covariance of the real, and of the imaginary, parts of the noise in `kspace`, and a note.

    Noise of variance V recorded with dwell time t has variance V t / (T b) in samples of dwell time T, where b is the header's
    relativeReceiverNoiseBandwidth (1 if not given): Kellman and McVeigh, Magn. Reson. Med. 54:1439, 2005 (erratum 58:211,
    2007). The mean of n readouts has 1/n of it; if n differs between lines, the smallest n is used.
    """
    noise = np.flatnonzero(flagged(heads, ["NOISE_MEASUREMENT"]))
    if len(noise) == 0:
        return None, ""
    coils, dwell = lines.readout.coils, float(heads["sample_time_us"][lines.index[0]])
    total, outer, n, known = np.zeros(coils, complex), np.zeros((coils, coils), complex), 0, True
    for i in noise.tolist():
        x, factor = _noise_samples(read, heads[i], i, coils, dwell)
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


def _noise_samples(read: Reader, head: np.void, index: int, coils: int, dwell: float) -> tuple[NDArray[np.complex128], bool]:
    """(coils, n) samples of one noise readout, scaled to the bandwidth of the imaging readouts, and whether that is known."""
    recorded, own = int(head["number_of_samples"]), int(head["active_channels"])
    if own != coils:
        raise PrepError(f"the noise measurement has {own} channels, the imaging readouts have {coils}")
    x = read(np.array([index]), coils, recorded, "the noise measurement")[0].astype(complex)
    x = x[:, int(head["discard_pre"]) : recorded - int(head["discard_post"])]
    if not np.isfinite(x).all():
        raise PrepError("the noise measurement holds NaN or infinite values")
    ratio = float(head["sample_time_us"]) / dwell if dwell > 0 else 0.0
    known = bool(np.isfinite(ratio) and ratio > 0)
    return x * np.sqrt(ratio if known else 1.0), known


def check_records(data: object, where: str, found: str) -> h5py.Dataset:
    """The dataset of acquisitions, checked for the fields of an ISMRMRD record.

    Raises:
        PrepError: it is no such dataset, or is empty, or the ismrmrd package is not installed.
    """
    if not isinstance(data, h5py.Dataset):
        raise PrepError(f"ISMRMRD file without acquisitions: no {where} (found: {found or 'nothing'})")
    try:
        from ismrmrd.hdf5 import acquisition_dtype, acquisition_header_dtype
    except ImportError as error:
        raise PrepError("ISMRMRD files need the ismrmrd package: pip install 'es_medical[ismrmrd]'") from error
    fields = data.dtype.fields or {}
    head = fields["head"][0].names if "head" in fields else ()
    lacking = {*acquisition_dtype.names} - {*fields} or {*acquisition_header_dtype.names} - {*(head or ())}
    if lacking:
        raise PrepError(f"{where} has no {', '.join(sorted(lacking))}: not the acquisitions of an ISMRMRD file")
    if cause := missing_filter(data):
        raise PrepError(f"{where} {cause}")
    if len(data.shape) != 1 or data.shape[0] == 0:
        raise PrepError(f"{where} has shape {data.shape}, expected at least one acquisition")
    return data


def read_heads(data: h5py.Dataset) -> NDArray[np.void]:
    """Read the heads of all acquisitions, (acquisitions,).

    If h5py reads only the field ``head``, it also reads all samples and never frees them (h5py issue 2374). So the heads are
    taken from the stored bytes (samples lie elsewhere in the file), or, where that is impossible, records are read in blocks.

    Raises:
        PrepError: the file is damaged.
    """
    try:
        heads = _stored_heads(data)
        if heads is None or heads[:1].tobytes() != data[:1]["head"].tobytes():
            heads = np.concatenate([data[i : i + BLOCK]["head"] for i in range(0, data.shape[0], BLOCK)])
    except (OSError, RuntimeError) as error:
        raise PrepError("the heads of the acquisitions cannot be read: damaged or truncated data") from error
    return heads


def _stored_heads(data: h5py.Dataset) -> NDArray[np.void] | None:
    """Heads from the bytes of unfiltered chunks, or None if they are stored in another way."""
    if data.chunks is None or data.id.get_create_plist().get_nfilters():
        return None
    kind = data.id.get_type()
    offset = kind.get_member_offset(kind.get_member_index(b"head"))
    record = np.dtype({"names": ["head"], "formats": [data.dtype["head"]], "offsets": [offset], "itemsize": kind.get_size()})
    chunks = [data.id.read_direct_chunk((i,))[1] for i in range(0, data.shape[0], data.chunks[0])]
    return np.frombuffer(b"".join(chunks), record)["head"][: data.shape[0]].copy()


def read_samples(
    data: h5py.Dataset, index: NDArray[np.int64], coils: int, recorded: int, what: str
) -> list[NDArray[np.complex64]]:
    """Read the samples (coils, samples) of each acquisition at the increasing positions `index`.

    Raises:
        PrepError: they cannot be read, or have another number of samples.
    """
    step = int(index[1] - index[0]) if len(index) > 1 else 1
    evenly = bool((np.diff(index) == step).all())
    try:
        rows = data[slice(int(index[0]), int(index[-1]) + 1, step) if evenly else index]["data"]
    except (OSError, RuntimeError) as error:
        raise PrepError(f"{what} cannot be read: damaged or truncated data") from error
    wanted = 2 * coils * recorded  # real and imaginary parts
    other = [np.size(row) for row in rows if np.size(row) != wanted]
    if other:
        raise PrepError(
            f"{what} has a readout of {other[0]} numbers, expected {wanted}: 2 x {coils} channels x {recorded} samples"
        )
    return [np.asarray(row, np.float32).view(np.complex64).reshape(coils, recorded) for row in rows]
