"""Tracking with MLflow that never stops or slows training.

Start reading at `tracker.py`: a `Tracker` appends events to a folder on disk (`spool.py`), from which a thread (`upload.py`)
sends them to the server (`events.py`, `server.py`). Processes that do not track use a `NullTracker`.
`python -m es_medical.tracking send SPOOL --uri URI` sends what remained unsent because the server was down.
"""

from es_medical.tracking.names import flatten, hidden, with_hidden
from es_medical.tracking.system import TerminatedError, command, environment, git_commit, terminate_on_sigterm
from es_medical.tracking.tracker import NullTracker, Tracker

__all__ = [
    "NullTracker",
    "TerminatedError",
    "Tracker",
    "command",
    "environment",
    "flatten",
    "git_commit",
    "hidden",
    "terminate_on_sigterm",
    "with_hidden",
]
