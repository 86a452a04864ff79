"""Build the operator of a slice file and its split; a file that differs from the configuration is refused."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from es_medical.data import SliceHeader, read_header
from es_medical.data.schema import MEASURED
from es_medical.groups import Rotations
from es_medical.knobs import AUTO
from es_medical.physics import MRI, CompressedSensing, Inpainting, MultiCoilProtocol, Operator
from es_medical.physics.masks import center_block, line_counts
from es_medical.physics.mri import KSpaceOperator
from es_medical.physics.transmission import COUNTED, Transmission
from es_medical.splits import KSPACE_UNITS, Split, unit_of

if TYPE_CHECKING:
    from es_medical.physics.ct_geometry import Geometry


def operator_of(data_file: str, device: torch.device | str = "cpu") -> Operator:
    """Build the operator of a slice file of any kind, whatever its acceleration, views or noise level.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a slice file, or an unknown kind of operator.
        ImportError: CT without astra-toolbox.
    """
    header = read_header(data_file)
    if header.modality == "MR":
        return build_physics(data_file, None, None, device=device)
    if header.modality == "CT":
        return build_scanner(data_file, None, None, device=device)
    kind = str(header.operator.get("kind", ""))
    if kind == "inpainting":
        return build_inpainting(data_file, device=device)
    if kind == "compressed_sensing":
        return build_sensing(data_file, device=device)
    raise ValueError(f"{data_file} holds {header.modality} data of an unknown operator {kind!r}")


def build_physics(
    data_file: str,
    acceleration: float | None,
    center_fraction: float | None,
    sigma: float | None = None,
    device: torch.device | str = "cpu",
) -> MRI | MultiCoilProtocol:
    """Build the MRI operator of a slice file, single- or multi-coil, and check the file against the configuration.

    Args:
        data_file: HDF5 file of slices (schema 1).
        acceleration: nominal acceleration that the file must have; None accepts any, as for the knobs below.
        center_fraction: fraction of central lines that the file must have.
        sigma: noise level that the file must have; None if each slice has its own.
        device: device of the operator.

    Raises:
        ValueError: the file was made with other values: measurements are simulated only once, by data_prep.
    """
    header = _kspace(data_file)
    found = {"acceleration": header.acceleration, "center_fraction": header.center_fraction, "sigma": header.sigma}
    wanted = {"acceleration": acceleration, "center_fraction": center_fraction, "sigma": sigma}
    _check_made_with(data_file, found, wanted)
    return (MultiCoilProtocol if header.coils else MRI)(header.mask, header.size).to(device)


def build_scanner(
    data_file: str,
    views: int | None,
    sigma: float | None,
    rotations: int = 1,
    device: torch.device | str = "cpu",
    photons: float | None = None,
) -> Operator:
    """Build the CT scanner of a slice file, and check the file against the configuration.

    Args:
        data_file: HDF5 file of sinograms (schema 1).
        views: number of views that the file must have; None accepts any, as for the knobs below.
        sigma: noise level that the file must have.
        rotations: number of angles, fractions of the view spacing, that the scanner can be turned by (see `Rotations`).
        device: device of the operator.
        photons: photons per ray in air that the file must have been simulated with; None also accepts Gaussian noise.

    Raises:
        ValueError: the file holds no sinograms, or was made with other values.
        ImportError: astra-toolbox is not installed.
    """
    from es_medical.physics.ct import CT

    header = read_header(data_file)
    if header.modality != "CT" or not header.operator:
        raise ValueError(f"{data_file} holds {header.modality} data without a scanner's geometry: expected CT sinograms")
    geometry = geometry_of(header)
    if photons is not None:
        read_transmission(data_file, photons)
    _check_made_with(data_file, {"views": geometry.shape[0], "sigma": header.sigma}, {"views": views, "sigma": sigma})
    scanner = CT(geometry, header.mask)
    return scanner.with_turns(Rotations(rotations).angles(geometry.spacing)).to(device)


def geometry_of(header: SliceHeader) -> "Geometry":
    """The scanner's geometry in the header of a CT slice file."""
    from es_medical.physics.ct_geometry import geometry_from_dict

    return geometry_from_dict({name: value for name, value in header.operator.items() if name not in (COUNTED, MEASURED)})


