import pytest
import torch
from dense_ct import DenseCT, even_views
from helpers import line_mri, randn, rng

from es_medical.groups import D4, FineRotations, Rotations
from es_medical.losses import (
    EquivariantImaging,
    EquivariantSplitting,
    MeasurementConsistency,
    RampWeighting,
    Supervised,
    Sure,
    Unsure,
    attach_multiplier,
    build_loss,
)
from es_medical.methods import TABLE, TRAINED
from es_medical.physics import Batch, measure
from es_medical.splits import Split

FAMILIES = {
    "splitting": EquivariantSplitting,
    "supervised": Supervised,
    "ei": EquivariantImaging,
    "sure": Sure,
    "unsure": Unsure,
    "mc": MeasurementConsistency,
}


class Counter(torch.nn.Module):
    """A learnable reconstructor that counts its passes and can learn a noise level."""

    def __init__(self):
        super().__init__()
        self.gain, self.passes = torch.nn.Parameter(torch.tensor(0.8)), 0
        attach_multiplier(self, 0.1)

    def forward(self, y, physics, generator=None):
        self.passes += 1
        return self.gain * physics.A_adjoint(y)


def make(method, **given):
    return build_loss(method, Split(), group=D4() if method == "es_neq" else None, transform=FineRotations(), **given)


def run(loss, sigma, physics=None):
    physics = physics or line_mri((8, 8))
    x = randn(2, physics.img_size[0], 8, 8, dtype=torch.float64 if isinstance(physics, DenseCT) else torch.float32)
    f, y = Counter(), measure(physics, x, sigma, rng())
    value = loss(f, Batch(y, physics, torch.full((2,), sigma), image=x), rng(1))
    value.total.mean().backward()
    assert f.gain.grad.abs() > 0
    return f.passes


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_makes_its_loss_and_costs_the_passes_that_are_told(method):
    assert type(make(method)) is FAMILIES[TABLE[method].loss]
    assert run(make(method, sigma=None, noisy=True), 0.1) == TABLE[method].passes[1]
    assert run(make(method, sigma=None, noisy=False), 0.0) == TABLE[method].passes[0]
    assert run(make(method, sigma=0.1), 0.1) == TABLE[method].passes[1]


@pytest.mark.parametrize("method", ["supervised", "ei", "sure", "mc"])
def test_the_loss_of_a_network_that_is_not_equivariant_is_the_same(method):
    physics, x = line_mri((8, 8)), randn(2, 2, 8, 8)
    y = measure(physics, x, 0.1, rng())
    one, other = (make(name, sigma=0.1)(Counter(), Batch(y, physics, image=x), rng(1)) for name in (method, f"{method}_neq"))
    assert torch.equal(one.total, other.total)


def test_knobs_reach_the_losses():
    knobs = {"sigma": 0.3, "alpha": 0.7, "consistency_weight": 0.2, "sigma_factor": 2.0, "weighting": "ramp", "tau": 0.05}
    built = {method: make(method, equivariance_weight=3.0, **knobs) for method in TRAINED}
    assert (built["es"].alpha, built["es"].consistency_weight) == (0.7, 0.2)
    assert (built["ei"].weight, type(built["ei"].transform)) == (3.0, FineRotations)
    for method in ("es", "ei", "sure"):
        assert (built[method].sigma, built[method].sigma_factor) == (0.3, 2.0)
    for method in ("ei", "sure", "unsure"):
        assert built[method].tau == 0.05
    for method in ("es", "ei", "sure", "unsure", "mc"):
        assert isinstance(built[method].weighting, RampWeighting)
    assert build_loss("es", Split(), group=Rotations(2)).group.n_sub == 2


def test_data_without_noise_saves_a_pass_only_where_no_level_is_assumed():
    assert [make("sure", sigma=None, noisy=noisy).sigma for noisy in (None, True, False)] == [None, None, 0.0]
    assert make("sure", sigma=0.2, noisy=False).sigma == 0.2
    assert make("ei", sigma=0.0, noisy=True).sigma == 0.0


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_trains_on_sinograms_with_the_ramp(method):
    loss = build_loss(method, Split("views"), 0.1, weighting="ramp", group=D4(), transform=FineRotations())
    assert run(loss, 0.1, DenseCT(8, even_views(5))) == TABLE[method].passes[1]


def test_only_supervised_needs_images():
    assert [method for method in TRAINED if make(method).needs_image] == ["supervised", "supervised_neq"]


def test_unknown_names_list_the_valid_ones():
    with pytest.raises(ValueError, match="unknown method 'eii'") as caught:
        make("eii")
    assert f"choose one of {', '.join(TRAINED)}" in str(caught.value)


@pytest.mark.parametrize(("method", "missing"), [("ei", "transform"), ("ei_neq", "transform"), ("es_neq", "group")])
def test_methods_that_draw_g_say_what_they_lack(method, missing):
    with pytest.raises(ValueError, match=missing):
        build_loss(method, Split())
