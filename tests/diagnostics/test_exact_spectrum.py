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
