"""The settings in force: as a configuration gives them, chosen by the data, or as kept with trained weights."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from es_medical.engine.auto import Choice, Settings, choose, evidence
from es_medical.engine.checkpoint import BEST, LAST, TRAIN_FIRST, read_state
from es_medical.engine.identity import Identity
from es_medical.engine.methods import group_of
from es_medical.groups import Group
from es_medical.knobs import AUTO, BY_DATA
from es_medical.methods import method_of
from es_medical.physics import Operator

logger = logging.getLogger(__name__)


def choose_settings(
    data_file: str,
    physics: Operator,
    ckpt_dir: str | Path,
    split_ratio: float | str,
    eval_split_input: bool | str,
    consistency_weight: float | str = 1.0,
    weighting: str = "none",
    step: float | str = 1.0,
    sigma: float | None = None,
    sigma_factor: float = 1.0,
    resume: bool = False,
    warm_images: int = 0,
    warm_start: str | None = None,
    group: Group | None = None,
    method: str = "es",
) -> Settings:
    """Return the settings of a training; those that are `auto` follow from its measurements (see `engine.auto.choose`).

    Args:
        data_file: slice file of the training.
        physics: its operator.
        ckpt_dir: the `models` folder; a resumed training keeps what it began with.
        split_ratio: share of the measured units that the network sees, or "auto".
        eval_split_input: whether images are averages over splits, or "auto".
        consistency_weight: weight of the consistency term of the splitting losses, or "auto".
        weighting: weighting of the measurement residuals, or "auto".
        step: initial step gamma, or "auto".
        sigma: assumed noise level; None for that of each slice.
        sigma_factor: factor that multiplies sigma.
        resume: whether the training is resumed.
        warm_images: number of synthetic images of its warm start; 0 for none.
        warm_start: weights that it starts from; None for none.
        group: group over which images from all of y are averaged; None for no average.
        method: name of the method: without an average if it is not equivariant, and not resumed if it learns nothing.
    """
    given = _named(split_ratio, eval_split_input, consistency_weight, weighting, step)
    if AUTO not in given.values():
        return _settings(given, {})
    if resume and method_of(method).trained:
        return _kept(given, Path(ckpt_dir) / LAST)
    warm = warm_images > 0 or warm_start is not None
    found = evidence(data_file, physics, sigma, sigma_factor)
    settings = _settings(given, choose(found, warm and group_of(method, group) is not None))
    _say(settings, "chosen by the measurements")
    return settings


def kept_settings(
    ckpt_dir: str | Path,
    split_ratio: float | str,
    eval_split_input: bool | str,
    consistency_weight: float | str = 1.0,
    weighting: str = "none",
    step: float | str = 1.0,
) -> Settings:
    """Return the settings for trained weights: those that are `auto` are the ones that the weights were trained with.

    Args:
        ckpt_dir: folder of the weights.
        split_ratio: share of the measured units that the network sees, or "auto".
        eval_split_input: whether images are averages over splits, or "auto".
        consistency_weight: weight of the consistency term of the splitting losses, or "auto".
        weighting: weighting of the measurement residuals, or "auto".
        step: initial step gamma, or "auto".

    Raises:
        FileNotFoundError: there are no weights.
        ValueError: the weights, of an early version, do not say how they were trained.
    """
    given = _named(split_ratio, eval_split_input, consistency_weight, weighting, step)
    return _kept(given, Path(ckpt_dir) / BEST) if AUTO in given.values() else _settings(given, {})


def _named(*values: float | str | bool) -> dict[str, Any]:
    return dict(zip(BY_DATA, values, strict=True))


def _kept(given: Mapping[str, Any], path: Path) -> Settings:
    """Complete `given` with the settings in a file of weights."""
    kept = _read(path)
    unknown = [name for name, value in given.items() if value == AUTO and name not in kept]
    if unknown:
        raise ValueError(f"{path} does not say its {' and '.join(unknown)}: give a value in place of {AUTO}")
    choices = {name: Choice(kept[name], kept["why"].get(name, "given in training")) for name in given if name in kept}
    settings = _settings(given, choices)
    _say(settings, f"kept with {path.name}")
    return settings


def _settings(given: Mapping[str, Any], choices: Mapping[str, Choice]) -> Settings:
    taken = {name: choices[name] for name, value in given.items() if value == AUTO}
    values: dict[str, Any] = {name: taken[name].value if name in taken else value for name, value in given.items()}
    return Settings(**values, why={name: choice.why for name, choice in taken.items()})


def _say(settings: Settings, source: str) -> None:
    for name, value in settings.chosen.items():
        logger.info("%s: %s, %s (%s)", name, value, source, settings.why[name])


def _read(path: Path) -> dict[str, Any]:
    """Read the settings that weights were trained with, as `Settings` names them; older weights do not say all of them."""
    state = read_state(path, TRAIN_FIRST)
    older = Identity.kept(state).settings
    names = {"split_ratio": "split_ratio", "eval_split_input": "averages_splits"}
    found = {name: older[own] for name, own in names.items() if older.get(own) is not None}
    return found | {"why": {}} | dict(state.get("knobs", {}))
