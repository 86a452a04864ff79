"""Choose the tracking server, connect to it, and classify its errors."""

import json
import logging
import os
import re
import shutil
import sqlite3
import sys
import warnings
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from es_medical.tracking.spool import take_lock

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACTS = "mlartifacts"  # folder of all artifacts, beside a SQLite file
DEFAULT_URI = "sqlite:///mlflow.db"
HTTP_SETTINGS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
FINAL_CODES = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"}


def resolve_uri(uri: str | None) -> str:
    """Return the tracking server to use: `uri`, else `MLFLOW_TRACKING_URI`, else `mlflow.db` in the working directory.

    The path of a SQLite file is made absolute, so that it is the same file from any folder.

    Raises:
        ValueError: A file store (`file:...`, `./mlruns`), which MLflow has refused since 3.13.
    """
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    if ("://" not in uri and not uri.startswith("databricks")) or uri.startswith("file:"):
        raise ValueError(
            f"tracking URI {uri!r} is a folder (file store), which MLflow refuses since 3.13; "
            f"give a database such as {DEFAULT_URI!r} or a server such as 'http://host:5000'"
        )
    path = sqlite_path(uri)
    return uri if path is None else sqlite_uri(path) + uri.partition("?")[1] + uri.partition("?")[2]


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute path of the database of a `sqlite:///` URI; None for any other URI.

    A `%20` in it is taken as it stands if there is such a file or folder, else as the space that it stands for in a URI.
    """
    found = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    if found is None:
        return None
    literal, decoded = Path(found[1]).resolve(), Path(unquote(found[1])).resolve()
    there = [path for path in (literal, decoded) if path.is_file()] or [
        path for path in (literal, decoded) if path.parent.is_dir()
    ]
    return there[0] if there else literal


def sqlite_uri(path: Path) -> str:
    """Return the URI from which SQLAlchemy reads this path: its versions differ in whether `%20` is a space."""
    plain, quoted = (f"sqlite:///{text}" for text in (path.as_posix(), path.as_posix().replace("%", "%25")))
    if plain == quoted:
        return plain
    from sqlalchemy.engine import make_url

    return plain if make_url(plain).database == path.as_posix() else quoted


def artifact_location(uri: str, experiment: str) -> str | None:
    """Return where a new experiment's artifacts go: next to a SQLite file; in the working directory for other databases.

    None leaves the choice to the server.
    """
    path = sqlite_path(uri)
    if path is None and not uri.startswith(("postgresql", "mysql", "mssql", "sqlite")):
        return None
    folder = path.parent if path is not None else Path.cwd()
    return (folder / ARTIFACTS / experiment.replace("/", "_")).as_uri()


def experiment_of(client: "MlflowClient", name: str, uri: str) -> str:
    """Return the id of an experiment, created or restored if necessary; its artifacts go to `artifact_location`."""
    found = client.get_experiment_by_name(name)
    if found is None:
        return client.create_experiment(name, artifact_location=artifact_location(uri, name))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def connect(uri: str) -> "MlflowClient":
    """Return a client of `uri` that uses no global run or URI and gives up on a dead server within 5 s.

    A time-out or number of retries set by the user in the environment is kept. A SQLite file is opened by `open_sqlite`,
    which may wait for another process.
    """
    import_mlflow()
    from mlflow import MlflowClient

    if uri.startswith("http"):
        for name, value in HTTP_SETTINGS.items():
            os.environ.setdefault(name, value)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    path = sqlite_path(uri)
    return MlflowClient(tracking_uri=uri) if path is None else open_sqlite(path, uri)


def import_mlflow() -> None:
    """Import MLflow in the calling thread, without its telemetry and the deprecation warnings of it and its database layer.

    Its telemetry asks the internet, then changes the environment, and a request that reads the environment meanwhile fails.
    The filter of warnings applies to the whole process, because a filter for the upload thread alone is not possible.
    """
    kept_off = os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true").lower() == "true"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.pytorch
    if kept_off:  # also where MONAI has imported MLflow before
        mlflow.telemetry.set_telemetry_client()
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # says that it makes its tables
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=r"(mlflow|sqlalchemy|alembic)(\.|$)")


def is_final(error: Exception) -> bool:
    """Whether resending the event can never succeed: the event is wrong, not the connection."""
    if isinstance(error, FileNotFoundError):
        return True
    if isinstance(error, OSError | json.JSONDecodeError):  # the network; a proxy's page instead of an answer
        return False
    return getattr(error, "error_code", None) in FINAL_CODES or isinstance(error, TypeError | ValueError | KeyError)


def shown(uri: str) -> str:
    """Return the URI without its password."""
    return re.sub(r"//[^@/]+@", "//***@", uri)


def address(uri: str, experiment_id: str | None, run_id: str | None) -> str:
    """Return the address of a run's page in MLflow's "Model training" view, at `mlflow ui`'s own port for a database."""
    server = uri.rstrip("/") if uri.startswith("http") else "http://127.0.0.1:5000"
    return f"{shown(server)}/#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


