"""Synthetic slices are measured as those of the file that they are like, and know nothing else of it."""

import h5py
import pytest
import torch
from tiny import CASES, LEVELS, SIGMA, write_images, write_sinograms, write_slices, write_slices_for

from es_medical.data import Shapes, SliceDataset, SliceHeader, SliceRecord, SliceWriter, read_header
from es_medical.engine.operators import operator_of
from es_medical.engine.synthetic_slices import Likeness, checked_kind, kind_for, synthetic_kind, write_synthetic
from es_medical.physics.transmission import COUNTED, Transmission
from es_medical.synthetic import draw
from es_medical.synthetic.kinds import LARGEST_BLOCK as BLOCK

PHOTONS = "photons"
KINDS = {
    "div2k_inpainting": "photograph",
    "fastmri_real": "mr_phase",
    "fastmri_synthetic": "mr",
    "lidc_ct": "ct",
    "mnist_cs": "digit",
    PHOTONS: "ct",
}


def write(case, path, **options):
    return write_sinograms(path, photons=1e4, **options) if case == PHOTONS else write_slices_for(case, path, **options)


@pytest.fixture(scope="module", params=sorted(KINDS))
def made(request, tmp_path_factory):
    """A file, and one of 40 synthetic slices like it."""
    folder = tmp_path_factory.mktemp("synthetic")
    source, out = write(request.param, folder / "like.h5"), folder / "made.h5"
    write_synthetic(Likeness.of(source), out, 40)
    return request.param, source, out


def test_assumed_noise_is_all_that_is_known_of_it(tmp_path):
    """Whatever noise the file has, recorded or of photon counting."""
    digests = set()
    for case, knobs in ((PHOTONS, {}), ("fastmri_real", {}), ("fastmri_real", {"sigmas": (0.2, 0.1)})):
        source, out = write(case, tmp_path / "like.h5", **knobs), tmp_path / "made.h5"
        like = Likeness.of(source, sigma=0.03, sigma_factor=2.0)
        write_synthetic(like, out, 40)
        slices = SliceDataset(out)
        batch = torch.utils.data.default_collate(list(slices))
        physics = operator_of(str(source)).of(batch)
        noise = ((batch["measurement"] - physics.A(batch["image"])) * physics.mask)[
            physics.mask.expand_as(batch["measurement"]) > 0
        ]
        assert float(noise.std()) == pytest.approx(0.06, rel=0.03)
        assert batch["sigma"].unique().tolist() == [pytest.approx(0.06)]
        digests.add(like.digest)
    assert len(digests) == 2  # one of CT, one of MRI
    write_synthetic(Likeness.of(source, sigma=0.0), out, 2)
    assert SliceDataset(out)[0]["sigma"] == 0


def test_images_of_unforeseen_channels_are_named(tmp_path):
    header = SliceHeader(0.1, torch.ones(16), modality="IMAGE", operator={"kind": "inpainting"}, channels=4)
    with pytest.raises(
        ValueError, match="'leaves' of synthetic images has 1 channels, the data 4: no kind has as many: set warm"
    ):
        checked_kind(kind_for(header), header)
    path = tmp_path / "four.h5"
    with SliceWriter(path, header, (16, 16), shapes=Shapes.pixels((16, 16), 4)) as writer:
        writer.append(SliceRecord(torch.ones(4, 16, 16), torch.ones(4, 16, 16), "a", "b", "train"))
    with pytest.raises(ValueError, match="the data 4"):
        Likeness.of(path)


def test_a_file_shares_the_acquisition_and_says_that_it_is_synthetic(made):
    case, source, out = made
    like, header = read_header(source), read_header(out)
    same = ("modality", "operator", "size", "coils", "channels", "acceleration", "center_fraction", "encoded_lines")
    assert all(repr(getattr(like, name)) == repr(getattr(header, name)) for name in same)
    assert torch.equal(like.mask, header.mask)
    assert repr(like.matrix) == repr(header.matrix)
    assert (header.n, header.splits, header.has_image, header.source_digests) == (40, {"train": 40}, True, {})
    assert (synthetic_kind(source), synthetic_kind(out)) == ("", KINDS[case])


def test_images_are_the_drawn_ones_and_measurements_those_of_the_operator_with_its_noise(made):
    case, source, out = made
    slices = SliceDataset(out)
    images = torch.stack([one["image"] for one in slices])
    assert torch.equal(images, draw(KINDS[case], 40, images.shape[-2:], 0))
    batch = torch.utils.data.default_collate(list(slices))
    physics = operator_of(str(source)).of(batch)
    noise = (batch["measurement"] - physics.A(images)) * physics.mask
    measured = physics.mask.expand_as(noise).bool()
    if case == PHOTONS:
        scan = Transmission.from_dict(read_header(out).operator[COUNTED])
        counts = scan.counts(batch["measurement"])
        torch.testing.assert_close(batch["sigma"], scan.noise_level(counts))
        assert torch.allclose(counts.mean(), (scan.photons * scan.transmitted(physics.A(images))).mean(), rtol=0.01)
        return
    assert (noise[~measured] == 0).all()
    for level in batch["sigma"].unique():
        deviations = (noise / level)[measured & (batch["sigma"] == level).view(-1, *[1] * (noise.ndim - 1))]
        assert abs(float(deviations.square().mean()) - 1) < 5 * (2 / len(deviations)) ** 0.5


