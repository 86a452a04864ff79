import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import line_mri, randn, rng, within

from es_medical.groups import D4, FineRotations
from es_medical.losses import (
    EquivariantSplitting,
    FrequencyWeighting,
    MeasurementConsistency,
    RampWeighting,
    Weighting,
    build_loss,
    build_weighting,
    mean_square,
)
from es_medical.losses.weighting import power
from es_medical.methods import TRAINED
from es_medical.physics import Batch, measure
from es_medical.splits import Split

UNITS = ["views", "rays", "bins"]
SIGMA, ALPHA, W = 0.4, 0.5, 0.7


def matrix(n, floor=0.05):
    """W as a matrix, from its action on the unit vectors."""
    return RampWeighting(floor)(torch.eye(n, dtype=torch.float64).view(1, 1, n, n))[0, 0].T


def scanner(size=6, views=4, n_sub=1):
    return DenseCT(size, even_views(views, n_sub))


def nonlinear(y, physics, generator=None):
    """A fixed nonlinear reconstructor that is not equivariant."""
    x = physics.A_adjoint(y)
    ramp = torch.linspace(-0.5, 1.0, x.shape[-1]) + torch.linspace(0, 0.7, x.shape[-2])[:, None].square()
    return 5 * torch.tanh(1.5 * x + ramp) + 0.3 * x.square()


class Fixed(Split):
    """A split that was drawn before, for the first item."""

    def __init__(self, unit, physics):
        super().__init__(unit, 0.6)
        self.m1 = super().__call__(physics, 1, rng(2))

    def __call__(self, physics, batch, generator):
        return self.m1.expand(batch, -1, -1, -1)


class Linear:
    """x_hat = B y_1, with the image's sides from the operator."""

    def __init__(self, b):
        self.b = b

    def __call__(self, y, physics, generator=None):
        return (y.flatten(1).to(self.b.dtype) @ self.b.T).view(-1, 1, *physics.image_size)


@pytest.mark.parametrize("floor", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 64])
def test_weighting_is_symmetric_positive_definite_with_unit_diagonal_of_its_square(n, floor):
    w = matrix(n, floor)
    torch.testing.assert_close(w, w.T, rtol=0, atol=1e-14)
    torch.testing.assert_close((w @ w).diagonal(), torch.ones(n, dtype=torch.float64))
    squares = torch.linalg.eigvalsh(w).square()
    assert torch.linalg.eigvalsh(w).min() > 0
    assert float(squares.max() / squares.min()) == pytest.approx(1 / floor if n > 1 else 1.0)


