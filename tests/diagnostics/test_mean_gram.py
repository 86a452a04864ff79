import pytest
import torch
from dense_ct import DenseCT
from helpers import coil_maps, dot, randn, rng

from es_medical.diagnostics import ACTIONS, mean_gram
from es_medical.diagnostics.actions import terms
from es_medical.diagnostics.exact import PixelDiagonal
from es_medical.groups import D4, FineRotations, Flips, Shifts
from es_medical.physics import MRI, CompressedSensing, Decimation, Inpainting, MultiCoilMRI, VirtualPhysics, gaussian_matrix

GROUPS = {"none": (0,), "flips": (0, 2, 4, 6), "rotations_90": (0, 3, 5, 6), "d4": range(8)}


def random_mask(*size, seed=0, keep=0.5):
    return (torch.rand(size, generator=rng(seed)) < keep).float()


def operators(side, width=None):
    """One of each kind, none with a symmetry."""
    size = (side, width or side)
    maps = coil_maps(1, 2, size, torch.float64)
    return {
        "MRI lines": MRI(random_mask(size[1]), size),
        "MRI samples": MRI(random_mask(*size), size),
        "inpainting": Inpainting(random_mask(2, *size), size, channels=2),
        "decimation": Decimation(size, 2),
        "compressed sensing": CompressedSensing(gaussian_matrix(9, size[0] * size[1], seed=0).double(), size),
        "multi-coil": MultiCoilMRI(random_mask(size[1]), maps),
    }


def by_definition(physics, group, elements):
    """mean_g (A T_g)^T A T_g as a dense matrix, from the operator and the group alone."""
    shape = tuple(physics.img_size)
    n = int(torch.tensor(shape).prod())
    units = torch.eye(n, dtype=torch.float64).view(n, *shape)
    total = torch.zeros(n, n, dtype=torch.float64)
    for g in elements:
        virtual = VirtualPhysics(physics, group, g.expand(n, *g.shape))
        total += virtual.A_adjoint(virtual.A(units)).flatten(1) / len(elements)
    return total


def matrix(gram):
    n = int(torch.tensor(gram.shape).prod())
    return gram.apply(torch.eye(n, dtype=torch.float64).view(n, *gram.shape)).flatten(1)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * float(b.abs().max()))


@pytest.mark.parametrize("side", [6, 7])
@pytest.mark.parametrize("action", GROUPS)
@pytest.mark.parametrize("name", operators(4))
def test_parts_of_d4_are_the_mean_over_their_elements(name, action, side):
    physics = operators(side)[name]
    close(matrix(mean_gram(physics, action)), by_definition(physics, D4(), torch.tensor(GROUPS[action])))


@pytest.mark.parametrize("size", [(5, 6)])
@pytest.mark.parametrize("name", operators(4))
def test_flips_act_on_rectangles(name, size):
    physics = operators(*size)[name]
    close(matrix(mean_gram(physics, "flips")), by_definition(physics, Flips(), Flips().elements()))


@pytest.mark.parametrize("size", [(4, 5), (5, 4)])
@pytest.mark.parametrize("name", operators(4))
def test_shifts_are_the_mean_over_all_shifts(name, size):
    physics, shifts = operators(*size)[name], Shifts(size)
    close(matrix(mean_gram(physics, "shifts")), by_definition(physics, shifts, shifts.elements()))


@pytest.mark.parametrize("with_support", [False, True])
@pytest.mark.parametrize("name", operators(4))
def test_permutations_keep_the_trace_and_the_sum_and_commute_with_every_permutation(name, with_support):
    physics, gen = operators(4)[name], rng(3)
    support = random_mask(4, 4, seed=5) if with_support else None
    H, G = mean_gram(physics, "permutations", support), matrix(mean_gram(physics, "none", support))
    channels, pixels = H.shape[0], torch.arange(16) if support is None else support.flatten().nonzero()[:, 0]
    order = torch.arange(16)
    order[pixels] = pixels[torch.randperm(len(pixels), generator=gen)]
    x = randn(3, *H.shape, dtype=torch.float64)
    close(H.apply(x.flatten(2)[:, :, order].view(x.shape)).flatten(2), H.apply(x).flatten(2)[:, :, order])
    blocks, expected = (one.view(channels, 16, channels, 16) for one in (matrix(H), G))
    close(blocks.sum((1, 3)), expected.sum((1, 3)).expand(channels, channels).mT.add(expected.sum((1, 3))) / 2)
    trace = torch.einsum("cidi->cd", expected)
    close(torch.einsum("cidi->cd", blocks), (trace + trace.mT) / 2)


