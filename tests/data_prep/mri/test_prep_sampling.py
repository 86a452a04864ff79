import numpy as np
import pytest
from raw import complex_noise

from data_prep.mri.sampling import check_fully_sampled, measured_extent
from data_prep.run.manifest import PrepError

SHAPE = (3, 16, 32)


def full():
    return complex_noise(SHAPE)


def columns_of_each_slice(k):
    rng = np.random.default_rng(1)
    for x in k:
        x[:, 1 + rng.permutation(30)[:15]] = 0


def shifted_span(k):
    k[1, :, :3] = 0


def checkerboard(k):
    k[:, ::2, ::2] = k[:, 1::2, 1::2] = 0


@pytest.mark.parametrize(
    ("undersample", "cause"),
    [
        (columns_of_each_slice, "slice 0: 15 of 32 encoded columns are empty"),
        (lambda k: k.__setitem__((slice(None), slice(None, None, 2)), 0), "slice 0: 7 of 15 encoded rows are empty"),
        (lambda k: (k.__setitem__((..., slice(10)), 0), k.__setitem__((..., slice(22, 32)), 0)),
         "slice 0: 20 of 32 columns are empty at the edges, at most a quarter"),
        (lambda k: k.__setitem__((slice(None), slice(5)), 0), "slice 0: 5 of 16 rows are empty at the edges"),
        (shifted_span, "slice 1: columns 3 to 31, slice 0 has 0 to 31"),
        (checkerboard, "slice 0: 256 of 512 encoded samples are empty"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("coils", [None, 2])
def test_undersampled_kspace_is_refused_with_what_is_missing(undersample, cause, coils):
    k = full()
    undersample(k)
    with pytest.raises(PrepError, match=cause):
        check_fully_sampled(k if coils is None else np.stack([k] * coils, 1), None)


def test_blank_slices_and_corners_left_out_are_no_gaps():
    k = full()
    rows, columns = np.ogrid[-1:1:16j, -1:1:32j]
    k[..., rows**2 + columns**2 > 1.1] = 0
    k[0] = 0
    assert check_fully_sampled(k, None) == ""
    with pytest.raises(PrepError, match="zero everywhere"):
        check_fully_sampled(0 * k, None)


def test_edges_outside_the_encoding_limits_are_padding_and_inside_are_not():
    k = full()
    k[..., :10] = 0
    assert check_fully_sampled(k, (10, 32)) == ""
    with pytest.raises(PrepError, match="slice 0: 1 of 23 encoded columns are empty"):
        check_fully_sampled(k, (9, 40))
    with pytest.raises(PrepError, match="10 of 32 columns are empty at the edges"):
        check_fully_sampled(k, None)


def test_padding_is_noted():
    k = full()
    k[..., :5] = k[..., 30:] = 0
    k[:, 15] = 0
    assert check_fully_sampled(k, None) == "1 empty edge rows taken as padding; 7 empty edge columns taken as padding"


def masked(lines, empty=()):
    """One slice of k-space with these columns, and its mask, which says the empty ones as well."""
    mask = np.isin(np.arange(32), [*lines, *empty])
    return full()[0] * np.isin(np.arange(32), lines), mask


GAPS = (3, 7, *range(12, 20), 25)


@pytest.mark.parametrize(
    ("lines", "empty", "limits", "columns"),
    [
        (range(12, 20), (), None, (0, 32)),  # the centre alone is no whole scan, though no line between others is missing
        (range(20), (), None, (0, 32)),
        (range(4, 30), (), None, (4, 30)),  # up to a quarter of the side is padding
        (range(4, 30), (), (0, 32), (0, 32)),
        (GAPS, (), (2, 28), (2, 28)),
        (GAPS, (), (2, 40), (2, 32)),  # limits of another matrix
        (GAPS, (), (16, 17), (0, 32)),  # wrong limits: lines outside them hold samples
        (GAPS, (), (0, -5), (0, 32)),
        (GAPS, (1, 29), None, (2, 29)),  # the mask says lines that were never measured
        (range(4, 30), (2, 3), None, (4, 30)),
    ],
)
def test_encoded_columns_of_a_file_with_a_mask(lines, empty, limits, columns):
    k, mask = masked(lines, empty)
    assert measured_extent(k, limits, mask, 0).columns == columns


def test_mask_with_an_empty_line_between_others_is_refused():
    k, mask = masked(GAPS, (9, 10, 30))
    with pytest.raises(PrepError, match="0 columns that it leaves out hold samples, 2 of its 14 columns are empty between"):
        measured_extent(k, None, mask, 3)
