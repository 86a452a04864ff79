import copy

import numpy as np
import pytest
import torch
from helpers import per_item, randn, rng, within
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from es_medical.physics import CompressedSensing, gaussian_matrix
from es_medical.physics import compressed_sensing as module
from es_medical.physics import gram as gram_module

SIZE, M = (4, 5), 8
N = SIZE[0] * SIZE[1]


def sensing(m=M, size=SIZE, seed=0):
    return CompressedSensing(gaussian_matrix(m, size[0] * size[1], seed), size)


def random_mask(*shape, keep=0.7, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < keep).float()


ITEMS = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]]).float()
"""Three items that lack one row, three rows and none."""


def dense(physics, batch):
    """The operator of each item as a matrix (B, m, n) in float64, from its products with the unit images."""
    n = physics.image_size[0] * physics.image_size[1]
    units = torch.eye(n, dtype=torch.float64).view(n, 1, *physics.image_size)
    return torch.stack([physics.A(unit.expand(batch, 1, -1, -1)) for unit in units], -1)


def assert_prox_equals_dense(physics, batch, gamma):
    """The proximal step at random z and y equals the solution of the dense system in float64 to 1e-8."""
    A, n = dense(physics, batch), physics.image_size[0] * physics.image_size[1]
    z, y = randn(batch, 1, *physics.image_size, seed=3).double(), randn(batch, A.shape[1], seed=4).double()
    weight = per_item(gamma, A)
    right = z.view(batch, n, 1) + weight * (A.mT @ y[..., None])
    expected = torch.linalg.solve(torch.eye(n, dtype=torch.float64) + weight * (A.mT @ A), right).view_as(z)
    assert (physics.prox_l2(z, y, gamma) - expected).abs().max() <= 1e-8 * expected.abs().max()


def test_measurements_are_products_with_the_rows():
    matrix, x = gaussian_matrix(M, N, 0), randn(3, 1, *SIZE)
    torch.testing.assert_close(sensing().A(x), torch.einsum("mn,bn->bm", matrix, x.flatten(1)))
    masked = sensing().masked(ITEMS).A(x)
    assert torch.equal(masked, ITEMS * sensing().A(x))


def test_precision_is_the_greater_of_matrix_and_numbers_and_never_half():
    A, x = sensing(), randn(3, 1, *SIZE)
    for ours, theirs, expected in [
        (A, x.half(), torch.float32),
        (A, x, torch.float32),
        (A, x.double(), torch.float64),
        (copy.deepcopy(A).double(), x, torch.float64),
    ]:
        y = ours.A(theirs)
        found = [y, ours.A_adjoint(y.to(theirs)), ours.A_dagger(y.to(theirs)), ours.prox_l2(theirs, y.to(theirs), 2.0)]
        assert {one.dtype for one in found} == {expected}


