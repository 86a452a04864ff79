import pytest
import torch

from es_medical.diagnostics import lost_energy, mean_gram, spectrum
from es_medical.diagnostics.spectrum import dense_matrix
from es_medical.groups import Rotations, Shifts
from es_medical.physics.ct_geometry import ParallelBeam

pytest.importorskip("astra")
from es_medical.physics import CT  # noqa: E402 - after the check

ACTIONS = ("none", "d4", "fine_rotations")
RANKS = {8: (231, 231, 628), 9: (263, 449, 664)}
"""Number of eigenvalues above 1e-3 of the largest by number of views, alone, with D4 and with four turns."""


def scanner(views, size=32, detectors=48):
    return CT(ParallelBeam((size, size), n_views=views, n_detectors=detectors))


def disc(size):
    position = torch.arange(size) - (size - 1) / 2
    return (torch.hypot(position[:, None], position) <= size / 2).float()


@pytest.mark.parametrize("views", RANKS)
def test_reference_ranks(views):
    found = [spectrum(scanner(views), action, disc(32)) for action in ACTIONS]
    assert [one.n for one in found] == [812] * 3
    assert tuple(one.rank() for one in found) == RANKS[views]
    assert {one.method for one in found} == {"dense"}


def test_a_scanner_keeps_its_own_turns():
    two = scanner(8).with_turns(Rotations(2).angles(22.5))
    assert len(mean_gram(two, "fine_rotations").terms) == 2
    assert len(mean_gram(scanner(8), "fine_rotations").terms) == 4
    assert 231 < spectrum(two, "fine_rotations", disc(32)).rank() < 628


def test_shifts_are_the_mean_over_all_shifts():
    physics, shifts = scanner(4, size=5, detectors=6).masked(torch.tensor([1.0, 0, 1, 1])), Shifts((5, 5))
    gram = mean_gram(physics, "shifts")
    units = torch.eye(25, dtype=torch.float64).view(25, 1, 5, 5)
    each = [
        shifts.inverse(physics.A_adjoint_A(shifts.apply(units, g)), g) for g in shifts.elements()[:, None].expand(-1, 25, -1)
    ]
    torch.testing.assert_close(
        gram.apply(units), torch.stack(each).mean(0), rtol=0, atol=1e-7
    )  # the norm is in single precision


def test_permutations_keep_the_trace_and_the_sum():
    physics, support = scanner(5, size=8, detectors=10).masked(torch.tensor([1.0, 0, 1, 1, 1])), disc(8)
    H, G = (dense_matrix(mean_gram(physics, action, support)) for action in ("permutations", "none"))
    torch.testing.assert_close(H.trace(), G.trace())
    torch.testing.assert_close(H.sum(), G.sum())
    found = spectrum(physics, "permutations", support)
    assert found.method == "exact"
    torch.testing.assert_close(found.eigenvalues, torch.linalg.eigvalsh(H)[[-1, 0]])


def test_lost_energy_falls_with_the_angles_that_are_seen():
    x = torch.zeros(1, 1, 32, 32)
    x[..., 10:20, 8:14] = 1
    x[..., 16:24:2, 16:24] = 0.5
    lost = [float(lost_energy(scanner(9), action, x, disc(32))) for action in ACTIONS]
    assert lost[0] > 1.5 * lost[1] > 2 * lost[2] > 0
