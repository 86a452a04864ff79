import pytest
import torch
from helpers import line_mri, randn, rng

from es_medical.groups import D4
from es_medical.inferers import Inferer
from es_medical.metrics import heldout_error
from es_medical.networks import MoDL, ReynoldsAveraging, unet
from es_medical.physics import Batch, measure, recorruption
from es_medical.randomness import item_generator
from es_medical.splits import Split

IDS = ["a", "b", "c", "d"]
SPLIT, SIGMA, ALPHA = Split(split_ratio=0.5), 0.1, 0.5


@pytest.fixture(scope="module")
def physics():
    return line_mri((8, 8))


@pytest.fixture(scope="module")
def y(physics):
    return measure(physics, randn(4, 2, 8, 8), SIGMA, rng())


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return ReynoldsAveraging(MoDL(unet(2, (4, 8)), n_iterations=2), D4()).eval()


def modes(**arguments):
    shared = {"sigma": SIGMA, "alpha": ALPHA, "n_samples": 3} | arguments
    return {
        "random g": Inferer(SPLIT, group=D4(), **shared),
        "whole group": Inferer(SPLIT, group=D4(), whole_group=True, **shared),
        "no group": Inferer(SPLIT, **shared),
        "supervised": Inferer(SPLIT, group=D4(), split_input=False, **shared),
        "all of y": Inferer(SPLIT, group=D4(), eval_split_input=False, **shared),
    }


mode = pytest.mark.parametrize("mode", modes())


def spied(network):
    """The network with a list of (y, physics, image) of its passes."""
    passes = []

    class Spy(torch.nn.Module):
        def forward(self, y, physics, g=None):
            image = network(y, physics) if g is None else network(y, physics, g=g)
            passes.append((y, physics, g, image))
            return image

    return Spy(), passes