def test_autocast_changes_nothing():
    A, z = sensing().masked(ITEMS), randn(3, 1, *SIZE)
    y = A.A(z)
    expected = [y, A.A_adjoint(y), A.A_dagger(y), A.prox_l2(-z, y, 2.0)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [A.A(z), A.A_adjoint(y), A.A_dagger(y), A.prox_l2(-z, y, 2.0)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


# the proximal step


def test_prox_of_digits_equals_the_dense_solution():
    A = sensing(235, (28, 28))
    m = torch.stack([torch.randperm(235, generator=rng(i)) < 212 for i in range(2)]).float()
    for gamma in (1.0, torch.tensor([0.3, 100.0])):
        assert_prox_equals_dense(A.masked(m), 2, gamma)


@pytest.mark.parametrize("m", [N, N + 5, 3 * N])
@pytest.mark.parametrize("gamma", [1e-6, 1.0, 1e6, torch.tensor([1e-6, 1.0, 1e6])], ids=str)
def test_large_steps_of_square_and_tall_matrices_do_not_lose_float32(m, gamma):
    z, y = randn(3, 1, *SIZE), randn(3, m, seed=1)
    for physics in (sensing(m), sensing(m).masked(random_mask(3, m))):
        expected, found = physics.prox_l2(z.double(), y.double(), gamma), physics.prox_l2(z, y, gamma)
        assert found.dtype == torch.float32
        assert (found.double() - expected).abs().max() <= 1e-6 * expected.abs().max()


def test_bound_on_the_removed_rows_does_not_change_the_result(monkeypatch):  # on a GPU it is the number of all rows
    z, y, gamma = randn(3, 1, *SIZE).double(), randn(3, M, seed=1).double(), torch.tensor([0.2, 5.0, 1.0])
    counted = sensing().masked(ITEMS)
    monkeypatch.setattr(module, "_most_removed", lambda mask: mask.shape[-1])
    bounded = sensing().masked(ITEMS)
    assert (counted._n_removed, bounded._n_removed) == (3, M)
    torch.testing.assert_close(bounded.prox_l2(z, y, gamma), counted.prox_l2(z, y, gamma), rtol=0, atol=1e-12)
    torch.testing.assert_close(bounded.A_dagger(y), counted.A_dagger(y), rtol=0, atol=1e-12)


# the pseudo-inverse


def numpy_inverse(physics, y):
    inverses = [np.linalg.pinv(A.numpy(), rcond=1e-10) for A in dense(physics, len(y))]
    return torch.stack([torch.from_numpy(A @ one.numpy()) for A, one in zip(inverses, y, strict=True)]).view(-1, 1, *SIZE)


def test_pseudo_inverse_in_float32_of_a_nearly_singular_matrix():
    A = sensing(N - 1)  # the condition number of A A^T is thousands: float32 alone would lose three digits
    y = A.A(randn(3, 1, *SIZE))
    torch.testing.assert_close(A.A_dagger(y).double(), numpy_inverse(A, y.double()), rtol=1e-5, atol=1e-5)


def test_rows_that_depend_on_each_other_up_to_rounding_are_taken_to_depend():
    matrix = gaussian_matrix(M, N, 0)
    matrix[4] = (matrix[3] + matrix[5]) / 3  # rounded to float32: singular values down to 1e-8
    A = CompressedSensing(matrix, SIZE, ITEMS)
    y = A.A(randn(3, 1, *SIZE))
    assert (A.A_dagger(y + 1e-3 * randn(3, M, seed=1)).abs() < 10).all()
    torch.testing.assert_close(A.A(A.A_dagger(y)), y, rtol=0, atol=1e-5)


def test_matrix_of_zeros_gives_zero():
    A = CompressedSensing(torch.zeros(M, N), SIZE)
    assert (A.A_dagger(randn(3, M)) == 0).all()
    assert torch.equal(A.prox_l2(randn(3, 1, *SIZE), randn(3, M), 2.0), randn(3, 1, *SIZE))


# sharing and immutability


def test_masked_shares_the_matrix_and_its_eigenvectors(monkeypatch):
    solved = []
    monkeypatch.setattr(torch.linalg, "eigh", lambda K, eigh=torch.linalg.eigh: solved.append(K) or eigh(K))
    A = sensing()
    children = [A.masked(ITEMS), A.masked(ITEMS).masked(random_mask(M)), A.masked(random_mask(M))]
    assert {child.matrix.data_ptr() for child in children} == {A.matrix.data_ptr()}
    for physics in [*children, A, *children]:
        physics.prox_l2(randn(3, 1, *SIZE), randn(3, M), 1.0)
        physics.A_dagger(randn(3, M))
    assert len(solved) == 1


def test_a_large_matrix_is_not_decomposed_until_it_has_to_be(monkeypatch):
    monkeypatch.setattr(gram_module.torch.linalg, "eigh", lambda K: pytest.fail("decomposed"))
    A = sensing().masked(ITEMS)
    assert A.A_adjoint(A.A(randn(3, 1, *SIZE))).shape == (3, 1, *SIZE)


def test_operator_keeps_its_own_matrix_and_mask():
    matrix, mask = gaussian_matrix(M, N, 0), torch.ones(M)
    A = CompressedSensing(matrix, SIZE, mask)
    matrix.zero_()
    mask.zero_()
    assert torch.equal(A.matrix, gaussian_matrix(M, N, 0))
    assert (A.mask == 1).all()


def test_converted_operator_takes_the_eigenvectors_of_its_own_matrix():
    rounded = CompressedSensing(gaussian_matrix(M, N, 0).double() + 1e-9 * randn(M, N, dtype=torch.float64), SIZE)
    rounded.prox_l2(randn(3, 1, *SIZE), randn(3, M), 1.0)
    assert_prox_equals_dense(rounded, 3, 1.0)
    assert_prox_equals_dense(rounded.float().double(), 3, 1.0)
    assert_prox_equals_dense(copy.deepcopy(rounded).half().double(), 3, 1.0)


def test_eigenvectors_found_in_an_evaluation_serve_a_training():
    A, y = sensing().masked(ITEMS), randn(3, M).requires_grad_()
    with torch.inference_mode():
        A.prox_l2(randn(3, 1, *SIZE), randn(3, M), 1.0)
        A.A_dagger(randn(3, M))
    (A.A_dagger(y).sum() + A.prox_l2(randn(3, 1, *SIZE), y, 1.0).sum()).backward()
    assert y.grad.isfinite().all()


def test_a_checkpoint_holds_no_matrix():
    assert sensing().state_dict() == {}


# nothing waits for a GPU


class NoReading(TorchDispatchMode):
    """Refuse what would make a program wait for a GPU: reading a value, or a shape that depends on values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(name in str(func) for name in ("local_scalar", "nonzero", "is_nonzero", "masked_select", "unique")), func
        return func(*args, **(kwargs or {}))


def test_a_step_reads_no_value():
    A, z, gamma = sensing().masked(ITEMS), randn(3, 1, *SIZE).requires_grad_(), torch.tensor(2.0, requires_grad=True)
    A.A_dagger(A.A(z))  # finds the eigenvectors, once
    with NoReading():
        (A.prox_l2(z, A.A(z), gamma).sum() + A.prox_l2(z, A.A(z), 2.0).sum() + A.A_dagger(A.A(z)).sum()).backward()
    assert gamma.grad is not None
    with NoReading(), pytest.raises(AssertionError, match="local_scalar"):
        gamma.item()


def test_a_masked_operator_on_a_gpu_reads_no_value():  # tensors without numbers, which take every branch of a GPU's
    with FakeTensorMode(), torch.no_grad():
        A = CompressedSensing.__new__(CompressedSensing)
        matrix = torch.zeros(M, N, device="cuda")
        A._setup(matrix, SIZE, torch.ones(1, M, device="cuda"), gram_module.Gram(matrix), 0)
        split, z = A.masked(torch.ones(3, M, device="cuda")), torch.zeros(3, 1, *SIZE, device="cuda")
        assert (A._n_removed, split._n_removed) == (0, M)
        for physics in (A, split):
            x = physics.prox_l2(z, physics.A(z), 2.0)
            assert (x.shape, x.device.type) == (z.shape, "cuda")


def test_rows_that_a_mask_from_the_cpu_leaves_out_are_counted_there():
    A = sensing().to("meta")  # like a GPU, a device whose numbers aren't at hand
    assert A.masked(ITEMS)._n_removed == 3
    assert A.masked(ITEMS).masked(ITEMS)._n_removed == 6
    assert A.masked(ITEMS.to("meta"))._n_removed == M


# what does not fit


@pytest.mark.parametrize("shape", [(8,), (8, 21), (20, 8), (0, 20), (1, 8, 20)])
def test_matrix_that_does_not_fit_names_both_sizes(shape, unchecked):
    with pytest.raises(ValueError, match=r"does not fit images of 4 x 5: expected \(m, 20\)") as refusal:
        CompressedSensing(torch.ones(shape), SIZE)
    assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_matrix_that_is_not_finite_is_refused(bad):
    with pytest.raises(ValueError, match="not finite"):
        CompressedSensing(torch.full((M, N), bad), SIZE)


# the matrix of the paper


def test_entries_have_mean_0_and_variance_1_over_m():
    entries = gaussian_matrix(50, 400, seed=0).flatten()
    assert within(entries, 0.0)
    assert within(entries.square(), 1 / 50)


@pytest.mark.parametrize(("m", "n"), [(0, 4), (4, 0), (-1, 4)])
def test_empty_matrix_is_refused(m, n):
    with pytest.raises(ValueError, match=f"got {m} x {n}"):
        gaussian_matrix(m, n, 0)
