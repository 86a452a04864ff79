"""Turn the partitions of a 3-D acquisition (kz) into slices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np

from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from data_prep.mri.ismrmrd_header import Encoding
    from es_medical.data.geometry import Geometry

TOLERATED = 0.25  # share of the partitions that may be missing at the ends: partial Fourier, or zero-padding
CLEAR = 0.5  # of the strongest partition: a weaker middle is none
PEAK = 1.5  # ratio of the strongest partition to most others, below which kz has no centre
BLOCK = 16  # rows that are transformed together
KEPT = 2  # volumes in memory


class Partitioned(Protocol):
    """A 3-D acquisition: what `RawVolume` is, but `kspace` gives partitions, k = 0 at index n//2."""

    coils: int
    size: tuple[int, int]
    encoding: Encoding
    noise_covariance: NDArray[np.complexfloating] | None
    mask: NDArray[np.bool_] | None
    subject: str
    note: str

    @property
    def slices(self) -> Sequence[int]:
        """For each slice, its index along the transformed axis; empty for a 2-D acquisition, which needs no transform."""

    def kspace(self, index: int) -> NDArray[np.complexfloating]:
        """One partition, (H, W) or (coils, H, W), complex64."""

    def geometry(self, index: int) -> Geometry | None:
        """Plane of one slice."""


class SlabVolume:
    """The slices of a 3-D acquisition as a `RawVolume`: its centred orthonormal inverse FFT along kz.

    White noise keeps its level. The transformed volume stays in memory for the next slices.

    Args:
        raw: the acquisition.
        partitions: number of its partitions.
        path: its file, which identifies the volume in memory.

    Raises:
        PrepError: a partition cannot be read, or some are missing between others.
    """

    def __init__(self, raw: Partitioned, partitions: int, path: Path) -> None:
        self._raw, self._partitions = raw, partitions
        stat = path.stat()
        self._key = (str(path), stat.st_mtime_ns, stat.st_size)
        self.n_slices, self.coils, self.size, self.encoding = len(raw.slices), raw.coils, raw.size, raw.encoding
        self.mask, self.subject = raw.mask, raw.subject
        self._volume, level = _transformed(self._key, raw, partitions)
        missing = int((level == 0).sum())
        found = f"3-D: {partitions} partitions transformed to {self.n_slices} slices"
        alike = "all partitions are about as strong: are they slices already?" if level.max() < PEAK * np.median(level) else ""
        absent = f"{missing} of them were not measured and are zero" if missing else ""
        self.note = "; ".join(part for part in (raw.note, found, absent, alike) if part)
        known = raw.noise_covariance
        self.noise_covariance = None if known is None else known * (1 - missing / partitions)

    def kspace(self, index: int) -> NDArray[np.complexfloating]:
        """One slice, (H, W) or (coils, H, W), complex64."""
        k = self._volume[self._raw.slices[index]]
        return k if self.coils else k[0]

    def geometry(self, index: int) -> Geometry | None:
        """Plane of one slice."""
        return self._raw.geometry(index)


def central(n: int, kept: int) -> range:
    """The `kept` slices around index n//2 of n.

    >>> list(central(8, 4)), list(central(5, 5))
    ([2, 3, 4, 5], [0, 1, 2, 3, 4])
    """
    return range(n // 2 - kept // 2, n // 2 - kept // 2 + kept)


def check_partitions(measured: NDArray[np.bool_]) -> None:
    """Raise PrepError if partitions between measured ones, or more than a quarter of all, are missing."""
    found = np.flatnonzero(measured)
    if len(found) == 0:
        raise PrepError("kspace is zero everywhere")
    gaps, n = int(found[-1] - found[0] + 1 - len(found)), len(measured)
    if gaps:
        raise PrepError(f"3-D: {gaps} partitions between measured ones are empty; expected a fully sampled kz")
    if n - len(found) > TOLERATED * n:
        raise PrepError(f"3-D: {n - len(found)} of {n} partitions are empty, at most a quarter may be; expected a full kz")


def slices_of(heads: NDArray, encoding: Encoding) -> NDArray[np.int64]:
    """Slice counter of each readout; in 3-D its partition, with the header's central step at index n//2."""
    if encoding.partitions == 1:
        return np.asarray(heads["idx"]["slice"].astype(np.int64))
    step, center = heads["idx"]["kspace_encode_step_2"].astype(np.int64), encoding.partition_center
    return np.asarray(step if center is None else step - center + encoding.partitions // 2)


def check_counted(partition: NDArray[np.int64], encoding: Encoding) -> None:
    """Raise PrepError unless the partitions of all readouts are those of the header; see `check_partitions`."""
    n, found = encoding.partitions, np.unique(partition)
    if encoding.partition_center is None and len(found) != n:
        raise PrepError(f"3-D: {len(found)} of {n} partitions and no encoding limits: which one is k = 0 is unknown")
    if found[0] < 0 or found[-1] >= n:
        raise PrepError(f"3-D: partitions {found[0]} to {found[-1]}, with k = 0 at {n // 2}, do not fit on the header's {n}")
    check_partitions(np.isin(np.arange(n), found))


_volumes: OrderedDict[tuple[str, int, int], tuple[NDArray, NDArray]] = OrderedDict()
_lock = Lock()


def _transformed(
    key: tuple[str, int, int], raw: Partitioned, partitions: int
) -> tuple[NDArray[np.complexfloating], NDArray[np.floating]]:
    """The volume (slices, coils, H, W), complex64, and the norm of each partition."""
    with _lock:
        if key not in _volumes:
            _volumes[key] = _transform(raw, partitions)
        _volumes.move_to_end(key)
        while len(_volumes) > KEPT:
            _volumes.popitem(last=False)
        return _volumes[key]


def _transform(raw: Partitioned, partitions: int) -> tuple[NDArray[np.complexfloating], NDArray[np.floating]]:
    k = np.empty((partitions, max(raw.coils, 1), *raw.size), np.complex64)
    for i in range(partitions):
        k[i] = raw.kspace(i)
    level = np.array([np.linalg.norm(one) for one in k])
    check_partitions(level > 0)
    _check_middle(level)
    for i in range(0, raw.size[0], BLOCK):
        part = np.fft.ifftshift(k[:, :, i : i + BLOCK], 0)
        k[:, :, i : i + BLOCK] = np.fft.fftshift(np.fft.ifft(part, axis=0, norm="ortho"), 0)
    return k, level


def _check_middle(level: NDArray[np.floating]) -> None:
    """Raise PrepError if k = 0 can't be at index n//2, where a partition of any object is far stronger than most."""
    strongest, n = int(level.argmax()), len(level)
    if level[n // 2 - 1 : n // 2 + 2].max() < CLEAR * level[strongest]:
        raise PrepError(
            f"3-D: partition {strongest} of {n} is the strongest, expected k = 0 at {n // 2}: either these are slices already, "
            "of a header that says 3-D, or k-space is not centred"
        )
