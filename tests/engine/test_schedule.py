"""Learning rates are what their formulas say, at every step, and torch's own where torch has the schedule."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import MultiStepLR

from es_medical.engine.schedule import SCHEDULES, Schedule


def optimizer(lr=0.01):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates(schedule, epochs, steps):
    """Learning rate of every step (epochs, steps), asked for as a training does."""
    found, sgd = [], schedule.optimizer
    for epoch in range(epochs):
        found.append([])
        for step in range(steps):
            schedule.warm_up(epoch * steps + step + 1)
            found[-1].append(sgd.param_groups[0]["lr"])
            sgd.step()
        schedule.step()
    return found


def test_step_schedule_is_torchs_bit_by_bit():
    theirs = MultiStepLR(optimizer(0.0007), [1, 3, 4], gamma=0.3)
    expected = []
    for _ in range(6):
        expected.append(theirs.get_last_lr()[0])
        theirs.optimizer.step()
        theirs.step()
    assert rates(Schedule(optimizer(0.0007), "step", [1, 3, 4], 0.3), 6, 2) == [[rate, rate] for rate in expected]


@pytest.mark.parametrize("epochs", [2, 5, 100])
def test_cosine_goes_from_the_rate_to_its_fraction_in_the_last_epoch(epochs):
    found = [rate for (rate,) in rates(Schedule(optimizer(), "cosine", epochs=epochs, end=0.05), epochs + 2, 1)]
    assert found[0] == 0.01
    assert found[epochs - 1 :] == pytest.approx([0.01 * 0.05] * 3, rel=1e-12)  # and stays there for who trains on
    assert all(one > other for one, other in zip(found, found[1:epochs], strict=False))


def test_cosine_is_half_way_in_the_middle():
    found = rates(Schedule(optimizer(1.0), "cosine", epochs=5, end=0.2), 5, 1)
    assert found[2][0] == pytest.approx(0.6, rel=1e-12)
    assert found[1][0] - 0.6 == pytest.approx(0.4 * math.cos(math.pi / 4), rel=1e-12)


def test_cosine_of_one_epoch_is_the_rate():
    assert rates(Schedule(optimizer(), "cosine", epochs=1), 1, 2) == [[0.01, 0.01]]


@pytest.mark.parametrize("kind", SCHEDULES)
def test_warm_up_is_linear_over_its_steps_and_leaves_the_others(kind):
    settings = {"milestones": [1, 2], "factor": 0.5, "epochs": 3}
    cold = sum(rates(Schedule(optimizer(), kind, **settings), 3, 4), [])
    warm = sum(rates(Schedule(optimizer(), kind, warmup=6, **settings), 3, 4), [])
    ramp = [min(1.0, (step + 1) / 6) for step in range(12)]  # beyond the first epoch
    assert warm == pytest.approx([rate * factor for rate, factor in zip(cold, ramp, strict=True)], rel=1e-12)
    assert warm[5:] == cold[5:]
    assert warm[0] < cold[0]


def test_rate_of_a_step_does_not_depend_on_the_way_there():
    settings = {"kind": "cosine", "epochs": 9, "warmup": 20}
    straight, jumped = (Schedule(optimizer(), **settings) for _ in range(2))
    expected = rates(straight, 4, 3)[-1][-1]
    jumped.optimizer.step()
    for _ in range(3):
        jumped.step()
    jumped.warm_up(12)
    assert jumped.optimizer.param_groups[0]["lr"] == expected
    assert jumped.get_last_lr() == [expected]


def test_every_group_keeps_its_own_rate():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.4)]
    schedule = Schedule(torch.optim.SGD(groups), warmup=4)
    schedule.warm_up(2)
    assert [group["lr"] for group in schedule.optimizer.param_groups] == pytest.approx([0.05, 0.2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "linear"}, "schedule must be one of step, cosine, got 'linear'"),
        ({"kind": "cosine", "end": 1.5}, "fraction of lr from 0 to 1, got 1.5"),
        ({"warmup": -1}, "warmup must be a whole number of steps, 0 for none, got -1"),
        ({"warmup": 2.5}, "got 2.5"),
    ],
)
def test_what_makes_no_schedule_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Schedule(optimizer(), **settings)
