"""The training engine: stops on NaN by name, never looks at ground truth it does not need, draws its own numbers."""

import inspect
from contextlib import nullcontext
from multiprocessing import active_children
from os import sep

import pytest
import torch
from ignite.engine import Events
from tiny import Parts, causes, write_slices

from es_medical.engine import trainer as trainer_module


def weights(parts):
    return torch.cat([p.detach().flatten() for p in parts.network.parameters()])


def trained(data_file, **options):
    parts = Parts(data_file, **options)
    parts.trainer.run()
    return parts


def test_training_changes_the_weights_and_counts_epochs(data_file):
    parts = Parts(data_file)
    before = weights(parts)
    parts.trainer.run()
    assert not torch.equal(weights(parts), before)
    assert (parts.trainer.state.epoch, parts.trainer.state.iteration) == (2, 4)
    assert {"loss", "consistency", "prediction", "grad_norm"} == set(parts.trainer.state.output)
    assert all(not value.requires_grad for value in parts.trainer.state.output.values())


def test_same_seed_same_weights(data_file):
    first, again, other = (weights(trained(data_file, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("row", [0, 3])
def test_nan_slice_stops_with_the_names_of_the_batch_and_the_file(tmp_path, row):
    data_file = write_slices(tmp_path / "broken.h5", poison={row: "measurement"})
    parts = Parts(data_file)
    with pytest.raises(FloatingPointError) as caught:
        parts.trainer.run()
    message = str(caught.value)
    assert f"item{row}" in message
    assert str(data_file) in message
    assert "epoch 1" in message
    assert parts.trainer.state.epoch == 1
    assert weights(parts).isfinite().all()


def test_nan_names_the_step_that_caused_it_though_it_is_seen_later(tmp_path):
    """On a GPU the loss is looked at every few steps; the message is about the first bad one."""
    parts = Parts(write_slices(tmp_path / "broken.h5", splits={"train": 6, "val": 1, "test": 1}, poison={2: "measurement"}))
    parts.trainer.check_interval = 10
    seen = []
    parts.trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(list(engine.state.batch["id"])))
    with pytest.raises(FloatingPointError, match="not finite at iteration") as caught:
        parts.trainer.run()
    assert len(seen) == 3  # seen at the end of the epoch, before anything is saved
    bad = next(i for i, batch in enumerate(seen) if "item2" in batch)
    assert f"iteration {bad + 1} " in str(caught.value)
    assert all(key in str(caught.value) for key in seen[bad])


def test_nan_check_comes_before_handlers_that_save(tmp_path):
    parts = Parts(write_slices(tmp_path / "broken.h5", poison={1: "measurement"}))
    parts.trainer.check_interval = 10
    saved = []
    parts.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: saved.append(1))
    with pytest.raises(FloatingPointError):
        parts.trainer.run()
    assert not saved


@pytest.mark.parametrize("method", ["es", "mc"])
def test_training_without_ground_truth_never_reads_an_image(data_file, tmp_path, method):
    everywhere = dict.fromkeys(range(9), "image")
    poisoned = write_slices(tmp_path / "poisoned.h5", poison=everywhere)
    absent = write_slices(tmp_path / "absent.h5", with_image=False)
    expected = weights(trained(data_file, method=method))
    assert torch.equal(weights(trained(poisoned, method=method)), expected)
    assert torch.equal(weights(trained(absent, method=method)), expected)


def test_supervised_training_needs_the_image(data_file, tmp_path):
    with pytest.raises(FloatingPointError):  # it does read them
        trained(write_slices(tmp_path / "poisoned.h5", poison=dict.fromkeys(range(9), "image")), method="supervised")
    absent = write_slices(tmp_path / "absent.h5", with_image=False)
    with pytest.raises(ValueError, match="needs ground truth") as caught:
        trained(absent, method="supervised")
    assert "KeyError" not in causes(caught.value)
    assert set(trained(data_file, method="supervised").trainer.state.output) == {"loss", "supervised", "grad_norm"}


def test_the_loss_draws_from_the_trainers_generator_alone(data_file):
    first, again = Parts(data_file), Parts(data_file)
    first.trainer.run()
    again.trainer.add_event_handler(Events.ITERATION_STARTED, lambda: torch.rand(100))
    again.trainer.run()
    assert torch.equal(weights(first), weights(again))


@pytest.mark.parametrize("poison", [{}, {1: "measurement"}])
def test_worker_processes_end_with_the_training(tmp_path, poison):
    parts = Parts(write_slices(tmp_path / "slices.h5", poison=poison), num_workers=2)
    alive = []
    parts.trainer.add_event_handler(Events.ITERATION_STARTED, lambda: alive.append(len(active_children())))
    with pytest.raises(FloatingPointError) if poison else nullcontext():
        parts.trainer.run()
    assert alive[0] == 2
    assert active_children() == []


def test_training_may_go_on_after_it_ended(data_file):
    parts = Parts(data_file, num_workers=2)
    parts.trainer.run()
    parts.trainer.state.max_epochs = 3
    parts.trainer.run()
    assert parts.trainer.state.epoch == 3


def test_gradient_is_clipped(data_file):
    parts = Parts(data_file, epochs=1)
    parts.trainer.clip = 1e-3
    norms = []
    parts.trainer.add_event_handler(
        Events.ITERATION_COMPLETED,
        lambda: norms.append(torch.cat([p.grad.flatten() for p in parts.network.parameters()]).norm()),
    )
    parts.trainer.run()
    assert all(norm <= 1e-3 * 1.001 for norm in norms)
    assert parts.trainer.state.output["grad_norm"] > 1e-3


@pytest.mark.parametrize(
    ("epochs", "clip", "message"),
    [
        (1, 0, "clip must be positive"),  # would train nothing
        (1, -1.0, "clip must be positive"),  # would turn the gradient round
        (2.5, 1.0, r"epochs must be a whole number, at least 1, got 2\.5"),
    ],
)
def test_impossible_numbers_are_refused(epochs, clip, message):
    with pytest.raises(ValueError, match=message):
        trainer_module.Trainer("cpu", epochs, None, None, None, None, None, None, clip=clip)


def test_average_and_warm_up_follow_every_step(data_file):
    parts = Parts(data_file, ema=0.5, warmup=3, milestones=())
    seen, rates = [], []

    def look():
        seen.append(weights(parts).double())
        rates.append(parts.optimizer.param_groups[0]["lr"])

    parts.trainer.add_event_handler(Events.ITERATION_COMPLETED, look)
    parts.trainer.run()
    assert rates == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01])
    expected = seen[0]
    for k, value in enumerate(seen[1:], 1):
        expected = expected + (1 - min(0.5, k / (k + 9))) * (value - expected)
    assert torch.equal(weights(parts).double(), seen[-1])
    with parts.average.applied():
        torch.testing.assert_close(weights(parts).double(), expected, rtol=1e-5, atol=1e-7)
    assert parts.average.steps == 4


def test_average_does_not_change_the_training(data_file):
    assert torch.equal(weights(trained(data_file)), weights(trained(data_file, ema=0.9)))


class Denoiser(torch.nn.Module):
    """A denoiser that keeps the names of our functions on the stack above it."""

    def __init__(self):
        super().__init__()
        self.gain, self.frames = torch.nn.Parameter(torch.ones(())), []

    def forward(self, x):
        stack = inspect.stack(context=0)
        self.frames = [frame.function for frame in stack if f"{sep}es_medical{sep}" in frame.filename][::-1]
        return self.gain * x


def test_a_training_step_reaches_the_denoiser_in_six_calls_of_ours(data_file):
    """Eight at most: what a call between trainer and denoiser is for should be plain from its name."""
    parts, denoiser = Parts(data_file), Denoiser()
    parts.network.reconstructor.denoiser = denoiser
    parts.trainer.run()
    calls = denoiser.frames[denoiser.frames.index("_iteration") :]
    assert calls == ["_iteration", "training_step", "__call__", "_reconstruct", "forward", "forward"]
