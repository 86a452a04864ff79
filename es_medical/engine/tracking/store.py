"""Opening an MLflow database in a SQLite file, one process at a time: MLflow's migrations break when two run at once."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from .locks import held

if TYPE_CHECKING:
    from mlflow import MlflowClient

PATIENCE = 60.0  # seconds; a new database takes about 5 s, on a slow disk far more
MIGRATION_ERRORS = ("already exists", "Online migration expected", "No such index")


def open_sqlite(path: Path, uri: str) -> "MlflowClient":
    """A client of the database at `path`, which is made if absent.

    Args:
        path: The file; `<path>.lock` beside it is held while MLflow makes or migrates the tables.
        uri: The same as a URI.

    Raises:
        RuntimeError: The database was left half made.
        TimeoutError: Another process has been making it for `PATIENCE` seconds.
    """
    from mlflow import MlflowClient

    path.parent.mkdir(parents=True, exist_ok=True)
    with held(path.with_name(f"{path.name}.lock"), PATIENCE):
        if not path.exists():
            _create(path)
        try:
            return MlflowClient(tracking_uri=uri)
        except Exception as error:
            if _is_half_made(path, error):
                raise RuntimeError(f"half-made MLflow database: move it away, then a new one is made: {path}") from error
            raise


def _create(path: Path) -> None:
    """Make the database elsewhere and move it to `path` whole, so that a killed process leaves nothing half made."""
    from mlflow import MlflowClient

    folder = path.with_name(f"{path.name}.new")
    shutil.rmtree(folder, ignore_errors=True)  # of a killed process
    folder.mkdir()
    try:
        made, whole = folder / "made.db", folder / "whole.db"
        MlflowClient(tracking_uri=f"sqlite:///{made.as_posix()}")
        with closing(sqlite3.connect(made)) as connection:  # MLflow keeps its own file open
            connection.execute("VACUUM INTO ?", (str(whole),))
        whole.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_half_made(path: Path, error: Exception) -> bool:
    """Whether opening failed because an earlier migration was cut off or ran twice at once."""
    with closing(sqlite3.connect(path)) as connection:
        leftovers = connection.execute(r"SELECT 1 FROM sqlite_master WHERE name LIKE '\_alembic\_tmp%' ESCAPE '\'")
        return leftovers.fetchone() is not None or any(cause in str(error) for cause in MIGRATION_ERRORS)
