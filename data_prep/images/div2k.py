"""Prepare DIV2K, or any other folder of images, as one slice file of images with missing values, simulated once.

DIV2K_train_HR goes to training and validation, DIV2K_valid_HR to test. Any other folder is split by a hash of the content of
each file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch
from torch import Tensor

from data_prep.images.image_file import SUFFIXES, Picture, image_size, quiet_pillow
from data_prep.images.inpainting import Camera, Photo, describe, photo_plan
from data_prep.images.options import DIV2KOptions, Resize
from data_prep.run.folders import Source, digest_or_nothing, listed, regular, without_copies
from data_prep.run.manifest import LOST, Outcome, PrepError, Pseudonyms, check_replaceable
from data_prep.run.plan import Inventory, Task
from data_prep.run.runner import PrepRun, measured_by, run
from data_prep.run.splits import BEYOND, Shares, split_subjects
from es_medical.randomness import item_generator

Size = tuple[int, int]

ORDER = ("test", "val", "train")  # order in the file: of two images with the same pixels the test image is kept


class Examined(NamedTuple):
    """A file before it is decoded.

    Attributes:
        source: its path and name.
        role: split that its folder implies, or "".
        digest: SHA-256 of its bytes.
        problem: why it cannot be used, or "".
    """

    source: Source
    role: str
    digest: str
    problem: str


def prepare(prep: PrepRun[DIV2KOptions], source: Path, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Returns:
        True if every image was taken or left out for a reason, and none failed.

    Raises:
        PrepError: no image, only one of DIV2K's two folders, nothing to write, or OUT exists and is no slice file.
    """
    with quiet_pillow():
        check_replaceable(prep.out, overwrite)
        camera, cutting = camera_of(prep.options), partial(cut, options=prep.options)
        inventory, tasks = plan(prep, source)
        lines = measured_by(describe, prep.out)
        return run(prep, inventory, lambda: photo_plan(prep, tasks, camera, cutting), lines, dry_run, overwrite)


def camera_of(options: DIV2KOptions) -> Camera:
    """The simulated camera that all crops share."""
    return Camera(options.crop, options.mask, options.keep, options.sigma, options.seed, options.mask_seed, options.with_image)


def plan(prep: PrepRun[DIV2KOptions], source: Path) -> tuple[Inventory, list[Task[Photo]]]:
    """Find the images, read the header of each, drop copies and assign splits.

    Raises:
        PrepError: no image, or only one of DIV2K's two folders.
    """
    found, stray = find_images(source, prep.out)
    roles, outside = divided(source, found)
    prep.say(*missing(roles))
    work = partial(_examine, roles=roles, crop=prep.options.crop)

    def lost(source: Source) -> Examined:
        return Examined(source, roles[source.name], "", LOST)

    examined = list(prep.mapped(work, [source for source in found if source.name in roles], "headers", lost))
    broken = [Outcome(image.source.name, "failed", image.problem) for image in examined if image.problem]
    whole = sorted((one for one in examined if not one.problem), key=lambda one: (one.role != "test", one.source.name))
    kept, copies = without_copies(whole, lambda image: image.digest, lambda image: image.source.name)
    splits = assign({image.digest: image.role for image in kept}, prep.options)
    beyond = [Outcome(image.source.name, "skipped", BEYOND) for image in kept if splits[image.digest] is None]
    inventory = Inventory(
        sources={image.source.name: image.digest for image in examined},
        outcomes=[*stray, *outside, *broken, *copies, *beyond],
        identity=[f"{image.role}/{image.digest}" for image in examined],
    )
    return inventory, _tasks(kept, splits, prep.pseudonyms)


def _examine(source: Source, roles: Mapping[str, str], crop: int) -> Examined:
    digest, problem = digest_or_nothing(source.path), ""
    try:
        check_side(image_size(source.path), crop)
    except PrepError as error:
        problem = str(error)
    return Examined(source, roles[source.name], digest, problem)


def assign(roles: Mapping[str, str], options: DIV2KOptions) -> dict[str, str | None]:
    """Assign images to splits: by DIV2K's own folders if there are any, else by a hash.

    Args:
        roles: digest -> ``train`` or ``test``, or "" for every image.
        options: the shares; with DIV2K's own folders they are upper limits.

    Returns:
        digest -> ``train``, ``val``, ``test``, or None once the requested counts are reached.

    Raises:
        PrepError: no image is left for training.
    """
    if not any(roles.values()):
        return split_subjects(list(roles), options.seed, Shares(options.train, options.test, options.val))
    known, held_out = ([digest for digest, role in roles.items() if role == wanted] for wanted in ("train", "test"))
    split = split_subjects(known, options.seed, Shares(options.train, 0, options.val))
    if options.test <= 0 or not held_out:
        return split | dict.fromkeys(held_out)
    tested = split_subjects(held_out, options.seed, Shares(options.test, 0, 0))
    return split | {digest: assigned and "test" for digest, assigned in tested.items()}


def _tasks(kept: Sequence[Examined], splits: Mapping[str, str | None], pseudonyms: Pseudonyms) -> list[Task[Photo]]:
    """One task per image, in an order that does not depend on file names."""
    ordered = sorted(kept, key=lambda image: pseudonyms.of("subject", image.digest))
    return [
        Task(image.source.name, Photo(image.source.path, image.digest, split))
        for split in ORDER
        for image in ordered
        if splits[image.digest] == split
    ]


def check_side(size: Size, crop: int) -> None:
    """Check that an image of `size` (H, W) need not be enlarged.

    Raises:
        PrepError: its shorter side is below the crop.
    """
    if min(size) < crop:
        raise PrepError(f"{size[1]} x {size[0]} pixels: the shorter side is below the crop of {crop}, and no image is enlarged")