def read_transmission(data_file: str, photons: float) -> Transmission:
    """Read the photon-counting model of a CT slice file.

    Raises:
        ValueError: the file has no photon counts, or was simulated with another number of photons.
    """
    counted = read_header(data_file).operator.get(COUNTED)
    if counted is None:
        raise ValueError(
            f"{data_file} holds no photon counts: set photons to null, or make new measurements with "
            f"`python -m data_prep ... --photons {photons:g}`"
        )
    _check_made_with(data_file, {"photons": counted["photons"]}, {"photons": photons})
    return Transmission.from_dict(counted)


def build_inpainting(
    data_file: str,
    mask: str | None = None,
    keep: float | None = None,
    sigma: float | None = None,
    device: torch.device | str = "cpu",
) -> Inpainting:
    """Build the inpainting operator of a slice file, and check the file against the configuration.

    Args:
        data_file: HDF5 file of slices (schema 1).
        mask: kind of mask that the file must have (see `python -m data_prep div2k --help`); None accepts any, as below.
        keep: fraction of measured values that the file must have.
        sigma: noise level that the file must have.
        device: device of the operator.

    Raises:
        ValueError: the file holds no images with missing values, or was made with other values.
    """
    header = _of_kind(data_file, "inpainting")
    made = header.operator
    _check_made_with(
        data_file,
        {"mask": made["mask"], "keep": made["keep"], "sigma": header.sigma},
        {"mask": mask, "keep": keep, "sigma": sigma},
    )
    return Inpainting(header.mask, header.size, header.channels).to(device)


def build_sensing(
    data_file: str, ratio: float | None = None, sigma: float | None = None, device: torch.device | str = "cpu"
) -> CompressedSensing:
    """Build the operator of a slice file of compressed sensing, and check the file against the configuration.

    Args:
        data_file: HDF5 file of slices (schema 1), with the matrix.
        ratio: m / n that the file must have; None accepts any, as below.
        sigma: noise level that the file must have.
        device: device of the operator.

    Raises:
        ValueError: the file holds no products with a matrix, or was made with other values.
    """
    header = _of_kind(data_file, "compressed_sensing")
    found = {"ratio": header.operator["ratio"], "sigma": header.sigma}
    _check_made_with(data_file, found, {"ratio": ratio, "sigma": sigma})
    if header.matrix is None:
        raise ValueError(f"{data_file} lacks the matrix of its operator: make it again with data_prep")
    return CompressedSensing(header.matrix, header.size, header.mask.float()).to(device)


def build_split(data_file: str, unit: str, split_ratio: float, acs_in_input: bool, mode: str = "exact") -> Split:
    """Build the split of a slice file; with `acs_in_input` its fully sampled centre always stays in M1.

    The unit "auto" is that of the mask: lines, or samples for a mask of single samples.

    Raises:
        ValueError: the file holds no k-space, or its mask has too few lines or samples to divide.
    """
    header = _kspace(data_file)
    unit = unit_of(header.mask) if unit == AUTO else unit
    rows, columns = _center(header) if acs_in_input and unit in KSPACE_UNITS else (header.mask.ndim - 1, 1)
    result = Split(unit, float(split_ratio), columns, mode, rows)  # type: ignore[arg-type]  # Split checks the names
    result.check(MRI(header.mask, header.size))  # once, here: on a GPU, training steps do not check
    return result


def _center(header: SliceHeader) -> tuple[int, int]:
    """Rows (0 for all) and columns of the fully sampled centre."""
    if unit_of(header.mask) == "samples":
        return center_block(header.mask)
    return 0, line_counts(header.encoded_lines or header.size[1], header.acceleration, header.center_fraction)[1]


def _kspace(data_file: str) -> SliceHeader:
    """Read the header of a slice file of k-space; raise ValueError for another modality."""
    header = read_header(data_file)
    if header.modality != "MR":
        raise ValueError(f"{data_file} holds {header.modality} data: expected MR")
    return header


