"""Resuming goes on exactly where training stopped; the best weights are never lost; other networks are refused."""

import logging
import os
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tiny import Parts, names

from es_medical.data import read_header
from es_medical.engine import checkpoint as checkpoint_module
from es_medical.engine.checkpoint import (
    BEST,
    LAST,
    MODEL,
    Checkpoints,
    load_weights,
    random_states,
    read_preparation,
    set_random_states,
)
from es_medical.engine.distributed import parallel, stop
from es_medical.engine.weights.averaging import in_use
from es_medical.engine.weights.state_file import write_state
from es_medical.physics import Batch


def step_scheduler(parts):
    parts.trainer.add_event_handler("EPOCH_COMPLETED", lambda: parts.scheduler.step())  # noqa: PLW0108 - ignite would hand over itself


def train(data_file, folder, epochs, resume=False, **options):
    """Train and keep the last state, as a session does; returns the parts and the learning rate of each epoch."""
    parts = Parts(data_file, epochs=epochs, **options)
    checkpoints, rates = resumed(parts, folder) if resume else parts.checkpoints(folder), []
    parts.trainer.add_event_handler("EPOCH_STARTED", lambda: rates.append(parts.optimizer.param_groups[0]["lr"]))
    step_scheduler(parts)
    parts.trainer.run()
    checkpoints.save_last(parts.trainer, "run")
    return parts, rates


def resumed(parts, folder):
    """Resume a training from what is in a folder; returns its checkpoints."""
    checkpoints = parts.checkpoints(folder)
    checkpoints.resume(checkpoints.read_last(), parts.trainer)
    return checkpoints


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


SOONER = {"schedule": "cosine", "warmup": 5, "planned": 4, "ema": 0.9}


def shown(parts):
    """The weights that are scored and kept."""
    with in_use(parts.average):
        return {name: value.clone() for name, value in parts.network.state_dict().items()}


@pytest.mark.parametrize("options", [{}, SOONER, {"num_workers": 2}])
def test_two_and_two_epochs_equal_four_bit_by_bit(data_file, tmp_path, options):
    """Two steps an epoch: a stop in the middle of the warm-up, where there is one."""
    straight, rates = train(data_file, tmp_path / "a", 4, **options)
    _, first = train(data_file, tmp_path / "b", 2, **options)
    random.seed(99), np.random.seed(99), torch.manual_seed(99)  # noqa: NPY002 - another process
    again, second = train(data_file, tmp_path / "b", 4, resume=True, seed=0, **options)
    assert first + second == rates
    for name in ("network", "optimizer", "scheduler"):
        assert same(getattr(straight, name).state_dict(), getattr(again, name).state_dict())
    assert torch.equal(straight.trainer.generator.get_state(), again.trainer.generator.get_state())
    assert (again.trainer.state.epoch, again.trainer.state.iteration) == (4, 8)
    assert same(*(torch.load(tmp_path / name / LAST)["average"] for name in "ab"))
    assert same(shown(straight), shown(again))
    assert same(shown(straight), straight.network.state_dict()) == ("ema" not in options)


def test_the_rate_is_known_when_a_warm_up_is_resumed(data_file, tmp_path, caplog):
    train(data_file, tmp_path, 2, **SOONER)
    with caplog.at_level(logging.INFO, "es_medical"):
        resumed(Parts(data_file, **SOONER), tmp_path)
    (message,) = (record.message for record in caplog.records if "resumed" in record.message)
    assert message.startswith("resumed after epoch 2, learning rate 0.00206")  # 0.01 x 4 / 5 x 0.2575
    assert "it was" not in message


@pytest.mark.parametrize("before", [None, 0.5])
def test_average_may_begin_and_end_with_a_resumed_training(data_file, tmp_path, before):
    """Begun, it is of the weights from there on; ended, the weights are used themselves."""
    earlier, _ = train(data_file, tmp_path, 1, ema=before)
    parts = Parts(data_file, seed=3, ema=0.5 if before is None else None)
    resumed(parts, tmp_path)
    assert same(shown(parts), earlier.network.state_dict())


def test_best_weights_and_the_exported_denoiser_are_the_average(data_file, tmp_path):
    parts, _ = train(data_file, tmp_path, 2, ema=0.9)
    with in_use(parts.average):
        parts.checkpoints(tmp_path).save_best(1.0, 2)
        denoiser = {name: value.clone() for name, value in parts.denoiser.state_dict().items()}
    assert same(torch.load(tmp_path / BEST)["reconstructor"], shown(parts))
    assert same(dict(torch.load(tmp_path / MODEL)), denoiser)
    assert not same(torch.load(tmp_path / BEST)["reconstructor"], torch.load(tmp_path / LAST)["reconstructor"])


