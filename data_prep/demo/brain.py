"""Demo data without a download: the ICBM152 T1 template of the nilearn wheel, cut into axial slices.

Neighbouring slices look alike, so training, validation and test slices are contiguous blocks with a gap between them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel
import numpy as np
import torch
from torch.nn.functional import interpolate

from data_prep.mri.normalisation import Acquisition, Normalisation, VolumeRange, crop_or_pad
from data_prep.run.manifest import (
    RECIPE,
    Outcome,
    PrepError,
    Pseudonyms,
    announce_changes,
    check_replaceable,
    default_salt,
    earlier_outcomes,
    manifest_path,
    provenance,
    source_hash,
    split_counts,
    write_manifest,
)
from es_medical.data import SliceHeader, SliceWriter, file_digest, read_header
from es_medical.data.geometry import Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

TEMPLATE = "mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
LEAST_TISSUE = 0.01  # share of the pixels of a slice above a tenth of the volume's maximum


@dataclass(frozen=True)
class Options:
    """Knobs of the demo: see `python -m data_prep demo mri --help`."""

    size: int = 64
    acceleration: float = 4
    center_fraction: float = 0.08
    sigma: float = 0.005
    seed: int = 0
    val: int = 10
    test: int = 20
    gap: int = 2
    normalise: Normalisation = "slice"
    with_image: bool = True
    mask_seed: int | None = 5

    def acquisition(self) -> tuple[float, float, float, int, bool, int | None]:
        """What `Acquisition` takes beside the size."""
        return self.acceleration, self.center_fraction, self.sigma, self.seed, self.with_image, self.mask_seed


def template_path() -> Path:
    """The T1 template inside the installed nilearn, found without importing nilearn.

    Raises:
        PrepError: nilearn is not installed, or its wheel no longer holds the template.
    """
    found = util.find_spec("nilearn")
    if found is None or found.origin is None:
        raise PrepError("the demo needs the brain template that nilearn ships: pip install 'es_medical[demo]'")
    path = Path(found.origin).parent / "datasets" / "data" / TEMPLATE
    if not path.is_file():
        raise PrepError(f"this nilearn holds no {TEMPLATE}: pip install --force-reinstall 'es_medical[demo]'")
    return path


def axial_slices(path: Path, size: int) -> tuple[NDArray, list[Geometry]]:
    """Axial slices with tissue, anterior up and the patient's left on the left, and where they stand.

    Returns:
        (n, size, size) float32, the plane of each.
    """
    image = nibabel.Nifti1Image.from_filename(path)
    volume = np.asarray(image.dataobj, np.float32)  # (x to the right, y to the front, z upwards)
    slices = np.rot90(volume.transpose(2, 0, 1), axes=(1, 2))  # (z, rows from the front, columns from the left)
    side = max(slices.shape[1:])
    padded = torch.from_numpy(crop_or_pad(slices, (side, side)))
    small = interpolate(padded[:, None], (size, size), mode="bilinear", antialias=True, align_corners=False)[:, 0].numpy()
    tissue = (small > 0.1 * small.max()).mean((1, 2)) >= LEAST_TISSUE
    sizes = (slices.shape[1], slices.shape[2]), (side, side), (size, size)
    planes = [
        _plane(np.asarray(image.affine), volume.shape[1], z).resized(*sizes[:2]).rescaled(*sizes[1:])
        for z in np.flatnonzero(tissue).tolist()
    ]
    return small[tissue], planes


def _plane(affine: NDArray, n_y: int, z: int) -> Geometry:
    """The plane of axial slice z of the template, whose pixel (row, column) is voxel (column, n_y - 1 - row, z)."""
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine  # nibabel's is RAS
    right, back, up = lps[:3, 0], -lps[:3, 1], lps[:3, 2]
    spacings = [float(np.linalg.norm(step)) for step in (back, right, up)]
    orientation = (*(right / spacings[1]).tolist(), *(back / spacings[0]).tolist())
    x, y, w, _ = (lps @ [0, n_y - 1, z, 1]).tolist()
    return Geometry((x, y, w), orientation, (spacings[0], spacings[1]), spacings[2])


def blocks(n: int, val: int, test: int, gap: int) -> list[tuple[str, range]]:
    """Contiguous blocks train | test | train | val | train | test | train with `gap` slices left out between them.

    The test slices stand in two blocks (one when there is only one), so that they show more than one region, and the
    training blocks between have the same length.

    Raises:
        PrepError: nothing would be left to train on.

    >>> blocks(20, val=2, test=4, gap=1)
    [('train', range(0, 2)), ('test', range(3, 5)), ('train', range(6, 8)), ('val', range(9, 11)), \
('train', range(12, 14)), ('test', range(15, 17)), ('train', range(18, 20))]
    """
    if min(val, test, gap) < 0:
        raise PrepError(f"val {val}, test {test}, gap {gap}: expected no negative number")
    held_out = [(name, k) for name, k in (("test", (test + 1) // 2), ("val", val), ("test", test // 2)) if k > 0]
    training = n - val - test - 2 * gap * len(held_out)
    if training < len(held_out) + 1:
        raise PrepError(f"{n} slices leave none to train on: val {val}, test {test}, gap {gap}")
    lengths = [training * (i + 1) // (len(held_out) + 1) - training * i // (len(held_out) + 1) for i in range(4)]
    layout, start = [("train", range(lengths[0]))], lengths[0]
    for (name, k), length in zip(held_out, lengths[1:], strict=False):
        layout.append((name, range(start + gap, start + gap + k)))
        start += k + 2 * gap
        layout.append(("train", range(start, start + length)))
        start += length
    return layout


def run(out: Path, options: Options, overwrite: bool, console: Console) -> None:
    """Writes the demo data set to OUT, unless it is there already.

    Raises:
        PrepError: no template, an OUT that is not ours, or options that fit no data set.
    """
    check_replaceable(out, overwrite)
    path = template_path()
    pseudonyms = Pseudonyms(default_salt(options.seed))
    source = file_digest(path)
    configuration = {"command": "demo mri", "recipe": RECIPE, **asdict(options)}
    digest = provenance(pseudonyms, configuration, [source])
    if overwrite or earlier_outcomes(out, digest, [TEMPLATE], pseudonyms) is None:
        announce_changes(out, configuration, console)
        acquisition = Acquisition((options.size, options.size), *options.acquisition())
        header = acquisition.header(configuration, {source_hash(TEMPLATE, pseudonyms): source}, digest)
        n = _write(out, *axial_slices(path, options.size), acquisition, header, options)
        write_manifest(out, digest, [Outcome(TEMPLATE, "done", slices=n, target="T1 template")], pseudonyms)
    else:
        console.print("up to date: same input, same configuration")
    report(out, console)


def _write(
    out: Path, slices: NDArray, planes: list[Geometry], acquisition: Acquisition, header: SliceHeader, options: Options
) -> int:
    volume = VolumeRange(float(slices.min()), float(slices.max()))
    pseudonyms = Pseudonyms(default_salt(options.seed))
    with SliceWriter(out, header, acquisition.size, acquisition.with_image) as writer:
        for block, (split, indices) in enumerate(blocks(len(slices), options.val, options.test, options.gap)):
            subject = pseudonyms.of("block", block)
            for i in indices:
                key, by = pseudonyms.of("slice", i), options.normalise
                writer.append(acquisition.record(slices[i], volume, by, key, subject, split, planes[i], i))
        return writer.n


def report(out: Path, console: Console) -> None:
    """Says where the file is and what it holds."""
    header = read_header(out)
    counts = split_counts(header.splits)
    lines = int(header.mask.sum())
    console.print(f"{out}: {header.n} slices of {header.size[0]} x {header.size[1]} ({counts})", soft_wrap=True)
    console.print(
        f"{lines} of {header.mask.shape[-1]} k-space lines (nominal x{header.acceleration:g}), sigma {header.sigma:g}, "
        f"ground truth {'stored' if header.has_image else 'not stored'}",
        soft_wrap=True,
    )
    console.print(f"manifest: {manifest_path(out)}", soft_wrap=True)