@mode
def test_same_seed_same_answer_for_any_batch(network, y, physics, mode):
    inferer = modes()[mode]
    together = inferer(network, Batch(y, physics, ids=IDS))
    order = [2, 0]
    reordered = inferer(network, Batch(y[order], physics, ids=[IDS[i] for i in order]))
    alone = inferer(network, Batch(y[3:], physics, ids=IDS[3:]))
    for name in ("image", "spread", "heldout"):
        found = getattr(together, name)
        torch.testing.assert_close(getattr(reordered, name), found[order], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(getattr(alone, name), found[3:], rtol=1e-4, atol=1e-5)


@mode
def test_two_calls_are_equal_whatever_the_global_state(network, y, physics, mode):
    inferer = modes()[mode]
    first = inferer(network, Batch(y, physics, ids=IDS))
    torch.manual_seed(123)
    second = inferer(network, Batch(y, physics, ids=IDS))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_seed_and_id_decide_the_answer(network, y, physics):
    first = modes()["random g"](network, Batch(y, physics, ids=IDS))
    assert not torch.equal(modes(seed=1)["random g"](network, Batch(y, physics, ids=IDS)).image, first.image)
    assert not torch.equal(modes()["random g"](network, Batch(y, physics, ids=["e", "f", "g", "h"])).image, first.image)


@pytest.mark.parametrize(("mode", "passes_for_each"), [("random g", 1), ("whole group", 8), ("no group", 1)])
def test_mean_spread_and_number_of_passes(network, y, physics, mode, passes_for_each):
    spy, passes = spied(network)
    found = modes(n_samples=5)[mode](spy, Batch(y, physics, ids=IDS))
    images = torch.stack([image for *_, image in passes])
    assert len(images) == 5 * passes_for_each
    torch.testing.assert_close(found.image, images.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.spread, images.std(0), rtol=1e-4, atol=1e-6)
    assert (found.spread > 0).any()


@pytest.mark.parametrize(("mode", "passes_for_each"), [("random g", 1), ("whole group", 8), ("no group", 1)])
def test_each_sample_has_its_own_split_noise_and_g(network, y, physics, mode, passes_for_each):
    spy, passes = spied(network)
    assert int(physics.mask.sum()) == 4  # lines, of which one is kept and one more is drawn
    modes(n_samples=6)[mode](spy, Batch(y, physics, ids=IDS))
    firsts = passes[::passes_for_each]
    assert len({tuple(p.mask[i].flatten().tolist()) for _, p, _, _ in firsts for i in range(4)}) == 3
    for y1, p, _, _ in firsts:
        omega = (y1 - p.mask * y) / ALPHA
        assert (omega[p.mask.expand_as(y) == 0] == 0).all()
        assert 0.5 * SIGMA < omega[p.mask.expand_as(y) == 1].std() < 2 * SIGMA
    if mode == "random g":
        assert len(torch.cat([g for _, _, g, _ in passes]).unique()) > 4
    if mode == "whole group":
        assert [int(g[0]) for _, _, g, _ in passes[:8]] == list(range(8))


def test_answer_is_the_formula(network, y, physics):
    """f_bar = 1/J sum_j f(y_1 + alpha omega, A_1), with the draws of each item in the order split, noise, g."""
    generators = [item_generator(7, one, "inference") for one in IDS]
    images, scores = [], []
    with torch.no_grad():
        for _ in range(3):
            m1 = SPLIT(physics, 4, generators)
            first, second = physics.masked(m1), physics.masked(physics.mask - m1)
            y1 = m1 * y + ALPHA * recorruption(first, y, SIGMA, generators)
            images.append(network(y1, first, g=D4().sample(4, generators)))
            scores.append(heldout_error(images[-1], y, second))
    found = modes(seed=7)["random g"](network, Batch(y, physics, ids=IDS))
    torch.testing.assert_close(found.image, torch.stack(images).mean(0))
    torch.testing.assert_close(found.heldout, torch.stack(scores).mean(0))


def test_whole_group_equals_the_full_average(network, y, physics):
    whole = Inferer(SPLIT, 1, SIGMA, group=D4(), whole_group=True)(network, Batch(y, physics, ids=IDS))
    full = Inferer(SPLIT, 1, SIGMA)(network, Batch(y, physics, ids=IDS))  # the network averages by itself
    torch.testing.assert_close(whole.image, full.image)
    torch.testing.assert_close(whole.heldout, full.heldout)


def test_supervised_networks_see_all_measurements(network, y, physics):
    found = modes()["supervised"](network, Batch(y, physics, ids=IDS))
    with torch.no_grad():
        torch.testing.assert_close(found.image, network(y, physics))
        terms = torch.stack([network(y, physics, g=g.expand(4)) for g in D4().elements()])
    torch.testing.assert_close(found.spread, terms.std(0), rtol=1e-4, atol=1e-6)
    assert found.heldout.shape == (4,)


def test_trained_on_splits_and_given_all_of_y(network, y, physics):
    """The image is the average over the group, exactly equivariant; spread and held-out error are those of the splits."""
    inferer, splits = (modes()[mode] for mode in ("all of y", "random g"))
    found, of_splits = (one(network, Batch(y, physics, ids=IDS)) for one in (inferer, splits))
    with torch.no_grad():
        torch.testing.assert_close(found.image, network(y, physics))
    assert torch.equal(inferer.image(network, Batch(y, physics, ids=IDS)), found.image)
    assert torch.equal(found.spread, of_splits.spread)
    assert torch.equal(found.heldout, of_splits.heldout)
    assert (inferer.settings["split_input"], inferer.settings["averages_splits"]) == (True, False)
    assert splits.settings["averages_splits"]


def test_all_of_y_without_a_group_takes_one_pass(network, y, physics):
    spy, passes = spied(network)
    image = Inferer(SPLIT, 3, SIGMA, eval_split_input=False).image(spy, Batch(y, physics, ids=IDS))
    assert len(passes) == 1
    assert torch.equal(image, passes[0][3])


def test_heldout_measurements_do_not_reach_the_reconstruction_they_score(physics, y):
    class Leak(torch.nn.Module):
        def forward(self, y, physics):
            assert (y[physics.mask.expand_as(y) == 0] == 0).all()
            return physics.A_adjoint(y)

    found = Inferer(SPLIT, 4, 0.0)(Leak(), Batch(y, physics, ids=IDS))
    torch.testing.assert_close(found.heldout, torch.ones(4))  # zero-filled images know nothing of the rest


def test_one_pass_has_no_spread(network, y, physics):
    assert (Inferer(SPLIT, 1)(network, Batch(y, physics, ids=IDS)).spread == 0).all()


def test_no_gradients_are_kept(network, y, physics):
    assert not modes()["random g"](network, Batch(y, physics, ids=IDS)).image.requires_grad


def test_number_of_samples_must_be_positive(unchecked):
    for n in (0, 2.5):
        with pytest.raises(ValueError, match=f"n_samples must be a whole number, at least 1, got {n}"):
            Inferer(SPLIT, n)
    for value in (None, "false", 1):
        with pytest.raises(ValueError, match="eval_split_input must be true or false, got"):
            Inferer(SPLIT, 1, eval_split_input=value)
    with pytest.raises(ValueError, match="sigma and sigma_factor must be >= 0 and alpha > 0, got -1"):
        Inferer(SPLIT, 1, sigma=-1.0)


def test_noise_level_of_the_data_is_used_where_the_inferer_has_none(network, y, physics):
    sigma = torch.tensor([0.1, 0.2, 0.3, 0.4])
    given = Inferer(SPLIT, 2, sigma=None, sigma_factor=0.5)(network, Batch(y, physics, sigma, ids=IDS))
    for i, one in enumerate(IDS):
        alone = Inferer(SPLIT, 2, sigma=0.5 * float(sigma[i]))(network, Batch(y[i : i + 1], physics, ids=[one]))
        torch.testing.assert_close(given.image[i : i + 1], alone.image)
    with pytest.raises(ValueError, match="no noise level"):
        Inferer(SPLIT, 2, sigma=None)(network, Batch(y, physics, ids=IDS))


@mode
def test_image_alone_is_that_of_the_call_in_no_more_passes(network, y, physics, mode):
    inferer = modes()[mode]
    (spy, whole), (other, alone) = spied(network), spied(network)
    assert torch.equal(inferer.image(other, Batch(y, physics, ids=IDS)), inferer(spy, Batch(y, physics, ids=IDS)).image)
    assert len(alone) == (len(whole) if inferer.averages_splits else 8)
