"""Training in several processes, one device each: started by torchrun, on GPUs (nccl) or CPUs (gloo).

Why not `ignite.distributed`, which MONAI installs: under SLURM its `initialize` refuses torchrun with several processes on
each of two nodes (it compares RANK and WORLD_SIZE with SLURM's tasks), and its `finalize` replaces the environment of the
process. Its `auto_model` puts a network on all GPUs of one process (DataParallel) and fails for a network without
parameters. The rest (rank, size, barrier, gather) takes one line each here, and keeps no state that outlives the group.
"""

import logging
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from es_medical.losses.unsure import has_multiplier


def start() -> None:
    """Join the process group that torchrun describes; do nothing for a single process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if torch.cuda.is_available():
            torch.cuda.set_device(local_device())
        if rank() > 0:
            logging.getLogger("es_medical").setLevel(logging.WARNING)  # only the first process logs


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


def parallel(network: nn.Module, device: torch.device | str) -> nn.Module:
    """Wrap a network so that its gradients are averaged over the processes, if there are several.

    The noise level that unsure learns has no gradient in a warm start, which has another loss.
    """
    if not dist.is_initialized() or not any(True for _ in network.parameters()):  # nothing to average
        return network
    devices, unused = [device] if torch.device(device).type == "cuda" else None, has_multiplier(network)
    return DistributedDataParallel(network, device_ids=devices, find_unused_parameters=unused)


def unwrapped(network: nn.Module) -> nn.Module:
    """Return the network inside a parallel wrapper, for evaluation and checkpoints."""
    return network.module if isinstance(network, DistributedDataParallel) else network


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
