"""Simulate raw multi-coil k-space in fastMRI's layout for the demo; no installable package ships such data.

The magnitude is the ICBM152 T1 template of the nilearn wheel. Its phase, coil sensitivities (Biot-Savart fields of loops
around the head) and noise (correlated between coils) are synthetic; each file says so in its attribute `origin`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from data_prep.demo.brain import axial_slices, template_path
from data_prep.demo.options import KspaceOptions
from data_prep.mr_images.receive import coil_maps, smooth_phase
from data_prep.mri.coils import rss
from data_prep.mri.normalisation import crop_or_pad
from data_prep.mri.resample import sinc_resample
from data_prep.run.manifest import RECIPE, SUFFIXES, PrepError, Pseudonyms, default_salt, provenance
from es_medical.data import file_digest
from es_medical.data.whole_hdf5 import whole_hdf5

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

ORIGIN = "simulated: ICBM152 T1 template (magnitude) with synthetic phase, coil sensitivities and noise; not a measurement"
PREFIX = "volume_"
SCALE = 2e-5  # image maximum in the raw units of a scanner
THICKNESS = 1.0  # mm from slice to slice of the template
AXES = (-2, -1)
HEADER = """<?xml version="1.0" encoding="utf-8"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
<acquisitionSystemInformation><receiverChannels>{channels}</receiverChannels></acquisitionSystemInformation>
<experimentalConditions><H1resonanceFrequency_Hz>63870000</H1resonanceFrequency_Hz></experimentalConditions>
<encoding>
<encodedSpace><matrixSize><x>{rows}</x><y>{columns}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>{fov_rows:.6f}</x><y>{fov_columns:.6f}</y><z>1</z></fieldOfView_mm></encodedSpace>
<reconSpace><matrixSize><x>{size}</x><y>{size}</y><z>1</z></matrixSize>
<fieldOfView_mm><x>{fov:.6f}</x><y>{fov:.6f}</y><z>1</z></fieldOfView_mm></reconSpace>
<trajectory>cartesian</trajectory>
<encodingLimits><kspace_encoding_step_1><minimum>0</minimum><maximum>{last}</maximum><center>{center}</center>
</kspace_encoding_step_1></encodingLimits>
</encoding></ismrmrdHeader>"""


def blocks(n: int, options: KspaceOptions) -> list[range]:
    """Contiguous slices of each volume, with `gap` slices left out between volumes, centred in the n slices.

    Raises:
        PrepError: there are too few slices.

    >>> blocks(20, KspaceOptions(volumes=3, slices=4, gap=2))
    [range(2, 6), range(8, 12), range(14, 18)]
    """
    step = options.slices + options.gap
    needed = options.volumes * step - options.gap
    if needed > n:
        raise PrepError(
            f"{options.volumes} volumes of {options.slices} slices with gaps of {options.gap} need {needed} slices, the "
            f"template has {n}"
        )
    start = (n - needed) // 2
    return [range(start + v * step, start + v * step + options.slices) for v in range(options.volumes)]


def kspace_of(x: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """F x, centred and orthonormal."""
    return np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x, AXES), axes=AXES, norm="ortho"), AXES)


def simulate(images: NDArray, spacing: float, volume: int, options: KspaceOptions) -> NDArray[np.complex64]:
    """K-space of one volume, k_c = F S_c x + noise, in raw units.

    Args:
        images: (slices, size, size) magnitudes, scaled so that the template has the maximum 1.
        spacing: pixel spacing in mm.
        volume: its number; with the seed it determines coils, phases and noise.
        options: the options of the command.

    Returns:
        (slices, C, 2 size, columns), without the coil axis if `coils` is 0.
    """
    coils = max(options.coils, 1)
    mixing = noise_mixing(coils, np.random.default_rng([options.seed, volume, 0]))
    scans = []
    for i, image in enumerate(images):
        rng = np.random.default_rng([options.seed, volume, 1, i])
        x = crop_or_pad(image * np.exp(1j * smooth_phase(options.size, rng)), (options.size, options.grid[1]))
        height = (i - (len(images) - 1) / 2) * THICKNESS / (options.size * spacing)
        ring = np.random.default_rng([options.seed, volume, 2])  # the same in every slice
        maps = coil_maps(options.coils, x.shape, height, ring) if options.coils else np.ones((1, *x.shape))
        k = kspace_of(crop_or_pad(maps * x, options.grid))  # (C, 2 size, columns)
        white = rng.standard_normal(k.shape) + 1j * rng.standard_normal(k.shape)
        scans.append(SCALE * (k + options.sigma * np.tensordot(mixing, white, axes=1)))
    kspace = np.stack(scans).astype(np.complex64)
    return kspace if options.coils else kspace[:, 0]


def header(options: KspaceOptions, spacing: float) -> str:
    """ISMRMRD header of a volume; rows are the readout x, columns the phase encoding y."""
    rows, columns = options.grid
    return HEADER.format(
        channels=max(options.coils, 1),
        rows=rows,
        columns=columns,
        size=options.size,
        fov_rows=rows * spacing,
        fov_columns=columns * spacing,
        fov=options.size * spacing,
        last=columns - 1,
        center=columns // 2,
    )


def write_volume(
    path: Path, kspace: NDArray[np.complex64], spacing: float, options: KspaceOptions, attributes: dict[str, str]
) -> None:
    """Write one file in fastMRI's layout atomically; its reconstruction is computed from the simulated k-space."""
    images = sinc_resample(kspace, (options.size, options.size)).image
    target = np.stack([rss(x) if options.coils else np.abs(x) for x in images]).astype(np.float32)  # (slices, size, size)
    with whole_hdf5(path) as (file, _):
        file["kspace"] = kspace
        file["reconstruction_rss" if options.coils else "reconstruction_esc"] = target
        file["ismrmrd_header"] = header(options, spacing)
        file.attrs.update(acquisition="AXT1", max=float(target.max()), norm=float(np.linalg.norm(target)), origin=ORIGIN)
        file.attrs.update(attributes)


