"""Assign subjects to training, validation or test."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from data_prep.run.manifest import PrepError

VALIDATION_SHARE = 0.05
BEYOND = "beyond the --train and --test counts"


@dataclass(frozen=True)
class Shares:
    """How many volumes each split gets.

    Attributes:
        train: volumes for training and validation; `train` and `test` are fractions if they add up to at most 1.
        test: volumes for test. If there are fewer than train + test volumes, only the ratio counts.
        val: validation volumes, taken from the training ones; None takes about 5 %.
    """

    train: float = 900
    test: float = 73
    val: int | None = None

    def counts(self, n: int) -> tuple[int, int, int]:
        """(train, val, test) for n volumes.

        Raises:
            PrepError: a share is negative or not finite, or `train` is 0.

        >>> Shares().counts(973), Shares().counts(10), Shares(0.5, 0.5, val=0).counts(8)
        ((855, 45, 73), (8, 1, 1), (4, 0, 4))
        """
        if not (0 < self.train < math.inf and 0 <= self.test < math.inf and (self.val or 0) >= 0):
            raise PrepError(
                f"train {self.train:g}, test {self.test:g}, val {self.val}: expected train > 0, no negative, none infinite"
            )
        total = self.train + self.test
        both = round(total) if 1 < total <= n else n
        test = round(both * self.test / total)
        test = min(max(test, 1 if self.test > 0 and n >= 2 else 0), both)
        known = both - test
        val = (max(round(known * VALIDATION_SHARE), 1) if known >= 2 else 0) if self.val is None else self.val
        return known - val, val, test


def split_subjects(subjects: Sequence[str], seed: int, shares: Shares) -> dict[str, str | None]:
    """Assign whole subjects to splits by a hash of (seed, subject); order, names and folders do not matter.

    Args:
        subjects: the subject of each volume.
        seed: seed of the split.
        shares: volumes for each split; a split may get more, since all volumes of its last subject are included.

    Returns:
        subject -> ``train``, ``val``, ``test``, or None once the requested counts are reached.

    Raises:
        PrepError: no subject is left for training.
    """
    volumes = Counter(subjects)
    order = sorted(volumes, key=lambda subject: hashlib.sha256(f"{seed}/split/{subject}".encode()).digest())
    train, val, test = shares.counts(len(subjects))
    if train < 1:
        raise PrepError(f"no volume left for training: {len(subjects)} volumes, val {val}, test {test}")
    assigned: dict[str, str | None] = {}
    for split, wanted in (("test", test), ("val", val), ("train", train)):
        taken = 0
        while order and taken < wanted and (split == "train" or len(order) > 1):
            taken += volumes[order[0]]
            assigned[order.pop(0)] = split
    return assigned | dict.fromkeys(order)