def _of_kind(data_file: str, kind: str) -> SliceHeader:
    """Read the header of a slice file of one kind of operator; raise ValueError for another one."""
    header = read_header(data_file)
    found = header.operator.get("kind", "k-space")
    if found != kind:
        raise ValueError(f"{data_file} holds {header.modality} data of the operator {found}: expected {kind}")
    return header


KINDS: Mapping[str, type[Operator]] = {"MR": KSpaceOperator, "inpainting": Inpainting, "compressed_sensing": CompressedSensing}
"""Operators that measure the slices of a file, by its modality or kind."""

SAME = 1e-3
"""Relative difference up to which two fingerprints of `MaskedPhysics` are equal, on any device."""


def check_operator(physics: Operator, data_file: str | Path) -> None:
    """Raise ValueError if an operator, wherever a configuration takes it from, is not the one that measured a slice file.

    Modality, kind, size, mask, geometry and matrix are compared. Of a file of an unknown kind, only the shapes of image and
    measurement are.
    """
    header = read_header(data_file)
    found, kind = type(physics).__name__, "CT" if header.modality == "CT" else str(header.operator.get("kind", header.modality))
    where = f"the operator of the configuration ({found}) did not measure {data_file}"
    if not isinstance(physics, _class_of(kind)):
        raise ValueError(f"{where}, which holds {header.modality} data of the operator {kind}: take the bundle's own physics")
    expected = (header.channels, *header.size)
    if tuple(physics.img_size) != expected:
        raise ValueError(f"{where}: it takes images of {tuple(physics.img_size)}, the file is of {expected}")
    different = [name for name, same in _compared(physics, header) if not same]
    if different:
        raise ValueError(f"{where}: another {' and '.join(different)}")


def _class_of(kind: str) -> type[Operator]:
    if kind == "CT":
        from es_medical.physics.ct import CT

        return CT
    return KINDS.get(kind, Operator)


def _compared(physics: Operator, header: SliceHeader) -> Iterator[tuple[str, bool]]:
    """The parts of an operator that a slice file also has, each with whether they are the same."""
    mask = header.mask[:, None] if header.modality == "CT" and header.mask.ndim == 1 else header.mask  # views, all bins
    try:
        yield "mask", torch.equal(*torch.broadcast_tensors(physics.mask.cpu().bool(), mask))
    except RuntimeError:  # of another size
        yield "mask", False
    if header.modality == "CT":
        yield "geometry", physics.geometry.to_dict() == geometry_of(header).to_dict()
    if "fingerprint" in header.operator:
        found = torch.tensor(getattr(physics, "fingerprint", [math.nan] * 3), dtype=torch.float64)
        wanted = torch.tensor(header.operator["fingerprint"], dtype=torch.float64)
        yield "operator under the mask", bool((found - wanted).abs().max() <= SAME * wanted.abs().max())
    if header.matrix is not None:
        matrix = getattr(physics, "matrix", None)
        yield "matrix", isinstance(matrix, torch.Tensor) and torch.equal(matrix.cpu().float(), header.matrix)


Knob = float | str


def _check_made_with(data_file: str, found: Mapping[str, Knob], asked: Mapping[str, Knob | None]) -> None:
    """Raise ValueError if a slice file was made with other values than the configuration asks for."""
    wanted = {name: value for name, value in asked.items() if value is not None}
    wrong = [name for name in wanted if not _same(found[name], wanted[name])]
    if wrong:
        options = " ".join(f"--{name.replace('_', '-')} {_text(value)}" for name, value in wanted.items())
        raise ValueError(
            f"{data_file} was made with {', '.join(f'{n} {_text(found[n])}' for n in wrong)}, the configuration asks for "
            f"{', '.join(f'{n} {_text(wanted[n])}' for n in wrong)}: make new measurements with "
            f"`python -m data_prep ... {options}`, or set these names to what the file has"
        )


def _same(found: Knob, wanted: Knob) -> bool:
    if isinstance(found, str) or isinstance(wanted, str):
        return found == wanted
    return math.isclose(found, wanted, rel_tol=1e-6)


def _text(value: Knob) -> str:
    return value if isinstance(value, str) else f"{value:g}"
