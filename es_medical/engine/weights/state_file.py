"""Files of weights and states: their names, written whole or not at all, and the way out of a damaged one."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from es_medical.data.atomic import whole_or_not

LAST, BEST, MODEL = "last.pt", "reconstructor.pt", "model.pt"
TRAIN_FIRST = "train first, or set ckpt_dir to the folder of a trained model"


def read_state(path: Path, advice: str) -> dict[str, Any]:
    """Read a file of weights; raise FileNotFoundError with `advice` if there is none, ValueError if it can't be read."""
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: {advice}")
    try:
        _check_bytes(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of ten kinds for damaged files
        cause = "empty" if path.stat().st_size == 0 else "damaged (cut short?), or another kind of file"
        raise ValueError(f"{path} can't be read as weights: it is {cause} ({error}){_way_out(path)}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} can't be read as weights: it holds a {type(state).__name__}{_way_out(path)}")
    return state


def _check_bytes(path: Path) -> None:
    """Raise ValueError where the bytes of a zip file, which torch writes, are not those that were written; torch does not."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            if changed := file.testzip():
                raise ValueError(f"{changed} in it is not what was written")


def _way_out(path: Path) -> str:
    """What to do without a file of a training."""
    if path.name != LAST:
        return ""
    best = path.with_name(BEST)
    if not best.is_file():
        return ". There are no other weights of this training: start anew without --resume"
    return (
        f". The best weights of this training are in {best}: test them with configs/evaluate.yaml, or begin a new training "
        f"with them by --warm_start {best} --ckpt_dir NEW_FOLDER, without --resume"
    )


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write a file of weights, whole or not at all; its folder is made. Raises OSError with its cause, such as a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_or_not(path, durable=True) as part, part.open("wb") as file:  # by a path, torch raises RuntimeError alone
        torch.save(state, file)
