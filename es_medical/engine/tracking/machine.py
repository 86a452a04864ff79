"""Load of the machine under the names of MLflow's own system metrics (`system/...`)."""

import time
from contextlib import suppress
from typing import Any


class MachineMonitor:
    """Reads CPU, memory, disk, network and GPU with MLflow's sensors, without its thread, which needs a live server.

    Args:
        interval: Seconds between two readings.
    """

    def __init__(self, interval: float) -> None:
        self._interval, self._next, self._step = interval, 0.0, 0
        self._sensors: list[Any] | None = None

    def read(self) -> tuple[dict[str, float], int] | None:
        """The readings and their running number; None when the interval is not over yet."""
        if time.monotonic() < self._next:
            return None
        self._sensors = self._sensors or _sensors()
        values: dict[str, float] = {}
        for sensor in self._sensors:
            sensor.collect_metrics()
            values |= {f"system/{name}": value for name, value in sensor.aggregate_metrics().items()}
            sensor.clear_metrics()
        self._next, self._step = time.monotonic() + self._interval, self._step + 1
        return values | _cuda_memory(), self._step - 1


def _sensors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    sensors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with suppress(ImportError, RuntimeError):  # no GPU, or the package nvidia-ml-py is not there
        sensors.append(GPUMonitor())
    return sensors


def _cuda_memory() -> dict[str, float]:
    """Memory that this process has reserved on each GPU in use, in MB: needs no further package."""
    import torch

    if not torch.cuda.is_initialized():
        return {}
    devices = range(torch.cuda.device_count())
    return {f"system/gpu_{i}_reserved_megabytes": torch.cuda.memory_reserved(i) / 1e6 for i in devices}
