"""Log one MLflow run. Training never waits for the server: events first go to a spool on disk.

Why not directly to a local MLflow store: creating one takes 8-20 s, a call 4-40 ms (a line of the spool takes 0.05 ms),
and seconds while another process writes; a thread in between would lose its queue when the process is killed.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from es_medical.data.atomic import FULL
from es_medical.tracking.artifacts import plain, save_model, write_image
from es_medical.tracking.names import Names, clean, flatten
from es_medical.tracking.server import address, import_mlflow, resolve_uri, shown
from es_medical.tracking.spool import files_checksum, now, open_spool
from es_medical.tracking.system import MachineMonitor, command, environment, git_commit, status_of, user
from es_medical.tracking.upload import Uploader, UploadThread, close_spool, say, tell_abandoned

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

Write = Callable[[Path], Any]  # writes a file or folder at a path
NOTHING: Mapping[str, Any] = {}


class Tracker:
    """Logs one run. Every method returns at once, and no method raises because of the server.

    As a context manager the run ends FINISHED, FAILED (exception) or KILLED (Ctrl-C, SIGTERM under
    `terminate_on_sigterm`).

    Args:
        uri: Tracking server; None uses `MLFLOW_TRACKING_URI`, else `sqlite:///mlflow.db`.
        experiment: Name of the experiment; created if absent, with its artifacts next to a SQLite file.
        run_name: Name of a new run.
        spool_dir: Folder for unsent data; each run has its own folder inside it.
        run_id: The `resume_id` (or MLflow run id) of an earlier session whose run is continued.
        system_interval: Seconds between two readings of the machine's load; None for no readings.

    Raises:
        ValueError: The URI is a file store.
        OSError: `spool_dir` cannot be written.
    """

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        run_name: str,
        spool_dir: Path,
        run_id: str | None = None,
        system_interval: float | None = 10.0,
    ) -> None:
        self.uri = resolve_uri(uri)
        self._experiment, self._run_name, self._resume, self._epoch = experiment, run_name, run_id, 0
        self._spool = open_spool(Path(spool_dir), run_id)
        self._uploader = Uploader(self._spool, self.uri)
        self._thread = UploadThread(self._uploader, self._log_machine)
        self._machine = MachineMonitor(system_interval) if system_interval is not None else None
        self._continued = {"continued": True} if run_id else {}  # such sessions repeat steps after a kill
        self._metric_names, self._param_names = Names(), Names()
        self._nonfinite: dict[str, int] = {}
        self._finished = self._warned = False
        self._page: Path | None = None

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None until the server has assigned one."""
        return None if self._uploader.moved else self._spool.state.run_id

    @property
    def resume_id(self) -> str:
        """Id to save in a checkpoint: `Tracker(run_id=...)` continues this run, even if it is not sent yet."""
        return self.run_id or self._spool.state.key

    @property
    def place(self) -> tuple[str, str]:
        """Address of the run's page ("" if it is not sent), and the command that serves it ("" for a server)."""
        where = address(self.uri, self._spool.state.experiment_id, self.run_id) if self.run_id else ""
        return where, "" if self.uri.startswith("http") else f"mlflow ui --backend-store-uri {shown(self.uri)}"

    def start(self, params: Mapping[str, Any], config_text: str, tags: Mapping[str, str], epoch: int = 0) -> None:
        """Begin or continue the run.

        Args:
            params: Configuration, nested or flat; logged flattened.
            config_text: The whole resolved configuration, stored as `config.yaml` (`config.epochN.yaml` when resuming).
            tags: Tags of the run; the git commit is added.
            epoch: The epoch from which training continues.
        """
        import_mlflow()
        self._epoch = epoch
        names = {"experiment": self._experiment, "run_name": self._run_name, "user": user()}
        self._put("start", names | {"resume": self._resume})
        commit = git_commit()
        source = {"mlflow.source.name": command(), "mlflow.source.type": "LOCAL"}
        self.set_tags(source | ({"mlflow.source.git.commit": commit} if commit else {}))
        self.set_tags(tags)
        self.log_params(params, epoch)
        suffix = f".epoch{epoch}" if self._resume else ""
        self.log_text(config_text, f"config{suffix}.yaml")
        self.log_dict(environment(), f"environment{suffix}.json")
        self._thread.start()
        with suppress(OSError, TypeError, ValueError):  # a spool was removed meanwhile, or cannot be read
            tell_abandoned(self._spool.folder.parent, self._spool.folder, self.uri)

    def log_params(self, params: Mapping[str, Any], epoch: int = 0) -> None:
        """Log flattened parameters; one that the run already has with another value is added as `name.epochN`."""
        values = {self._param_names(name): text for name, text in flatten(params).items()}
        self._put("params", {"values": values, "epoch": epoch})

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; the last value of a name replaces earlier ones."""
        self._put("tags", {"values": {clean(name): str(value) for name, value in tags.items()}})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers at a step (epoch or iteration). NaN and infinity are left out and noted in `nonfinite/<name>`."""
        values = {self._metric_names(name): float(value) for name, value in metrics.items()}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if finite:
            self._put("metrics", {"values": finite, "step": int(step), **self._continued})
        for name in values.keys() - finite.keys():
            self._note_nonfinite(name, values[name], step)

    def log_image(self, key: str, image: npt.NDArray[np.uint8], step: int) -> None:
        """Log one step of an image series in MLflow's image view.

        Args:
            key: Name of the series, for example `recon/case0`.
            image: uint8, (H, W), (H, W, 3) or (H, W, 4); see `pictures.picture`.
            step: Usually the epoch.

        Raises:
            ValueError: Not a uint8 image of such a shape: MLflow would stretch each one differently.
        """
        parts = (image, clean(key), int(step), now())
        self._write("image", "image", "", lambda folder: write_image(folder, *parts), self._continued)

    def log_text(self, text: str, artifact_file: str) -> None:
        """Log a text file, for example `notes/readme.md`."""
        self._write_file(artifact_file, lambda path: path.write_text(text, encoding="utf-8"))

    def log_dict(self, content: Mapping[str, Any], artifact_file: str) -> None:
        """Log a JSON file."""
        self.log_text(json.dumps(content, indent=2, default=str), artifact_file)

    def log_figure(self, figure: "Figure", artifact_file: str) -> None:
        """Log a matplotlib figure, in the format given by the file name."""
        self._write_file(artifact_file, figure.savefig)

    def log_artifact(self, path: Path, artifact_folder: str = "") -> None:
        """Log a copy of a file or folder as it is now."""
        folder = clean(artifact_folder) if artifact_folder else ""
        copy = shutil.copytree if path.is_dir() else shutil.copyfile
        self._write("artifact", path.name, folder, lambda copied: copy(path, copied))

    def log_page(self, path: Path, last: bool = False) -> None:
        """Log a file that is made again and again; left out while an earlier version is unsent, unless it is the last."""

        def copy(copied: Path) -> None:
            shutil.copyfile(path, copied)
            self._page = copied

        if last or self._page is None or not self._page.exists():
            self._write("artifact", path.name, "", copy)

    def log_table(self, table: Mapping[str, Sequence[Any]], artifact_file: str) -> None:
        """Log columns of equal length as a JSON table, shown on MLflow's run page and read by `load_table`."""
        rows = list(zip(*table.values(), strict=True))
        text = json.dumps({"columns": list(table), "data": rows}, default=plain)
        self._write_file(artifact_file, lambda path: path.write_text(text, encoding="utf-8"), "table")

    def log_arrays(self, arrays: Mapping[str, npt.NDArray[Any]], artifact_file: str) -> None:
        """Log named arrays in one compressed NumPy file, `name.npz`."""

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # no array is named like numpy's own keyword

        self._write_file(artifact_file, write)

    def log_dataset(self, path: Path, name: str, context: str, digest: str, n: int) -> None:
        """Log a data file that the run uses.

        Args:
            path: The file.
            name: Name of the data set.
            context: `train`, `val` or `test`.
            digest: SHA-256 of the file; MLflow shows 36 digits; the profile has all.
            n: Number of slices.
        """
        self._put("dataset", {"path": str(path), "name": name, "context": context, "digest": digest, "n": n})

    def log_model(
        self, module: "nn.Module", example_input: "Tensor", name: str = "model", step: int = 0, register: str | None = None
    ) -> None:
        """Log a trained network as an MLflow model, with an input example and its signature for any batch and image size.

        Args:
            module: Called with one tensor; not changed.
            example_input: (B, C, H, W), B at least 2 for a batch of any size.
            name: Name of the model.
            step: The epoch of its weights.
            register: Name under which it becomes a new version in the registry; None for none.
        """
        try:
            weights = b"".join(value.detach().cpu().float().numpy().tobytes() for value in module.state_dict().values())
            content = hashlib.sha256(weights).hexdigest()[:32]  # a training that goes on at its end logs the same model again
            fields = {"name": name, "step": int(step), "id": content, "register": register}
            self._write("model", "model", "", lambda folder: save_model(module, example_input, folder), fields)
        except Exception as error:  # an unpicklable network at the end of days of training
            say(f"the model {name!r} is not logged: {error}")
            self.set_tags({f"model_error/{name}": str(error)})

    def finish(self, status: str = "FINISHED") -> None:
        """End the run as FINISHED, FAILED or KILLED; unsent events stay in the spool.

        A second call does nothing.
        """
        if self._finished:
            return
        if self._thread.ident is not None:  # started
            self._put("finish", {"status": status})
            self._thread.finish()
        self._finished = True
        close_spool(self._spool, self.uri)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.finish(status_of(error))

    def _put(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append an event with these JSON values to the spool."""
        if self._finished:
            self._warn(f"the run is finished; a {kind} entry is left out")
            return
        try:
            self._spool.append({"kind": kind, "time": now(), **fields})
        except OSError as error:
            self._warn(f"the log cannot be kept in {self._spool.folder}: {error}; training goes on without it")

    def _write(self, kind: str, name: str, folder: str, write: Write, fields: Mapping[str, Any] = NOTHING) -> None:
        """Let `write` make a file or folder `name` in the spool, and append the event that sends it to artifact `folder`."""
        try:
            path = self._spool.new_file(name)
            write(path)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._warn(f"{name} cannot be kept in {self._spool.folder}: {error}; training goes on without it")
            return
        file = path.relative_to(self._spool.folder).as_posix()
        self._put(kind, {"file": file, "folder": folder, "checksum": files_checksum(path), **fields})

    def _write_file(self, artifact_file: str, write: Write, kind: str = "artifact") -> None:
        folder, _, name = clean(artifact_file).rpartition("/")
        self._write(kind, name, folder, write)

    def _note_nonfinite(self, name: str, value: float, step: int) -> None:
        count = self._nonfinite[name] = self._nonfinite.get(name, 0) + 1
        suffix = f".epoch{self._epoch}" if self._resume else ""
        self.set_tags({f"nonfinite/{name}{suffix}": f"{count} left out, the last one {value} at step {step}"})

    def _log_machine(self) -> None:
        reading = self._machine.read() if self._machine is not None else None
        if reading is not None and not self._finished:
            self.log_metrics(reading[0], reading[1])

    def _warn(self, message: str) -> None:
        if not self._warned:
            say(message)
        self._warned = True


class NullTracker(Tracker):
    """Accepts every call of `Tracker` and does nothing: no file, no server, no thread."""

    run_id: str | None = None
    resume_id: str = ""

    def __init__(self) -> None:
        self.uri, self._resume, self._epoch, self._continued = "", None, 0, {}
        self._metric_names, self._param_names, self._nonfinite, self._page = Names(), Names(), {}, None

    def start(self, params: Mapping[str, Any], config_text: str, tags: Mapping[str, str], epoch: int = 0) -> None:
        """Do nothing."""

    def finish(self, status: str = "FINISHED") -> None:
        """Do nothing."""

    def _put(self, kind: str, fields: Mapping[str, Any]) -> None: ...

    def _write(self, kind: str, name: str, folder: str, write: Write, fields: Mapping[str, Any] = NOTHING) -> None: ...
