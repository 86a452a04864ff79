"""What every loss promises, in one table: losses x properties. What is particular to a loss is in its own file."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import Recorder, assert_unchanged, line_mri, randn, rng, snapshot
from torch import nn

from es_medical.groups import D4, FineRotations
from es_medical.losses import (
    EquivariantImaging,
    EquivariantSplitting,
    FrequencyWeighting,
    Loss,
    MeasurementConsistency,
    PhotonSplitting,
    RampWeighting,
    Reconstructor,
    SeveralSplits,
    Supervised,
    SupervisedOnSplits,
    Sure,
    Unsure,
    attach_multiplier,
)
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch, VirtualPhysics, measure
from es_medical.physics.transmission import Transmission
from es_medical.randomness import item_generator
from es_medical.splits import Split

DOUBLE, SCAN = torch.float64, Transmission(300.0, 2.0)
LINES, VIEWS, TURNS = Split(split_ratio=0.5), Split("views", 0.6), FineRotations()


class Row(NamedTuple):
    """One loss: made with a noise level and a factor, which are used only where `assumes_noise`."""

    make: Callable[..., Loss]
    assumes_noise: bool = False
    needs_image: bool = False
    by_item: bool = True
    """Whether the value of an item depends on its own generator alone."""
    needs_noise: bool = False
    """Whether it takes the noise level of the data, and has none of its own."""
    counts: bool = False
    """Whether measurements are of photons in a CT scanner, in place of k-space."""


LOSSES: dict[str, Row] = {
    "ES": Row(lambda sigma=0.1, factor=1.0: EquivariantSplitting(LINES, sigma, sigma_factor=factor), True),
    "ES, g drawn": Row(lambda sigma=0.1, factor=1.0: EquivariantSplitting(LINES, sigma, group=D4(), sigma_factor=factor), True),
    "ES, weighted": Row(
        lambda sigma=0.1, factor=1.0: EquivariantSplitting(LINES, sigma, sigma_factor=factor, weighting=FrequencyWeighting()),
        True,
    ),
    "ES, several splits": Row(
        lambda sigma=0.1, factor=1.0: SeveralSplits(EquivariantSplitting(LINES, sigma, sigma_factor=factor), 3), True
    ),
    "supervised": Row(lambda *_: Supervised(), needs_image=True),
    "supervised, on splits": Row(lambda *_: SupervisedOnSplits(LINES), needs_image=True, needs_noise=True),
    "MC": Row(lambda *_: MeasurementConsistency()),
    "SURE": Row(lambda sigma=0.1, factor=1.0: Sure(sigma, sigma_factor=factor), True),
    "SURE, weighted": Row(
        lambda sigma=0.1, factor=1.0: Sure(sigma, 0.01, sigma_factor=factor, weighting=FrequencyWeighting()), True
    ),
    "EI": Row(lambda sigma=0.1, factor=1.0: EquivariantImaging(TURNS, sigma=sigma, sigma_factor=factor), True),
    "EI, without noise": Row(lambda *_: EquivariantImaging(TURNS, sigma=0.0)),
    "EI, alternating": Row(
        lambda sigma=0.1, factor=1.0: EquivariantImaging(TURNS, sigma=sigma, sigma_factor=factor, alternating=True),
        True,
        by_item=False,
    ),
    "UNSURE": Row(lambda *_: Unsure()),
    "photons, pre": Row(lambda *_: PhotonSplitting(VIEWS, SCAN, weighting=RampWeighting()), counts=True),
    "photons, post": Row(lambda *_: PhotonSplitting(VIEWS, SCAN, group=D4(), log_domain="post"), counts=True),
}

PLAIN_PHOTONS = PhotonSplitting(VIEWS, SCAN, log_domain="post")
row = pytest.mark.parametrize("row", LOSSES.values(), ids=list(LOSSES))
noisy = pytest.mark.parametrize("row", [one for one in LOSSES.values() if one.assumes_noise])


class Drawing(nn.Module):
    """T_g r(y, A T_g) of a random g and a smooth, nonlinear r with one weight, beside the multiplier of UNSURE."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.8, dtype=dtype))
        attach_multiplier(self, 0.1)

    def forward(self, y, physics, generator=None):
        g = D4().sample(len(y), generator, y.device)
        x = VirtualPhysics(physics, D4(), g).A_adjoint(y)
        ramp = torch.linspace(-0.5, 1.0, x.shape[-1], dtype=x.dtype)
        return D4().apply(torch.tanh(self.gain * x + ramp) + 0.3 * x.roll(1, -1).square(), g)


