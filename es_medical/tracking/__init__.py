"""Tracking with MLflow that never stops or slows training.

`python -m es_medical.tracking send SPOOL --uri URI` sends what a dead server could not take.
"""

from pathlib import Path

from es_medical.tracking.names import flatten
from es_medical.tracking.system import TerminatedError, environment, git_commit, terminate_on_sigterm
from es_medical.tracking.tracker import NullTracker, Tracker

__all__ = [
    "NullTracker",
    "TerminatedError",
    "Tracker",
    "environment",
    "flatten",
    "git_commit",
    "make_tracker",
    "terminate_on_sigterm",
]


def make_tracker(
    enabled: bool,
    uri: str | None,
    experiment: str,
    run_name: str,
    spool_dir: Path,
    run_id: str | None = None,
    system_interval: float | None = 10.0,
) -> Tracker:
    """A `Tracker` in the one process that tracks (`enabled`), a `NullTracker` in the others.

    Raises:
        ValueError: The URI is a file store.
        OSError: `spool_dir` cannot be written.
    """
    if not enabled:
        return NullTracker()
    return Tracker(uri, experiment, run_name, spool_dir, run_id, system_interval)
