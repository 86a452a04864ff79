import random

import pytest

from data_prep.run.manifest import PrepError
from data_prep.run.splits import Shares, split_subjects


def count(assigned, subjects):
    return {split: sum(assigned[s] == split for s in subjects) for split in ("train", "val", "test")}


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (10, (8, 1, 1)), (973, (855, 45, 73)), (1500, (855, 45, 73))],
)
def test_counts_of_the_paper_and_of_small_data_sets(n, expected):
    subjects = [f"s{i}" for i in range(n)]
    assert tuple(count(split_subjects(subjects, 0, Shares()), subjects).values()) == expected


def test_validation_never_takes_from_the_test_subjects():
    subjects = [f"s{i}" for i in range(50)]
    a, b = (split_subjects(subjects, 0, Shares(val=val)) for val in (0, 20))
    assert {s for s in a if a[s] == "test"} == {s for s in b if b[s] == "test"}
    assert sum(value == "val" for value in b.values()) == 20


def test_order_does_not_matter_and_the_seed_does():
    subjects = [f"s{i // 2}" for i in range(40)]
    first = split_subjects(subjects, 0, Shares(0.6, 0.4))
    shuffled = random.Random(0).sample(subjects, 40)
    assert split_subjects(shuffled, 0, Shares(0.6, 0.4)) == first
    assert split_subjects(subjects, 1, Shares(0.6, 0.4)) != first


def test_one_subject_goes_to_training_whatever_its_volumes():
    assert split_subjects(["a"] * 30, 0, Shares()) == {"a": "train"}


@pytest.mark.parametrize(
    "shares", [Shares(0, 10), Shares(-1, 2), Shares(1, -1), Shares(val=30), Shares(float("nan")), Shares(1, float("inf"))]
)
def test_impossible_shares_are_refused(shares):
    with pytest.raises(PrepError, match="expected train > 0|no volume left for training"):
        split_subjects([f"s{i}" for i in range(20)], 0, shares)