PATIENCE = 60.0  # seconds; a new database takes about 5 s, on a slow disk far more
MIGRATION_ERRORS = ("already exists", "Online migration expected", "No such index")


def open_sqlite(path: Path, uri: str) -> "MlflowClient":
    """Return a client of the database at `path`, created if absent.

    Args:
        path: The file; `<path>.lock` next to it is held while MLflow creates or migrates the tables.
        uri: URI of the same file.

    Raises:
        RuntimeError: The database is incomplete, from an interrupted creation or migration.
        TimeoutError: Another process has held the lock for `PATIENCE` seconds.
    """
    from mlflow import MlflowClient

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = take_lock(path.with_name(f"{path.name}.lock"), PATIENCE)
    try:
        if not path.exists():
            _create(path)
        else:
            relocate(path)
        client = MlflowClient(tracking_uri=uri)
        _remove_stray_folder(path, uri)
        return client
    except Exception as error:
        if path.exists() and _is_half_made(path, error):
            raise RuntimeError(f"half-made MLflow database: move it away, then a new one is made: {path}") from error
        raise
    finally:
        lock.release()


LOCATIONS = {"experiments": "artifact_location", "runs": "artifact_uri", "logged_models": "artifact_location"}
"""Columns of MLflow's tables that hold the absolute place of artifacts."""


def relocate(path: Path) -> None:
    """Let the artifacts of a database be where it is now, if it was moved together with them.

    MLflow keeps absolute places. Those that `artifact_location` gave (`mlartifacts/<experiment>` beside the database) are
    replaced where the old folder is gone, or was copied with the database; others stay.
    """
    here = (path.parent / ARTIFACTS).as_uri()
    with closing(sqlite3.connect(path)) as connection, connection:
        try:
            found = connection.execute("SELECT artifact_location FROM experiments").fetchall()
        except sqlite3.OperationalError:  # half-made: told later
            return
        for old in {folder for (location,) in found if (folder := _folder(location)) and folder != here}:
            if not (path.parent / ARTIFACTS).is_dir() and Path(unquote(urlparse(old).path)).is_dir():
                continue
            print(f"es_medical: the project was moved: its artifacts are now in {here}, no longer in {old}", file=sys.stderr)
            for table, column in LOCATIONS.items():
                change = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
                connection.execute(change, (here, len(old) + 1, len(old) + 1, f"{old}/"))


def _folder(location: str | None) -> str | None:
    """The folder of all artifacts in the place of an experiment's; None for a place that `artifact_location` did not give."""
    found = re.fullmatch(rf"(file://.*/{ARTIFACTS})/[^/]+", location or "")
    return found[1] if found else None


def _remove_stray_folder(path: Path, uri: str) -> None:
    """Remove the empty folder that MLflow makes, named as a percent-encoded URI stands."""
    stray = Path(uri.partition("?")[0].partition(":///")[2]).parent
    if stray != path.parent:
        with suppress(OSError):  # not empty, or not there
            stray.rmdir()


def _create(path: Path) -> None:
    """Create the database elsewhere and move it to `path` when complete, so that a killed process leaves no partial file."""
    from mlflow import MlflowClient

    folder = path.with_name(f"{path.name}.new")
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
    folder.mkdir()
    try:
        made, whole = folder / "made.db", folder / "whole.db"
        MlflowClient(tracking_uri=sqlite_uri(made))
        _remove_stray_folder(made, sqlite_uri(made))
        with closing(sqlite3.connect(made)) as connection:  # MLflow keeps the first file open
            connection.execute("VACUUM INTO ?", (str(whole),))
        whole.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_half_made(path: Path, error: Exception) -> bool:
    """Whether opening failed because an earlier migration was interrupted or ran in two processes at once."""
    with closing(sqlite3.connect(path)) as connection:
        leftovers = connection.execute(r"SELECT 1 FROM sqlite_master WHERE name LIKE '\_alembic\_tmp%' ESCAPE '\'")
        return leftovers.fetchone() is not None or any(cause in str(error) for cause in MIGRATION_ERRORS)
