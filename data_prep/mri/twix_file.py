"""Read Siemens raw data (twix, ``.dat``) as acquisitions with the fields of ISMRMRD.

Headers are parsed by pymapvbvd; samples are read from the file as they are, one slice at a time. The fields are set as
siemens_to_ismrmrd sets them: the quaternion of a readout (W, X, Y, Z) is a rotation matrix with the columns phase, read and
slice direction; the encoded field of view has the oversampling of readout and phase.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from data_prep.mri.ismrmrd_file import AcquisitionVolume
from data_prep.mri.ismrmrd_header import Encoding, Scan
from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Records(NamedTuple):
    """What a version of the format writes for an acquisition.

    Attributes:
        head: bytes of its head, the least that a record has.
        flags: index of the byte with the first flags.
        samples: index of the number of samples, before that of the channels.
        own: bytes before the first channel.
        channel: bytes before the samples of each channel.
    """

    head: int
    flags: int
    samples: int
    own: int
    channel: int


class Layout(NamedTuple):
    """Bytes in front of the samples of an acquisition, and of each channel."""

    acquisition: int
    channel: int


TWIX = ".dat"
LARGEST_HEADER = 2**26
LARGEST_ID, MOST_SCANS, MOST_BUFFERS, LONGEST_NAME = 10000, 64, 64, 64
VB, VD = Records(128, 20, 28, 0, 128), Records(184, 40, 48, 192, 32)
END, SYNC = 1, 32  # flags: the last record, and one without samples
DAMAGED = "cannot be read as Siemens raw data: damaged, truncated or another kind of file"
COUNTERS = {
    "kspace_encode_step_1": "Lin",
    "kspace_encode_step_2": "Par",
    "average": "Ave",
    "slice": "Sli",
    "contrast": "Eco",
    "phase": "Phs",
    "repetition": "Rep",
    "set": "Set",
    "segment": "Seg",
}
KINDS = {"image": "", "noise": "NOISE_MEASUREMENT", "refscan": "PARALLEL_CALIBRATION"}
EMBEDDED = 2  # of ucRefScanMode: calibration lines of the scan itself


def open_twix(path: Path) -> AcquisitionVolume:
    """The last scan of a twix file; earlier ones are adjustments.

    Raises:
        PrepError: no such file, an unsupported kind of scan, or pymapvbvd or ismrmrd is not installed.
    """
    stat = path.stat()
    return _kept(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=2)
def _kept(path: Path, _: int, size: int) -> AcquisitionVolume:
    """The scan of a file, whose headers stay in memory as long as the file does not change."""
    _check_records(path, size)
    try:
        import ismrmrd  # noqa: F401
        from mapvbvd import mapVBVD
    except ImportError as error:
        raise PrepError("Siemens raw files need pymapvbvd and ismrmrd: pip install 'es_medical[twix]'") from error
    found = None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # pymapvbvd warns of files that end too early
        warnings.simplefilter("ignore", ResourceWarning)  # and leaves the file open on an error
        with suppress(Exception):  # of many kinds
            scan: Any = mapVBVD(str(path), quiet=True)
            scan = scan[-1] if isinstance(scan, list) else scan
            found = (*_heads(scan), _encoding(scan)) if "image" in scan else ()
    if found is None:
        raise PrepError(DAMAGED)
    if not found:
        raise PrepError("Siemens raw file without imaging readouts in its last scan")
    heads, places, encoding = found
    sizes = scan["image"].freadInfo
    read = partial(_read, path, places, Layout(sizes.szScanHeader, sizes.szChannelHeader))
    return AcquisitionVolume(read, heads, encoding, Scan("siemens", float("nan"), _patient(scan["hdr"])))


def _check_records(path: Path, size: int) -> None:
    """Raise PrepError unless all scans, headers and records that pymapvbvd will go through lie in the file.

    pymapvbvd follows lengths without a bound: a record of length 0 would be read for ever.
    """
    with path.open("rb") as file:
        scans, vd = _scans(file, size)
        for start in scans:
            at, length = start, _word(file, start)
            end = start + length
            if not 0 < length <= min(size - start, LARGEST_HEADER):
                raise PrepError(DAMAGED)
            at += 8
            for _ in range(min(_word(file, start + 4), MOST_BUFFERS + 1)):  # a name, its length, and text
                file.seek(at)
                name, found, _ = file.read(LONGEST_NAME).partition(b"\0")
                at += len(name) + 5 + _word(file, at + len(name) + 1)
                if not name or not found or at > end:
                    raise PrepError(DAMAGED)
            _check_acquisitions(file, end, size, VD if vd else VB)


def _scans(file: BinaryIO, size: int) -> tuple[list[int], bool]:
    """Where the header of each scan starts, and whether the file is of VD (it starts with a number of scans), not VB."""
    head = file.read(8)
    first = np.frombuffer(head[: len(head) // 8 * 8], "<u4")
    if len(first) == 2 and LARGEST_ID <= first[0] < min(size, LARGEST_HEADER):
        return [0], False
    if len(first) < 2 or first[0] >= LARGEST_ID or not 1 <= first[1] <= MOST_SCANS:
        raise PrepError(f"not a Siemens raw file ({size} bytes)")
    starts = [_word(file, 16 + 152 * scan, 8) for scan in range(int(first[1]))]
    if any(start >= size for start in starts):
        raise PrepError(DAMAGED)
    return starts, True


def _check_acquisitions(file: BinaryIO, at: int, size: int, kind: Records) -> None:
    """Follow the records as pymapvbvd does, to the one that ends the scan; raise PrepError if one is empty or ends too late."""
    while True:
        file.seek(at)
        head = file.read(kind.head)
        if len(head) < kind.head:
            raise PrepError(DAMAGED)
        length, flags = int.from_bytes(head[:3], "little") | (head[3] & 1) << 24, head[kind.flags]
        if not length or flags & END:
            return
        samples, channels = (int.from_bytes(head[kind.samples + k : kind.samples + k + 2], "little") for k in (0, 2))
        step = length if flags & SYNC else kind.own + (8 * samples + kind.channel) * channels
        at += step
        if step < kind.head or at > size:
            raise PrepError(DAMAGED)


def _word(file: BinaryIO, at: int, length: int = 4) -> int:
    """The unsigned integer of `length` bytes at a place; 0 beyond the end of the file."""
    file.seek(at)
    return int.from_bytes(file.read(length), "little")


def _heads(scan: Any) -> tuple[NDArray, NDArray[np.int64]]:  # noqa: ANN401  pymapvbvd's dictionary
    """Heads with the fields of ISMRMRD, and the place of each acquisition in the file."""
    parts, places, seen = list[Any](), list[Any](), set[int]()
    for kind, flag in KINDS.items():
        if kind in scan:
            place = scan[kind].memPos.astype(np.int64)
            new = np.array([one not in seen for one in place.tolist()], bool)  # lines for image and calibration come twice
            parts.append(_heads_of(scan[kind], flag, _dwell(scan["hdr"]))[new])
            places.append(place[new])
            seen.update(place.tolist())
    heads, place = np.concatenate(parts), np.concatenate(places)
    order = np.argsort(place, kind="stable")
    return heads[order], place[order]


def _heads_of(lines: Any, flag: str, dwell: float) -> NDArray:  # noqa: ANN401
    from ismrmrd import constants
    from ismrmrd.hdf5 import acquisition_header_dtype

    heads = np.zeros(len(lines.memPos), acquisition_header_dtype)
    bits = (1 << (getattr(constants, f"ACQ_IS_{flag}") - 1)) if flag else 0
    heads["flags"] = bits | np.where(lines.IsReflected, 1 << (constants.ACQ_IS_REVERSE - 1), 0).astype(np.uint64)
    for name, own in COUNTERS.items():
        heads["idx"][name] = getattr(lines, own)
    heads["number_of_samples"], heads["active_channels"] = lines.NCol, lines.NCha
    heads["center_sample"] = lines.centerCol
    heads["discard_pre"], heads["discard_post"] = lines.cutOff[:, 0], lines.cutOff[:, 1]
    heads["sample_time_us"] = 0 if flag == "NOISE_MEASUREMENT" else dwell  # the header holds that of the image alone
    heads["position"] = lines.slicePos[:, :3]
    heads["phase_dir"], heads["read_dir"], heads["slice_dir"] = np.moveaxis(_rotation(lines.slicePos[:, 3:7]), -1, 0)
    return heads


def _rotation(quaternion: NDArray) -> NDArray[np.float64]:
    """Rotation matrices (n, 3, 3) of quaternions (n, 4), W first; zero quaternions (not recorded) give zeros."""
    w, x, y, z = quaternion.T.astype(float)
    rows = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


def _encoding(scan: Any) -> Encoding:  # noqa: ANN401
    """What an ISMRMRD header says of the encoding, from the protocol."""
    image, header = scan["image"], scan["hdr"]
    protocol, meas = header["MeasYaps"], header["Meas"]
    kspace, piece = ("sKSpace",), ("sSliceArray", "asSlice", "0")
    base = _number(protocol, (*kspace, "lBaseResolution"), float(image.NCol) / 2)
    lines = int(_number(protocol, (*kspace, "lPhaseEncodingLines"), float(image.NLin)))
    samples = int(_number(meas, "iNoOfFourierColumns", float(image.NCol)))
    read, phase = (_number(protocol, (*piece, f"d{axis}FOV"), np.nan) for axis in ("Readout", "Phase"))
    matrix = (int(_number(meas, "NImageCols", base)), int(_number(meas, "NImageLins", lines)))
    wide = 1 + _number(protocol, (*kspace, "dPhaseOversamplingForDialog"), 0.0)
    partitions = int(_number(protocol, (*kspace, "lPartitions"), 1)) if _is_slab(protocol, image) else 1
    kept = int(_number(protocol, (*kspace, "lImagesPerSlab"), partitions)) if partitions > 1 else 1
    thickness = _number(protocol, (*piece, "dThickness"), np.nan)
    center, left = int(image.centerLin[0]), lines // 2 - int(image.centerLin[0])
    return Encoding(
        spacing=(read / matrix[0], phase / matrix[1]),
        size=matrix,
        measured=(max(left + int(image.Lin.min()), 0), min(left + int(image.Lin.max()) + 1, lines)),
        pixel=(read * samples / base / samples, phase * wide / lines),
        slice_thickness=thickness / kept,
        recorded=(samples, lines),
        partitions=partitions,
        kept=min(kept, partitions),
        partition_center=int(image.centerPar[0]) if partitions > 1 else None,
        center=center,
        trajectory=_trajectory(protocol),
        calibration="embedded" if _number(protocol, ("sPat", "ucRefScanMode"), 0) == EMBEDDED else "separate",
        slices=int(_number(protocol, ("sSliceArray", "lSize"), 1)) if partitions == 1 else None,
    )


def _is_slab(protocol: Any, image: Any) -> bool:  # noqa: ANN401
    return _number(protocol, ("sKSpace", "ucDimension"), 2) == 4 or int(image.NPar) > 1


def _trajectory(protocol: Any) -> str:  # noqa: ANN401
    if _number(protocol, ("sFastImaging", "lEPIFactor"), 1) > 1:
        return "epi"
    kind = int(_number(protocol, ("sKSpace", "ucTrajectory"), 1))
    return {1: "cartesian", 2: "radial", 4: "spiral"}.get(kind, f"number {kind} of Siemens")


def _dwell(header: Any) -> float:  # noqa: ANN401
    """Dwell time in microseconds; 0 if unknown."""
    return _number(header["MeasYaps"], ("sRXSPEC", "alDwellTime", "0"), 0.0) / 1000


def _number(values: Any, name: object, unknown: float) -> float:  # noqa: ANN401
    """The number of this name, as a number or in hexadecimal digits."""
    value = values.get(name, unknown)
    try:
        return float(int(value, 16)) if isinstance(value, str) and value[:2].lower() == "0x" else float(value)
    except (TypeError, ValueError):
        return unknown


def _patient(header: Any) -> str:  # noqa: ANN401
    """The patient's identifier, or "" if there is none or it was crossed out."""
    for part in ("Meas", "Config"):
        found = str(header.get(part, {}).get("PatientID", "")).strip()
        if found.lower().strip("x"):
            return found
    return ""


def _read(
    path: Path, places: NDArray[np.int64], layout: Layout, index: NDArray[np.int64], coils: int, recorded: int, what: str
) -> list[NDArray[np.complex64]]:
    """Samples (coils, samples) of acquisitions: each channel has a header of its own in front."""
    header = layout.channel // 8
    found = []
    with path.open("rb") as file:
        for place in places[index].tolist():
            file.seek(place + layout.acquisition)
            values = np.frombuffer(file.read(8 * coils * (header + recorded)), np.complex64)
            if len(values) != coils * (header + recorded):
                raise PrepError(f"{what} cannot be read: the file ends too early")
            found.append(values.reshape(coils, header + recorded)[:, header:])
    return found
