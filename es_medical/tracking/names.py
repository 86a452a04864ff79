"""Names and values that the tracking server accepts: no brackets, no `..`, bounded lengths."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_NAME, MAX_PARAMETER, MAX_TAG = 250, 6000, 8000  # characters, MLflow's limits
HIDDEN = "mlflow.es_medical."
"""Start of the names of tags that are read by programs: MLflow's pages show no tag that starts with `mlflow.`."""


def hidden(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags under names that MLflow's pages do not show."""
    return {HIDDEN + name: str(value) for name, value in tags.items()}


def with_hidden(tags: Mapping[str, str]) -> dict[str, str]:
    """Return a run's tags, the hidden ones under their plain names; runs of version 0.1 hid none.

    >>> with_hidden({"method": "es", "mlflow.es_medical.key": "ab"})
    {'method': 'es', 'key': 'ab'}
    """
    return {name.removeprefix(HIDDEN): value for name, value in tags.items()}


def clean(name: str) -> str:
    """Return a name of letters, digits, `_ - . /` and space that is also a relative path inside its folder.

    >>> clean("psnr(dB)"), clean("/val//ssim[0]"), clean("../x")
    ('psnr_dB_', 'val/ssim_0_', '_/x')
    """
    parts = [part for part in re.sub(r"[^A-Za-z0-9_.\-/ ]", "_", name).split("/") if part not in ("", ".")]
    cleaned = "/".join("_" if part == ".." else part for part in parts) or "_"
    return cleaned if len(cleaned) <= MAX_NAME else cleaned[: MAX_NAME - 9] + "_" + _short_hash(name)


def cut(text: str, length: int) -> str:
    """Return `text`, cut to `length` characters with a trailing " ..." if longer."""
    return text if len(text) <= length else text[: length - 4] + " ..."


class Names:
    """Distinct clean names for distinct given names: `a(b)` and `a[b]` stay two curves."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """Return the clean name of `name`, always the same; a hash is appended if another name took it first."""
        cleaned = clean(name)
        if self._given.setdefault(cleaned, name) == name:
            return cleaned
        return f"{cleaned[: MAX_NAME - 9]}_{_short_hash(name)}"


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Return every leaf of a nested configuration under its dotted name, as text.

    A list of plain values stays one entry; the items of a list with mappings are numbered.

    >>> flatten({"lr": 1e-4, "net": {"widths": [16, 32]}, "steps": [{"g": None}]})
    {'lr': '0.0001', 'net.widths': '[16, 32]', 'steps.0.g': 'None'}
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        children = _children(value)
        if children:
            flat |= {f"{key}.{name}": text for name, text in flatten(children).items()}
        else:
            flat[str(key)] = json.dumps(list(value), default=str) if _is_list(value) else str(value)
    return flat


def in_force(logged: dict[str, str], name: str, epoch: int) -> str | None:
    """Return the value of a parameter at an epoch: the newest logged up to that epoch; None if there is none."""
    pattern = re.compile(re.escape(name) + r"\.epoch(\d+)(?:\.(\d+))?")
    found = [(match, value) for key, value in logged.items() if (match := pattern.fullmatch(key))]
    versions = [(int(match[1]), int(match[2] or 1), value) for match, value in found if int(match[1]) <= epoch]
    return max(versions)[2] if versions else logged.get(name)


def free_name(logged: dict[str, str], name: str, epoch: int) -> str:
    """Return the first of `name`, `name.epochN`, `name.epochN.2`, ... that no logged parameter has."""
    candidates = [name, f"{name}.epoch{epoch}"] + [f"{name}.epoch{epoch}.{i}" for i in range(2, len(logged) + 3)]
    return next(candidate for candidate in candidates if candidate not in logged)


def _children(value: Any) -> Mapping[str, Any]:  # noqa: ANN401
    if isinstance(value, Mapping):
        return value
    if _is_list(value) and any(isinstance(item, Mapping) for item in value):
        return {str(i): item for i, item in enumerate(value)}
    return {}


def _is_list(value: Any) -> bool:  # noqa: ANN401 - any leaf of a configuration
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
