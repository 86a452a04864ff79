"""The recorded k-space of a file in fastMRI's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import numpy as np

from data_prep.mri.fastmri_file import (
    COILS_OF_RANK,
    RECONSTRUCTIONS,
    check_not_empty,
    kspace_shape,
    patient,
    read_kspace,
    read_numbers,
    scalar,
    shape_of,
)
from data_prep.mri.ismrmrd_header import Encoding, parse_header
from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from es_medical.data.geometry import Geometry


class FastMRIVolume:
    """A file in fastMRI's layout as a `RawVolume`, read slice by slice.

    Args:
        file: the open HDF5 file: `kspace` (slices, H, W) or (slices, coils, H, W), and where there are `mask` (W,),
            `reconstruction_*` (whose size is that of the reconstruction) and `ismrmrd_header`.

    Raises:
        PrepError: there is no such k-space, or its mask does not fit.
    """

    noise_covariance: NDArray[np.complexfloating] | None = None
    note = ""

    def __init__(self, file: h5py.File) -> None:
        shape = kspace_shape(file)
        if len(shape) not in COILS_OF_RANK:
            raise PrepError(f"kspace of shape {shape} has rank {len(shape)}, expected (slices, H, W) or (slices, coils, H, W)")
        check_not_empty(shape)
        self._file = file
        self.n_slices, self.coils = shape[0], shape[1] if COILS_OF_RANK[len(shape)] == "multi" else 0
        self.size: tuple[int, int] = (shape[-2], shape[-1])
        self.encoding = self._encoding()
        self.mask = self._mask()
        self.subject = patient(file)

    def kspace(self, index: int) -> NDArray[np.complexfloating]:
        """One slice, (H, W) or (coils, H, W), complex64; see `read_kspace`."""
        k = read_kspace(self._file, index)
        if k.dtype.itemsize > 8 and np.abs(k).max() > np.finfo(np.float32).max:
            raise PrepError(f"kspace slice {index} has values up to {np.abs(k).max():g}, too large for single precision")
        return k.astype(np.complex64, copy=False)

    def geometry(self, index: int) -> Geometry | None:
        """None: the layout holds no orientation."""
        return None

    def _encoding(self) -> Encoding:
        """That of the header, with the size of the stored reconstruction and the pixels of the stored k-space."""
        encoding = parse_header(scalar(self._file, "ismrmrd_header"))
        if encoding.recorded is not None:
            rows, columns = (m / n for m, n in zip(encoding.recorded, self.size, strict=True))
            encoding = encoding._replace(pixel=(encoding.pixel[0] * rows, encoding.pixel[1] * columns))
        stored = [shape_of(self._file, key) for key in RECONSTRUCTIONS if key in self._file]
        return encoding._replace(size=stored[0][1:]) if stored and len(stored[0]) == 3 and 0 not in stored[0] else encoding

    def _mask(self) -> NDArray[np.bool_] | None:
        if "mask" not in self._file:
            return None
        mask = np.squeeze(read_numbers(self._file, "mask"))
        if mask.shape != (self.size[1],) or not np.isin(mask, (0, 1)).all():
            raise PrepError(f"mask of shape {mask.shape} is none of 0 and 1 for each of the {self.size[1]} columns of kspace")
        return mask.astype(bool)
