import torch
from helpers import randn

from es_medical.groups import D4, Flips


def test_d4_images_are_the_rotations_and_flips():
    x = randn(1, 2, 5, 5)
    rotations = [torch.rot90(x, k, (-2, -1)) for k in range(4)]
    expected = {tuple(one.flatten().tolist()) for r in rotations for one in (r, r.flip(-1))}
    found = D4().apply(x.expand(8, -1, -1, -1), D4().elements())
    assert {tuple(one.flatten().tolist()) for one in found} == expected


def test_flips_images_are_the_flips_and_the_half_turn():
    x = randn(1, 2, 4, 7)
    expected = {tuple(one.flatten().tolist()) for one in (x, x.flip(-1), x.flip(-2), x.flip(-1, -2))}
    found = Flips().apply(x.expand(4, -1, -1, -1), Flips().elements())
    assert {tuple(one.flatten().tolist()) for one in found} == expected


def test_d4_does_not_commute():
    g, h = torch.meshgrid(D4().elements(), D4().elements(), indexing="ij")
    assert not torch.equal(D4().compose(g, h), D4().compose(h, g))
