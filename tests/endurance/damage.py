"""Flip a bit at a random place in every kind of file that is written and read: an error that says so, or no other result."""

import gzip
import json
import os
import random
import shutil
import signal
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import nibabel as nib
import numpy as np
from endurance import child
from endurance.judging import Outcome, compare
from endurance.work import PREPARE, RECONSTRUCT, _plain, digest, lay_out, quick, train
from PIL import Image

from es_medical.data.atomic import whole_folder_or_not

FLIPS = 40
FOUND, SAME, NAME, SILENT = "found and named", "no other result", "a name differs", "another result that nobody sees"
UNNAMED = "found and not named"


class Kind(NamedTuple):
    """A kind of file: its name, where it is below the folder of finished jobs, and what a reader gets from it.

    `names` reads what is only shown; a change of it alone is no wrong number. `ours`: our reader must name the file.
    """

    name: str
    file: str
    read: Callable[[Path], Any]
    names: Callable[[Path], Any] | None = None
    ours: bool = True


def _slices(path: Path) -> Any:
    from es_medical.data import SliceDataset, read_header

    header, slices = read_header(path), SliceDataset(path)
    items = [{name: value for name, value in slices[i].items() if name not in ("id", "index")} for i in range(len(slices))]
    return _plain([items, header.mask, header.sigma, header.acceleration, dict(header.splits), dict(header.operator)])


def _names(path: Path) -> Any:
    with h5py.File(path) as file:
        attributes = {name: str(value) for name, value in file.attrs.items()}
        return [attributes, *(file[name].asstr()[()].tolist() for name in ("id", "subject", "volume", "source", "split"))]


def _weights(path: Path) -> Any:
    from es_medical.engine.weights.state_file import read_state

    return _plain(read_state(path, ""))


def _matrix(path: Path) -> Any:
    from es_medical.physics import ct_matrix

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        geometry = type("Geometry", (), {"shape": (6, 46), "size": (32, 32)})
        found = ct_matrix._read(path, geometry)
    return [digest(found.data), digest(found.indices), digest(found.indptr)]


def _events(path: Path) -> Any:
    from es_medical.tracking.spool import Spool

    spool = Spool(path.parent)
    try:
        events = [line.event for line in spool.pending(10**6)]
    finally:
        spool.close()
    if bad := [event for event in events if event["kind"] == "unreadable"]:
        raise ValueError(f"{path}: {len(bad)} entries are unreadable")  # each is kept in refused.jsonl, and said
    return events


def _state(path: Path) -> Any:
    from es_medical.tracking.spool import read_state

    return str(read_state(path.parent))


def _kept(path: Path) -> Any:
    from es_medical.tracking.spool import files_checksum

    return files_checksum(path)


def _calibration(path: Path) -> Any:
    from es_medical.uncertainty.calibration import Calibration

    found = Calibration.load(path)
    return _plain([found.distances.error, found.distances.resampled, dict(found.settings)])


def _hdf5(path: Path) -> Any:
    with h5py.File(path) as file:
        return {name: digest(data[()]) for name, data in file.items() if data.dtype.kind in "fiu"}


def _hdf5_names(path: Path) -> Any:
    with h5py.File(path) as file:
        return [str(data[()].tolist()) for data in file.values() if data.dtype.kind not in "fiu"]


def _nifti(path: Path) -> Any:
    with gzip.open(path) as whole:  # `gzip -t`: nibabel does not read as far as the checksum
        whole.read()
    image = nib.load(path)
    return [digest(image.get_fdata()), digest(np.asarray(image.affine)), image.header["descrip"].tobytes().hex()]


def _png(path: Path) -> Any:
    with Image.open(path) as image:
        image.load()
        return digest(np.asarray(image))


KINDS = (
    Kind("slice file", "slices.h5", _slices, _names),
    Kind("best weights", "models/reconstructor.pt", _weights),
    Kind("checkpoint", "models/last.pt", _weights),
    Kind("cached CT matrix", "cache/*.npz", _matrix),
    Kind("log that is not sent: entries", "unsent/*/events.jsonl", _events),
    Kind("log that is not sent: what was sent", "unsent/*/state.json", _state),
    Kind("calibration", "models/calibration.json", _calibration),
    Kind("reconstructions in HDF5", "eval/reconstructions.h5", _hdf5, _hdf5_names, ours=False),
    Kind("reconstructions in NIfTI", "eval/*_reconstruction.nii.gz", _nifti, ours=False),
    Kind("pictures in PNG", "models/picture.png", _png, ours=False),
)


