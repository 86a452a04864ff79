"""Masks of every operator: the shapes and types that it takes, those that it refuses, and that it keeps its own copy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from helpers import coil_maps, randn

from es_medical.physics import (
    CT,
    MRI,
    CompressedSensing,
    Decimation,
    Inpainting,
    MultiCoilMRI,
    MultiCoilProtocol,
    Operator,
    bernoulli_mask,
    gaussian_line_mask,
    gaussian_matrix,
    random_columns,
)
from es_medical.physics.ct_geometry import ParallelBeam

LINES = torch.tensor([0, 1, 0, 1, 1, 0])
PIXELS = [(6,), (4, 6), (2, 4, 6), (1, 2, 4, 6), (1, 1, 1, 6), (3, 2, 4, 6), (3, 1, 4, 6)]
NO_PIXELS = [(5,), (6, 4), (3, 4, 6), (1, 3, 4, 6), (3, 2, 3, 6), (4, 1), (1, 1, 2, 4, 6), ()]
KSPACE = [(6,), (4, 6), (1, 1, 4, 6), (3, 1, 4, 6), (3, 1, 1, 6)]
NO_KSPACE = [(5,), (2, 6), (1, 1, 3, 6), (6, 4), (3, 4, 6), (1, 2, 4, 6), ()]
COILS = [*KSPACE, (1, 1, 1, 1, 6), (1, 1, 1, 4, 6), (3, 1, 1, 4, 6), (3, 1, 1, 1, 6)]
NO_COILS = [*NO_KSPACE, (1, 1, 2, 4, 6), (1, 2, 1, 4, 6)]


class Kind(NamedTuple):
    """An operator by its mask."""

    make: Callable[[Any], Operator]
    pattern: torch.Tensor
    """What is measured; every mask is an expansion of it."""
    taken: list[tuple[int, ...]]
    refused: list[tuple[int, ...]]
    fits: str
    """How a refusal names the operator's own size."""


KINDS = {
    "mri": Kind(lambda m: MRI(m, (4, 6)), LINES, KSPACE, NO_KSPACE, "4 x 6"),
    "coils": Kind(lambda m: MultiCoilMRI(m, coil_maps(3, 2, (4, 6))), LINES, COILS, NO_COILS, "4 x 6"),
    "protocol": Kind(lambda m: MultiCoilProtocol(m, (4, 6)), LINES, COILS, NO_COILS, "4 x 6"),
    "inpainting": Kind(lambda m: Inpainting(m, (4, 6), 2), LINES, PIXELS, NO_PIXELS, "2 x 4 x 6"),
    "decimation": Kind(lambda m: Decimation((8, 12), 2, 2, m), LINES, PIXELS, NO_PIXELS, "2 x 4 x 6"),
    "ct": Kind(
        lambda m: CT(ParallelBeam((8, 8), n_views=6), m),
        LINES[:, None],
        [(6,), (6, 1), (6, 12), (1, 1, 6, 1), (1, 1, 6, 12), (3, 1, 6, 1), (3, 1, 6, 12)],
        [(5,), (6, 4), (2, 2, 6, 1), (1, 1, 1, 6, 1), (12, 6)],
        "6 views of 12 bins",
    ),
    "sensing": Kind(
        lambda m: CompressedSensing(randn(6, 20), (4, 5), m),
        LINES,
        [(6,), (1, 6), (3, 6)],
        [(5,), (3, 5), (1, 1, 6), ()],
        "6 rows",
    ),
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def of_every_type(kind):
    """The same mask in every shape and type that is taken."""
    for shape in kind.taken:
        mask = (kind.pattern.flatten() if len(shape) == 1 else kind.pattern).expand(shape)
        yield from (mask, mask.double(), mask.half(), mask.bool(), mask.contiguous().numpy().astype(np.uint8))
    yield kind.pattern.flatten().tolist()


@each_kind
def test_shapes_and_types_that_are_taken_give_the_same_operator(kind):
    whole = kind.make(torch.ones(6))
    expected = kind.make(kind.pattern.flatten()).mask
    for mask in of_every_type(kind):
        for physics in (kind.make(mask), whole.masked(torch.as_tensor(mask).float())):
            assert physics.mask.dtype == torch.float32
            assert physics.mask.ndim == expected.ndim
            assert torch.equal(*torch.broadcast_tensors(physics.mask, expected))


@pytest.mark.usefixtures("unchecked")
@each_kind
def test_mask_that_does_not_fit_names_both_sizes(kind):
    whole = kind.make(torch.ones(6))
    for shape in kind.refused:
        for make in (kind.make, whole.masked):
            with pytest.raises(ValueError, match=rf"does not fit .*{kind.fits}") as refusal:
                make(torch.ones(shape))
            assert ", ".join(map(str, shape[-2:])) in str(refusal.value)


@pytest.mark.parametrize("bad", [2.0, -1.0, 0.5, float("nan")])
@each_kind
def test_values_other_than_0_and_1_are_refused(kind, bad):
    mask = torch.tensor([0.0, 1.0, bad, 1.0, 0.0, 0.0])
    for make in (kind.make, kind.make(torch.ones(6)).masked):
        with pytest.raises(ValueError, match=r"0 .*1.*, got values from"):
            make(mask)


@pytest.mark.parametrize("make", [np.ones, torch.ones])
@each_kind
def test_operator_keeps_its_own_mask(kind, make):
    for shape in kind.taken:
        given = make(shape)
        physics = [kind.make(given), *([kind.make(torch.ones(6)).masked(given)] if make is torch.ones else [])]
        given[...] = 0
        assert all((one.mask == 1).all() for one in physics)


DRAWS = {
    "lines": lambda seed: gaussian_line_mask(320, 8, 0.03, seed),
    "values": lambda seed: bernoulli_mask((3, 16, 16), 0.3, seed),
    "columns": lambda seed: random_columns(64, 0.5, seed),
    "matrix": lambda seed: gaussian_matrix(4, 20, seed),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_are_seeded_and_leave_the_global_generator_alone(draw):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    drawn = [tuple(draw(seed).flatten().tolist()) for seed in range(10)]
    assert torch.equal(torch.rand(1), expected)
    assert drawn == [tuple(draw(seed).flatten().tolist()) for seed in range(10)]
    assert len(set(drawn)) == 10
