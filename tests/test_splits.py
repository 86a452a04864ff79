import itertools

import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import coil_maps, line_mri, randn, rng, virtual_batch

from es_medical.groups import D4, Rotations
from es_medical.physics import MRI, CompressedSensing, Decimation, Inpainting, MultiCoilMRI, MultiCoilProtocol
from es_medical.physics.masks import center_lines
from es_medical.physics.virtual import draw_virtual
from es_medical.randomness import item_generator
from es_medical.splits import Split

UNITS = ["lines", "samples"]
CT_UNITS = ["views", "bins", "rays"]
MODES = ["exact", "bernoulli"]
MAPS = coil_maps(2, 3, (4, 4))


def physics_with(width, measured, seed=0, height=4):
    """A line operator with the zero frequency and further lines at random."""
    lines = torch.zeros(width)
    others = [i for i in torch.randperm(width, generator=rng(seed)).tolist() if i != width // 2]
    lines[[width // 2, *others[: measured - 1]]] = 1
    return MRI(lines, (height, width))


def points(size, batch=1, seed=0):
    return MRI((torch.rand(batch, 1, *size, generator=rng(seed)) < 0.4).float(), size)


def count(mask, physics, unit):
    """Units in a mask, for each item."""
    if unit == "lines":
        return mask.amax(dim=(1, 2)).sum(-1)
    return mask.expand(-1, 1, *physics.image_size).flatten(1).sum(-1)


def scanner(mask=None):
    """5 views of 6 detector bins."""
    return DenseCT(6, even_views(5, 2), mask=mask)


def kspace_operators():
    virtual = virtual_batch(line_mri((9, 9)), D4())
    coils = MultiCoilMRI(line_mri((6, 8)).mask, coil_maps(8, 3, (6, 8)))
    return [line_mri((8, 12)), line_mri((9, 9)), points((6, 8)), points((5, 7), batch=8), virtual, coils]


def ct_scanners():
    """All rays, views 1 and 3 missing, bin 0 missing, single rays missing, and other rays missing in each item."""
    views, bins, rays = torch.ones(1, 1, 5, 1), torch.ones(1, 1, 1, 6), (torch.rand(8, 1, 5, 6, generator=rng(3)) < 0.6).float()
    views[..., [1, 3], :], bins[..., 0] = 0, 0
    return [scanner(), scanner(views), scanner(bins), scanner(views * bins), scanner(rays[:1]), scanner(rays)]


def image_operators():
    """Colour images with missing values, pixels or columns, decimated ones, and products with a matrix; with their units."""
    values, each = (Inpainting((torch.rand(n, 3, 6, 8, generator=rng(1)) < 0.5).float(), (6, 8), 3) for n in (1, 8))
    pixels = Inpainting((torch.rand(6, 8, generator=rng(2)) < 0.5).float(), (6, 8), 3)
    columns = Inpainting(torch.tensor([1.0, 0, 1, 1, 0, 1, 0, 1]), (6, 8), 3)
    pairs = [("values", one) for one in (values, each, pixels)] + [("pixels", one) for one in (values, each, pixels)]
    pairs += [("columns", columns), ("pixels", Decimation((6, 8), 2, 3)), ("rows", CompressedSensing(randn(20, 48), (6, 8)))]
    return pairs


AXES = {
    **{"lines": (-1,), "samples": (-2, -1), "views": (-2,), "bins": (-1,), "rays": (-2, -1)},
    **{"values": (-3, -2, -1), "pixels": (-2, -1), "columns": (-1,), "rows": (-1,)},
}
"""Axes of y along which units differ; all others share them."""

PAIRS = [(unit, physics) for unit in UNITS for physics in kspace_operators()]
PAIRS += [(unit, physics) for unit in CT_UNITS for physics in ct_scanners()]
PAIRS += image_operators()
SHARED = [(unit, physics) for unit, physics in PAIRS if len(physics.mask) == 1]  # a mask for all items
SQUARE = [(unit, physics) for unit, physics in SHARED if physics.image_size[0] == physics.image_size[1]]


def each(pairs):
    """Parametrise a test by units and operators."""
    return pytest.mark.parametrize(("unit", "physics"), [pytest.param(*one, id=f"{one[0]}-{i}") for i, one in enumerate(pairs)])


def image(physics, n=8):
    return randn(n, *physics.img_size, dtype=torch.float64 if physics.units[0] == "views" else torch.float32)


def units_in(mask, unit, physics):
    """Number of units with an entry in a mask, of each of 8 items."""
    full = mask.expand_as(physics.A(image(physics)))
    shared = [axis for axis in range(1 - full.ndim, 0) if axis not in AXES[unit]]
    return (full.amax(shared) if shared else full).flatten(1).sum(1)


def zero_frequency(unit, physics):
    """Indicator of the measured entries that always stay in M1; None for other measurements than k-space."""
    if unit not in UNITS:
        return None
    column = center_lines(physics.image_size[1], 1).float()
    return physics.mask * column


@pytest.mark.parametrize("mode", MODES)
@each(PAIRS)
def test_parts_are_a_partition_of_the_mask_in_whole_units(unit, physics, mode):
    for split_ratio in (0.05, 0.6, 0.95):
        m1 = Split(unit, split_ratio, mode=mode)(physics, 8, rng(1))
        m2 = physics.mask - m1
        assert len(m1) == 8
        assert set(m1.unique().tolist()) == set(m2.unique().tolist()) == {0.0, 1.0}
        assert (m1 * m2 == 0).all()
        assert torch.equal(m1 + m2, physics.mask.expand_as(m1))
        first, second, both = (units_in(m, unit, physics) for m in (m1, m2, physics.mask))
        assert min(first.min(), second.min()) >= 1
        assert torch.equal(first + second, both)  # no unit is in both
        if (kept := zero_frequency(unit, physics)) is not None:
            assert torch.equal(m1 * kept, kept.expand_as(m1))
    torch.testing.assert_close(
        physics.masked(m1).A(image(physics)) + physics.masked(m2).A(image(physics)), physics.A(image(physics))
    )


@each(PAIRS)
def test_exact_split_gives_m1_the_stated_share_of_each_item(unit, physics):
    kept = zero_frequency(unit, physics)
    least = 1 if kept is None else units_in(kept, unit, physics).clamp(min=1)
    measured = units_in(physics.mask, unit, physics)
    for split_ratio in (0.1, 0.5, 0.8, 0.95):
        found = units_in(Split(unit, split_ratio)(physics, 8, rng(4)), unit, physics)
        assert torch.equal(found, torch.round(split_ratio * measured).clamp(min=least).clamp(max=measured - 1))


@each(PAIRS)
def test_seed_decides_and_items_have_their_own_split(unit, physics):
    split = Split(unit, 0.5)
    m1 = split(physics, 8, rng(1))
    assert torch.equal(m1, split(physics, 8, rng(1)))
    assert not torch.equal(m1, split(physics, 8, rng(2)))
    assert len({tuple(one.flatten().tolist()) for one in m1}) > 1


@pytest.mark.parametrize("mode", MODES)
@each(SHARED)
def test_split_of_an_item_does_not_depend_on_its_batch(unit, physics, mode):
    split, keys = Split(unit, 0.5, mode=mode), "abcdefgh"
    together = split(physics, 8, [item_generator(0, key) for key in keys])
    for i in (4, 0, 2):
        assert torch.equal(split(physics, 1, [item_generator(0, keys[i])]), together[i : i + 1])


@each(SQUARE)
def test_virtual_operator_is_split_as_its_operator(unit, physics):
    m1 = Split(unit, 0.5)(physics, 8, rng(3))
    assert torch.equal(Split(unit, 0.5)(virtual_batch(physics, D4()), 8, rng(3)), m1)


@pytest.mark.parametrize("unit", CT_UNITS)
def test_scanner_that_is_turned_for_each_item_is_split_as_the_scanner(unit):
    physics = scanner()
    turned = draw_virtual(physics, Rotations(2), 8, [item_generator(0, key) for key in "abcdefgh"], "cpu")
    assert torch.equal(Split(unit, 0.5)(turned, 8, rng(3)), Split(unit, 0.5)(physics, 8, rng(3)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("n_center", [1, 2, 3, 4])
def test_central_lines_stay_in_m1(n_center, unit, mode):
    physics = line_mri((6, 32), acceleration=2)
    m1 = Split(unit, 0.2, n_center, mode)(physics, 64, rng())
    center = center_lines(32, n_center)
    assert torch.equal(m1[..., center], physics.mask[..., center].expand_as(m1[..., center]))


def test_no_centre_still_keeps_the_zero_frequency():
    m1 = Split(n_center=0, split_ratio=0.3)(line_mri((4, 16)), 64, rng())
    assert (m1[..., 8] == 1).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", UNITS)
def test_no_part_is_ever_empty(unit, mode):
    for width, measured, split_ratio in itertools.product((2, 3, 5, 8, 13), (2, 3, 5, 8), (0.01, 0.3, 0.5, 0.8, 0.99)):
        if measured > width:
            continue
        physics = physics_with(width, measured, seed=width, height=2)
        m1 = Split(unit, split_ratio, 1, mode)(physics, 32, rng(measured))
        first, second = count(m1, physics, unit), count(physics.mask - m1, physics, unit)
        assert first.min() >= 1, (width, measured, split_ratio)
        assert second.min() >= 1, (width, measured, split_ratio)


@pytest.mark.parametrize(("unit", "mask", "n_center"), [
    ("lines", [0, 0, 1, 0], 1),  # one line
    ("lines", [0, 0, 0, 0], 1),  # none
    ("lines", [0, 1, 1, 0], 2),  # both are kept
    ("lines", [1, 0, 0, 0], 1),  # one, and not the zero frequency
    ("samples", [0, 0, 1, 0], 1),  # its column is the kept one
])  # fmt: skip
def test_kspace_too_small_to_split_is_an_error(unit, mask, n_center):
    several = [kind(torch.tensor(mask), with_coils) for kind, with_coils in ((MultiCoilMRI, MAPS), (MultiCoilProtocol, (4, 4)))]
    for physics in (MRI(mask, (4, 4)), MRI(torch.tensor([[1, 1, 1, 1], mask]).view(2, 1, 1, 4), (4, 4)), *several):
        with pytest.raises(ValueError, match=rf"can't split \d+ measured {unit} of which the central {n_center}"):
            Split(unit, 0.5, n_center)(physics, 2, rng())


@pytest.mark.parametrize(("unit", "shape"), [("views", (1, 6)), ("bins", (5, 1)), ("rays", (1, 1))])
def test_sinogram_too_small_to_split_is_an_error(unit, shape):
    mask = torch.zeros(1, 1, 5, 6)
    mask[..., : shape[0], : shape[1]] = 1
    with pytest.raises(ValueError, match=f"can't split 1 measured {unit}: at least two"):
        Split(unit)(scanner(mask), 2, rng())


@pytest.mark.parametrize("arguments", [
    {"unit": "blocks"}, {"mode": "uniform"}, {"split_ratio": 0.0}, {"split_ratio": 1.0}, {"split_ratio": float("nan")},
])  # fmt: skip
@pytest.mark.usefixtures("unchecked")
def test_impossible_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=str(next(iter(arguments.values())))):
        Split(**arguments)


@pytest.mark.parametrize("unit", UNITS)
def test_bernoulli_draws_each_free_unit_with_the_stated_probability(unit):  # 4 standard errors
    physics, s, batch = line_mri((4, 32), acceleration=2), 0.7, 2_000
    m1 = Split(unit, s, n_center=3, mode="bernoulli")(physics, batch, rng(5)).expand(batch, 1, 4, 32)
    free = physics.mask.expand(1, 1, 4, 32)[0, 0].bool() & ~center_lines(32, 3)
    drawn = m1[:, 0, : 1 if unit == "lines" else 4][..., free[: 1 if unit == "lines" else 4]]
    assert abs(drawn.mean() - s) < 4 * (s * (1 - s) / drawn.numel()) ** 0.5
    each = (s * (1 - s) / batch) ** 0.5
    assert ((drawn.mean(0) - s).abs() < 5 * each).all()  # every unit alike
    spread = drawn.sum(1).var() / (drawn.shape[1] * s * (1 - s))  # binomial: the units are independent
    assert abs(spread - 1) < 5 * (2 / batch) ** 0.5


@pytest.mark.parametrize("unit", UNITS)
def test_exact_split_treats_all_free_units_alike(unit):  # 5 standard errors for each unit
    physics, batch = line_mri((4, 32), acceleration=2), 2_000
    m1 = Split(unit, 0.7, n_center=3)(physics, batch, rng(6)).expand(batch, 1, 4, 32)
    rows = 1 if unit == "lines" else 4
    free = (physics.mask.expand(1, 1, 4, 32)[0, 0].bool() & ~center_lines(32, 3))[:rows]
    measured = 16 * rows
    p = (round(0.7 * measured) - 3 * rows) / (measured - 3 * rows)
    drawn = m1[:, 0, :rows][..., free]
    assert ((drawn.mean(0) - p).abs() < 5 * (p * (1 - p) / batch) ** 0.5).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", UNITS)
def test_all_coils_share_the_split_that_one_coil_has(unit, mode):
    for single in (line_mri((6, 8)), points((6, 8)), points((6, 8), batch=3)):
        several = MultiCoilMRI(single.mask, coil_maps(3, 4, (6, 8)))
        protocol = MultiCoilProtocol(single.mask, (6, 8))
        split = Split(unit, 0.6, 2, mode)
        m1 = split(several, 3, rng(1))
        assert m1.shape == (3, 1, 1, single.mask.shape[2] if unit == "lines" else 6, 8)
        assert torch.equal(m1[:, :, 0], split(single, 3, rng(1)))
        assert torch.equal(m1, split(protocol, 3, rng(1)))
        y = several.A(randn(3, 2, 6, 8))
        first, second = m1 * y, (several.mask - m1) * y
        assert torch.equal(first + second, y)
        assert (first * second == 0).all()
        torch.testing.assert_close(several.masked(m1).A(randn(3, 2, 6, 8)), first)


def test_split_leaves_the_operator_alone():
    physics = line_mri((8, 8))
    before = physics.mask.clone()
    Split()(physics, 4, rng()).zero_()
    assert torch.equal(physics.mask, before)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("unit", CT_UNITS)
def test_every_unit_of_a_sinogram_is_drawn_alike(unit, mode):  # 5 standard errors
    s, batch = 0.6, 3_000
    m1 = Split(unit, s, mode=mode)(scanner(), batch, rng(4)).flatten(1)
    n = m1.shape[1]
    p = round(s * n) / n if mode == "exact" else s
    clipped = s**n + (1 - s) ** n  # all or none: one unit is moved
    assert ((m1.mean(0) - p).abs() < 5 * (p * (1 - p) / batch) ** 0.5 + clipped / n).all()


@pytest.mark.parametrize(("unit", "physics", "message"), [
    ("views", line_mri((6, 8)), "MRI measures k-space, which has no views: use lines or samples"),
    ("rays", virtual_batch(line_mri((8, 8)), D4()), "measures k-space, which has no rays"),
    ("lines", scanner(), "DenseCT measures a sinogram, which has no lines: use views or rays or bins"),
    ("samples", virtual_batch(scanner(), D4()), "measures a sinogram, which has no samples"),
    ("lines", image_operators()[0][1], "Inpainting measures an image, which has no lines: use pixels or values or columns"),
    ("pixels", image_operators()[-1][1], "CompressedSensing measures .*, which has no pixels: use rows"),
])  # fmt: skip
def test_unit_of_another_modality_is_refused(unit, physics, message):
    with pytest.raises(TypeError, match=message):
        Split(unit)(physics, 8, rng())


def test_no_part_of_a_sinogram_is_kept():
    assert Split("views").n_center == 0
    with pytest.raises(ValueError, match="n_center keeps columns of k-space, and a split by views has none; got 4"):
        Split("views", n_center=4)