def problem(row: Row, dtype: torch.dtype = DOUBLE, n: int = 4) -> tuple[Drawing, Batch]:
    """A reconstructor and measurements with everything that a loss may ask for."""
    f, sigma = Drawing(dtype), torch.full((n,), 0.2, dtype=dtype)
    if not row.counts:
        physics, x = line_mri((8, 8)), randn(n, 2, 8, 8, dtype=dtype)
        return f, Batch(measure(physics, x, 0.1, rng()), physics, sigma, x)
    physics, x = DenseCT(6, even_views(5)), 0.5 * randn(n, 1, 6, 6, dtype=dtype).abs()
    physics.matrices = [matrix.to(dtype) for matrix in physics.matrices]
    return f, Batch(SCAN.post_log(SCAN.sample(physics.A(x), rng())), physics, sigma, x)


def changed(batch: Batch, **parts: Any) -> Batch:
    return Batch(**(vars(batch) | parts))


@row
def test_it_is_a_loss_of_each_item_in_the_precision_of_the_data(row):
    assert isinstance(row.make(), Loss)
    for dtype in (torch.float32, DOUBLE):
        f, batch = problem(row, dtype)
        value = row.make()(f, batch, rng())
        assert {name: part.shape for name, part in value.parts.items()} == dict.fromkeys(value.parts, (4,))
        assert (value.total.shape, value.total.dtype) == ((4,), dtype)
        assert value.total.isfinite().all()


