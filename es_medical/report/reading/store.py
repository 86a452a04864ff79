"""Read-only access to an MLflow store: errors are raised at once, and nothing is created."""

import re
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from es_medical.tracking.server import connect, resolve_uri, shown, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

PATIENCE = 5.0
"""Seconds to wait for a connection to a database server; MLflow itself would retry for minutes."""

PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


class ReportError(Exception):
    """An error that the user can fix; the message says how."""


def open_store(uri: str | None) -> "MlflowClient":
    """Return a client of an existing store.

    Args:
        uri: tracking URI of MLflow; None takes MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the working directory.

    Raises:
        ReportError: there is no such store, or it does not answer.
    """
    try:
        found = resolve_uri(uri)
    except ValueError as error:
        raise ReportError(str(error)) from error
    path = sqlite_path(found)
    if path is not None and not path.is_file():
        raise ReportError(f"there is no MLflow database {path}: give the --tracking-uri that the runs were logged to")
    _probe(found)
    try:
        return connect(found)
    except Exception as error:  # whatever SQLAlchemy, a driver or the network raises
        raise ReportError(f"cannot open the MLflow store {shown(found)}: {first_line(error)}") from error


def experiments(client: "MlflowClient", names: list[str] | None = None) -> "list[Experiment]":
    """Return all experiments of a store, or those with the given names.

    Raises:
        ReportError: the store does not answer, or has no experiment of a name.
    """
    try:
        every = list(client.search_experiments())
    except Exception as error:
        raise ReportError(f"no answer from the MLflow store: {first_line(error)}") from error
    wanted = [one for one in every if not names or one.name in names]
    missing = sorted(set(names or []) - {one.name for one in wanted})
    if missing:
        existing = ", ".join(sorted(one.name for one in every)) or "none"
        raise ReportError(f"no experiment {', '.join(missing)} in the MLflow store; it has: {existing}")
    return wanted


def artifact_paths(client: "MlflowClient", run_id: str, folder: str) -> list[str]:
    """Return the paths of a run's artifacts in one folder; none if the folder or the artifact store is missing."""
    try:
        return [file.path for file in client.list_artifacts(run_id, folder) if not file.is_dir]
    except Exception:  # the numbers of the tracking store are shown even if the artifact store cannot be reached
        return []


def artifact_bytes(client: "MlflowClient", run_id: str, path: str) -> bytes:
    """Return the content of one artifact.

    Raises:
        ReportError: it cannot be read.
    """
    with TemporaryDirectory() as folder:
        try:
            return Path(client.download_artifacts(run_id, path, folder)).read_bytes()
        except Exception as error:
            raise ReportError(f"cannot read {path} of run {run_id}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return an error as one line of at most 300 characters, without a password."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {shown(lines[0])[:300]}" if lines else type(error).__name__


def _probe(uri: str) -> None:
    """Raise ReportError unless the database server of a URI accepts connections; files and HTTP servers are not tested."""
    found = re.match(r"(postgresql|mysql|mssql)[^:]*://(?:[^@/]*@)?([^:/?]+)(?::(\d+))?", uri)
    if found is None:
        return
    kind, host, port = found.groups()
    try:
        socket.create_connection((host, int(port or PORTS[kind])), timeout=PATIENCE).close()
    except OSError as error:
        raise ReportError(f"no answer from {shown(uri)}: {first_line(error)}") from error
