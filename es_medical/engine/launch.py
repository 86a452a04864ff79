"""Go on by itself after torchrun has started the processes again, because one was lost (`torchrun --max-restarts=3`)."""

import json
import logging
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from es_medical.data.atomic import whole_or_not
from es_medical.engine.distributed import gather, rank
from es_medical.tracking import Tracker

logger = logging.getLogger(__name__)

FILE = "launch.json"
"""In the `models` folder while a training that torchrun has launched is not finished."""
HOPELESS = (ValueError, ImportError, FloatingPointError, FileNotFoundError, PermissionError)
"""Errors that would come again after a restart."""


def launch() -> str | None:
    """Return the name of the launch by torchrun, the same after each restart; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name != "none":  # torchrun's default for --rdzv-id
        return name
    agent = psutil.Process(os.getppid())
    return f"{socket.gethostname()} {agent.pid} {agent.create_time()}"


def restarted(folder: Path) -> dict[str, Any]:
    """Return what `keep` wrote in an earlier start of this launch, the same in every process; empty at its first start."""
    found: dict[str, Any] = {}
    if rank() == 0 and launch() is not None and (folder / FILE).is_file():
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return gather([found if found.get("launch") == launch() else {}])[0]


def keep(folder: Path, key: str, tracker: Tracker, before: Mapping[str, Any], epoch: int) -> None:
    """Write down which training this launch does, by the key of its checkpoints and its MLflow run; say if it is a restart.

    Args:
        folder: the `models` folder.
        key: of the training's checkpoints.
        tracker: of its run; gets the tag `restarts`.
        before: what `restarted` returned.
        epoch: the epoch that the training goes on after.
    """
    restarts = before.get("starts", 0)
    if rank() == 0 and launch() is not None:
        folder.mkdir(parents=True, exist_ok=True)
        values = {"launch": launch(), "key": key, "run_id": tracker.resume_id, "starts": restarts + 1}
        with whole_or_not(folder / FILE) as part:
            part.write_text(json.dumps(values), encoding="utf-8")
    if restarts and rank() == 0:
        logger.warning("a process was lost: restart %d, the training goes on after epoch %d", restarts, epoch)
        tracker.set_tags({"restarts": str(restarts)})


def end(folder: Path) -> None:
    """Forget the launch: its training is finished."""
    if rank() == 0:
        (folder / FILE).unlink(missing_ok=True)


def refuse_restart(error: BaseException) -> None:
    """Stop torchrun, which would start the processes again, after an error that a restart does not help."""
    if isinstance(error, HOPELESS) and "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") == "0":
        os.kill(os.getppid(), signal.SIGTERM)
