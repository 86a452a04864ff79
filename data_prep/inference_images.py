"""Photographs and digits for inference: all of a source, as test images, measured as the training data was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from data_prep import div2k, mnist
from data_prep.demo_natural import SCALES
from data_prep.frame import Frame, Plan, Task, run
from data_prep.image_file import quiet_pillow
from data_prep.image_folder import find_images
from data_prep.image_simulation import MaskKind, Photo, Photos
from data_prep.manifest import PrepError, check_replaceable, default_salt
from data_prep.mnist_files import scan
from data_prep.sensing_simulation import Digit, tasks
from data_prep.sources import digest_or_nothing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SPLIT = "test"


def prepare_images(source: Path, out: Path, preparation: Mapping[str, Any]) -> bool:
    """Write a slice file of all images of a source, photographs or digits, whichever the weights were trained on.

    Args:
        source: a folder with images (IDX files for digits), or one file.
        out: slice file to write.
        preparation: how the training data was made, see `es_medical.engine.checkpoint.preparation`.

    Returns:
        whether nothing failed.

    Raises:
        PrepError: no usable image, weights that were trained on data of another kind, or a mask or size that differs from that
            of the training data.
    """
    made = preparation.get("configuration", {})
    check_replaceable(out, overwrite=False)
    if made.get("mask") in get_args(MaskKind):
        return _photographs(source, out, preparation)
    if "matrix_seed" in made:
        return _digits(source, out, preparation)
    raise PrepError(
        f"the weights were not trained on photographs or digits of `data_prep` (made by: {made.get('command', 'unknown')})"
    )


def seed_of(preparation: Mapping[str, Any]) -> int:
    """The seed of the training data, which salts the hashed names."""
    return int(preparation.get("configuration", {}).get("seed", 0))


def _photographs(source: Path, out: Path, preparation: Mapping[str, Any]) -> bool:
    """Whatever folder an image lies in: DIV2K's own folders play no part here."""
    options = _photo_options(preparation)
    camera = options.camera()
    if not np.array_equal(camera.mask.bool().numpy(), np.asarray(preparation["measured"], bool)):
        raise PrepError(
            "the mask of the training data cannot be drawn anew by this version: prepare the images by the version that made "
            "the training data, and give the slice file"
        )
    frame = _frame("div2k", options, out, options.seed)
    with quiet_pillow():
        found, outcomes = find_images(source, out)
        photos = [(one.name, Photo(one.path, digest_or_nothing(one.path), SPLIT)) for one in found]
        plan = Plan(
            sources={name: photo.digest for name, photo in photos},
            tasks=[Task(name, photo) for name, photo in photos],
            outcomes=outcomes,
            identity=[f"{SPLIT}/{photo.digest}" for _, photo in photos],
        )
        return run(frame, plan, Photos(camera, partial(div2k.cut, options=options), frame.pseudonyms))


def _photo_options(preparation: Mapping[str, Any]) -> div2k.Options:
    """The knobs of the training data, for central crops alone."""
    kept, crop = _known(div2k.Options, preparation), preparation["size"][0]
    if "crop" not in preparation["configuration"]:  # the demo: its test crops are of photographs so many times as high
        kept["size"] = SCALES[SPLIT][0] * crop
    return div2k.Options(**(kept | {"crop": crop, "crops": 1, "train": 0, "test": 1, "val": 0, "with_image": True}))


def _digits(source: Path, out: Path, preparation: Mapping[str, Any]) -> bool:
    """Blank images and copies too."""
    everything = {"train": None, "test": None, "val": 0, "with_image": True}
    options = mnist.Options(**(_known(mnist.Options, preparation) | everything))
    files, outcomes = scan(source, out)
    size, trained = files[0].images.pixels.shape[1:], tuple(preparation["size"])
    if size != trained:
        raise PrepError(f"images of {size[0]} x {size[1]}: the weights were trained on {trained[0]} x {trained[1]} pixels")
    frame = _frame("mnist", options, out, options.seed)
    work: list[Task[Sequence[Digit]]] = []
    for file in files:
        keys = [frame.pseudonyms.of("slice", file.images.digest, number) for number in range(len(file.images.pixels))]
        digits = [Digit(pixels, key, SPLIT, k) for k, (pixels, key) in enumerate(zip(file.images.pixels, keys, strict=True))]
        work += tasks(file.name, digits)
    sources = {file.name: file.file_digest for file in files}
    plan = Plan(sources, work, outcomes, [f"{SPLIT}/{file.images.digest}" for file in files], "images of IDX files")
    return run(frame, plan, options.sensing((size[0], size[1])))


def _known(options: type[DataclassInstance], preparation: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of the training data that the command for any folder has too (a demo has others)."""
    made = preparation["configuration"]
    return {field.name: made[field.name] for field in fields(options) if field.name in made}


def _frame(command: str, options: DataclassInstance, out: Path, seed: int) -> Frame:
    from rich.console import Console

    return Frame(command, options, out, default_salt(seed), 1, None, Console())
