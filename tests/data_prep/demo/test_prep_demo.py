import nibabel as nib
import numpy as np
import pytest
import torch
from columns import stored

from data_prep.demo import brain as demo
from data_prep.run.manifest import PrepError
from es_medical.data import SliceDataset, read_header
from es_medical.physics import MRI

pytest.importorskip("nilearn", reason="the demo needs the extra `demo`")


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory, prep):
    out = tmp_path_factory.mktemp("demo") / "demo.h5"
    prep("demo", "mri", out, "--size", 32)
    return out


def test_splits_are_blocks_of_slices_with_gaps_and_enough_to_train_on(demo_file):
    header = read_header(demo_file)
    assert header.size == (32, 32)
    assert header.splits["train"] >= 100
    assert header.splits["val"] >= 10
    assert header.splits["test"] >= 20
    index, split, subject = stored(demo_file, "slice", "split", "subject")
    changes = np.flatnonzero(split[1:] != split[:-1])
    assert (np.diff(index)[changes] == 3).all()  # two slices left out
    assert len(set(subject)) == len(changes) + 1
    assert all(len(set(split[subject == s])) == 1 for s in set(subject))


def test_measurements_are_the_operators_with_the_stated_noise(demo_file):
    header = read_header(demo_file)
    physics = MRI(header.mask, header.size)
    assert int(header.mask.sum()) == 8
    noise = torch.stack([i["measurement"] - physics.A(i["image"][None])[0] for i in SliceDataset(demo_file)])
    assert (noise[..., ~header.mask] == 0).all()
    assert float(noise[..., header.mask].std()) == pytest.approx(0.005, rel=0.05)


def test_images_are_in_0_1_upright_and_invertible(demo_file):
    dataset = SliceDataset(demo_file)
    images = torch.stack([item["image"] for item in dataset])
    assert (images[:, 1] == 0).all()
    assert (images[:, 0].amin((1, 2)) == 0).all()
    assert (images[:, 0].amax((1, 2)) == 1).all()
    scaling, image, data_range = stored(demo_file, "scale", "image", "data_range")
    scale, offset = scaling.T
    raw = image[:, 0] * scale[:, None, None] + offset[:, None, None]
    maximum = data_range * scale + offset
    assert np.allclose(maximum, maximum[0])  # of the volume, in each slice's units
    assert raw.max() <= maximum[0] * (1 + 1e-6) < 256
    middle = raw[len(raw) // 2] > 20
    rows, columns = np.flatnonzero(middle.any(1)), np.flatnonzero(middle.any(0))
    assert np.ptp(rows) > np.ptp(columns)  # a head is longer from front to back than it is wide


@pytest.mark.parametrize(("val", "test", "gap"), [(10, 20, 2), (0, 1, 0), (3, 0, 5), (0, 0, 3), (1, 2, 0)])
def test_blocks_do_not_touch(val, test, gap):
    layout = demo.blocks(134, val, test, gap)
    sizes = {name: sum(len(r) for n, r in layout if n == name) for name in ("train", "val", "test")}
    assert sizes["val"] == val
    assert sizes["test"] == test
    assert sizes["train"] == 134 - val - test - 2 * gap * sum(n != "train" for n, _ in layout)
    assert all(b.start - a.stop == gap for (_, a), (_, b) in zip(layout, layout[1:], strict=False))
    assert (layout[0][1].start, layout[-1][1].stop) == (0, 134)


def test_blocks_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(PrepError, match="10 slices leave none to train on: val 4, test 6, gap 0"):
        demo.blocks(10, 4, 6, 0)


def test_a_marked_voxel_of_the_template_stands_where_it_stood(tmp_path):
    """Every slice knows its place: a block at the left front, through crop and resize, in an oblique template."""
    volume = np.full((20, 24, 6), 0.2, np.float32)
    volume[2:6, 16:20, :] = 1.0  # x small: left, y large: front
    turn = np.array([[np.cos(0.3), -np.sin(0.3), 0], [np.sin(0.3), np.cos(0.3), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn * 1.5, (5, -7, 11)
    nib.save(nib.Nifti1Image(volume, affine), tmp_path / "template.nii.gz")
    slices, planes = demo.axial_slices(tmp_path / "template.nii.gz", 12)
    for z, (image, plane) in enumerate(zip(slices, planes, strict=True)):
        row, column = np.argwhere(image > 0.6 * image.max()).mean(0)
        found = plane.world(row, column) * [-1, -1, 1]  # LPS to RAS
        np.testing.assert_allclose(found, (affine @ [3.5, 17.5, z, 1])[:3], atol=1e-4)
        assert plane.spacing == pytest.approx((3, 3))


def test_demo_file_holds_the_places(demo_file):
    position, orientation, between = stored(demo_file, "position", "orientation", "slice_spacing")
    assert (between == 1).all()
    np.testing.assert_allclose(orientation, [[-1, 0, 0, 0, 1, 0]] * len(position), atol=1e-6)
    assert np.isfinite(position).all()
    assert (np.diff(position[:5, 2]) == 1).all()
