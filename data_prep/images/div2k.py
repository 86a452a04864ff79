"""DIV2K, or any other folder of images, to one slice file of images with missing values, simulated once.

DIV2K_train_HR goes to training and validation, DIV2K_valid_HR to test. Any other folder is split by a hash of the content of
each file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os.path import realpath
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from data_prep.images.image_file import SUFFIXES, Picture, image_size, quiet_pillow
from data_prep.images.inpainting import Camera, MaskKind, Photo, Photos
from data_prep.run.folders import Source, digest_or_nothing, is_folder, own_files, walk
from data_prep.run.manifest import Outcome, PrepError, check_replaceable
from data_prep.run.runner import Plan, PrepRun, Task, run
from data_prep.run.splits import Shares, split_subjects
from es_medical.randomness import item_generator

Resize = Literal["short", "stretch"]
Size = tuple[int, int]

ORDER = ("test", "val", "train")  # of the file: of two images with the same pixels the one for test is kept


@dataclass(frozen=True)
class Options:
    """Knobs that decide what the file holds: see `python -m data_prep div2k --help`."""

    size: int = 256
    crop: int = 128
    resize: Resize = "short"
    crops: int = 1
    mask: MaskKind = "values"
    keep: float | None = None
    sigma: float = 0.0
    seed: int = 0
    mask_seed: int | None = None
    train: float = 800
    test: float = 100
    val: int | None = None
    with_image: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.size:
            raise PrepError(f"crop {self.crop}: expected 1 to {self.size}, the size after resizing")
        if self.crops < 1:
            raise PrepError(f"crops {self.crops}: expected at least 1, the central one")

    def camera(self) -> Camera:
        """What all crops go through."""
        return Camera(self.crop, self.mask, self.keep, self.sigma, self.seed, self.mask_seed, self.with_image)


class Examined(NamedTuple):
    """A file before it is decoded.

    Attributes:
        source: where it is, and its name.
        role: split that its folder asks for, or "".
        digest: SHA-256 of its bytes.
        problem: why it cannot be used, or "".
    """

    source: Source
    role: str
    digest: str
    problem: str


def prepare(frame: PrepRun, source: Path, options: Options, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Writes the slice file and its manifest, unless they are up to date.

    Returns:
        whether every image was taken or left out for a reason, and none failed.

    Raises:
        PrepError: no image, half of DIV2K, nothing to write, or an OUT that is not ours.
    """
    with quiet_pillow():
        check_replaceable(frame.out, overwrite)
        pipeline = Photos(options.camera(), partial(cut, options=options), frame.pseudonyms)
        return run(frame, plan(frame, source, options), pipeline, dry_run, overwrite)


def plan(frame: PrepRun, source: Path, options: Options) -> Plan[Photo]:
    """Finds the images, looks at the head of each, drops copies and assigns splits.

    Raises:
        PrepError: no image, or half of DIV2K.
    """
    found, stray = find_images(source, frame.out)
    roles, outside = divided(source, found)
    for line in missing(roles):
        frame.console.print(line, markup=False, soft_wrap=True)
    work = partial(_examine, roles=roles, crop=options.crop)
    examined = list(frame.mapped(work, [one for one in found if one.name in roles], "headers"))
    broken = [Outcome(one.source.name, "failed", one.problem) for one in examined if one.problem]
    kept, copies = _without_copies([one for one in examined if not one.problem])
    splits = assign({one.digest: one.role for one in kept}, options)
    beyond = [one for one in kept if splits[one.digest] is None]
    left_out = [Outcome(one.source.name, "skipped", "beyond the --train and --test counts") for one in beyond]
    return Plan(
        sources={one.source.name: one.digest for one in examined},
        tasks=_tasks(kept, splits, frame),
        outcomes=[*stray, *outside, *broken, *copies, *left_out],
        identity=[f"{one.role}/{one.digest}" for one in examined],
    )


def _examine(source: Source, roles: Mapping[str, str], crop: int) -> Examined:
    digest, problem = digest_or_nothing(source.path), ""
    try:
        check_side(image_size(source.path), crop)
    except PrepError as error:
        problem = str(error)
    return Examined(source, roles[source.name], digest, problem)


def _without_copies(examined: Sequence[Examined]) -> tuple[list[Examined], list[Outcome]]:
    """One file of each content, of those the one for test, and the others."""
    kept: dict[str, Examined] = {}
    for one in sorted(examined, key=lambda one: (one.role != "test", one.source.name)):
        kept.setdefault(one.digest, one)
    copies = [one for one in examined if kept[one.digest] is not one]
    cause = "copy of another file"
    return list(kept.values()), [
        Outcome(one.source.name, "skipped", cause, f"({kept[one.digest].source.name})") for one in copies
    ]