def target_size(old: Size, size: int, resize: Resize) -> Size:
    """(H, W) to resize to: the shorter side becomes `size` in proportion, or both sides do; nothing is enlarged.

    >>> target_size((1356, 2040), 256, "short"), target_size((1356, 2040), 256, "stretch")
    ((256, 385), (256, 256))
    >>> target_size((200, 300), 256, "short"), target_size((200, 300), 256, "stretch")
    ((200, 300), (200, 200))
    """
    side = min(size, *old)
    if resize == "stretch":
        return side, side
    return round(old[0] * side / min(old)), round(old[1] * side / min(old))


def cut(picture: Picture, photo: Photo, options: DIV2KOptions) -> tuple[list[Tensor], list[str]]:
    """Crops (3, crop, crop) of a resized image: the central one, for training also random ones; and notes.

    Raises:
        PrepError: the image is smaller than the crop.
    """
    old, crop = (picture.pixels.height, picture.pixels.width), options.crop
    check_side(old, crop)
    small = picture.resized(target_size(old, options.size, options.resize))
    n = options.crops if photo.split == "train" else 1
    generator = item_generator(options.seed, photo.digest, "crops")
    corners = crop_corners((small.shape[1], small.shape[2]), crop, n, generator)
    notes = [f"shorter side below {options.size}: not enlarged"] if min(old) < options.size else []
    return [small[:, top : top + crop, left : left + crop].clone() for top, left in corners], notes


def crop_corners(size: Size, crop: int, n: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """Upper left corners of the central crop and of n - 1 others, drawn without repetition; fewer if there are not enough.

    Args:
        size: (H, W) of the image.
        crop: rows and columns of a crop.
        n: number of crops.
        generator: source of randomness.
    """
    rows, columns = size[0] - crop + 1, size[1] - crop + 1
    centre = (rows - 1) // 2 * columns + (columns - 1) // 2
    drawn = torch.randperm(rows * columns, generator=generator)[:n].tolist() if n > 1 else []
    others = [place for place in drawn if place != centre][: n - 1]
    return [divmod(place, columns) for place in (centre, *others)]


FOLDERS = {"train": "DIV2K_train_HR", "test": "DIV2K_valid_HR"}
WHOLE = {"train": 800, "test": 100}
PACKED = (".zip", ".tar", ".gz", ".7z")
HINT = (
    "expected DIV2K_train_HR (0001.png to 0800.png) and DIV2K_valid_HR (0801.png to 0900.png) anywhere below it, or any other "
    "folder of images. Nothing is downloaded: get DIV2K_train_HR.zip and DIV2K_valid_HR.zip from "
    "https://data.vision.ee.ethz.ch/cvl/DIV2K/ by hand and unpack them there"
)


def find_images(source: Path, out: Path) -> tuple[list[Source], list[Outcome]]:
    """The images below a folder (or the one file given), and outcomes of the other files.

    Links to folders are followed; each folder is entered once.

    Raises:
        PrepError: no such source, no image (the message says what is expected where), or OUT is the source itself.
    """
    if not source.exists():
        raise PrepError(f"no file or folder {source}; {HINT}")
    images, stray = listed(source, out, _check)
    if not images:
        packed = sorted(PurePosixPath(outcome.name).name for outcome in stray if outcome.name.lower().endswith(PACKED))
        unpack = f" ({', '.join(packed[:3])}: to be unpacked)" if packed else ""
        raise PrepError(f"no image below {source} among {len(stray)} files{unpack}; {HINT}")
    return images, stray


def _check(item: Source) -> Source | Outcome:
    if any(part.startswith(".") for part in PurePosixPath(item.name).parts):
        return Outcome(item.name, "skipped", "hidden")
    if item.path.suffix.lower() not in SUFFIXES:
        return Outcome(item.name, "skipped", "no suffix of an image (.png, .jpg, .tif, .webp, ...)")
    return regular(item)


def divided(source: Path, images: list[Source]) -> tuple[dict[str, str], list[Outcome]]:
    """Assign images to the split of DIV2K's own folders, ``train`` or ``test``; "" for all images of any other folder.

    Returns:
        name -> split, and outcomes of images outside DIV2K's two folders (the LR images are small copies).

    Raises:
        PrepError: only one of the two folders exists: without the other, the split would not be DIV2K's.
    """
    roles = {image.name: _role(image.name) for image in images}
    if not any(roles.values()):
        return roles, []
    for role, folder in FOLDERS.items():
        if role not in roles.values():
            other = next(name for name in FOLDERS.values() if name != folder)
            raise PrepError(
                f"{other} without {folder} below {source}: put both there, or give the folder {other} itself as SRC, which is "
                "then split like any other folder of images"
            )
    outside = [Outcome(name, "skipped", f"not in {' or '.join(FOLDERS.values())}") for name, role in roles.items() if not role]
    return {name: role for name, role in roles.items() if role}, outside


def _role(name: str) -> str:
    """The split of the DIV2K folder that contains a file, or an empty string.

    >>> _role("x/DIV2K_valid_HR/0801.png"), _role("DIV2K_train_LR_bicubic/X2/0001x2.png")
    ('test', '')
    """
    folders = {part.lower() for part in PurePosixPath(name).parts[:-1]}
    return next((role for role, folder in FOLDERS.items() if folder.lower() in folders), "")


def missing(roles: Mapping[str, str]) -> Iterator[str]:
    """Say which of DIV2K's folders hold another number of images than in the complete data set."""
    count = Counter(roles.values())
    for role, folder in FOLDERS.items():
        if count[role] not in (0, WHOLE[role]):
            yield f"{folder} holds {count[role]} images, in the whole data set {WHOLE[role]}"
