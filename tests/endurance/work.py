"""The commands that are disturbed, what each starts from, and what is compared of its results."""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import nibabel as nib
import numpy as np
import torch
from endurance import child
from pydicom import dcmread

BUNDLE = Path(__file__).parents[2] / "bundles" / "lidc_ct"
KNOBS = {
    **{"views": 6, "widths": [4, 8], "iterations": 1, "n_samples": 2, "batch_size": 2, "num_workers": 0, "epochs": 3},
    **{"val_interval": 1, "log_interval": 1, "n_cases": 1, "lr": 0.01, "key_metric": "heldout", "device": "cpu"},
}
SILENT = "http://127.0.0.1:9"  # nothing answers there
UNSTABLE = ("system/", "epoch_time")  # metrics that differ from run to run
CHANCE = ("UID", "Date", "Time")  # ends of the keywords of DICOM elements that do
Result = dict[str, str]


class Job(NamedTuple):
    """A command: its arguments in a folder, what it starts from, and what it makes."""

    name: str
    command: Callable[[Path], list[str]]
    needs: tuple[str, ...]
    result: Callable[[Path], Result]


def digest(value: Any) -> str:
    """Short digest of an array, bytes or anything that JSON holds."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        value = f"{value.dtype}{value.shape}".encode() + (
            value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
        )
    elif not isinstance(value, bytes):
        value = json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(value).hexdigest()[:16]


def prepare(folder: Path) -> list[str]:
    """The preparation of a CT archive."""
    split = ["--size", "32", "--views", "6", "--slices", "all", "--train", "2", "--test", "1", "--workers", "1"]
    return ["data_prep", "lidc", "scans", "slices.h5", *split]


def slices_of(folder: Path) -> Result:
    """The bytes of the slice file and of its manifest."""
    return {name: digest((folder / name).read_bytes()) for name in ("slices.h5", "slices.manifest.json")}


def train(folder: Path, uri: str = "sqlite:///mlflow.db", resume: bool | None = None) -> list[str]:
    """A training; it goes on where there is something to go on from."""
    resume = (folder / "models" / "last.pt").is_file() if resume is None else resume
    given = {"bundle_root": ".", "data_file": "slices.h5", "tracking_uri": uri, "resume": resume} | KNOBS
    knobs = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return ["monai.bundle", "run", "--config_file", str([str(BUNDLE / "configs" / "train.yaml")]), *knobs]


def weights_of(folder: Path) -> Result:
    """Weights, optimiser, random numbers, and the score of the best ones."""
    found: Result = {}
    for name in ("reconstructor.pt", "model.pt", "last.pt"):
        state = torch.load(folder / "models" / name, weights_only=True)
        state = {key: state.get(key) for key in ("reconstructor", "optimizer", "epoch", "score", "random", "best")} | (
            state if name == "model.pt" else {}
        )
        found |= {f"{name} {key}": digest(_plain(value)) for key, value in state.items()}
    return found


def trained(folder: Path) -> Result:
    """Weights and the finished run in MLflow."""
    return weights_of(folder) | runs_of(folder)


def runs_of(folder: Path) -> Result:
    """Curves, parameters, tags and artifacts of the one finished run in a database."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        runs = database.execute("SELECT run_uuid, status, artifact_uri FROM runs WHERE status = 'FINISHED'").fetchall()
        found: Result = {"finished runs": str(len(runs))}
        for run, _, place in runs:
            curves: dict[str, list[Any]] = {}
            points = "SELECT key, step, value FROM metrics WHERE run_uuid = ? ORDER BY key, step, timestamp"
            for key, step, value in database.execute(points, (run,)):
                if not key.startswith("system/"):
                    curves.setdefault(key, []).append([step] if key in UNSTABLE else [step, value])
            found |= {f"curve {key}": json.dumps(points) for key, points in curves.items()}
            params = dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,)).fetchall())
            found |= {f"parameter {key}": value for key, value in params.items() if key.split(".")[0] != "resume"}
            used = "SELECT COUNT(*) FROM inputs WHERE destination_id = ? OR source_id = ?"
            found["data sets and models"] = str(database.execute(used, (run, run)).fetchone()[0])
            served = place.replace("mlflow-artifacts:", f"{folder}/mlartifacts").removeprefix("file://")
            files = [path for path in Path(served).rglob("*") if path.is_file()]
            shown = sorted(path.name.partition("+timestamp")[0] + path.suffix for path in files if path.parent.name == "images")
            found["pictures"] = json.dumps(shown)
            others = [path for path in files if path.parent.name != "images" and "epoch" not in path.name]
            found["artifacts"] = json.dumps(sorted({path.name for path in others}))
    return found