def flipped(content: bytes, rng: random.Random) -> tuple[bytes, int]:
    """The bytes with one bit turned over, and where."""
    place = rng.randrange(len(content))
    changed = bytearray(content)
    changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed), place


def flips(kind: Kind, folder: Path, rng: random.Random, n: int = FLIPS) -> tuple[Counter[str], list[str]]:
    """Flip n bits, one at a time; count what a reader makes of it, and say which it does not see or name."""
    path = next(folder.glob(kind.file))
    whole = path.read_bytes()
    wanted, names = digest(kind.read(path)), kind.names(path) if kind.names else None
    counts, unseen = Counter[str](), []
    for _ in range(n):
        (changed, place), said = flipped(whole, rng), ""
        path.write_bytes(changed)
        os.utime(path, (place, place))  # no cache of headers takes it for another
        signal.alarm(20)
        try:
            outcome = SAME if digest(kind.read(path)) == wanted else SILENT  # NaN equals NaN
        except Exception as error:
            outcome, said = FOUND if path.name in str(error) or not kind.ours else UNNAMED, str(error)
        try:
            outcome = NAME if outcome == SAME and kind.names and kind.names(path) != names else outcome
        except Exception:  # of HDF5, when text is read as here
            outcome = FOUND
        finally:
            signal.alarm(0)
        counts[outcome] += 1
        unseen += [f"{outcome}: byte {place} of {len(whole)}: {said}"] * (outcome in (SILENT, UNNAMED))
    path.write_bytes(whole)
    return counts, unseen


def damage(kind: Kind) -> Callable[..., Outcome]:
    """Flip bits in one kind of file, in a child."""

    def run(source: Path, place: Path, expected: Any, rng: random.Random) -> Outcome:
        everything = source.parent / "everything"
        if not everything.is_dir():
            with whole_folder_or_not(everything) as made:
                _make(source, made)
        told = place.with_suffix(".json")
        number = os.fork()
        if number == 0:
            code = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                counts, unseen = flips(kind, everything, rng)
                told.write_text(json.dumps([counts, unseen]))
                code = 0
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        if status:
            return Outcome(0, [f"the reader ended with status {status}"], "")
        counts, unseen = json.loads(told.read_text())
        return Outcome(0, unseen, ", ".join(f"{name}: {n}" for name, n in sorted(counts.items())))

    return run


def _make(source: Path, folder: Path) -> None:
    """Run the jobs whose files are damaged."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    shutil.copytree(os.environ["ES_MEDICAL_CACHE"], folder / "cache")
    configs = [str(Path(train(folder)[3].strip("[]'")).with_name(name)) for name in ("train.yaml", "calibrate.yaml")]
    arguments = train(folder, resume=False)
    arguments[3] = str(configs)
    for command in (RECONSTRUCT.command(folder), arguments):
        ended = child.run(command, folder, before=quick)
        if ended.code:
            raise RuntimeError(f"{command}: {ended.output}")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)).save(folder / "models" / "picture.png")


def changed_source(source: Path, place: Path, expected: Any, rng: random.Random) -> Outcome:
    """Flip a bit of a scan after its preparation: the same command must make what it makes in an empty folder.

    What is left out is compared no further: a file that is up to date keeps its manifest.
    """
    lay_out(PREPARE, source, place)
    child.run(PREPARE.command(place), place, before=quick)
    path = rng.choice(sorted((place / "scans").rglob("*.dcm")))
    path.write_bytes(flipped(path.read_bytes(), rng)[0])
    found = []
    for _ in range(2):
        child.run(PREPARE.command(place), place, before=quick)
        manifest = json.loads((place / "slices.manifest.json").read_text())
        taken = [one for one in manifest["sources"] if one["status"] == "done"]
        found.append({"slices.h5": digest((place / "slices.h5").read_bytes()), "sources": digest(taken)})
        for name in ("slices.h5", "slices.manifest.json"):
            (place / name).unlink()
    faults = compare(found[1], found[0])
    return Outcome(0, faults, f"{SILENT if faults else 'the file is that of the changed scan, or did not need it'}: 1")
