"""Provide the input of a bundle's inference: a given slice file, or a scan prepared in the same way as the training data."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from data_prep.demo.photographs import SCALES
from data_prep.images import div2k, inpainting, mnist, sensing
from data_prep.images.image_file import quiet_pillow
from data_prep.images.inpainting import Photo, photo_plan
from data_prep.images.options import DIV2KOptions, MaskKind, MNISTOptions
from data_prep.images.sensing import Digit, digit_plan
from data_prep.mri import fastmri
from data_prep.mri.options import FastMRIOptions, options_of_training
from data_prep.run.folders import digest_or_nothing
from data_prep.run.manifest import PrepError, Pseudonyms, check_replaceable, default_salt, manifest_path
from data_prep.run.options import known_options
from data_prep.run.plan import Inventory, Task
from data_prep.run.runner import PrepRun, measured_by, run
from es_medical.data import read_header
from es_medical.data.pixels import Pixels

if TYPE_CHECKING:
    from data_prep.run.runner import O

logger = logging.getLogger(__name__)
SPLIT = "test"  # split of every image that is reconstructed


def slice_file(
    source: str,
    output_dir: str,
    acceleration: float,
    center_fraction: float,
    sigma: float,
    seed: int = 0,
    mask_seed: int | None = None,
    ckpt_dir: str | None = None,
) -> str:
    """Return the path of a slice file for `source`.

    A slice file is returned as it is. All slices of a fastMRI volume are prepared into `output_dir` in the synthetic setting:
    k-space is simulated from its magnitude reconstruction, with the given mask and noise. Images of other pixels than those of
    the training are resampled to its pixels. The file is named by a pseudonym of the source. Files of a folder that fail are
    left out; `raise_failures` reports them.

    Args:
        source: HDF5 slice file, fastMRI volume, or a folder of volumes.
        output_dir: where a prepared slice file is written.
        acceleration: acceleration of the simulated k-space.
        center_fraction: centre fraction of the simulated k-space.
        sigma: noise of the simulated k-space.
        seed: seed of its noise.
        mask_seed: seed of its mask; None takes that of the training data, else `seed`.
        ckpt_dir: folder of the trained weights, which know the pixels of the training; None leaves the pixels as they are.

    Raises:
        FileNotFoundError: there is no `source`, or no weights.
        PrepError: it is neither a slice file nor a usable volume.
    """
    if is_slice_file(source):
        return source
    from es_medical.engine.checkpoint import read_preparation

    preparation = {} if ckpt_dir is None else read_preparation(ckpt_dir)
    pixels, made = Pixels.kept(preparation), preparation.get("configuration", {})
    if mask_seed is None:
        mask_seed = made.get("seed") if made.get("mask_seed") is None else made["mask_seed"]
    options = FastMRIOptions(
        slices="all", acceleration=acceleration, center_fraction=center_fraction, sigma=sigma, seed=seed, mask_seed=mask_seed,
        train=1, test=0, val=0, pixels=pixels,
    )  # fmt: skip
    return _scan(Path(source), output_dir, options)


def scan_file(source: str, output_dir: str, ckpt_dir: str) -> str:
    """Return the path of a slice file for `source`, prepared from recorded k-space in the same way as the training data.

    A slice file is returned as it is. All slices of a volume (fastMRI's layout or ISMRMRD) are prepared into `output_dir` with
    the options of the training data, which are stored with the weights, and with its mask: a fully sampled scan is
    undersampled by it, an undersampled scan keeps its own lines. The file is named by a pseudonym of the source. Files of a
    folder that fail are left out; `raise_failures` reports them.

    Args:
        source: HDF5 slice file, volume, or a folder of volumes.
        output_dir: where a prepared slice file is written.
        ckpt_dir: folder of the trained weights.

    Raises:
        FileNotFoundError: there is no `source`, or no weights.
        PrepError: it is neither a slice file nor a usable volume, or the network was not trained on recorded k-space.
    """
    from es_medical.engine.checkpoint import read_preparation

    if is_slice_file(source):
        return source
    return _scan(Path(source), output_dir, options_of_training(read_preparation(ckpt_dir)))


def ct_file(source: str, output_dir: str, ckpt_dir: str, burned_in: bool | None = None) -> str:
    """Return the path of a slice file of sinograms for `source`.

    A slice file is returned as it is. All slices of the CT series below a folder (or in one DICOM file), or of measured
    sinograms if the training data were, are prepared into `output_dir` with the options of the training data. The file is named
    by a pseudonym of the source. What fails is left out; `raise_failures` reports it.

    Args:
        source: HDF5 slice file, DICOM file, sinogram, or a folder of them.
        output_dir: where a prepared slice file is written.
        ckpt_dir: folder of the trained weights.
        burned_in: whether to take DICOM images with annotations in their pixels; None: as in training.

    Raises:
        FileNotFoundError: there is no `source`, or no weights.
        PrepError: no usable CT series or sinogram, the network was not trained on CT, or `output_dir` is inside `source`.
    """
    from data_prep.ct import lidc
    from data_prep.ct import options as ct_options
    from data_prep.sinogram import measured
    from data_prep.sinogram import options as sinogram_options
    from es_medical.engine.checkpoint import read_preparation

    if is_slice_file(source):
        return source
    _check_outside(source, output_dir, "its images for CT series")
    preparation = read_preparation(ckpt_dir)
    if preparation.get("configuration", {}).get("command") == "sinogram":
        scan = _prep_run("sinogram", Path(source), output_dir, sinogram_options.options_of_training(preparation))
        return _path(scan, measured.prepare_input(scan, Path(source), preparation["units"]), "file", source)
    prep = _prep_run("lidc", Path(source), output_dir, ct_options.options_of_training(preparation, burned_in))
    return _path(prep, lidc.prepare(prep, Path(source)), "series", source)


def image_file(source: str, output_dir: str, ckpt_dir: str) -> str:
    """Return the path of a slice file of incomplete photographs, or of compressed digits, for `source`.

    A slice file is returned as it is. All images of a folder (or one image; IDX files for digits) are prepared into
    `output_dir`, as test images, with the options and the mask or matrix of the training data: their measurements are
    simulated. The file is named by a pseudonym of the source. Images that fail are left out; `raise_failures` reports them.

    Args:
        source: HDF5 slice file, image or IDX file, or a folder of them.
        output_dir: where a prepared slice file is written.
        ckpt_dir: folder of the trained weights.

    Raises:
        FileNotFoundError: there is no `source`, or no weights.
        PrepError: no usable image, the network was not trained on photographs or digits, or `output_dir` is inside the folder
            of the images.
    """
    from es_medical.engine.checkpoint import read_preparation

    if is_slice_file(source):
        return source
    _check_outside(source, output_dir, "its pictures for input")
    preparation = read_preparation(ckpt_dir)
    made = preparation.get("configuration", {})
    if made.get("mask") in get_args(MaskKind):
        return _photographs(Path(source), output_dir, preparation)
    if "matrix_seed" in made:
        return _digits(Path(source), output_dir, preparation)
    raise PrepError(
        f"the weights were not trained on photographs or digits of `data_prep` (made by: {made.get('command', 'unknown')})"
    )


def is_slice_file(source: str) -> bool:
    """Whether there is a slice file at `source`; raises FileNotFoundError if nothing exists there."""
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"no input at {path}: give a slice file, or what one is prepared from, as --data_file")
    try:
        read_header(path)
    except (ValueError, OSError):
        return False
    return True


def _check_outside(source: str, output_dir: str, taken: str) -> None:
    if Path(output_dir).resolve().is_relative_to(Path(source).resolve()):
        raise PrepError(f"output_dir {output_dir} lies in {source}: the next run would take {taken}")


def _prep_run(command: str, source: Path, output_dir: str, options: O) -> PrepRun[O]:
    """The run that prepares a source, into a file named by a pseudonym, since the source's name may be a patient's."""
    from rich.console import Console

    salt = default_salt(options.seed)
    out = Path(output_dir) / f"{Pseudonyms(salt).of('input', source.name)}_slices.h5"
    return PrepRun(command, options, out, salt, 1, None, Console())


def _path(prep: PrepRun[Any], succeeded: bool, what: str, source: str | Path) -> str:
    """The path of the slice file; logs an error if something failed."""
    if not succeeded:
        logger.error("not every %s of %s could be prepared: see the list above; the others are reconstructed", what, source)
    return str(prep.out)


def _scan(source: Path, output_dir: str, options: FastMRIOptions) -> str:
    prep = _prep_run("fastmri", source, output_dir, options)
    return _path(prep, fastmri.prepare(prep, source), "file", source)


def raise_failures(slice_file: str, given: str = "") -> None:
    """Raise PrepError if a source of a prepared slice file failed; to be called after the others are reconstructed.

    A slice file that was `given` was not prepared here, so nothing is raised for it.
    """
    path = manifest_path(Path(slice_file))
    sources = json.loads(path.read_text(encoding="utf-8"))["sources"] if slice_file != given and path.is_file() else []
    failed = [source for source in sources if source["status"] == "failed"]
    if failed:
        causes = "; ".join(sorted({source["cause"] for source in failed}))
        raise PrepError(f"{len(failed)} of {len(sources)} sources failed and were not reconstructed: {causes}")


def _photographs(source: Path, output_dir: str, preparation: Mapping[str, Any]) -> str:
    """Prepare photographs from any folder; DIV2K's own folders have no special role here."""
    options = _photo_options(preparation)
    prep = _prep_run("div2k", source, output_dir, options)
    check_replaceable(prep.out, overwrite=False)
    camera = div2k.camera_of(options)
    if not np.array_equal(camera.mask.bool().numpy(), np.asarray(preparation["measured"], bool)):
        raise PrepError(
            "the mask of the training data cannot be drawn anew by this version: prepare the images by the version that made "
            "the training data, and give the slice file"
        )
    with quiet_pillow():
        found, outcomes = div2k.find_images(source, prep.out)
        tasks = [Task(image.name, Photo(image.path, digest_or_nothing(image.path), SPLIT)) for image in found]
        digests = {task.source: task.work.digest for task in tasks}
        inventory = Inventory(digests, outcomes, [f"{SPLIT}/{digest}" for digest in digests.values()])
        plan = photo_plan(prep, tasks, camera, partial(div2k.cut, options=options))
        succeeded = run(prep, inventory, lambda: plan, measured_by(inpainting.describe, prep.out))
    return _path(prep, succeeded, "image", source)


def _photo_options(preparation: Mapping[str, Any]) -> DIV2KOptions:
    """The options of the training data, for central crops only."""
    kept, crop = known_options(DIV2KOptions, preparation), preparation["size"][0]
    if "crop" not in preparation["configuration"]:  # the demo resizes test photographs to this multiple of a crop
        kept["size"] = SCALES[SPLIT][0] * crop
    return DIV2KOptions(**(kept | {"crop": crop, "crops": 1, "train": 0, "test": 1, "val": 0, "with_image": True}))


def _digits(source: Path, output_dir: str, preparation: Mapping[str, Any]) -> str:
    """Prepare all digits, including blank images and copies."""
    everything = {"train": None, "test": None, "val": 0, "with_image": True}
    options = MNISTOptions(**(known_options(MNISTOptions, preparation) | everything))
    prep = _prep_run("mnist", source, output_dir, options)
    check_replaceable(prep.out, overwrite=False)
    files, outcomes = mnist.scan(source, prep.out)
    size, trained = files[0].images.pixels.shape[1:], tuple(preparation["size"])
    if size != trained:
        raise PrepError(f"images of {size[0]} x {size[1]}: the weights were trained on {trained[0]} x {trained[1]} pixels")
    tasks: list[Task[Sequence[Digit]]] = []
    for file in files:
        keys = [prep.pseudonyms.of("slice", file.images.digest, number) for number in range(len(file.images.pixels))]
        digits = [Digit(pixels, key, SPLIT, k) for k, (pixels, key) in enumerate(zip(file.images.pixels, keys, strict=True))]
        tasks += sensing.tasks(file.name, digits)
    identity = [f"{SPLIT}/{file.images.digest}" for file in files]
    inventory = Inventory({file.name: file.file_digest for file in files}, outcomes, identity)
    plan = digit_plan(mnist.sensing_of(options, files), tasks, mnist.TARGET)
    return _path(prep, run(prep, inventory, lambda: plan, measured_by(sensing.describe, prep.out)), "image", source)
