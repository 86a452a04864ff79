"""The acquisitions of an ISMRMRD file: heads without their samples, and samples of a few acquisitions at a time.

h5py reads them: the reader of the ismrmrd package takes each acquisition from the file twice (a hundred times slower). The
package gives the layout of the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import numpy as np

from data_prep.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK = 64  # records at a time where heads cannot be read alone


def check_records(data: object, where: str, found: str) -> h5py.Dataset:
    """The dataset of acquisitions, checked for the fields of an ISMRMRD record.

    Raises:
        PrepError: it is not one, or empty, or the ismrmrd package is not installed.
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
    if len(data.shape) != 1 or data.shape[0] == 0:
        raise PrepError(f"{where} has shape {data.shape}, expected at least one acquisition")
    return data


def read_heads(data: h5py.Dataset) -> NDArray[np.void]:
    """(acquisitions,) heads.

    Reading the field ``head`` of the records alone makes h5py read and never free all samples (h5py issue 2374), so the
    stored bytes are taken: samples stand elsewhere in the file. Where that cannot be done records are read in blocks.

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
    """Heads from the bytes of unfiltered chunks, or None when they are stored in another way."""
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
    """Samples (coils, samples) of each of the acquisitions at increasing positions `index`.

    Raises:
        PrepError: they cannot be read, or do not have that many samples.
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
