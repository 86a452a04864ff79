"""The data that weights were trained on: how it was made, its pixels and its subjects; compared wherever they are used."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from es_medical.data import read_header
from es_medical.data.pixels import Pixels
from es_medical.data.schema import MEASURED, open_slices


def preparation(data_file: str | Path) -> dict[str, Any]:
    """Describe how a slice file was made: options of its command, grid, pixels, measured lines, units of measured sinograms."""
    header, pixels = read_header(data_file), Pixels.of(data_file)
    lines = {"measured": header.mask.tolist(), "acceleration": header.acceleration, "center_fraction": header.center_fraction}
    grid = {"size": list(header.size), "encoded_lines": header.encoded_lines, "spacing": [list(pixels.low), list(pixels.high)]}
    units = {"units": dict(header.operator[MEASURED])} if MEASURED in header.operator else {}
    return {"configuration": dict(header.configuration), **lines, **grid, **units}


def warn_of_other_pixels(kept: Mapping[str, Any], data_file: str | Path, folder: str | Path) -> None:
    """Warn if the slices of a file have other pixels than those of the training (`kept`: its `preparation`)."""
    trained = Pixels.kept(kept)
    if trained is not None and (text := trained.other(Pixels.of(data_file))):
        warnings.warn(f"the weights in {folder} {text}", stacklevel=3)


class _Subject(NamedTuple):
    """What names a subject: its own hash, and those of the files that its slices come from."""

    name: int
    sources: frozenset[int]

    @property
    def keys(self) -> frozenset[int]:
        return self.sources | {self.name}


def seen(data_file: str | Path) -> Tensor:
    """Return the keys (n,) int64 of the subjects and source files whose slices train a network or choose its weights.

    Kept with the weights in place of names. Subjects have other names in a file that was made with another salt (or seed,
    from which the salt follows); the content of their source files stays.
    """
    subjects = _subjects(data_file)
    return torch.tensor(sorted(_keys(subjects["known"]) - _keys(subjects["test"])), dtype=torch.int64)


def refuse_seen(kept: Tensor | None, data_file: str | Path, weights: str | Path) -> None:
    """Raise ValueError if test subjects of a slice file were trained on.

    What the file itself has on both sides of its split (one template, cut into slices) says nothing, and is left out.

    Args:
        kept: the keys in `weights` (see `seen`); None for older weights: nothing is known.
        data_file: the slice file to test on.
        weights: file or folder of the weights, for the message.
    """
    if kept is None:
        return
    subjects = _subjects(data_file)
    known = set(kept.tolist()) - (_keys(subjects["known"]) & _keys(subjects["test"]))
    found = sum(not known.isdisjoint(subject.keys) for subject in subjects["test"])
    if found:
        raise ValueError(
            f"{found} of {len(subjects['test'])} test subjects of {data_file} were in the training or validation of the "
            f"weights in {weights}: their scores would be no test. Use the data file of that training, or make this one with "
            "the same split (the same sources, --seed, --salt, --train, --test and --val), or train anew in another ckpt_dir"
        )


def _subjects(data_file: str | Path) -> dict[str, list[_Subject]]:
    """The subjects of the test slices, and those of the others."""
    with open_slices(data_file) as file:
        tested = file["split"].asstr()[:] == "test"
        names = file["subject"].asstr()[:].astype(str)
        sources = file["source"].asstr()[:].astype(str) if "source" in file else np.full(len(names), "")
    return {side: _of(names[rows], sources[rows]) for side, rows in (("test", tested), ("known", ~tested))}


def _of(names: np.ndarray, sources: np.ndarray) -> list[_Subject]:
    pairs: dict[str, set[str]] = {}
    for name, source in zip(names.tolist(), sources.tolist(), strict=True):
        pairs.setdefault(name, set()).update([source] if source else [])
    return [_Subject(_key("subject", name), frozenset(_key("source", one) for one in files)) for name, files in pairs.items()]


def _keys(subjects: Iterable[_Subject]) -> set[int]:
    return {key for subject in subjects for key in subject.keys}


def _key(kind: str, name: str) -> int:
    """64 bits of a hash, as a signed integer."""
    return int.from_bytes(hashlib.sha256(f"{kind}/{name}".encode()).digest()[:8], "big", signed=True)