@pytest.mark.parametrize("n", [32, 33])
def test_weighting_multiplies_a_wave_by_the_root_of_its_frequency(n):
    t = 2 * torch.pi * torch.arange(n, dtype=torch.float64) / n
    gains = []
    for k in range(n // 2 + 1):
        wave = torch.cos(k * t + 0.3).expand(1, 1, 2, n)
        weighed = RampWeighting()(wave)
        gain = weighed.norm() / wave.norm()
        torch.testing.assert_close(weighed, gain * wave)  # no wave is moved or mixed
        gains.append(float(gain))
    expected = torch.arange(n // 2 + 1).clamp(min=0.05 * (n // 2)).sqrt()
    torch.testing.assert_close(torch.tensor(gains) / gains[-1], (expected / expected[-1]))


def test_weighting_keeps_shape_and_precision_and_is_linear():
    for shape, dtype in [((3, 1, 5, 7), torch.float32), ((2, 1, 1, 12), torch.float64), ((1, 1, 4, 1), torch.float32)]:
        a, b = randn(*shape, dtype=dtype), randn(*shape, seed=1, dtype=dtype)
        weighting = RampWeighting()
        assert isinstance(weighting, Weighting)
        assert weighting(a).shape == shape
        assert weighting(a).dtype == dtype
        torch.testing.assert_close(weighting(2 * a - b), 2 * weighting(a) - weighting(b))


def test_views_are_weighed_one_by_one_so_that_w_commutes_with_a_mask_of_views_only():
    physics, r = scanner(8, 6), randn(3, 1, 6, 8, dtype=torch.float64)
    weighting = RampWeighting()
    m = Split("views", 0.5)(physics, 3, rng())
    torch.testing.assert_close(weighting(m * r), m * weighting(r))
    for unit in ("rays", "bins"):
        m = Split(unit, 0.5)(physics, 3, rng())
        assert (weighting(m * r) - m * weighting(r)).abs().max() > 0.05


@pytest.mark.parametrize("unit", UNITS)
def test_white_noise_costs_the_same_with_and_without_weighting(unit):
    """tr(M W^2 M) = m for every mask."""
    physics = scanner(8, 6)
    m = Split(unit, 0.6)(physics, 1, rng())[0].expand(1, 6, 8)
    w = matrix(8)
    masked = m.flatten().double()[:, None] * torch.block_diag(*[w @ w] * 6) * m.flatten().double()
    torch.testing.assert_close(masked.trace(), m.sum().double())


def test_ramp_makes_the_loss_of_a_sinogram_count_an_image_error_at_all_scales_alike():
    """|W A e|^2 / |e|^2 of waves of 2 to 8 periods an image: nearly constant, and falling as 1 / f without the weighting."""
    n = 32
    physics = DenseCT(n, even_views(48), 46)
    grid = torch.linspace(-1, 1, n, dtype=torch.float64)
    window = torch.exp(-4 * (grid[:, None] ** 2 + grid**2))
    waves = torch.stack([torch.cos(torch.pi * f * grid) * window for f in (2, 4, 8)])[:, None]
    y, mask = physics.A(waves), physics.mask
    plain, weighed = mean_square(y, mask), mean_square(y, mask, RampWeighting())
    energy = waves.square().flatten(1).sum(1)
    assert (plain / energy)[0] > 3.5 * (plain / energy)[2]
    assert (weighed / energy).max() < 1.3 * (weighed / energy).min()


@pytest.mark.parametrize("shape", [(3, 1, 1, 6), (1, 1, 4, 6), (3, 1, 4, 6)])
def test_weighted_mean_square_weighs_the_masked_residual(shape):
    residual, mask = randn(3, 1, 4, 6), (randn(*shape, seed=1) > 0).float()
    entries = mask.expand(3, 1, 4, 6).flatten(1).sum(1)
    expected = RampWeighting()(mask * residual).square().flatten(1).sum(1) / entries
    torch.testing.assert_close(mean_square(residual, mask, RampWeighting()), expected)
    torch.testing.assert_close(mean_square(residual, mask, RampWeighting(floor=1.0)), mean_square(residual, mask))
    hidden = residual + 9 * (1 - mask)
    torch.testing.assert_close(mean_square(hidden, mask, RampWeighting()), expected)  # no unmeasured entry leaks


def test_losses_without_weighting_are_the_old_ones_to_the_last_bit():
    physics, x_hat = line_mri((8, 8)), randn(3, 2, 8, 8, seed=1)
    y = physics.A(randn(3, 2, 8, 8))
    residual = physics.A(x_hat) - y
    old = (physics.mask * residual.square()).sum((1, 2, 3)) / (physics.mask.sum() * 16)
    assert torch.equal(MeasurementConsistency()(lambda y, physics, generator: x_hat, Batch(y, physics)).total, old)
    for method in ("es", "mc"):
        plain = build_loss(method, Split(), 0.1)(nonlinear, Batch(y, physics), rng()).total
        assert torch.equal(build_loss(method, Split(), 0.1, weighting="none")(nonlinear, Batch(y, physics), rng()).total, plain)


@pytest.mark.parametrize("unit", UNITS)
def test_minimiser_of_the_splitting_loss_is_the_same_with_and_without_weighting(unit):
    """Over all linear reconstructors x_hat = B y_1 of 60 images: both losses are least at B = X Y_1^+, as seen by A."""
    physics, n = scanner(4, 3), 60
    x = randn(n, 1, 4, 4, seed=4, dtype=torch.float64)
    x = x + 0.7 * x.roll(1, -1)  # correlated pixels: what was seen tells of what was not
    split, y = Fixed(unit, physics), physics.A(x)
    seen = split.m1.expand(1, 1, 3, 4).flatten().bool()
    inputs = (split.m1 * y).flatten(1)[:, seen]
    best = torch.linalg.lstsq(inputs, x.flatten(1)).solution.T  # (pixels, seen)
    for weighting in (None, RampWeighting(), RampWeighting(0.01)):
        loss = EquivariantSplitting(split, consistency_weight=0.3, weighting=weighting)

        def value(b, loss=loss):
            full = torch.zeros(16, 12, dtype=torch.float64).index_copy(1, seen.nonzero()[:, 0], b.view_as(best))
            return loss(Linear(full), Batch(y, physics), rng()).total.mean()

        start = torch.zeros(best.numel(), dtype=torch.float64)
        gradient = torch.autograd.functional.jacobian(value, start)
        hessian = torch.autograd.functional.hessian(value, start)
        found = -torch.linalg.pinv(hessian, hermitian=True) @ gradient  # the loss is quadratic in B
        assert value(found) < 0.7 * value(start)
        torch.testing.assert_close(physics.matrix @ found.view_as(best), physics.matrix @ best)


@pytest.mark.parametrize("unit", UNITS)
def test_minimiser_of_weighted_gaussian_es_is_the_linear_mmse_estimator(unit):
    """Its slope in any direction is 0 within 4 standard errors for B = C_x A_1^T (A_1 C_x A_1^T + (1 + alpha^2) s^2)^-1."""
    physics, n = scanner(4, 3), 20_000
    x = randn(n, 1, 4, 4, seed=4, dtype=torch.float64)  # C_x = I
    split = Fixed(unit, physics)
    y = measure(physics, x, SIGMA, rng(1))
    a1 = split.m1.expand(1, 1, 3, 4).flatten()[:, None].double() * physics.matrix
    best = a1.T @ torch.linalg.inv(a1 @ a1.T + (1 + ALPHA**2) * SIGMA**2 * torch.eye(12, dtype=torch.float64))
    direction = best + 0.3 * randn(16, 12, seed=9, dtype=torch.float64)
    for weighting in (None, RampWeighting()):
        loss = EquivariantSplitting(split, SIGMA, ALPHA, W, weighting=weighting)

        def slope(b, loss=loss):
            ahead, behind = (loss(Linear(b + t * direction), Batch(y, physics), rng(2)).total for t in (0.1, -0.1))
            return ahead - behind

        assert within(slope(best), 0.0)
        assert not within(slope(0.8 * best), 0.0, standard_errors=6)
        assert not within(slope(best + 0.2 * direction), 0.0, standard_errors=6)


def test_least_squares_of_consistent_data_has_the_same_minimiser_with_weighting_and_others_do_not():
    physics = DenseCT(4, even_views(7) + 5, 6)  # 42 rays of 16 pixels
    a, r = physics.matrix, torch.block_diag(*[matrix(6)] * 7)
    assert torch.linalg.matrix_rank(a) == 16
    x, y = randn(16, dtype=torch.float64), randn(42, seed=1, dtype=torch.float64)

    def minimiser(y, weighting):
        def value(x):
            def fixed(y, physics, generator=None):
                return x.view(1, 1, 4, 4)

            return MeasurementConsistency(weighting)(fixed, Batch(y.view(1, 1, 7, 6), physics)).total.sum()

        start = torch.zeros(16, dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(value, start)
        return torch.linalg.solve(hessian, -torch.autograd.functional.jacobian(value, start))

    torch.testing.assert_close(minimiser(a @ x, None), x)
    torch.testing.assert_close(minimiser(a @ x, RampWeighting()), x)
    torch.testing.assert_close(minimiser(y, RampWeighting()), torch.linalg.lstsq(r @ a, r @ y).solution)
    assert (minimiser(y, RampWeighting()) - minimiser(y, None)).norm() > 0.05 * minimiser(y, None).norm()


def test_gradient_through_the_weighting_is_that_of_the_quadratic_form():
    r, mask = randn(2, 1, 3, 8, dtype=torch.float64).requires_grad_(), (randn(2, 1, 3, 8, seed=1) > 0).double()
    mean_square(r, mask, RampWeighting()).sum().backward()
    w2 = matrix(8) @ matrix(8)
    expected = 2 * mask * (mask * r.detach() @ w2) / mask.flatten(1).sum(1).view(2, 1, 1, 1)
    torch.testing.assert_close(r.grad, expected)


def test_kspace_has_no_detector_to_weigh_along():
    physics = line_mri((8, 8))
    for method in ("es", "mc"):
        with pytest.raises(ValueError, match=r"sinograms \(B, 1, views, detectors\), got \(2, 2, 8, 8\)"):
            build_loss(method, Split(), weighting="ramp")(nonlinear, Batch(randn(2, 2, 8, 8), physics), rng())


def test_weighting_is_chosen_by_name_for_the_methods_that_have_residuals():
    assert build_weighting("none") is None
    assert isinstance(build_weighting("ramp"), RampWeighting)
    for method in TRAINED:
        given = {"group": D4(), "transform": FineRotations()}
        loss = build_loss(method, Split("views"), weighting="ramp", **given)
        assert isinstance(getattr(loss, "weighting", None), RampWeighting) == (not method.startswith("supervised"))
        with pytest.raises(ValueError, match="unknown weighting 'hann': choose one of none, ramp"):
            build_loss(method, Split("views"), weighting="hann", **given)


@pytest.mark.parametrize("floor", [0.0, -0.1, 1.1, float("nan")])
def test_floor_outside_its_range_is_refused(floor):
    with pytest.raises(ValueError, match=f"got {floor}"):
        RampWeighting(floor)


@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_power_has_mean_one_over_all_frequencies(n):
    both = torch.cat((power(n, 0.05), power(n, 0.05)[1 : (n + 1) // 2]))
    assert len(both) == n
    assert float(both.mean()) == pytest.approx(1.0)


# --- k-space


@pytest.mark.parametrize("shape", [(2, 2, 6, 5), (2, 2, 3, 6, 5), (1, 2, 1, 1)])
def test_kspace_is_weighed_by_the_distance_from_its_centre(shape):
    gain = FrequencyWeighting()(torch.ones(shape, dtype=torch.float64))
    height, width = shape[-2:]
    for i in range(height):
        for j in range(width):
            radius = max(((i - height // 2) ** 2 + (j - width // 2) ** 2) ** 0.5, 1.0)
            expected = gain[..., height // 2, width // 2] * radius
            torch.testing.assert_close(gain[..., i, j], expected)
    torch.testing.assert_close(gain.square().mean((-2, -1)), torch.ones(shape[:-2], dtype=torch.float64))
    root = FrequencyWeighting(0.5)(torch.ones_like(gain))
    torch.testing.assert_close(root / root.amin(), (gain / gain.amin()).sqrt())
    assert torch.equal(FrequencyWeighting(0.0)(gain), gain)


def test_weighting_by_frequency_keeps_precision_and_commutes_with_masks():
    residual = randn(3, 2, 8, 8)
    m = Split("samples", 0.5)(line_mri((8, 8)), 3, rng())
    weighting = build_weighting("frequency")
    assert isinstance(weighting, Weighting)
    assert weighting(residual).dtype == residual.dtype
    torch.testing.assert_close(weighting(m * residual), m * weighting(residual))


def test_what_is_no_kspace_is_refused(unchecked):
    for shape in ((1, 1, 4, 8), (2, 4, 8), (1, 3, 8, 8)):
        with pytest.raises(ValueError, match="takes k-space"):
            FrequencyWeighting()(torch.ones(shape))
    with pytest.raises(ValueError, match="exponent of the weighting must be >= 0, got -1"):
        FrequencyWeighting(-1.0)
