"""Prepare MNIST (or other IDX files of images) as one slice file of compressed measurements, simulated once.

The names of MNIST's two files decide which is for training and which for test; images of other files are split by the seed.
Equal images are never in two splits.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from data_prep.images.idx_file import IdxImages, read_idx_images
from data_prep.images.options import MNISTOptions
from data_prep.images.sensing import Digit, Sensing, describe, digit_plan, tasks
from data_prep.run.folders import Source, find_files
from data_prep.run.manifest import Outcome, PrepError, Pseudonyms, SkipError, check_replaceable
from data_prep.run.plan import Inventory, Plan
from data_prep.run.runner import PrepRun, measured_by, run
from data_prep.run.splits import VALIDATION_SHARE
from es_medical.data import file_digest

BLANK, COPY = "blank images left out", "images left out that equal another one"
TARGET = "images of IDX files"
UNUSED = "not used: both files of MNIST are there"
NONE_TAKEN = "none of its images is taken: see --train and --test"
OWN_SHARES = (60_000, 10_000)  # those of MNIST: the ratio used if "all" images of files for both are requested


class Place(NamedTuple):
    """An image by the name of its file, its index in the file, and its salted hash."""

    file: str
    number: int
    id: str


class Sides(NamedTuple):
    """Files for training, files for test (they may be the same), and files used for neither."""

    train: list[DigitFile]
    test: list[DigitFile]
    neither: list[DigitFile]

    @classmethod
    def of(cls, files: Sequence[DigitFile]) -> Sides:
        """Assign MNIST's own files by their names; other files fill a role that these leave open."""
        by_role = {role: [file for file in files if file.role == role] for role in ("train", "test", "any")}
        train = by_role["train"] or by_role["any"] or by_role["test"]
        test = by_role["test"] or by_role["any"] or by_role["train"]
        used = {file.name for file in train + test}
        return cls(train, test, [file for file in files if file.name not in used])

    @property
    def shared(self) -> bool:
        """Whether the same files are used for training and test."""
        return {file.name for file in self.train} == {file.name for file in self.test}


class Choice:
    """Select usable images, and count blank ones and copies that are left out (equal images must not be in two splits)."""

    def __init__(self, pseudonyms: Pseudonyms) -> None:
        self.pseudonyms = pseudonyms
        self.left_out: dict[str, Counter[str]] = defaultdict(Counter)
        self._seen = set[bytes]()

    def usable(self, files: Sequence[DigitFile]) -> Iterator[Place]:
        """Images in the order of the files, without blank ones and copies of earlier ones."""
        for file in files:
            pixels = file.images.pixels
            blank = pixels.min((1, 2)) == pixels.max((1, 2))
            for number in range(len(pixels)):
                content = hashlib.sha256(pixels[number].tobytes()).digest()
                if blank[number] or content in self._seen:
                    self.left_out[file.name][BLANK if blank[number] else COPY] += 1
                    continue
                self._seen.add(content)
                yield Place(file.name, number, self.pseudonyms.of("slice", file.images.digest, number))

    def notes(self, file: DigitFile) -> list[str]:
        """Notes on a file, for the user."""
        counts = [f"{n} {what}" for what, n in sorted(self.left_out[file.name].items())]
        return [file.note, *counts] if file.note else counts


def choose(sides: Sides, options: MNISTOptions, choice: Choice) -> dict[Place, str]:
    """Choose images and their splits; training images that equal a test image are left out.

    The first images of MNIST's own files are taken, as by the authors; images of files used for both are drawn by the seed.

    Raises:
        PrepError: no image is left for training.
    """
    train, test = options.train, options.test
    if sides.shared:
        places = _shuffled(choice.usable(sides.train), options.seed, "split")
        n_train, n_test = pool_counts(len(places), train, test)
        tested, known = places[:n_test], places[n_test : n_test + n_train]
    else:
        tested = list(islice(choice.usable(sides.test), test))
        known = list(islice(choice.usable(sides.train), train))
    n_val = max(round(len(known) * VALIDATION_SHARE), 1) if options.val is None else options.val
    if len(known) <= n_val:
        raise PrepError(f"no image is left for training: {len(known)} for training and validation, {n_val} for validation")
    validation = set(_shuffled(known, options.seed, "validation")[:n_val])
    return dict.fromkeys(tested, "test") | {place: "val" if place in validation else "train" for place in known}