def test_a_comparison_that_cannot_fail_is_none(data_file, tmp_path):
    straight, _ = train(data_file, tmp_path / "a", 4)
    train(data_file, tmp_path / "b", 2)
    path = tmp_path / "b" / LAST
    state = torch.load(path)
    state["random"][0]["training"] = torch.Generator().manual_seed(5).get_state()
    torch.save(state, path)
    again, _ = train(data_file, tmp_path / "b", 4, resume=True)
    assert not same(straight.network.state_dict(), again.network.state_dict())


def test_resuming_with_another_learning_rate_uses_it(data_file, tmp_path, caplog):
    train(data_file, tmp_path, 2, lr=0.01, milestones=(1,))
    with caplog.at_level(logging.INFO, "es_medical"):
        parts, rates = train(data_file, tmp_path, 4, resume=True, lr=0.1, milestones=(1, 3))
    assert rates == pytest.approx([0.03, 0.009])
    assert parts.scheduler.get_last_lr() == pytest.approx([0.009])
    assert "resumed after epoch 2, learning rate 0.03 (it was 0.003)" in caplog.text


def test_resuming_keeps_the_moments_of_the_optimizer(data_file, tmp_path):
    before, _ = train(data_file, tmp_path, 2)
    parts = Parts(data_file, lr=0.5)
    resumed(parts, tmp_path)
    assert same(parts.optimizer.state_dict()["state"], before.optimizer.state_dict()["state"])
    assert parts.optimizer.param_groups[0]["weight_decay"] == 1e-8


def test_resuming_with_another_batch_size_takes_whole_epochs(data_file, tmp_path, caplog):
    train(data_file, tmp_path, 2, batch_size=2)
    with caplog.at_level(logging.WARNING, "es_medical"):
        parts = Parts(data_file, epochs=3, batch_size=4)
        resumed(parts, tmp_path)
        seen = []
        parts.trainer.add_event_handler("ITERATION_COMPLETED", lambda engine: seen.append(engine.state.epoch))
        parts.trainer.run()
    assert seen == [3]  # not from epoch 1 again
    assert "steps of an epoch have changed" in caplog.text


def test_a_worse_epoch_after_resuming_leaves_the_best_weights(data_file, tmp_path):
    parts = Parts(data_file)
    checkpoints = parts.checkpoints(tmp_path)
    assert checkpoints.save_best(-0.2, 1)
    checkpoints.save_last(parts.trainer, "run")
    kept = (tmp_path / BEST).read_bytes(), (tmp_path / MODEL).read_bytes()
    later = Parts(data_file, seed=1)
    checkpoints = resumed(later, tmp_path)
    assert (checkpoints.best_score, checkpoints.best_epoch) == (-0.2, 1)
    assert not checkpoints.save_best(-0.3, 3)
    assert not checkpoints.save_best(float("nan"), 4)
    assert not checkpoints.save_best(float("inf"), 5)
    assert ((tmp_path / BEST).read_bytes(), (tmp_path / MODEL).read_bytes()) == kept
    assert checkpoints.save_best(-0.1, 6)
    assert torch.load(tmp_path / BEST)["epoch"] == 6


def test_best_weights_come_back(data_file, tmp_path):
    parts = Parts(data_file)
    checkpoints = parts.checkpoints(tmp_path)
    checkpoints.save_best(1.0, 7)
    kept = {name: value.clone() for name, value in parts.network.state_dict().items()}
    parts.trainer.run()
    assert not same(parts.network.state_dict(), kept)
    assert checkpoints.load_best() == 7
    assert same(parts.network.state_dict(), kept)


def test_model_file_is_the_plain_denoiser(data_file, tmp_path):
    parts = Parts(data_file, channels_last=True)
    parts.checkpoints(tmp_path).save_best(1.0, 1)
    Parts(data_file, seed=5).denoiser.load_state_dict(torch.load(tmp_path / MODEL, weights_only=True))


