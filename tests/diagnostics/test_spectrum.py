import math
import sys

import pytest
import torch
from dense_ct import DenseCT
from helpers import coil_maps, randn, rng

from es_medical.diagnostics import MeanGram, Spectrum, mean_gram, spectrum
from es_medical.diagnostics.lanczos import lanczos
from es_medical.diagnostics.spectrum import dense_matrix, estimated, spectrum_of
from es_medical.physics import CompressedSensing, MultiCoilMRI


class Given(MeanGram):
    """diag(eigenvalues)."""

    def __init__(self, eigenvalues):
        super().__init__((1, 1, len(eigenvalues)))
        self.eigenvalues = eigenvalues

    def _apply(self, x):
        return self.eigenvalues.to(x) * x


def told(values):
    values = torch.as_tensor(values, dtype=torch.float64)
    return Spectrum(values, torch.ones_like(values), len(values), "dense", 0.0)


def dense(gram):
    values = torch.linalg.eigvalsh(dense_matrix(gram)).flip(0).clamp(min=0)
    return told(values)


def test_rank_counts_what_is_above_a_share_of_the_largest():
    one = told([100.0, 50.0, 0.11, 0.09, 0.0])
    assert (one.rank(), one.rank(0.01), told([0.0, 0.0]).rank()) == (3, 2, 0)


def test_effective_rank_is_the_number_of_equal_eigenvalues():
    assert told([2.0] * 5 + [0.0] * 7).effective_rank() == pytest.approx(5)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert told([3.0, 1.0]).effective_rank() == pytest.approx(math.exp(entropy))
    counted = Spectrum(torch.tensor([2.0, 0.0]), torch.tensor([5.0, 7.0]), 12, "exact", 0.0)
    assert counted.effective_rank() == pytest.approx(5)


def test_lanczos_of_all_steps_finds_every_eigenvalue():
    values = torch.tensor([0.0, 0.1, 0.4, 1.0, 2.5], dtype=torch.float64)
    start = randn(3, 5, dtype=torch.float64)
    found = lanczos(lambda x: values * x, start, 5).measures()
    torch.testing.assert_close(found.nodes, values.expand(3, -1), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.weights, start.square() / start.square().sum(1, keepdim=True))


def test_an_exhausted_krylov_space_adds_no_weight():
    values = torch.tensor([0.0] * 50 + [1.0] * 30 + [3.0] * 20)
    found = lanczos(lambda x: values * x, randn(4, 100), 20).measures()
    real = found.weights > 1e-8
    assert (real.sum(1) == 3).all()
    torch.testing.assert_close(found.nodes[real].view(4, 3), torch.tensor([[0.0, 1.0, 3.0]] * 4).double(), atol=1e-5, rtol=0)


def test_vectors_go_together_as_far_as_their_bases_fit_in_memory(monkeypatch):
    values, start, together = torch.linspace(0, 1, 50), randn(7, 50), []

    def product(x):
        together.append(len(x))
        return values * x

    whole = lanczos(product, start, 10)
    for memory, expected in ((3 * 10 * 50 * 4, {3, 1}), (1, {1})):
        together.clear()
        monkeypatch.setattr(sys.modules["es_medical.diagnostics.lanczos"], "MEMORY", memory)
        torch.testing.assert_close(lanczos(product, start, 10), whole, rtol=1e-5, atol=1e-6)
        assert set(together) == expected


def test_steps_of_a_spectrum_are_found_as_steps():
    values = torch.tensor([0.0] * 4000 + [1.1e-3] * 3000 + [0.5] * 2000 + [1.0] * 1000)
    found = estimated(Given(values), n_probes=20)
    assert found.rank() == pytest.approx(6000, abs=4 * found.error)
    assert found.rank(0.0012) == pytest.approx(3000, abs=80)
    assert found.rank(0.6) == pytest.approx(1000, abs=60)
    assert found.error < 25


def test_smooth_spectra_are_counted_to_one_percent():
    """Eigenvalues from 1 down to exp(-8), evenly in their logarithm, and as many zeros."""
    values = torch.cat((torch.zeros(4000), torch.exp(-8 * torch.arange(4000) / 4000)))
    found, exact = estimated(Given(values), n_probes=20), dense_like(values)
    assert found.rank() == pytest.approx(exact.rank(), rel=0.01)
    assert found.rank(0.05) == pytest.approx(exact.rank(0.05), rel=0.03)
    assert found.effective_rank() == pytest.approx(exact.effective_rank(), rel=0.02)
    assert float(found.counts.sum()) == pytest.approx(8000)


def dense_like(values):
    return told(values.double().sort(descending=True).values)


def views():
    """A scanner as a dense matrix that takes numbers of any precision."""
    return CompressedSensing(DenseCT(24, [0.0, 20.0, 45.0, 71.0, 110.0, 150.0]).matrix, (24, 24))


CASES = {
    "CT with D4": lambda: mean_gram(views(), "d4"),
    "multi-coil with flips": lambda: mean_gram(
        MultiCoilMRI((torch.rand(16, generator=rng()) < 0.4).float(), coil_maps(1, 3, (16, 16))), "flips"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_estimate_agrees_with_the_dense_spectrum_to_one_percent(name):
    gram = CASES[name]()
    found, exact = estimated(gram, n_probes=200, steps=60), dense(gram)
    assert found.rank() == pytest.approx(exact.rank(), rel=0.01)
    assert abs(found.rank() - exact.rank()) <= 3 * found.error + 0.5
    assert found.effective_rank() == pytest.approx(exact.effective_rank(), rel=0.03)
    assert float(found.eigenvalues[0]) == pytest.approx(float(exact.eigenvalues[0]), rel=1e-4)


def test_stated_error_is_the_spread_over_seeds():
    gram = Given(torch.cat((torch.zeros(1500), torch.linspace(0.2, 1, 500))))
    found = [estimated(gram, seed, n_probes=2, steps=40) for seed in range(40)]
    spread = float(torch.tensor([one.rank() for one in found]).std())
    assert found[0].error == pytest.approx(spread, rel=0.35)
    assert found[0].error == pytest.approx(math.sqrt(2 * 500 * 1500 / 2002 / 2), rel=0.15)


def test_same_seed_same_estimate():
    gram = Given(torch.linspace(0, 1, 3000))
    ranks = [estimated(gram, seed, n_probes=2, steps=20).rank(0.5) for seed in (1, 1, 2)]
    assert ranks[0] == ranks[1] != ranks[2]


def test_larger_matrices_are_estimated(monkeypatch):
    module = sys.modules["es_medical.diagnostics.spectrum"]
    monkeypatch.setattr(module, "DENSE", 19)
    monkeypatch.setattr(module, "PROBED", 100)
    assert [spectrum_of(Given(torch.linspace(0, 1, n))).method for n in (19, 20)] == ["dense", "Lanczos"]


def test_a_matrix_of_zeros_has_rank_zero():
    found = estimated(Given(torch.zeros(3000)), n_probes=2, steps=5)
    assert (found.rank(), found.error, float(found.counts.sum())) == (0, 0, 3000)


def test_support_counts_its_pixels_alone():
    support = torch.zeros(12, 12)
    support[3:9, 2:9] = 1
    found = spectrum(DenseCT(12, [0.0, 50.0, 100.0]), "d4", support)
    assert found.n == 42
    assert len(found.eigenvalues) == 42
