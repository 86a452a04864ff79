"""`two_processes.py FOLDER URI`: two processes train TRAININGS, one after another; the second one is killed once.

torchrun forks them from this process, which has imported everything: each start of Python would take ten seconds.
"""

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest  # noqa: E402
from ignite.engine import Events  # noqa: E402
from mlflow.utils import requirements_utils  # noqa: E402
from tiny import shorten, workflow  # noqa: E402
from torch.distributed.run import main as torchrun  # noqa: E402

import es_medical.jobs.training  # noqa: E402, F401
from es_medical.engine.distributed import rank, stop  # noqa: E402
from es_medical.tracking import artifacts  # noqa: E402
from es_medical.tracking.server import import_mlflow  # noqa: E402

KILLED = "fastmri_synthetic"
WARM: dict[str, Any] = {"warm_images": 4, "warm_epochs": 1}
TRAININGS: dict[str, dict[str, Any]] = {
    KILLED: WARM | {"epochs": 3, "ema": 0.9, "warmup": 3, "n_splits": 2, "batch_size": 1, "accumulate": 2, "val_interval": 3},
    "mnist_cs": WARM | {"epochs": 1, "method": "unsure"},
    "fastmri_real": {"epochs": 1, "method": "ei_alternating"},
    "lidc_ct": {"epochs": 1, "method": "sure"},
}
"""Knobs by bundle: losses of one pass, of two and of three, a warm start, and all that a step has."""


def training(folder: Path, uri: str, bundle: str, *overlays: str):
    knobs = TRAININGS[bundle] | {"experiment": f"{folder.name}-{bundle}", "logging_file": False}
    return workflow(["train.yaml", *overlays], folder / bundle, folder / f"{bundle}.h5", uri, bundle, **knobs)


def main(folder: Path, uri: str) -> None:
    for bundle in TRAININGS:
        one = training(folder, uri, bundle, "multi_gpu_train.yaml")
        one.initialize()
        if (bundle, rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]) == (KILLED, 1, "0"):
            trainer = one.parser.get_parsed_content("train#trainer")
            dies = Events.ITERATION_COMPLETED(once=trainer.state.epoch_length + 1)  # of the second epoch
            trainer.add_event_handler(dies, lambda: os.kill(os.getpid(), signal.SIGKILL))
        one.run()
    stop()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(Path(sys.argv[1]), sys.argv[2])
    else:
        import_mlflow()
        shorten(pytest.MonkeyPatch())  # as in conftest.py, for the same reasons
        artifacts.EXPORT = False
        requirements_utils._init_packages_to_modules_map = functools.cache(requirements_utils._init_packages_to_modules_map)
        launch = "--standalone --nproc_per_node=2 --max-restarts=1 --run-path --start-method=fork"
        torchrun([*launch.split(), str(Path(__file__).resolve()), *sys.argv[1:]])
