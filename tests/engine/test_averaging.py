"""The average of the weights is the recursion of its formula; using it leaves no trace in the training."""

import copy

import pytest
import torch
from torch import nn

from es_medical.engine.setup import build_average
from es_medical.engine.weights.averaging import WeightAverage, in_use
from es_medical.networks import Accelerated, Penalised, unet


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def move(one, seed):
    """Take a step of a training: other weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def values(one):
    return [parameter.detach().clone() for parameter in one.parameters()]


def averaged(average):
    with average.applied():
        return values(average.network)


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def after(steps, decay=0.9, seed=0):
    one = network(seed)
    average = WeightAverage(one, decay)
    for step in range(steps):
        move(one, step)
        average.update()
    return average


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_average_is_the_recursion_of_the_docstring(decay):
    one = network()
    average, expected = WeightAverage(one, decay), None
    for k in range(30):
        move(one, k)
        average.update()
        d = min(decay, k / (k + 9))
        now = [value.double() for value in values(one)]
        expected = now if expected is None else [d * e + (1 - d) * n for e, n in zip(expected, now, strict=True)]
    for found, wanted in zip(averaged(average), expected, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_random_initial_weights_are_not_in_the_average():
    average = WeightAverage(one := network(), 0.999)
    move(one, 0)
    average.update()
    assert equal(averaged(average), values(one))


def test_average_of_a_walk_is_nearer_its_mean_than_its_end():
    """What it is for: noise of the steps goes, here around fixed weights."""
    one = network()
    centre, average = values(one), WeightAverage(one, 0.99)
    for step in range(300):
        with torch.no_grad():
            for parameter, value in zip(one.parameters(), centre, strict=True):
                parameter.copy_(value)
        move(one, step)
        average.update()

    def distance(weights):
        return sum((a - b).square().sum() for a, b in zip(weights, centre, strict=True)).sqrt()

    assert distance(averaged(average)) < 0.2 * distance(values(one))  # about sqrt(1 / 60) of it: 30 steps count at the end


def test_weights_come_back_bit_by_bit_also_after_an_error():
    average = after(5)
    before = values(average.network)
    with average.applied():
        assert not equal(values(average.network), before)
    assert equal(values(average.network), before)
    with pytest.raises(KeyError), average.applied():
        raise KeyError
    assert equal(values(average.network), before)


def test_parameters_stay_the_same_objects():
    """An optimiser, a parallel wrapper and compiled code hold them."""
    average = after(2)
    before = [id(parameter) for parameter in average.network.parameters()]
    with average.applied():
        inside = [id(parameter) for parameter in average.network.parameters()]
    assert before == inside == [id(parameter) for parameter in average.network.parameters()]


def test_without_an_update_nothing_is_put_in_place():
    """A weight that is chosen, not trained, must not be undone."""
    chosen = Penalised(0.01)
    average = WeightAverage(chosen, 0.9)
    chosen.set_weight(3.0)
    with average.applied():
        assert chosen.weight == pytest.approx(3.0)
        chosen.set_weight(0.5)
    assert chosen.weight == pytest.approx(0.5)


def test_saved_and_loaded_average_goes_on_bit_by_bit(tmp_path):
    straight, stopped = after(8), after(4)
    torch.save(stopped.state_dict(), tmp_path / "average.pt")
    one = network(seed=7)
    one.load_state_dict(stopped.network.state_dict())
    weights = values(one)
    resumed = WeightAverage(one, 0.9)
    resumed.load_state_dict(torch.load(tmp_path / "average.pt", weights_only=True))
    assert equal(values(one), weights)
    for step in range(4, 8):
        move(one, step)
        resumed.update()
    assert equal(averaged(resumed), averaged(straight))
    assert resumed.steps == straight.steps == 8


def test_state_is_the_average_not_a_view_of_the_weights():
    average = after(3)
    state = average.state_dict()
    kept = copy.deepcopy(state["weights"])
    move(average.network, 9)
    assert equal(state["weights"].values(), kept.values())
    assert not torch.equal(state["weights"]["0.weight"], average.network.state_dict()["0.weight"])


def test_average_of_an_accelerated_denoiser_has_the_names_of_the_plain_one():
    plain, fast = unet(2, (4, 8)), Accelerated(copy.deepcopy(unet(2, (4, 8))), autocast=False)
    state = WeightAverage(fast, 0.9).state_dict()
    WeightAverage(plain, 0.9).load_state_dict(state)
    assert state["weights"].keys() == plain.state_dict().keys()


def test_compiled_denoiser_reads_the_average():
    """Its code is made once, from the weights' places."""
    denoiser = nn.Conv2d(2, 2, 3, padding=1)
    fast = Accelerated(denoiser, autocast=False, channels_last=True)
    denoiser.compile(dynamic=False, backend="eager")
    average, x = WeightAverage(fast, 0.9), torch.rand(1, 2, 8, 8)
    fast(x)
    for step in range(3):
        move(fast, step)
        average.update()
    with average.applied():
        found = fast(x)
        torch.testing.assert_close(found, torch.nn.functional.conv2d(x, denoiser.weight, denoiser.bias, padding=1))
    assert not torch.allclose(found, fast(x))


def test_nothing_is_read_back_while_training():
    """Meta tensors have no values: to read one is an error, as it is a wait on a GPU."""
    average = WeightAverage(network().to("meta"), 0.9)
    for _ in range(3):
        average.update()
    assert average.steps == 3


def test_without_a_decay_there_is_no_average():
    assert build_average(network(), None) is None
    with in_use(None):
        pass
    assert build_average(network(), "0.99").decay == 0.99


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, 99.9])
def test_decay_lies_between_0_and_1(decay):
    with pytest.raises(ValueError, match=r"ema must be between 0 and 1, or null .*, got"):
        WeightAverage(network(), decay)
