"""Which files of a folder are images to look at, and what DIV2K's own folders say about their split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from os.path import realpath
from pathlib import Path, PurePosixPath

from data_prep.image_file import SUFFIXES
from data_prep.manifest import Outcome, PrepError
from data_prep.sources import Source, is_folder, own_files, walk

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