@pytest.mark.parametrize("written", [True, False])
def test_accelerated_and_plain_networks_share_checkpoints(data_file, tmp_path, written):
    """What a GPU wrote (channels-last, wrapped denoiser) a CPU reads, and the other way round; training resumes too."""
    source, target = Parts(data_file, channels_last=written), Parts(data_file, channels_last=not written, seed=1)
    source.trainer.run()
    source.checkpoints(tmp_path).save_best(1.0, 1)
    source.checkpoints(tmp_path).save_last(source.trainer, "run")
    load_weights(tmp_path, target.network, target.physics, target.inferer)
    y = next(iter(source.loader("test")))["measurement"]
    results = [one.inferer(one.network.eval(), Batch(y, one.physics, ids=["a", "b"])).image for one in (source, target)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    again = Parts(data_file, epochs=3, channels_last=not written)
    resumed(again, tmp_path)
    again.trainer.run()
    assert again.trainer.state.epoch == 3


def test_parallel_wrapper_leaves_no_trace_in_checkpoints(data_file, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", world_size=1, rank=0)
    try:
        parts = Parts(data_file)
        parts.network = parallel(parts.network, "cpu")
        parts.checkpoints(tmp_path).save_best(1.0, 1)
        parts.checkpoints(tmp_path).save_last(parts.trainer, "run")
    finally:
        stop()
    assert resumed(Parts(data_file, seed=1), tmp_path).load_best() == 1


def test_interrupted_write_leaves_the_old_file(data_file, tmp_path, monkeypatch):
    parts = Parts(data_file)
    checkpoints = parts.checkpoints(tmp_path)
    checkpoints.save_last(parts.trainer, "first")

    def half(state, file):
        file.write(b"PK half a file")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space"):
        checkpoints.save_last(parts.trainer, "second")
    assert checkpoints.read_last()["run_id"] == "first"
    monkeypatch.undo()
    checkpoints.save_last(parts.trainer, "third")
    assert checkpoints.read_last()["run_id"] == "third"
    assert names(tmp_path) == {LAST}


def test_only_the_first_process_writes(data_file, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "rank", lambda: 1)
    parts = Parts(data_file)
    checkpoints = parts.checkpoints(tmp_path)
    assert checkpoints.save_best(1.0, 1)  # it remembers the score all the same
    checkpoints.save_last(parts.trainer, "run")
    assert names(tmp_path) == set()


def test_nothing_to_resume_or_to_load_says_what_to_do(data_file, tmp_path):
    checkpoints = Parts(data_file).checkpoints(tmp_path)
    with pytest.raises(FileNotFoundError, match="leave out --resume"):
        checkpoints.read_last()
    with pytest.raises(FileNotFoundError, match="train first, or set ckpt_dir"):
        checkpoints.load_best()


def test_random_states_come_back(tmp_path):
    generator = torch.Generator().manual_seed(3)
    torch.save(random_states(generator), tmp_path / "states.pt")

    def draw():
        numbers = [random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())]  # noqa: NPY002
        return [*numbers, float(torch.rand(1)), float(torch.rand(1, generator=generator))]

    first = draw()
    draw()
    set_random_states(torch.load(tmp_path / "states.pt", weights_only=True), generator)
    assert draw() == first


def test_another_key_metric_chooses_the_best_anew(data_file, tmp_path):
    """A score in decibels must never be compared with a held-out error."""
    parts = Parts(data_file)
    checkpoints = parts.checkpoints(tmp_path)
    checkpoints.save_best(18.4, 2)
    checkpoints.save_last(parts.trainer, "run", {"method": "es", "key_metric": "psnr"})
    later = parts.checkpoints(tmp_path)
    later.resume(later.read_last(), parts.trainer, {"method": "es", "key_metric": "heldout"})
    assert later.save_best(-0.9, 3)


def test_weights_of_another_training_in_the_same_folder_are_refused(data_file, tmp_path):
    first, second = (Parts(data_file).checkpoints(tmp_path) for _ in range(2))
    first.save_best(1.0, 1)
    second.save_best(0.5, 1)
    with pytest.raises(RuntimeError, match="another training has written to .* its own ckpt_dir"):
        first.load_best()
    assert second.load_best() == 1


def test_how_the_data_was_made_is_kept_with_the_weights(data_file, tmp_path):
    parts = Parts(data_file)
    checkpoints = Checkpoints(
        tmp_path, parts.network, parts.denoiser, parts.physics, parts.inferer, parts.scheduler, data_file=data_file
    )
    checkpoints.save_best(1.0, 1)
    kept, header = read_preparation(tmp_path), read_header(data_file)
    assert kept["measured"] == header.mask.tolist()
    assert (kept["acceleration"], kept["center_fraction"]) == (header.acceleration, header.center_fraction)
    with pytest.raises(FileNotFoundError, match="train first"):
        read_preparation(tmp_path / "nowhere")


def test_weights_are_on_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    path, synced = tmp_path / "weights.pt", list[tuple[int, bool]]()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, path.exists())))
    write_state({"x": torch.zeros(3)}, path)
    assert synced == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
