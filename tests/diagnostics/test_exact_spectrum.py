import pytest
import torch
from helpers import randn, rng

from es_medical.diagnostics import ACTIONS, RANK_THRESHOLD, lost_energy, mean_gram, spectrum
from es_medical.diagnostics.spectrum import dense_matrix
from es_medical.physics import MRI, CompressedSensing, Inpainting, gaussian_matrix


def random_mask(*size, seed=0, keep=0.3):
    return (torch.rand(size, generator=rng(seed)) < keep).float()


def operators(side):
    size = (side, side)
    return {
        "MRI lines": MRI(random_mask(side), size),
        "MRI samples": MRI(random_mask(*size, keep=0.1), size),
        "inpainting": Inpainting(random_mask(3, *size, keep=0.1), size, channels=3),
        "compressed sensing": CompressedSensing(gaussian_matrix(7, side * side, seed=0).double(), size),
    }


def eigenvalues(one):
    return one.eigenvalues.repeat_interleave(one.counts.long())


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", operators(4))
def test_closed_forms_are_the_eigenvalues_of_the_matrix(name, action, side):
    physics = operators(side)[name]
    found = spectrum(physics, action)
    expected = torch.linalg.eigvalsh(dense_matrix(mean_gram(physics, action))).flip(0)
    torch.testing.assert_close(eigenvalues(found), expected, rtol=0, atol=1e-9 * float(expected[0]))
    assert found.error == 0
    assert found.counts.sum() == found.n == len(expected)
    assert found.rank() == (expected > RANK_THRESHOLD * expected[0]).sum()


@pytest.mark.parametrize("action", ACTIONS)
def test_what_has_a_closed_form_is_not_a_dense_matrix(action):
    found = {name: spectrum(physics, action).method for name, physics in operators(8).items()}
    closed = action != "fine_rotations"
    assert [found[name] for name in ("MRI lines", "MRI samples", "inpainting")] == ["exact" if closed else "dense"] * 3
    assert found["compressed sensing"] == ("exact" if action in {"shifts", "permutations"} else "dense")


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", operators(4))
def test_lost_energy_is_that_in_the_eigenvectors_of_small_eigenvalues(name, action):
    physics = operators(8)[name]
    x = randn(4, *physics.img_size, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(dense_matrix(mean_gram(physics, action)))
    hidden = vectors[:, values <= RANK_THRESHOLD * values[-1]]
    expected = (x.flatten(1) @ hidden).square().sum(1) / x.flatten(1).square().sum(1)
    torch.testing.assert_close(lost_energy(physics, action, x), expected, rtol=0, atol=1e-9)


def test_a_larger_group_never_loses_more():
    for physics in operators(9).values():
        x = randn(3, *physics.img_size, dtype=torch.float64)
        ranks = [spectrum(physics, action).rank() for action in ("none", "flips", "d4", "permutations")]
        lost = [lost_energy(physics, action, x) for action in ("none", "flips", "d4")]
        assert ranks == sorted(ranks)
        assert (lost[1] <= lost[0] + 1e-9).all()
        assert (lost[2] <= lost[1] + 1e-9).all()


def test_eight_fold_line_mask_sees_its_lines_and_their_images():
    """12.5 % of k-space alone; with D4 1 - (1 - m)^2, where m is the share of columns that are lines or mirrored ones."""
    lines = torch.zeros(320)
    lines[torch.tensor([*range(140, 172), 3, 50, 90, 121, 200, 230, 280, 310])] = 1
    physics, mirrored = MRI(lines, (320, 320)), torch.maximum(lines, lines.flip(0).roll(1))
    alone, with_d4 = (spectrum(physics, action).rank() / (2 * 320**2) for action in ("none", "d4"))
    assert alone == 0.125
    assert with_d4 == pytest.approx(1 - (1 - float(mirrored.mean())) ** 2, abs=1e-12)