def test_a_slice_depends_on_its_number_and_seed_alone(made):
    """Whatever the block that it is made in: first, last, alone."""
    like = Likeness.of(made[1])
    many = list(like.records(BLOCK + 3))
    for first in (0, BLOCK - 1, BLOCK + 2):
        (one,) = like.records(1, first, "val")
        assert (one.id, one.split) == (many[first].id, "val")
        torch.testing.assert_close(one.measurement, many[first].measurement, rtol=1e-6, atol=1e-6)
        assert torch.equal(one.image, many[first].image)
        assert one.maps is None or torch.equal(one.maps, many[first].maps)
        assert one.sigma == many[first].sigma or made[0] == PHOTONS
    (other,) = Likeness.of(made[1], seed=1).records(1)
    assert not torch.equal(other.image, many[0].image)
    assert not torch.equal(other.measurement, many[0].measurement)


def test_noise_levels_and_coil_maps_are_those_of_training_slices(tmp_path):
    source = write_slices_for("fastmri_real", tmp_path / "like.h5")
    train = SliceDataset(source, "train")
    records = list(Likeness.of(source).records(20))
    pairs = [(float(one["sigma"]), one["maps"]) for one in train]
    assert {one.sigma for one in records} == {float(torch.tensor(level)) for level in LEVELS}
    for one in records:
        assert any(one.sigma == sigma and torch.equal(one.maps, maps) for sigma, maps in pairs)


def test_a_slice_with_another_noise_level_than_the_header_keeps_it(tmp_path):
    """Otherwise the loss would assume a level that the noise does not have."""
    source = write_slices(tmp_path / "like.h5")
    with h5py.File(source, "r+") as file:
        file["sigma"][:] = 0.3
    (one,) = Likeness.of(source).records(1)
    assert one.sigma == pytest.approx(0.3)
    noise = one.measurement - operator_of(str(source)).A(one.image[None])[0]
    assert float(noise.std()) > 10 * SIGMA


def test_neither_images_nor_measurements_of_the_file_are_read(tmp_path):
    """Not even their digest: two files that differ in nothing else give the same slices under the same name."""
    one, other = (write_slices(tmp_path / name, with_image=has, mask_seed=3) for name, has in (("a.h5", True), ("b.h5", False)))
    with h5py.File(one, "r+") as file:
        file["measurement"][:] = float("nan")
        file["image"][:] = float("nan")
    first, second = Likeness.of(one), Likeness.of(other)
    assert first.digest == second.digest
    for a, b in zip(first.records(3), second.records(3), strict=True):
        assert torch.equal(a.measurement, b.measurement)


def test_the_digest_tells_what_decides_the_slices(tmp_path):
    base = Likeness.of(write_slices(tmp_path / "a.h5"))
    others = [
        Likeness.of(base.path, seed=1),
        Likeness.of(base.path, "mr_phase"),
        Likeness.of(write_slices(tmp_path / "mask.h5", mask_seed=1)),
        Likeness.of(write_slices(tmp_path / "sigma.h5", sigmas=LEVELS)),
        Likeness.of(write_slices(tmp_path / "coils.h5", coils=2)),
        Likeness.of(write_slices(tmp_path / "size.h5", size=(16, 18))),
    ]
    assert len({one.digest for one in (base, *others)}) == len(others) + 1


def test_ct_says_how_its_values_become_hounsfield_units(tmp_path):
    (one,) = Likeness.of(write_slices_for("lidc_ct", tmp_path / "a.h5")).records(1)
    assert (one.scale, one.offset) == (2000.0, -1000.0)
    (one,) = Likeness.of(write_slices_for("mnist_cs", tmp_path / "b.h5")).records(1)
    assert (one.scale, one.offset) == (1.0, 0.0)


@pytest.mark.parametrize("case", CASES)
def test_kind_follows_from_the_header(case, tmp_path):
    header = read_header(write_slices_for(case, tmp_path / "a.h5"))
    assert kind_for(header) == KINDS.get(case, "mr")  # k-space of one coil that does not say it was recorded
    assert kind_for(Likeness.of(tmp_path / "a.h5", seed=3).synthetic_header(5)) == kind_for(header)


def test_an_unknown_kind_and_one_of_other_channels_name_the_fitting_ones(tmp_path):
    source = write_images(tmp_path / "a.h5")
    with pytest.raises(ValueError, match=r"kind 'cat' of synthetic images is unknown: choose auto or photograph"):
        Likeness.of(source, "cat")
    with pytest.raises(ValueError, match=r"kind 'ct' of synthetic images has 1 channels, the data 3: choose auto"):
        Likeness.of(source, "ct")


def test_an_interrupted_file_is_not_there(tmp_path, monkeypatch):
    from es_medical.engine import synthetic_slices

    like = Likeness.of(write_slices(tmp_path / "a.h5"))
    monkeypatch.setattr(synthetic_slices, "measure", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_synthetic(like, tmp_path / "out.h5", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.h5"]