@row
def test_same_seed_same_value_and_another_seed_another_one(row):
    f, batch = problem(row)
    one, again, other = (row.make()(f, batch, rng(seed)).total for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert row.make()(f, batch).total.isfinite().all()  # without a generator


@row
def test_the_generator_alone_decides_whatever_the_global_state(row):
    f, batch = problem(row)
    torch.manual_seed(0)
    first = row.make()(f, batch, rng(1)).total
    torch.manual_seed(1)
    assert torch.equal(row.make()(f, batch, rng(1)).total, first)


@pytest.mark.parametrize("row", [one for one in LOSSES.values() if one.by_item])
def test_value_of_an_item_does_not_depend_on_its_batch(row):
    """Each item has its own noise level where the loss assumes one; 0 for one of them."""
    (f, batch), levels = problem(row), torch.tensor([0.2, 0.0, 0.1, 0.4], dtype=DOUBLE)
    together = row.make(levels)(f, batch, [item_generator(0, key) for key in "abcd"]).total
    for i in (0, 2, 3):
        part = Batch(batch.y[i : i + 1], batch.physics, batch.sigma[i : i + 1], batch.image[i : i + 1])
        alone = row.make(float(levels[i]))(f, part, [item_generator(0, "abcd"[i])]).total
        torch.testing.assert_close(alone, together[i : i + 1])


@row
def test_unmeasured_entries_of_y_never_count(row):
    f, batch = problem(row)
    hidden = changed(batch, y=batch.y + 9 * (1 - batch.physics.mask))
    assert torch.equal(row.make()(f, hidden, rng()).total, row.make()(f, batch, rng()).total)


@pytest.mark.parametrize(("name", "plain"), [("ES, g drawn", LOSSES["ES"].make()), ("photons, post", PLAIN_PHOTONS)])
def test_explicit_g_is_drawn_for_each_item_and_changes_only_the_operator(name, plain):
    """The value is that of the loss without a group, of the operators A T_g."""
    f, batch = problem(LOSSES[name], n=16)
    recorder, generator = Recorder(f), rng(4)
    found = LOSSES[name].make()(recorder, batch, rng(4)).total
    g = D4().sample(16, generator)
    assert torch.equal(recorder.physics[-1].g, g)
    torch.testing.assert_close(found, plain(f, changed(batch, physics=VirtualPhysics(batch.physics, D4(), g)), generator).total)


@row
def test_gradient_is_that_of_finite_differences(row):
    """Central differences in float64, with the same draws on both sides."""
    f, batch = problem(row)

    def value(gain: float) -> torch.Tensor:
        f.gain.data.fill_(gain)
        return row.make()(f, batch, rng(3)).total.sum()

    slope = (value(0.8 + 1e-5) - value(0.8 - 1e-5)).detach() / 2e-5
    assert slope != 0
    torch.testing.assert_close(torch.autograd.grad(value(0.8), f.gain)[0], slope, rtol=1e-5, atol=1e-8)


@row
def test_gradients_reach_every_weight_of_an_unrolled_network(row):
    torch.manual_seed(0)
    _, batch = problem(row)
    network = MoDL(unet(batch.image.shape[1], (4, 8)), n_iterations=2)
    network = attach_multiplier(ReynoldsAveraging(network, D4()), 0.1).to(DOUBLE).train()
    row.make()(network, batch, rng()).total.mean().backward()
    names = [name for name, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert names == ([] if isinstance(row.make(), Unsure) else ["noise_multiplier"])


@row
def test_ground_truth_is_used_only_where_the_loss_says_so(row):
    f, batch = problem(row)
    assert row.make().needs_image == row.needs_image
    without = changed(batch, image=None)
    if row.needs_image:
        with pytest.raises(ValueError, match=r"needs ground truth.*--method es"):
            row.make()(f, without, rng())
    else:
        assert torch.equal(row.make()(f, without, rng()).total, row.make()(f, batch, rng()).total)


@row
def test_noise_level_of_the_data_is_not_used_beside_the_own_one(row):
    """A loss that assumes none has no use for it either."""
    f, batch = problem(row)
    without = changed(batch, sigma=None)
    if row.needs_noise:
        with pytest.raises(ValueError, match="no noise level: give sigma here, or data with a noise level"):
            row.make()(f, without, rng())
        return
    assert torch.equal(row.make()(f, without, rng()).total, row.make()(f, batch, rng()).total)


@noisy
def test_noise_level_of_each_item_times_the_factor_is_used_where_the_loss_has_none(row):
    f, batch = problem(row)
    levels = torch.tensor([0.1, 0.2, 0.3, 0.7], dtype=DOUBLE)
    own = row.make(2 * levels)(f, batch, rng()).total
    assert torch.equal(row.make(None, 2.0)(f, changed(batch, sigma=levels), rng()).total, own)
    with pytest.raises(ValueError, match="no noise level: give sigma here, or data with a noise level"):
        row.make(None)(f, changed(batch, sigma=None), rng())


@row
def test_nothing_is_left_between_calls_and_nothing_given_is_changed(row):
    (f, batch), loss = problem(row), row.make()
    fresh = row.make()(f, batch, rng(1)).total
    kept = dict(vars(loss)), snapshot(batch.physics), batch.y.clone(), batch.image.clone()
    loss(f, problem(row, n=2)[1], rng(5)).total.sum().backward()
    assert torch.equal(loss(f, batch, rng(1)).total, fresh)
    assert vars(loss) == kept[0]
    assert_unchanged(batch.physics, kept[1])
    assert torch.equal(batch.y, kept[2])
    assert torch.equal(batch.image, kept[3])


def test_networks_are_reconstructors():
    assert issubclass(MoDL, Reconstructor)
    assert issubclass(ReynoldsAveraging, Reconstructor)


IMPOSSIBLE = [
    (EquivariantSplitting, (LINES,), {"alpha": 0.0}, "alpha must be > 0 and consistency_weight >= 0, got 0.0 and 1.0"),
    (EquivariantSplitting, (LINES,), {"consistency_weight": -1.0}, "got 0.5 and -1.0"),
    (SupervisedOnSplits, (LINES,), {"alpha": 0.0}, "alpha must be > 0, got 0.0"),
    (SeveralSplits, (EquivariantSplitting(LINES), 0), {}, "n_splits must be at least 1, got 0"),
    (Sure, (), {"sigma": float("nan")}, "sigma and sigma_factor must be >= 0, got nan and 1.0"),
    (EquivariantImaging, (TURNS,), {"weight": -0.5}, "weight must be >= 0, got -0.5"),
    (Unsure, (), {"tau": 0.0}, "tau must be > 0, or None for 0.1 of the noise level; got 0.0"),
    (PhotonSplitting, (VIEWS, SCAN), {"alpha": 0.0}, "alpha must be > 0, got 0.0"),
    (PhotonSplitting, (VIEWS, SCAN), {"consistency_weight": -1.0}, "consistency_weight must be >= 0, got -1.0"),
    (PhotonSplitting, (VIEWS, SCAN), {"log_domain": "log"}, "unknown log_domain 'log': choose one of pre, post"),
    (
        *(PhotonSplitting, (VIEWS, SCAN), {"log_domain": "post", "weighting": RampWeighting()}),
        "post weighs rays by their counts: use weighting none",
    ),
]
for kind, first in ((EquivariantSplitting, (LINES,)), (Sure, ()), (EquivariantImaging, (TURNS,))):
    IMPOSSIBLE += [(kind, first, {"sigma": -1.0}, "sigma and sigma_factor must be >= 0, got -1.0 and 1.0")]
    IMPOSSIBLE += [(kind, first, {"sigma_factor": -2.0}, r"and -2.0")]
for kind, first in ((Sure, ()), (EquivariantImaging, (TURNS,))):
    IMPOSSIBLE += [(kind, first, {"tau": tau}, f"tau must be > 0, or None for 0.1 sigma; got {tau}") for tau in (0.0, -1.0)]


@pytest.mark.parametrize(("kind", "first", "options", "message"), IMPOSSIBLE)
def test_impossible_arguments_are_refused(kind, first, options, message):
    with pytest.raises(ValueError, match=message):
        kind(*first, **options)