def assign(roles: Mapping[str, str], options: Options) -> dict[str, str | None]:
    """Splits images: by their folders where these say it, else all of them by a hash.

    Args:
        roles: digest -> ``train``, ``test`` or "" (for all of them).
        options: the shares. Of DIV2K's folders they are upper limits.

    Returns:
        digest -> ``train``, ``val``, ``test``, or None when the counts asked for are reached.

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
    return split | {digest: one and "test" for digest, one in tested.items()}


def _tasks(kept: Sequence[Examined], splits: Mapping[str, str | None], frame: PrepRun) -> list[Task[Photo]]:
    """In an order that names play no part in."""
    ordered = sorted(kept, key=lambda one: frame.pseudonyms.of("subject", one.digest))
    return [
        Task(one.source.name, Photo(one.source.path, one.digest, split))
        for split in ORDER
        for one in ordered
        if splits[one.digest] == split
    ]


def check_side(size: Size, crop: int) -> None:
    """Refuses an image (H, W) that would have to be enlarged.

    Raises:
        PrepError: its shorter side is below the crop.
    """
    if min(size) < crop:
        raise PrepError(f"{size[1]} x {size[0]} pixels: the shorter side is below the crop of {crop}, and no image is enlarged")


def target_size(old: Size, size: int, resize: Resize) -> Size:
    """(H, W) to resize to: the shorter side to `size` in proportion, or both sides; no side below is enlarged to it.

    >>> target_size((1356, 2040), 256, "short"), target_size((1356, 2040), 256, "stretch")
    ((256, 385), (256, 256))
    >>> target_size((200, 300), 256, "short"), target_size((200, 300), 256, "stretch")
    ((200, 300), (200, 200))
    """
    side = min(size, *old)
    if resize == "stretch":
        return side, side
    return round(old[0] * side / min(old)), round(old[1] * side / min(old))


def cut(picture: Picture, photo: Photo, options: Options) -> tuple[list[Tensor], list[str]]:
    """The central crop (3, crop, crop) of a resized image, and for training the random ones; what to say of it.

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
    """Upper left corners of the central crop and of n - 1 others, drawn without repetition; fewer where there are no more.

    Args:
        size: (H, W) of the image.
        crop: rows and columns of a crop.
        n: number of crops.
        generator: source of the random ones.
    """
    rows, columns = size[0] - crop + 1, size[1] - crop + 1
    centre = (rows - 1) // 2 * columns + (columns - 1) // 2
    drawn = torch.randperm(rows * columns, generator=generator)[:n].tolist() if n > 1 else []
    others = [place for place in drawn if place != centre][: n - 1]
    return [divmod(place, columns) for place in (centre, *others)]


FOLDERS = {"train": "DIV2K_train_HR", "test": "DIV2K_valid_HR"}
WHOLE = {"train": 800, "test": 100}
PACKED = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")
HINT = (
    "expected DIV2K_train_HR (0001.png to 0800.png) and DIV2K_valid_HR (0801.png to 0900.png) anywhere below it, or any other "
    "folder of images. Nothing is downloaded: get DIV2K_train_HR.zip and DIV2K_valid_HR.zip from "
    "https://data.vision.ee.ethz.ch/cvl/DIV2K/ by hand and unpack them there"
)


def find_images(source: Path, out: Path) -> tuple[list[Source], list[Outcome]]:
    """The images below a folder (or the one file given), and what else is there.

    Links to folders are followed; each folder is looked at once.

    Raises:
        PrepError: nothing there, no image (the message says what is expected where), or OUT is the source itself.
    """
    if not source.exists():
        raise PrepError(f"no file or folder {source}; {HINT}")
    if not is_folder(source, out):
        return [Source(source, source.name)], []
    ours = own_files(out)
    items = sorted((item for item in walk(source) if realpath(source / item.name) not in ours), key=lambda item: item.name)
    checked = [item if isinstance(item, Outcome) else _check(item) for item in items]
    images = [item for item in checked if isinstance(item, Source)]
    stray = [item for item in checked if isinstance(item, Outcome)]
    if not images:
        packed = sorted(
            PurePosixPath(one.name).name for one in stray if one.name.lower().endswith((".zip", ".tar", ".gz", ".7z"))
        )
        unpack = f" ({', '.join(packed[:3])}: to be unpacked)" if packed else ""
        raise PrepError(f"no image below {source} among {len(stray)} files{unpack}; {HINT}")
    return images, stray


def _check(item: Source) -> Source | Outcome:
    if any(part.startswith(".") for part in PurePosixPath(item.name).parts):
        return Outcome(item.name, "skipped", "hidden")
    if item.path.suffix.lower() not in SUFFIXES:
        return Outcome(item.name, "skipped", "no suffix of an image (.png, .jpg, .tif, .webp, ...)")
    if item.path.is_file():
        return item
    broken = item.path.is_symlink() and not item.path.exists()
    return Outcome(item.name, "failed", "broken link") if broken else Outcome(item.name, "skipped", "not a regular file")


def divided(source: Path, images: list[Source]) -> tuple[dict[str, str], list[Outcome]]:
    """The split that DIV2K's own folders ask for, ``train`` or ``test``; "" for all images of any other folder.

    Returns:
        name -> split, and of the images of a folder that holds DIV2K those that lie outside (the LR images are small copies).

    Raises:
        PrepError: one of the two folders is missing: another split would be made of what is there.
    """
    roles = {one.name: _role(one.name) for one in images}
    if not any(roles.values()):
        return roles, []
    for role, folder in FOLDERS.items():
        if role not in roles.values():
            other = next(name for name in FOLDERS.values() if name != folder)
            raise PrepError(
                f"{other} without {folder} below {source}: put both there, or give the folder {other} itself as SRC, which is "
                f"then split like any other folder of images"
            )
    outside = [Outcome(name, "skipped", f"not in {' or '.join(FOLDERS.values())}") for name, role in roles.items() if not role]
    return {name: role for name, role in roles.items() if role}, outside


def _role(name: str) -> str:
    """The split of the folder of DIV2K that a file lies in, or an empty string.

    >>> _role("x/DIV2K_valid_HR/0801.png"), _role("DIV2K_train_LR_bicubic/X2/0001x2.png")
    ('test', '')
    """
    folders = {part.lower() for part in PurePosixPath(name).parts[:-1]}
    return next((role for role, folder in FOLDERS.items() if folder.lower() in folders), "")


def missing(roles: Mapping[str, str]) -> Iterator[str]:
    """What to say of a part of DIV2K: folders that hold another number of images than the whole set."""
    count = Counter(roles.values())
    for role, folder in FOLDERS.items():
        if count[role] not in (0, WHOLE[role]):
            yield f"{folder} holds {count[role]} images, that of the whole data set {WHOLE[role]}"