@pytest.mark.parametrize("name", ["inpainting", "compressed sensing"])
def test_fine_rotations_use_the_exact_transpose(name):
    physics = operators(6)[name]
    gram, fine = mean_gram(physics, "fine_rotations"), FineRotations()
    close(matrix(gram), matrix(gram).mT)
    x = randn(1, *gram.shape, dtype=torch.float64)
    energies = [term.weight * physics.A(fine.apply(x, term.g)).square().sum() for term in gram.terms]
    torch.testing.assert_close(dot(gram.apply(x), x)[0], sum(energies))
    assert len({int(term.g) for term in gram.terms}) > 4
    assert int(gram.terms[0].g) == 0


def test_a_scanner_with_turns_is_turned_without_interpolation():
    class Turning(DenseCT):
        def with_turns(self, angles):
            turned = [DenseCT(self.size, [a - angle for a in self.geometry.angles]) for angle in angles]
            self._turned = tuple(turned[1:])
            return self

        def turned(self, k):
            return self if k == 0 else self._turned[k - 1]

    physics = Turning(6, [0.0, 60.0, 120.0])
    gram = mean_gram(physics, "fine_rotations")
    expected = sum(by_definition(physics.turned(k), D4(), D4().elements()) for k in range(4)) / 4
    torch.testing.assert_close(matrix(gram), expected, rtol=0, atol=2e-3 * float(expected.max()))


def test_operators_that_do_the_same_are_one_term():
    assert [len(terms(Inpainting(torch.ones(4, 4), (4, 4)), action)) for action in ("none", "flips", "d4")] == [1, 1, 1]
    lines = CompressedSensing(torch.eye(16)[:4], (4, 4))  # the first row of the image: a flip of the columns keeps it
    listed = terms(lines, "d4")
    assert [term.weight for term in listed] == [0.25] * 4


@pytest.mark.parametrize("name", operators(4))
@pytest.mark.parametrize("action", [one for one in ACTIONS if one != "permutations"])  # they move those of the support alone
def test_support_cuts_rows_and_columns(action, name):
    physics, support = operators(6)[name], random_mask(6, 6, seed=1)
    gram = mean_gram(physics, action, support)
    keep = support.double().expand(gram.shape).flatten()
    close(matrix(gram), keep[:, None] * matrix(mean_gram(physics, action)) * keep)
    assert gram.n == keep.sum()


@pytest.mark.parametrize("action", ACTIONS)
def test_precision_is_that_of_the_images(action):
    for physics in operators(4).values():
        for dtype in (torch.float32, torch.float64):
            assert mean_gram(physics.to(torch.float32), action).apply(randn(2, *physics.img_size, dtype=dtype)).dtype == dtype


def test_amplitude_and_shifts_of_kspace_masks_add_nothing():
    physics = MRI(random_mask(5, 5), (5, 5))
    for action in ("amplitude", "shifts"):
        close(matrix(mean_gram(physics, action)), matrix(mean_gram(physics, "none")))


def test_diagonal_masks_stay_in_closed_form_on_a_support():
    assert isinstance(mean_gram(Inpainting(torch.ones(4, 4), (4, 4)), "d4", torch.eye(4)), PixelDiagonal)


@pytest.mark.parametrize(
    ("action", "physics", "support", "message"),
    [
        ("turns", Inpainting(torch.ones(4, 4), (4, 4)), None, "no transformations are called 'turns': choose one of none, fl"),
        ("d4", MRI(torch.ones(4), (6, 4)), None, "square images, got 6 x 4"),
        ("rotations_90", MRI(torch.ones(4), (6, 4)), None, "square images, got 6 x 4"),
        ("none", MRI(torch.ones(3, 1, 4, 4), (4, 4)), None, "one for each of 3 items"),
        ("none", MRI(torch.ones(4), (6, 4)), torch.ones(4, 6), "a mask of 6 x 4 pixels"),
        ("none", MRI(torch.ones(4), (4, 4)), torch.zeros(4, 4), "got 0 pixels"),
    ],
)
def test_errors_say_what_was_given_and_wanted(action, physics, support, message):
    with pytest.raises(ValueError, match=message):
        mean_gram(physics, action, support)
