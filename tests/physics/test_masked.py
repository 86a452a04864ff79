"""`MaskedPhysics` around operators of deepinv: what it refuses, and what it finds out (the rest: test_operator_contract.py)."""

import deepinv
import pytest
import torch
from helpers import line_mri, randn, rng

from es_medical.diagnostics.explanation import diagnose_operator
from es_medical.groups import D4
from es_medical.networks import ReynoldsAveraging
from es_medical.physics import MaskedPhysics, gaussian_line_mask
from es_medical.splits import Split

SIZE = (1, 8, 8)


def linear(A, adjoint):
    return deepinv.physics.LinearPhysics(A=lambda x, **_: A(x), A_adjoint=lambda y, **_: adjoint(y), img_size=SIZE)


def test_what_the_operator_never_measures_is_left_out():
    lines = gaussian_line_mask(8, 2, 0.25, seed=0)
    physics = MaskedPhysics(deepinv.physics.MRI(mask=lines.float().expand(8, 8)), img_size=(2, 8, 8))
    assert torch.equal(physics.mask[0, 0], lines.float().expand(8, 8))
    m1 = Split("lines", 0.5, 2)(physics, 3, rng())
    assert torch.equal(m1.amax((1, 2)) * lines, m1.amax((1, 2)))
    assert m1[..., 3:5].min() == 1  # the centre is kept


def test_proximal_step_of_deepinvs_mri_is_a_minimum():
    lines, y, z = gaussian_line_mask(8, 2, 0.25, seed=0), randn(2, 2, 8, 8), randn(2, 2, 8, 8, seed=1)
    whole = MaskedPhysics(deepinv.physics.MRI(mask=lines.float().expand(8, 8)), img_size=(2, 8, 8))
    for physics in (whole, whole.masked((torch.arange(8) < 5).float())):
        x = physics.prox_l2(z, y, 2.0)
        gradient = 2.0 * physics.A_adjoint(physics.A(x) - physics.mask * y) + x - z
        assert gradient.abs().max() < 1e-5


def test_caller_who_changes_the_operator_later_changes_nothing():
    inner = deepinv.physics.Blur(torch.ones(1, 1, 3, 3) / 9, padding="circular")
    physics, x = MaskedPhysics(inner, img_size=SIZE), randn(1, *SIZE)
    before = physics.A(x)
    inner.update_parameters(filter=torch.zeros(1, 1, 3, 3))
    assert torch.equal(physics.A(x), before)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MaskedPhysics(linear(lambda x: 2 * x, lambda y: y)), "A_adjoint of LinearPhysics is not the adjoint"),
        (lambda: MaskedPhysics(linear(lambda x: x[..., ::2], lambda y: y)), r"returns \(1, 8, 4\) for images \(1, 8, 8\)"),
        (lambda: MaskedPhysics(linear(lambda x: x, lambda y: y), torch.zeros(8)), "keeps nothing"),
        (lambda: MaskedPhysics(linear(lambda x: x, lambda y: y), torch.ones(7)), r"\(7,\) does not fit measurements"),
        (lambda: MaskedPhysics(deepinv.physics.LinearPhysics()), r"give img_size=\(C, H, W\)"),
        (lambda: MaskedPhysics(linear(lambda x: x * 1j, lambda y: y.real)), "one real tensor"),
    ],
)
def test_what_is_no_operator_is_refused_with_what_was_found(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_network_of_deepinv_is_averaged_as_it_is():
    class Theirs(torch.nn.Module):
        def forward(self, y, physics, init=None):
            assert init is None
            return physics.A_adjoint(y)

    physics, y = line_mri((8, 8)), randn(2, 2, 8, 8)
    torch.testing.assert_close(ReynoldsAveraging(Theirs(), D4())(y, physics, rng()), physics.A_adjoint(y), rtol=0, atol=1e-6)


def test_explanation_prints_the_table_and_the_advice():
    found = diagnose_operator(line_mri((8, 8)), randn(2, 2, 8, 8), actions=("flips", "d4"))
    text = str(found)
    assert text.splitlines()[0].startswith("transformations")
    assert "D4" in text
    assert "2 of those given" in text
    assert found.diagnosis.of("d4").share > found.diagnosis.alone.share
