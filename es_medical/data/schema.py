"""Schema 1 of the HDF5 slice file: what it holds, and functions that read all of it except the pixels.

A file holds N slices measured by one operator. `measurement` is k-space (N, 2, H, W), or (N, 2, C, H, W) with the sensitivity
`maps` of its C coils, sinograms (N, 1, views, detectors), images with missing values (N, C, H, W), or products with a `matrix`
(N, m). `image` (N, C, H, W) is the ground truth, if any, or a reference (see `SliceHeader.image_name`). The
other columns are those of `SliceRecord`; what all slices share is in `SliceHeader`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from es_medical import __version__
from es_medical.data.hdf5 import damage_as, lost_parts, overstated, raised_by_h5py, read_text, why_closed

SCHEMA = 1
PIXELS = ("measurement", "image", "maps")
SPLITS = ("train", "val", "test")
COLUMNS: dict[str, tuple[tuple[int, ...], Any]] = {  # shape of a row, and type, of each dataset except the pixels
    "id": ((), h5py.string_dtype()),
    "subject": ((), h5py.string_dtype()),
    "volume": ((), h5py.string_dtype()),
    "source": ((), h5py.string_dtype()),
    "split": ((), h5py.string_dtype()),
    "scale": ((2,), np.float64),  # and offset
    "spacing": ((2,), np.float32),
    "data_range": ((), np.float32),
    "slice": ((), np.int64),
    "sigma": ((), np.float64),
    "peak": ((), np.float32),
    "position": ((3,), np.float64),
    "orientation": ((6,), np.float64),
    "slice_spacing": ((), np.float64),
    "clipped": ((), np.int64),
    "checksum": ((len(PIXELS),), np.uint32),  # CRC-32 of the slice's pixels, in the order of PIXELS; 0 where there are none
}
KNOWN = {*PIXELS, "mask", "matrix", *COLUMNS}  # files of older versions have fewer
NAN = float("nan")
GROUND_TRUTH = "ground truth"
MEASURED = "measured"  # key of `SliceHeader.operator`, beside the geometry of a scanner that measured the sinograms
SETTLED = 2 * 10**9  # ns after its last change from which a file with the same time stamp counts as unchanged


def file_digest(path: str | Path) -> str:
    """SHA-256 of the bytes of a file, as 64 hexadecimal digits (data-set lineage)."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, eq=False)
class SliceHeader:
    """What holds for every slice of a file.

    Attributes:
        sigma: standard deviation of the noise on the real, and on the imaginary, part of each measured sample; NaN if each
            slice has its own.
        mask: measured entries, bool: (W,) lines or (H, W) samples of k-space, (views,) or (views, detectors) of a sinogram,
            (W,), (H, W) or (C, H, W) of an image, (m,) of products with a matrix.
        acceleration: nominal acceleration factor.
        center_fraction: fraction of the lines in the fully sampled centre.
        seed: seed of the mask, of the noise and of the split.
        configuration: every option of the command that made the file.
        source_digests: salted hash of each source's name -> SHA-256 of its bytes.
        modality: ``MR``, ``CT``, or ``IMAGE`` for photographs and digits.
        operator: geometry of a CT scanner (see `es_medical.physics.ct_matrix`), kind of the operator of an image, empty for MR.
        matrix: (m, H W) float32 if measurements are products with a matrix, else None.
        digest: identifies input and configuration: equal for two files made in the same way.
        tool_version: version of es_medical that wrote the file.
        encoded_lines: k-space columns that the scan could measure, 0 for all W: the acceleration is this number /
            measured lines.
        size: (H, W); filled on reading.
        coils: number of coils, 0 for measurements without a coil axis; filled on reading.
        channels: number of channels of the images; filled on reading.
        n: number of slices; filled on reading.
        has_image: whether the file holds ground truth; filled on reading.
        splits: number of slices of each split; filled on reading.
    """

    sigma: float
    mask: Tensor
    acceleration: float = NAN
    center_fraction: float = NAN
    seed: int = 0
    configuration: Mapping[str, Any] = field(default_factory=dict)
    source_digests: Mapping[str, str] = field(default_factory=dict)
    modality: str = "MR"
    operator: Mapping[str, Any] = field(default_factory=dict)
    matrix: Tensor | None = None
    digest: str = ""
    tool_version: str = __version__
    encoded_lines: int = 0
    size: tuple[int, int] = (0, 0)
    coils: int = 0
    channels: int = 0
    n: int = 0
    has_image: bool = False
    splits: Mapping[str, int] = field(default_factory=dict)

    @property
    def measured(self) -> Mapping[str, Any]:
        """What is known of sinograms that a scanner measured: "unit", "water", "image", ...; empty for all other data."""
        return dict(self.operator.get(MEASURED, {}))

    @property
    def unit(self) -> str:
        """Unit of raw CT values: "HU", or that of measured sinograms; "" for MR and images."""
        return str(self.measured.get("unit", "HU")) if self.modality == "CT" else ""

    @property
    def image_name(self) -> str:
        """What the images are, in words: "reference" where they were reconstructed from more measurements."""
        return str(self.measured.get("image") or GROUND_TRUTH)


