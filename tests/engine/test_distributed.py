"""One process behaves as if there were no process group; a group is joined as torchrun describes it."""

import logging

import pytest
import torch
import torch.distributed as dist

from es_medical.engine import distributed


@pytest.fixture
def group_of_one(tmp_path):
    """A process group with this process alone, on the CPU."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", world_size=1, rank=0)
    yield
    distributed.stop()


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    distributed.start()
    assert not dist.is_initialized()
    assert (distributed.rank(), distributed.world_size()) == (0, 1)
    assert distributed.gather([1, "a"]) == [1, "a"]
    distributed.wait()
    distributed.stop()


def test_in_a_group_gradients_are_averaged_and_the_network_stays_itself(group_of_one):
    network = torch.nn.Linear(2, 2)
    assert distributed.parallel(network) is network
    network(torch.ones(1, 2)).sum().backward()
    before = [p.grad.clone() for p in network.parameters()]
    distributed.average_gradients(network.parameters())
    assert all(torch.equal(p.grad, old) for p, old in zip(network.parameters(), before, strict=True))
    assert distributed.gather([torch.ones(2)])[0].tolist() == [1, 1]
    assert float(distributed.mean_over_processes(torch.tensor(3.0))) == 3


def test_start_joins_the_group_of_torchrun_once(monkeypatch):
    asked = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "init_process_group", asked.append)
    monkeypatch.setattr(dist, "is_initialized", lambda: bool(asked))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    logger = logging.getLogger("es_medical")
    level = logger.level
    try:
        distributed.start()
        distributed.start()
        assert asked == ["gloo"]
        assert not logger.isEnabledFor(logging.INFO)  # the first process speaks for all
    finally:
        logger.setLevel(level)


@pytest.mark.parametrize(("gpus", "device"), [(True, torch.device("cuda", 3)), (False, torch.device("cpu"))])
def test_each_process_takes_its_own_gpu_or_the_cpu_where_there_is_none(monkeypatch, gpus, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert distributed.local_device() == device
