import copy

import numpy as np
import pytest
import torch
from helpers import (
    assert_adjoint,
    assert_gradients,
    assert_prox_equals_cg,
    assert_pseudo_inverse,
    assert_scaling,
    assert_unchanged,
    per_item,
    randn,
    rng,
    snapshot,
    virtual_batch,
    within,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from es_medical.groups import D4, Shifts
from es_medical.physics import CompressedSensing, VirtualPhysics, gaussian_matrix, measure
from es_medical.physics import compressed_sensing as module
from es_medical.physics import gram as gram_module
from es_medical.physics.compressed_sensing import row_mask

SIZE, M = (4, 5), 8
N = SIZE[0] * SIZE[1]
GAMMAS = [1e-3, 0.1, 1.0, 100.0, torch.tensor(2.5), torch.tensor([0.1, 3.0, 200.0])]
gammas = pytest.mark.parametrize("gamma", GAMMAS, ids=str)
GROUPS = {"D4": D4(), "shifts": Shifts((4, 4))}
groups = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)


def sensing(m=M, size=SIZE, seed=0):
    return CompressedSensing(gaussian_matrix(m, size[0] * size[1], seed), size)


def random_mask(*shape, keep=0.7, seed=0):
    return (torch.rand(shape, generator=rng(seed)) < keep).float()


ITEMS = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]]).float()
"""Three items that lack one row, three rows and none."""


def operators():
    """A, with a mask of the batch, of each item, two masks, nearly no rows, and a row alone; a batch of three."""
    A = sensing()
    few = torch.nn.functional.one_hot(torch.tensor([0, 3, 7]), M).float()
    masks = [random_mask(M), ITEMS, few, torch.zeros(M)]
    given = CompressedSensing(gaussian_matrix(M, N, 1).double().numpy(), SIZE, ITEMS.numpy().astype(bool))
    return [A, given, *(A.masked(m) for m in masks), A.masked(random_mask(M)).masked(ITEMS)]


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


# the operator and its adjoint