def pool_counts(n: int, train: int | None, test: int | None) -> tuple[int, int]:
    """Divide n images into (train and validation, test); if there are fewer than requested, only the ratio counts.

    >>> pool_counts(6700, 20_000, 100), pool_counts(6700, None, 100), pool_counts(70, None, None), pool_counts(50, 20, 10)
    ((6667, 33), (6600, 100), (60, 10), (20, 10))
    >>> pool_counts(60, 20_000, 100), pool_counts(60, 20_000, 0)
    ((59, 1), (60, 0))
    """
    if train is None and test is None:
        train, test = OWN_SHARES
    train = max(n - (test or 0), 0) if train is None else train
    test = max(n - train, 0) if test is None else test
    total = max(train + test, 1)
    taken = min(n, total)
    n_test = max(round(taken * test / total), 1 if test and taken > 2 else 0)  # keep at least one test image
    return taken - n_test, n_test


def _shuffled(places: Iterable[Place], seed: int, stream: str) -> list[Place]:
    return sorted(places, key=lambda place: hashlib.sha256(f"{seed}/{stream}/{place.id}".encode()).digest())


def plan(
    files: Sequence[DigitFile], outcomes: Sequence[Outcome], sensing: Sensing, options: MNISTOptions, pseudonyms: Pseudonyms
) -> tuple[Inventory, Plan[Sequence[Digit]]]:
    """Choose the images and their splits; return the inventory and the plan."""
    sides, choice = Sides.of(files), Choice(pseudonyms)
    pixels = {file.name: file.images.pixels for file in files}
    digits: dict[str, list[Digit]] = defaultdict(list)
    for place, split in sorted(choose(sides, options, choice).items(), key=lambda item: item[0].number):
        digits[place.file].append(Digit(pixels[place.file][place.number], place.id, split, place.number))
    used = [file for file in files if file.name in digits]
    neither = {file.name for file in sides.neither}
    unused = [(file, UNUSED if file.name in neither else NONE_TAKEN) for file in files if file.name not in digits]
    inventory = Inventory(
        sources={file.name: file.file_digest for file in used},
        outcomes=[*outcomes, *(Outcome(file.name, "skipped", cause) for file, cause in unused)],
        identity=[f"{file.role} {file.images.digest}" for file in files],
    )
    work = [task for file in used for task in tasks(file.name, digits[file.name])]
    return inventory, digit_plan(sensing, work, TARGET, {file.name: choice.notes(file) for file in used})