def stored_digest(path: Path) -> str | None:
    """Digest of a file that this module wrote, None for any other."""
    try:
        with h5py.File(path, "r") as file:
            return str(file.attrs["demo_digest"]) if file.attrs.get("origin") == ORIGIN else None
    except (OSError, KeyError):
        return None


def write_volumes(out: Path, options: KspaceOptions, overwrite: bool, console: Console) -> None:
    """Write `volume_00.h5`, `volume_01.h5`, ... into the folder OUT, except those that are up to date.

    Volumes of an earlier run beyond the requested number are removed, so that they are not mistaken for data of this one.

    Raises:
        PrepError: no template, options out of range, or OUT is no folder or holds other files of the same names.
    """
    options.check()
    template = template_path()
    images, planes = axial_slices(template, options.size)
    spacing = planes[0].spacing[0]
    layout = blocks(len(images), options)
    paths = [out / f"{PREFIX}{v:02d}.h5" for v in range(options.volumes)]
    stale = _check_folder(out, paths, overwrite)
    out.mkdir(parents=True, exist_ok=True)
    source = file_digest(template)
    written = 0
    for v, (path, block) in enumerate(zip(paths, layout, strict=True)):
        digest = _digest(options, v, source)
        if overwrite or stored_digest(path) != digest:
            kspace = simulate(images[block.start : block.stop] / images.max(), spacing, v, options)
            configuration = json.dumps(asdict(options), sort_keys=True)
            attributes = {"patient_id": f"demo-{v}", "configuration": configuration, "demo_digest": digest}
            write_volume(path, kspace, spacing, options, attributes)
            written += 1
    for path in stale:
        path.unlink()
    _report(out, options, written, len(stale), console)


def _digest(options: KspaceOptions, volume: int, source: str) -> str:
    configuration = {"command": "demo kspace", "recipe": RECIPE, "volume": volume, **asdict(options)}
    return provenance(Pseudonyms(default_salt(options.seed)), configuration, [source])


def _check_folder(out: Path, paths: list[Path], overwrite: bool) -> list[Path]:
    """Raise PrepError if a file to be replaced was not written by this demo; return surplus volumes of an earlier run."""
    if not out.is_dir() and (out.exists() or out.suffix.lower() in SUFFIXES):
        raise PrepError(f"{out} is a file: give a folder for the volumes")
    for path in paths:
        if path.exists() and not overwrite and stored_digest(path) is None:
            raise PrepError(f"{path} exists and is no demo volume of es_medical: give another folder, or --overwrite")
    return [path for path in sorted(out.glob(f"{PREFIX}*.h5")) if path not in paths and stored_digest(path) is not None]


def _report(out: Path, options: KspaceOptions, written: int, removed: int, console: Console) -> None:
    rows, columns = options.grid
    kind = f"{options.coils} coils" if options.coils else "single coil"
    console.print(
        f"{out}: {options.volumes} volumes of {options.slices} slices, k-space of {rows} x {columns}, {kind}, "
        f"sigma {options.sigma:g}",
        soft_wrap=True,
    )
    console.print(f"{written} written" if written else "up to date: same input, same configuration")
    if removed:
        console.print(f"volumes of an earlier run removed: {removed}")
    console.print(ORIGIN, soft_wrap=True)


COUPLING = 0.2  # relative amplitude of a neighbour's noise in each coil


def noise_mixing(coils: int, rng: np.random.Generator) -> NDArray[np.complex128]:
    """(C, C) matrix L with noise covariance L L^H: neighbours are correlated, levels differ, their mean square is 1."""
    phases = np.exp(1j * rng.uniform(-np.pi, np.pi, (2, coils)))
    levels = rng.uniform(0.8, 1.25, coils)
    neighbours = np.roll(np.diag(phases[0]), 1, axis=1) + np.roll(np.diag(phases[1]), -1, axis=1)
    mixed = np.eye(coils) + COUPLING * neighbours * (coils > 2)
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    return levels[:, None] / np.sqrt((levels**2).mean()) * mixed