def test_measurements_are_products_with_the_rows():
    matrix, x = gaussian_matrix(M, N, 0), randn(3, 1, *SIZE)
    torch.testing.assert_close(sensing().A(x), torch.einsum("mn,bn->bm", matrix, x.flatten(1)))
    masked = sensing().masked(ITEMS).A(x)
    assert torch.equal(masked, ITEMS * sensing().A(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adjoint(dtype):
    for physics in operators():
        assert_adjoint(physics, randn(3, 1, *SIZE, dtype=dtype))


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


def test_noise_falls_on_measured_rows_only():
    A = sensing().masked(ITEMS)
    x = torch.zeros(3, 1, *SIZE)
    noise = torch.stack([measure(A, x, torch.tensor([0.5, 0.5, 2.0]), rng(i)) for i in range(400)])
    assert (noise[:, ITEMS == 0] == 0).all()
    assert within(noise[:, ITEMS == 1].square().mean(1), (10 + 2) * 0.25 / 20 + 8 * 4 / 20)


# the proximal step


@gammas
def test_prox_of_row_split_operator_equals_the_dense_solution(gamma):
    for physics in operators():
        assert_prox_equals_dense(physics, 3, gamma)


@gammas
def test_prox_of_row_split_operator_equals_cg(gamma):
    for physics in operators():
        assert_prox_equals_cg(physics, randn(3, 1, *SIZE, dtype=torch.float64), gamma, 1e-9)


@groups
@pytest.mark.parametrize("gamma", [0.1, 100.0])
def test_prox_of_virtual_operator_equals_the_dense_solution(group, gamma):
    A, m = sensing(6, (4, 4)), random_mask(group.order, 6)
    for physics in (virtual_batch(A, group), virtual_batch(A, group).masked(m), virtual_batch(A.masked(m), group)):
        assert_prox_equals_dense(physics, group.order, gamma)


def test_prox_of_digits_equals_the_dense_solution():
    A = sensing(235, (28, 28))
    m = torch.stack([torch.randperm(235, generator=rng(i)) < 212 for i in range(2)]).float()
    for gamma in (1.0, torch.tensor([0.3, 100.0])):
        assert_prox_equals_dense(A.masked(m), 2, gamma)


@pytest.mark.parametrize("m", [N, N + 5])
def test_prox_of_square_and_tall_matrices_equals_the_dense_solution(m):
    for physics in (sensing(m), sensing(m).masked(random_mask(3, m))):
        assert_prox_equals_dense(physics, 3, 30.0)


@pytest.mark.parametrize("m", [N, N + 5, 3 * N])
@pytest.mark.parametrize("gamma", [1e-6, 1.0, 1e6, torch.tensor([1e-6, 1.0, 1e6])], ids=str)
def test_large_steps_of_square_and_tall_matrices_do_not_lose_float32(m, gamma):
    z, y = randn(3, 1, *SIZE), randn(3, m, seed=1)
    for physics in (sensing(m), sensing(m).masked(random_mask(3, m))):
        expected, found = physics.prox_l2(z.double(), y.double(), gamma), physics.prox_l2(z, y, gamma)
        assert found.dtype == torch.float32
        assert (found.double() - expected).abs().max() <= 1e-6 * expected.abs().max()


def test_prox_with_equal_rows_equals_the_dense_solution():
    matrix = gaussian_matrix(M, N, 0)
    matrix[1], matrix[2] = matrix[0], 0
    for mask in (torch.ones(M), ITEMS):
        assert_prox_equals_dense(CompressedSensing(matrix, SIZE, mask), 3, 30.0)


def test_prox_in_float32_is_that_of_float64():
    A, m = sensing(20, (8, 8)), random_mask(4, 20)
    z, y = randn(4, 1, 8, 8), randn(4, 20, seed=1)
    for gamma in (1e-3, 1.0, 1e4):
        expected = A.masked(m).prox_l2(z.double(), y.double(), gamma)
        torch.testing.assert_close(A.masked(m).prox_l2(z, y, gamma).double(), expected, rtol=0, atol=2e-5)


def test_without_a_step_or_without_rows_nothing_moves():
    z, y = randn(3, 1, *SIZE), randn(3, M, seed=1)
    assert torch.equal(sensing().prox_l2(z, y, 0.0), z)
    assert torch.equal(sensing().masked(torch.zeros(M)).prox_l2(z, y, 5.0), z)


def test_items_do_not_depend_on_their_batch():
    A, z, y = sensing(), randn(3, 1, *SIZE, dtype=torch.float64), randn(3, M, seed=1, dtype=torch.float64)
    gamma = torch.tensor([0.2, 5.0, 1.0], dtype=torch.float64)
    together, inverse = A.masked(ITEMS).prox_l2(z, y, gamma), A.masked(ITEMS).A_dagger(y)
    for i in range(3):
        one = A.masked(ITEMS[i : i + 1])
        alone = one.prox_l2(z[i : i + 1], y[i : i + 1], float(gamma[i]))
        torch.testing.assert_close(alone, together[i : i + 1], rtol=0, atol=1e-12)
        torch.testing.assert_close(one.A_dagger(y[i : i + 1]), inverse[i : i + 1], rtol=0, atol=1e-12)


def test_bound_on_the_removed_rows_does_not_change_the_result(monkeypatch):  # on a GPU it is the number of all rows
    z, y, gamma = randn(3, 1, *SIZE).double(), randn(3, M, seed=1).double(), torch.tensor([0.2, 5.0, 1.0])
    counted = sensing().masked(ITEMS)
    monkeypatch.setattr(module, "_most_removed", lambda mask: mask.shape[-1])
    bounded = sensing().masked(ITEMS)
    assert (counted._n_removed, bounded._n_removed) == (3, M)
    torch.testing.assert_close(bounded.prox_l2(z, y, gamma), counted.prox_l2(z, y, gamma), rtol=0, atol=1e-12)
    torch.testing.assert_close(bounded.A_dagger(y), counted.A_dagger(y), rtol=0, atol=1e-12)


def test_scaling():
    for physics in operators():
        assert_scaling(physics, randn(3, 1, *SIZE), 3.0, 1e-4)


# derivatives


def test_gradients():
    for physics in operators():
        assert_gradients(physics, randn(3, 1, *SIZE))
    assert_gradients(
        VirtualPhysics(sensing(6, (4, 4)).masked(random_mask(3, 6)), D4(), torch.tensor([1, 6, 3])), randn(3, 1, 4, 4)
    )


def test_gradient_of_a_step_for_each_item():
    z, y = randn(3, 1, *SIZE).double().requires_grad_(), randn(3, M, seed=1).double().requires_grad_()
    gamma = torch.tensor([0.1, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    for physics in (sensing(), sensing().masked(ITEMS)):
        assert torch.autograd.gradcheck(physics.prox_l2, (z, y, gamma))
        assert torch.autograd.gradcheck(physics.A_dagger, (y,))


def test_rows_that_are_left_out_get_no_gradient():
    z, y = randn(3, 1, *SIZE), randn(3, M, seed=1).requires_grad_()
    sensing().masked(ITEMS).prox_l2(z, y, 2.0).square().sum().backward()
    assert (y.grad[ITEMS == 0] == 0).all()
    assert (y.grad[ITEMS == 1] != 0).all()


# the pseudo-inverse


def numpy_inverse(physics, y):
    inverses = [np.linalg.pinv(A.numpy(), rcond=1e-10) for A in dense(physics, len(y))]
    return torch.stack([torch.from_numpy(A @ one.numpy()) for A, one in zip(inverses, y, strict=True)]).view(-1, 1, *SIZE)


def dependent_rows():
    matrix = (64 * gaussian_matrix(M, N, 0)).round() / 64  # sums of such numbers are exact
    matrix[1], matrix[2], matrix[4] = matrix[0], 0, 2 * matrix[3] - matrix[5]
    return matrix


def hard_operators():
    """More rows than pixels, dependent rows, and parts of these."""
    hard = [sensing(N + 5), CompressedSensing(dependent_rows(), SIZE)]
    return hard + [A.masked(random_mask(3, *A.grid)) for A in hard]


def test_pseudo_inverse_has_the_least_norm():
    for physics in operators() + hard_operators():
        y = randn(3, *physics.grid, seed=2).double()
        torch.testing.assert_close(physics.A_dagger(y), numpy_inverse(physics, y), rtol=0, atol=1e-10)
        torch.testing.assert_close(physics.initial(y), physics.A_dagger(y), rtol=0, atol=0)


def test_pseudo_inverse():
    for physics in operators() + hard_operators():
        assert_pseudo_inverse(physics, randn(3, 1, *SIZE, dtype=torch.float64))


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


@groups
def test_pseudo_inverse_of_virtual_operator(group):
    A, m = sensing(6, (4, 4)), random_mask(group.order, 6)
    for physics in (virtual_batch(A, group), virtual_batch(A, group).masked(m)):
        assert_pseudo_inverse(physics, randn(group.order, 1, 4, 4, dtype=torch.float64))


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


def test_masked_keeps_what_both_masks_keep_and_leaves_the_parent_alone():
    A, m = sensing().masked(random_mask(M)), ITEMS
    before, matrix, mask = snapshot(A), A.matrix.clone(), A.mask.clone()
    child = A.masked(m)
    assert torch.equal(child.mask, A.mask * m)
    assert torch.equal(child.masked(m).mask, child.mask)
    child.prox_l2(randn(3, 1, *SIZE), randn(3, M), 1.0)
    child.double().mask.zero_()
    assert_unchanged(A, before)
    assert torch.equal(A.matrix, matrix)
    assert torch.equal(A.mask, mask)


def test_two_parts_make_the_whole():
    A, x = sensing(), randn(3, 1, *SIZE)
    m1 = ITEMS
    A1, A2 = A.masked(m1), A.masked(A.mask - m1)
    assert torch.equal(A1.A(x) + A2.A(x), A.A(x))
    assert (A1.A(x) * A2.A(x) == 0).all()


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


@pytest.mark.parametrize("shape", [(7,), (3, 7), (1, 1, 8), ()])
def test_mask_that_does_not_fit_names_both_sizes(shape, unchecked):
    for refused in (
        lambda: CompressedSensing(torch.ones(M, N), SIZE, torch.ones(shape)),
        lambda: sensing().masked(torch.ones(shape)),
    ):
        with pytest.raises(ValueError, match="does not fit 8 rows") as refusal:
            refused()
        assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("bad", [2.0, -1.0, 0.5, float("nan")])
def test_mask_values_other_than_0_and_1_are_refused(bad):
    with pytest.raises(ValueError, match="mask values must be 0 or 1"):
        row_mask([0.0, bad, 1.0], 3)


def test_images_and_measurements_of_another_size_are_refused(unchecked):
    z, y = torch.zeros(3, 1, *SIZE), torch.zeros(3, M)
    A = sensing()
    for refused in (lambda: A.A(z.mT), lambda: A.A(z.expand(3, 2, *SIZE)), lambda: A.prox_l2(z.mT, y, 1.0)):
        with pytest.raises(ValueError, match=r"takes \(B, 1, 4, 5\), got"):
            refused()
    for apply in (A.A_adjoint, A.A_dagger, lambda short: A.prox_l2(z, short, 1.0)):
        with pytest.raises(ValueError, match=r"takes \(B, 8\), got \(3, 7\)"):
            apply(y[:, :7])
    with pytest.raises(ValueError, match=r"takes \(3, 1, 4, 5\), got \(2, 1, 4, 5\)"):
        A.masked(ITEMS).A(z[:2])


# the matrix of the paper


def test_entries_have_mean_0_and_variance_1_over_m():
    entries = gaussian_matrix(50, 400, seed=0).flatten()
    assert within(entries, 0.0)
    assert within(entries.square(), 1 / 50)


def test_matrix_is_seeded_and_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(gaussian_matrix(M, N, 3), gaussian_matrix(M, N, 3))
    assert torch.equal(torch.rand(1), expected)
    assert not torch.equal(gaussian_matrix(M, N, 3), gaussian_matrix(M, N, 4))


@pytest.mark.parametrize(("m", "n"), [(0, 4), (4, 0), (-1, 4)])
def test_empty_matrix_is_refused(m, n):
    with pytest.raises(ValueError, match=f"got {m} x {n}"):
        gaussian_matrix(m, n, 0)
