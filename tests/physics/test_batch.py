import pytest
import torch
from helpers import line_mri, randn
from jaxtyping import TypeCheckError

from es_medical.physics import Batch
from es_medical.randomness import item_generator


def test_batch_of_a_slice_file_is_what_the_loader_read():
    physics, y, x = line_mri((8, 8)), randn(2, 2, 8, 8), randn(2, 2, 8, 8, seed=1)
    read = {"measurement": y, "image": x, "sigma": torch.tensor([0.1, 0.2], dtype=torch.float64), "id": ("a", "b")}
    batch = Batch.of(read, physics, "cpu")
    assert (len(batch), batch.ids, batch.physics) == (2, ["a", "b"], physics)
    assert torch.equal(batch.image, x)
    assert batch.sigma.dtype == torch.float32
    assert Batch.of(read, physics, "cpu", with_image=False).image is None
    del read["image"]
    assert Batch.of(read, physics, "cpu").image is None


def test_generators_depend_on_the_id_and_the_purpose_alone():
    batch = Batch(torch.zeros(2, 2, 8, 8), line_mri((8, 8)), ids=["a", "b"])
    seeds = [one.initial_seed() for one in batch.generators(3, "folds")]
    assert seeds == [item_generator(3, name, "folds").initial_seed() for name in "ab"]
    unnamed = [one.initial_seed() for one in Batch(batch.y, batch.physics).generators(3, "folds")]
    assert unnamed == [item_generator(3, name, "folds").initial_seed() for name in "01"]
    with pytest.raises(ValueError, match="a batch of 2 items has 1 ids: give one for each item"):
        Batch(batch.y, batch.physics, ids=["a"]).generators(3, "folds")


def test_shapes_are_checked_while_tests_run():
    with pytest.raises(TypeCheckError):
        Batch(torch.zeros(2, 2, 8, 8), line_mri((8, 8)), sigma=torch.zeros(3))