def send(folder: Path) -> list[str]:
    """Send what a training without a server kept."""
    return ["es_medical.tracking", "send", "unsent", "--uri", "sqlite:///mlflow.db"]


def reconstruct(folder: Path) -> list[str]:
    """Reconstruct the archive by the trained weights."""
    return ["es_medical.reconstruct", "models", "scans", "eval", "--device", "cpu"]


def images_of(folder: Path) -> Result:
    """Values of every file: HDF5 and NIfTI arrays, DICOM pixels and elements (UIDs and times are new in each run)."""
    found: Result = {}
    for path in sorted(path for path in (folder / "eval").rglob("*") if path.name != "error.log"):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".h5":
            with h5py.File(path) as file:
                found |= {f"{name} {key}": digest(data[()]) for key, data in file.items()}
        elif path.name.endswith(".nii.gz"):
            image = nib.load(path)
            found[name] = digest(image.get_fdata()) + digest(np.asarray(image.affine))
        elif path.suffix == ".dcm":
            found[name] = digest(_elements(dcmread(path)))
        elif path.is_file():
            found[name] = digest(path.read_bytes())
    return found


PREPARE = Job("preparation", prepare, ("scans",), slices_of)
TRAIN = Job("training", train, ("slices.h5", "mlflow.db"), trained)
SEND = Job("sending", send, ("unsent", "mlflow.db"), runs_of)
RECONSTRUCT = Job("inference", reconstruct, ("scans", "models"), images_of)
JOBS = (PREPARE, TRAIN, SEND, RECONSTRUCT)


def lay_out(job: Job, source: Path, folder: Path) -> Path:
    """Make a folder with what a job starts from."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in job.needs:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copyfile
        copy(source / name, folder / name)
    return folder


def leftovers(folder: Path) -> list[str]:
    """Files that are half written, or stand in for a file that was replaced."""
    marks = (".partial_", ".old_")
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name.startswith(marks)]


def make_source(folder: Path) -> Path:
    """A folder with what every job starts from: archive, slice file, weights, an unsent log and an empty database."""
    from ct_archives import write_patients

    if (folder / "unsent").is_dir():  # kept from an earlier campaign
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_patients(folder / "scans", 4, 3)
    steps = (prepare(folder), train(folder, SILENT), ["endurance.database"])
    for command in steps:
        ended = child.run(command, folder, before=quick)
        if ended.code:
            raise RuntimeError(f"{command}: {ended.output}")
    shutil.move(folder / "eval" / "unsent", folder / "unsent")
    return folder


def quick() -> None:
    """Leave out what takes seconds and is tested elsewhere: the export of the model, the wait for a dead server."""
    from es_medical.tracking import artifacts, upload

    artifacts.EXPORT, upload.GRACE, upload.POLL = False, 0.2, 0.1


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return digest(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _elements(data: Any) -> list[Any]:
    found: list[Any] = []
    for element in data:
        if element.VR == "SQ":
            found.append([element.keyword, [_elements(item) for item in element.value]])
        elif not element.keyword.endswith(CHANCE):
            found.append([element.keyword, digest(element.value if isinstance(element.value, bytes) else str(element.value))])
    return found