class SliceRecord(NamedTuple):
    """One slice as it is stored.

    Attributes:
        measurement: k-space (2, H, W) or (2, C, H, W), sinogram (1, views, detectors), image (C, H, W), or (m,) products; zero
            where not measured.
        image: ground truth (C, H, W), or None; complex images have C = 2 (real, imaginary), colour images 3.
        id: salted hash of the slice.
        subject: salted hash of the subject; a subject is in one split only.
        split: ``train``, ``val`` or ``test``.
        scale: with `offset`, raw = stored * scale + offset.
        offset: see `scale`.
        spacing: row and column spacing in mm, NaN where unknown.
        data_range: maximum of the slice's *volume* in stored units, NaN where unknown.
        slice: index of the slice in its volume.
        maps: sensitivity maps (2, C, H, W) of multi-coil k-space, real and imaginary part, or None.
        sigma: as `SliceHeader.sigma`, for this slice; NaN if that of the header holds.
        peak: value in stored units that counts as the range of the slice in PSNR and SSIM.
        position: position of the centre of pixel [0, 0] in mm, in DICOM's patient coordinates (LPS); NaN where unknown.
        orientation: directions of increasing column and row index, as DICOM's ImageOrientationPatient; NaN where unknown.
        slice_spacing: distance between neighbouring slices in mm, NaN where unknown.
        volume: salted hash of the slice's volume, "" if unknown: then slice indices separate the volumes of a subject.
        clipped: pixels of the slice in which values above the stored range were cut.
        source: first digits of the SHA-256 of the file, or files, that the slice comes from, "" if unknown. It is the same with
            any salt, so that a test subject that was trained on is found in a file with other hashes.
    """

    measurement: Tensor
    image: Tensor | None
    id: str
    subject: str
    split: str
    scale: float = 1.0
    offset: float = 0.0
    spacing: tuple[float, float] = (NAN, NAN)
    data_range: float = NAN
    slice: int = 0
    maps: Tensor | None = None
    sigma: float = NAN
    peak: float = 1.0
    position: tuple[float, float, float] = (NAN, NAN, NAN)
    orientation: tuple[float, float, float, float, float, float] = (NAN,) * 6
    slice_spacing: float = NAN
    volume: str = ""
    clipped: int = 0
    source: str = ""


