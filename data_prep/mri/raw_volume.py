"""What every reader of raw MR files gives: k-space slice by slice, and what is known about the grid it was recorded on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from data_prep.mri.ismrmrd_header import Encoding
    from es_medical.data.geometry import Geometry


class RawVolume(Protocol):
    """A volume of recorded k-space, one slice in memory at a time.

    Rows (H) are the readout with its oversampling, columns (W) the phase encoding; k = 0 stands at index n//2 of each axis.
    The centred orthonormal inverse FFT of a slice is its image.

    Attributes:
        n_slices: number of slices.
        coils: number of coils, 0 for single-coil data without a coil axis.
        size: (H, W) of the recorded grid.
        encoding: pixel size of the recorded grid, size and spacing of the reconstruction, measured columns.
        noise_covariance: (coils, coils) complex Hermitian: covariance of the real, and of the imaginary, parts of the noise
            in `kspace` (half the covariance of the complex noise), or None.
        mask: (W,) bool, the columns that were acquired; None when all inside `encoding.measured` (or all W) are.
            Columns outside `encoding.measured` are zero-padding: False where there is a mask.
        subject: patient identifier, "" when unknown. Never stored as it is.
        note: what a user should know about how the file was read, "" for nothing.
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
        """One slice, (H, W) or (coils, H, W), complex64.

        Raises:
            PrepError: it cannot be read, is not complex, or holds NaN or infinite values.
        """
        ...

    def geometry(self, index: int) -> Geometry | None:
        """Where the recorded grid of one slice lies in the patient, or None when the file does not say."""
        ...
