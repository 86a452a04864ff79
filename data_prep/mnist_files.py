"""Which files of a folder hold images for `mnist`, and what each is for: the names of MNIST's own files say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from data_prep.ct_walk import find_files
from data_prep.idx_file import IdxImages, read_idx_images
from data_prep.manifest import Outcome, PrepError, SkipError
from data_prep.sources import Source
from es_medical.data.slices import file_digest

Role = Literal["train", "test", "any"]

OFFICIAL: dict[str, tuple[Role, str]] = {  # name -> what it is for, MD5 of the unpacked file as distributed
    "train-images-idx3-ubyte": ("train", "6bbc9ace898e44ae57da46a324031adb"),
    "t10k-images-idx3-ubyte": ("test", "2646ac647ad5339dbf082846283269ea"),
}
EXPECTED = "expected train-images-idx3-ubyte.gz and t10k-images-idx3-ubyte.gz of MNIST, packed or not; nothing is downloaded"


class DigitFile(NamedTuple):
    """A file of images: its name below the source, what it is for, SHA-256 of its bytes, what it holds, and a remark."""

    name: str
    role: Role
    file_digest: str
    images: IdxImages
    note: str = ""


def official_name(name: str) -> str:
    """The name of MNIST's own file that a path stands for, or an empty string.

    >>> official_name("raw/t10k-images.idx3-ubyte.gz"), official_name("digits.gz")
    ('t10k-images-idx3-ubyte', '')
    """
    plain = name.rsplit("/", 1)[-1].lower().removesuffix(".gz").replace(".", "-")
    return plain if plain in OFFICIAL else ""


def scan(source: Path, out: Path) -> tuple[list[DigitFile], list[Outcome]]:
    """Reads every file of images below a folder (or the one file given), told by content, in an order that names don't decide.

    Returns:
        the files, all of one size of image and none twice; and what became of the others.

    Raises:
        PrepError: none there, one of MNIST's own files is broken, two different ones have one name, or sizes of images differ.
    """
    try:
        sources, outcomes = find_files(source, out)
    except PrepError as error:
        raise PrepError(f"{error}: {EXPECTED}") from error
    files = list[DigitFile]()
    for one in sorted(sources, key=lambda item: (not official_name(item.path.name), item.name)):
        read = _read(one)
        twin = next((file.name for file in files if isinstance(read, DigitFile) and _same(file, read)), "")
        if twin:
            outcomes.append(Outcome(one.name, "skipped", "same content as another file", f"({twin})"))
        elif isinstance(read, DigitFile):
            files.append(read)
        else:
            outcomes.append(read)
    _check(source, files, outcomes)
    return sorted(files, key=lambda file: file.images.digest), outcomes


def _same(first: DigitFile, second: DigitFile) -> bool:
    return first.images.digest == second.images.digest and second.role in (first.role, "any")


def _read(source: Source) -> DigitFile | Outcome:
    official = official_name(source.path.name)
    role, md5 = OFFICIAL.get(official, ("any", ""))
    try:
        images, digest = read_idx_images(source.path), file_digest(source.path)
    except SkipError as error:
        return Outcome(source.name, "skipped", str(error))
    except PrepError as error:
        return Outcome(source.name, "failed", str(error))
    except OSError as error:
        return Outcome(source.name, "failed", f"cannot be read ({error.strerror})")
    other = official and images.md5 != md5
    note = f"named as a file of MNIST, but MD5 of its content is {images.md5}, not {md5}" if other else ""
    return DigitFile(source.name, role, digest, images, note)


def _check(source: Path, files: Sequence[DigitFile], outcomes: Sequence[Outcome]) -> None:
    broken = [one for one in outcomes if one.status == "failed" and official_name(one.name)]
    if broken:  # without it other images would take its part
        raise PrepError("; ".join(f"{one.name}: {one.cause}" for one in broken) + ": get the file again; nothing was written")
    if not files:
        failures = "".join(f"; {one.name}: {one.cause}" for one in outcomes if one.status == "failed")
        raise PrepError(f"no IDX file of images in {source} ({len(outcomes)} others{failures}): {EXPECTED}")
    for role in ("train", "test"):
        named = [file.name for file in files if file.role == role]
        if len(named) > 1:
            raise PrepError(f"files of different content are named as MNIST's: {', '.join(sorted(named))}: give one data set")
    sizes = {"{1} x {2}".format(*file.images.pixels.shape): file.name for file in files}
    if len(sizes) > 1:
        told = ", ".join(f"{name}: {size}" for size, name in sorted(sizes.items()))
        raise PrepError(f"images of different sizes ({told}): prepare them one by one")