def open_slices(path: str | Path) -> h5py.File:
    """Open a slice file for reading; raises FileNotFoundError, or ValueError that says what is there instead."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no slice file at {path}: make one with `python -m data_prep` (see its --help)")
    try:
        file = h5py.File(path.resolve(), "r")  # parts lie beside the file itself, not beside a link to it
    except OSError as error:
        raise ValueError(f"{path} cannot be read as HDF5 ({why_closed(error) or error})") from error
    try:
        with damage_as(damaged(path)):
            schema = file.attrs.get("schema")
            if not (isinstance(schema, np.integer) and schema == SCHEMA and "measurement" in file):
                cause = f"damaged, or no slice file of schema {SCHEMA} (its schema: {schema})"
                raise ValueError(f"{path} is {cause}: make it anew with data_prep")
            if cause := lost_parts(file):
                raise ValueError(f"{path}: {cause}, or make it anew with data_prep")
            n = (file["measurement"].shape or (0,))[:1]
            for name in [name for name in file if name in KNOWN]:
                if cause := _fault(file[name], name, n):
                    raise ValueError(f"{path} is no whole slice file: {name} {cause}: make it anew with data_prep")
    except Exception:
        file.close()
        raise
    return file


def damaged(path: str | Path) -> ValueError:
    """The error of a slice file that HDF5 cannot read."""
    return ValueError(f"{path} is a damaged slice file: copy it again, or make it anew with data_prep")


def _fault(data: object, name: str, n: tuple[int, ...]) -> str:
    """What is wrong with the type or shape of a dataset of n rows, before it is read; "" if nothing."""
    if not isinstance(data, h5py.Dataset):
        return "is no dataset"
    if cause := overstated(data, whole=name not in PIXELS):
        return cause
    row, kind = COLUMNS.get(name, (data.shape[1:], np.float32))
    if name not in ("mask", "matrix") and data.shape != (*n, *row):
        return f"has the shape {data.shape}, expected {(*n, *row)}"
    if name in (*PIXELS, "matrix"):
        fits, wanted = data.dtype == np.float32, "float32"
    elif h5py.check_string_dtype(np.dtype(kind)):
        fits, wanted = h5py.check_string_dtype(data.dtype) is not None, "text"
    else:
        fits, wanted = data.dtype.kind in "biuf", "numbers"
    return "" if fits else f"holds {data.dtype}, expected {wanted}"


def read_header(path: str | Path) -> SliceHeader:
    """Read the header of a slice file, without reading pixels.

    A run needs it in several places, so it is cached until the file is replaced or changed; each call returns a new copy.
    A file that changed a moment ago is always read anew, since a second change might not show in its time stamp.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a slice file of schema 1.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return _read_header(path)  # raises the error with its cause
    if time.time_ns() - found.st_mtime_ns < SETTLED:
        return _read_header(path)
    return copy.deepcopy(_kept_header(str(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=8)
def _kept_header(path: str, *_: int) -> SliceHeader:
    return _read_header(path)


def _read_header(path: str | Path) -> SliceHeader:
    with open_slices(path) as file, damage_as(damaged(path)):
        try:
            header = _header(file)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            if raised_by_h5py(error):
                raise
            raise ValueError(f"{path} is no whole slice file: {error} in its header: make it anew with data_prep") from error
        _check_shapes(file, header)
    return header


TEXTS, TEXT_CHECKSUM = ("operator", "configuration", "source_digests", "modality", "digest", "tool_version"), "text_checksum"


def text_checksum(attributes: h5py.AttributeManager) -> int:
    """Checksum of the text in a header (the angles of views, say), of which HDF5 keeps none above 64 kB."""
    return zlib.crc32("\n".join(read_text(attributes, name) for name in TEXTS).encode())


def _header(file: h5py.File) -> SliceHeader:
    attributes, (n, *shape) = file.attrs, file["measurement"].shape
    if TEXT_CHECKSUM in attributes and attributes[TEXT_CHECKSUM] != text_checksum(attributes):
        raise ValueError("text that is not what was written")
    height, width = attributes.get("size", shape[-2:])
    coils = shape[1] if len(shape) == 4 else 0
    channels = int(attributes.get("channels", shape[0]))  # older files: k-space and sinograms
    return SliceHeader(
        sigma=float(attributes["sigma"]),
        mask=torch.from_numpy(file["mask"][()]).bool(),
        acceleration=float(attributes["acceleration"]),
        center_fraction=float(attributes["center_fraction"]),
        seed=int(attributes["seed"]),
        configuration=json.loads(read_text(attributes, "configuration")),
        source_digests=json.loads(read_text(attributes, "source_digests")),
        modality=read_text(attributes, "modality"),
        operator=json.loads(read_text(attributes, "operator", "{}")),
        matrix=torch.from_numpy(file["matrix"][()]) if "matrix" in file else None,
        digest=read_text(attributes, "digest"),
        tool_version=read_text(attributes, "tool_version"),
        encoded_lines=int(attributes.get("encoded_lines", 0)),
        size=(int(height), int(width)),
        coils=int(coils),
        channels=channels,
        n=int(n),
        has_image="image" in file,
        splits=dict(Counter(file["split"].asstr()[:].tolist())),
    )


def _check_shapes(file: h5py.File, header: SliceHeader) -> None:
    """Raise ValueError where mask, maps or images do not belong to the measurements."""
    measured, mask = file["measurement"].shape[1:], tuple(header.mask.shape)
    fit = {"mask": mask in (measured[len(measured) - len(mask) :], measured[-2:-1]) and len(mask) > 0}
    fit["maps"] = "maps" not in file or file["maps"].shape[1:] == measured
    if unknown := header.splits.keys() - set(SPLITS):
        raise ValueError(f"{file.filename} is no whole slice file: split {min(unknown)!r}, expected {', '.join(SPLITS)}")
    fit["image"] = "image" not in file or file["image"].shape[1:] == (header.channels, *header.size)
    for name in [name for name, fits in fit.items() if not fits]:
        raise ValueError(
            f"{file.filename} is no whole slice file: {name} of {file[name].shape} beside measurements of {measured} and "
            f"images of {(header.channels, *header.size)}: make it anew with data_prep"
        )
