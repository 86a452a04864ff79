"""Training in several processes, one device each: started by torchrun, on GPUs (nccl) or CPUs (gloo).

Why not `ignite.distributed`, which MONAI installs: under SLURM its `initialize` refuses torchrun with several processes on
each of two nodes (it compares RANK and WORLD_SIZE with SLURM's tasks), and its `finalize` replaces the environment of the
process. Its `auto_model` puts a network on all GPUs of one process (DataParallel) and fails for a network without
parameters. The rest (rank, size, barrier, gather) takes one line each here, and keeps no state that outlives the group.

Why not torch's `DistributedDataParallel`: unsure uses its noise level outside the network and leaves it unused in a warm
start, and with unused parameters it fails in a loss of two passes ("Expected to mark a variable ready only once"). What it
is fast by, sending gradients during the backward pass, an unrolled network can hardly use: its iterations share their
weights, so that gradients are complete at the end of that pass.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import BatchSampler, Dataset, DistributedSampler

from es_medical.types import Part

logger = logging.getLogger(__name__)


def start() -> None:
    """Join the process group that torchrun describes; do nothing for a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(local_device())
        if rank() > 0:
            logging.getLogger("es_medical").setLevel(logging.WARNING)  # only the first process logs
        elif _stale_after_restart():
            logger.warning(
                "a restart can fail, because torchrun keeps the addresses of lost processes: "
                "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun"
            )


def _stale_after_restart() -> bool:
    """Whether torchrun would start processes again with a store that has the addresses of those before (torch 2.14)."""
    given = os.environ.get
    return given("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and given("TORCHELASTIC_USE_AGENT_STORE") == "True"


def stop() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device() -> torch.device:
    """Return the device of this process: its own GPU, else the CPU."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")


def rank() -> int:
    """Return the rank of this process; rank 0 tracks and writes files."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def parallel(network: nn.Module, device: torch.device | str | None = None) -> nn.Module:
    """Return a network after giving it the weights and buffers of the first process, if there are several.

    `device` is not used; the bundles of version 0.1 give it.
    """
    if dist.is_initialized():
        for tensor in (*network.parameters(), *network.buffers()):
            dist.broadcast(tensor.detach(), 0)
    return network


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients over the processes, in one message; do nothing for a single process."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if dist.is_initialized() and gradients:
        means = mean_over_processes(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, mean in zip(gradients, means.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def own_part(n: int) -> Part:
    """Return the share of this process in a batch of n items, of which each process has as many, up to one."""
    return Part(0, n, n).divided(rank(), world_size())


def mean_over_processes(values: Tensor) -> Tensor:
    """Average a tensor over the processes; every process gets the result."""
    if dist.is_initialized():
        values = values.clone()
        dist.all_reduce(values)
        values /= dist.get_world_size()
    return values


class SharedBatches(BatchSampler):
    """Batches of a training, of which each process takes its share: `batch_size` is that of all processes together.

    The items of an epoch are shuffled by (seed, epoch), whatever the number of processes, and each is taken once. A process
    that a batch has no item for takes the first one; it counts for nothing (see `part`).
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int) -> None:
        super().__init__(DistributedSampler(dataset, 1, 0, shuffle=True, seed=seed), batch_size, drop_last=False)
        if batch_size < world_size():
            logger.warning("batches of %d leave some of %d processes idle: give a larger batch_size", batch_size, world_size())

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the numbers of the items that this process takes from each batch."""
        for batch in super().__iter__():
            own = own_part(len(batch))
            yield batch[own.first : own.last] or batch[:1]

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, by which the items are shuffled."""
        self.sampler.set_epoch(epoch)  # type: ignore[union-attr]  # a DistributedSampler

    def part(self, step: int) -> Part:
        """Return the part of this process in the batch of a step, counted from 0 over all epochs."""
        left = len(self.sampler) - step % len(self) * self.batch_size  # type: ignore[arg-type]  # the sampler has a length
        return own_part(min(left, self.batch_size))


def wait() -> None:
    """Wait until every process arrives here: all can then read what the first one wrote."""
    if dist.is_initialized():
        dist.barrier()


def gather(values: list[Any]) -> list[Any]:
    """Concatenate the lists of all processes, in order of rank; every process gets the result."""
    if not dist.is_initialized():
        return values
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return [value for part in parts for value in part]
