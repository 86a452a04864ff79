import pytest
import torch
from dense_ct import DenseCT
from helpers import randn

from es_medical.diagnostics import ACTIONS, lost_energy, null_space, range_change, range_is_invariant
from es_medical.physics import MRI, CompressedSensing, Inpainting, gaussian_matrix


def even_views(n):
    """A scanner as a dense matrix that takes numbers of any precision."""
    return CompressedSensing(DenseCT(16, [180 * view / n for view in range(n)]).matrix, (16, 16))


def test_lost_energy_from_lanczos_is_that_of_the_dense_matrix(monkeypatch):
    physics, x = even_views(6), randn(3, 1, 16, 16, dtype=torch.float64)
    x[0] = physics.A_adjoint_A(x[:1])[0]
    exact = lost_energy(physics, "none", x)
    monkeypatch.setattr(null_space, "DENSE", 0)
    found = lost_energy(physics, "none", x)
    torch.testing.assert_close(found, exact, rtol=0.01, atol=1e-3)
    assert 0.3 < float(exact[1]) < 0.9


def test_images_outside_of_the_range_are_lost_and_images_of_zeros_are_not(monkeypatch):
    physics = Inpainting(torch.tensor([1.0, 0.0, 0.0, 1.0]), (4, 4))
    x = torch.zeros(3, 1, 4, 4)
    x[0, :, :, 1], x[1, :, :, 3] = 1, 1
    assert lost_energy(physics, "none", x).tolist() == [1, 0, 0]
    same = CompressedSensing(torch.eye(16).view(4, 4, 16)[:, [0, 3]].reshape(8, 16), (4, 4))
    torch.testing.assert_close(lost_energy(same, "none", x), torch.tensor([1.0, 0, 0]).double())
    monkeypatch.setattr(null_space, "DENSE", 0)
    torch.testing.assert_close(lost_energy(same, "none", x), torch.tensor([1.0, 0, 0]).double())


def test_energy_outside_of_the_support_is_not_counted():
    physics, support = Inpainting(torch.tensor([1.0, 0.0, 1.0, 0.0]), (4, 4)), torch.ones(4, 4)
    support[:, 3] = 0
    x = torch.ones(1, 1, 4, 4)
    assert float(lost_energy(physics, "none", x, support)) == pytest.approx(1 / 3)
    assert float(lost_energy(physics, "none", x)) == pytest.approx(1 / 2)


def test_even_views_are_blind_to_d4_and_odd_ones_are_not():
    assert range_change(even_views(10), "d4") == 0
    assert range_change(even_views(9), "d4") > 0.05
    assert range_change(even_views(9), "flips") == 0


@pytest.mark.parametrize("action", ACTIONS)
def test_range_of_line_masks_moves_with_what_moves_the_lines(action):
    symmetric = torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 0])  # about index 4, the zero frequency
    assert range_is_invariant(MRI(symmetric, (8, 8)), action) == (action in {"none", "flips", "shifts", "amplitude"})
    lopsided = torch.tensor([0.0, 1, 1, 1, 1, 0, 0, 0])
    assert range_is_invariant(MRI(lopsided, (8, 8)), action) == (action in {"none", "shifts", "amplitude"})


@pytest.mark.parametrize("action", ACTIONS)
def test_gaussian_rows_are_moved_by_everything_but_a_factor(action):
    physics = CompressedSensing(gaussian_matrix(20, 64, 0), (8, 8))
    assert range_is_invariant(physics, action) == (action in {"none", "amplitude"})


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"takes images \(1, 16, 16\), got \(2, 1, 8, 8\)"):
        lost_energy(even_views(4), "none", torch.ones(2, 1, 8, 8))