def prepare(prep: PrepRun[MNISTOptions], source: Path, dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Args:
        prep: the preparation run.
        source: a folder, or one file.
        dry_run: read and check everything, write nothing.
        overwrite: make the file anew, and replace any other file.

    Returns:
        True if nothing failed.

    Raises:
        PrepError: no input, nothing to train on, or OUT exists and is no slice file.
    """
    check_replaceable(prep.out, overwrite)
    files, outcomes = scan(source, prep.out)
    sensing = sensing_of(prep.options, files)
    inventory, planned = plan(files, outcomes, sensing, prep.options, prep.pseudonyms)
    announce(files, planned, prep)
    return run(prep, inventory, lambda: planned, measured_by(describe, prep.out), dry_run, overwrite)


def sensing_of(options: MNISTOptions, files: Sequence[DigitFile]) -> Sensing:
    """The simulated acquisition that all images share; the files hold images of one size."""
    _, rows, columns = files[0].images.pixels.shape
    return Sensing((rows, columns), options.ratio, options.sigma, options.seed, options.matrix_seed, options.with_image)


def announce(files: Sequence[DigitFile], plan: Plan[Sequence[Digit]], prep: PrepRun[MNISTOptions]) -> None:
    """Say which files are used for training and for test, and where there are fewer images than requested."""
    sides, splits = Sides.of(files), Counter(digit.split for task in plan.tasks for digit in task.work)
    parts = (
        ("train", sides.train, splits["train"] + splits["val"], prep.options.train),
        ("test", sides.test, splits["test"], prep.options.test),
    )
    for name, served, n, wanted in parts:
        fewer = f", fewer than the {wanted} asked for" if wanted is not None and n < wanted else ""
        prep.say(f"{name}: {n} images{fewer}, from {', '.join(sorted(file.name for file in served))}")


Role = Literal["train", "test", "any"]

OFFICIAL: dict[str, tuple[Role, str]] = {  # name -> what it is for, MD5 of the unpacked file as distributed
    "train-images-idx3-ubyte": ("train", "6bbc9ace898e44ae57da46a324031adb"),
    "t10k-images-idx3-ubyte": ("test", "2646ac647ad5339dbf082846283269ea"),
}
EXPECTED = "expected train-images-idx3-ubyte.gz and t10k-images-idx3-ubyte.gz of MNIST, packed or not; nothing is downloaded"


class DigitFile(NamedTuple):
    """A file of images: its name below the source, its role, SHA-256 of its bytes, its content, and a note."""

    name: str
    role: Role
    file_digest: str
    images: IdxImages
    note: str = ""


def official_name(name: str) -> str:
    """The name of the official MNIST file that a path refers to, or an empty string.

    >>> official_name("raw/t10k-images.idx3-ubyte.gz"), official_name("digits.gz")
    ('t10k-images-idx3-ubyte', '')
    """
    plain = name.rsplit("/", 1)[-1].lower().removesuffix(".gz").replace(".", "-")
    return plain if plain in OFFICIAL else ""


def scan(source: Path, out: Path) -> tuple[list[DigitFile], list[Outcome]]:
    """Read every file of images below a folder (or the one file given), found by content; the order ignores file names.

    Returns:
        the files, without copies and all with the same image size; and the outcomes of the others.

    Raises:
        PrepError: no file of images, one of MNIST's own files is broken, two different ones have the same name, or image sizes
            differ.
    """
    try:
        sources, outcomes = find_files(source, out)
    except PrepError as error:
        raise PrepError(f"{error}: {EXPECTED}") from error
    files = list[DigitFile]()
    for item in sorted(sources, key=lambda item: (not official_name(item.path.name), item.name)):
        read = _read(item)
        twin = next((file.name for file in files if isinstance(read, DigitFile) and _same(file, read)), "")
        if twin:
            outcomes.append(Outcome(item.name, "skipped", "same content as another file", f"({twin})"))
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
    broken = [outcome for outcome in outcomes if outcome.status == "failed" and official_name(outcome.name)]
    if broken:  # otherwise other images would take its role
        raise PrepError("; ".join(f"{one.name}: {one.cause}" for one in broken) + ": get the file again; nothing was written")
    if not files:
        failures = "".join(f"; {outcome.name}: {outcome.cause}" for outcome in outcomes if outcome.status == "failed")
        raise PrepError(f"no IDX file of images in {source} ({len(outcomes)} others{failures}): {EXPECTED}")
    for role in ("train", "test"):
        named = [file.name for file in files if file.role == role]
        if len(named) > 1:
            raise PrepError(f"files of different content are named as MNIST's: {', '.join(sorted(named))}: give one data set")
    sizes = {"{1} x {2}".format(*file.images.pixels.shape): file.name for file in files}
    if len(sizes) > 1:
        found = ", ".join(f"{name}: {size}" for size, name in sorted(sizes.items()))
        raise PrepError(f"images of different sizes ({found}): prepare them one by one")
