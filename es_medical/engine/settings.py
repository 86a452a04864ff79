"""The settings in force: as a configuration gives them, chosen by the data, or kept with trained weights."""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from pydoc import locate
from typing import Any

from monai.bundle import ComponentLocator

from es_medical.engine.auto import Choice, Settings, choose, evidence
from es_medical.engine.methods import group_of
from es_medical.engine.weights.state_file import TRAIN_FIRST, read_state
from es_medical.groups import Group
from es_medical.inferers import complete
from es_medical.knobs import AUTO, BY_DATA, NETWORK, NO_KNOBS, OF_MACHINE, OPERATOR, same_knob
from es_medical.physics import Operator

logger = logging.getLogger(__name__)

TRUSTED = ("es_medical.networks.", "es_medical.groups.", "monai.networks.", "deepinv.models.", "torch.nn.")
"""Where the classes of a network or group that weights name may stand: a file of weights is no place for other code."""


def choose_settings(
    data_file: str,
    physics: Operator,
    split_ratio: float | str,
    eval_split_input: bool | str,
    consistency_weight: float | str = 1.0,
    weighting: str = "none",
    step: float | str = 1.0,
    sigma: float | None = None,
    sigma_factor: float = 1.0,
    warm_images: int = 0,
    warm_start: str | None = None,
    group: Group | None = None,
    method: str = "es",
) -> Settings:
    """Return the settings of a training; those that are `auto` follow from its measurements (see `engine.auto.choose`).

    Args:
        data_file: slice file of the training.
        physics: its operator.
        split_ratio: share of the measured units that the network sees, or "auto".
        eval_split_input: whether images are averages over splits, or "auto".
        consistency_weight: weight of the consistency term of the splitting losses, or "auto".
        weighting: weighting of the measurement residuals, or "auto".
        step: initial step gamma, or "auto".
        sigma: assumed noise level; None for that of each slice.
        sigma_factor: factor that multiplies sigma.
        warm_images: number of synthetic images of its warm start; 0 for none.
        warm_start: weights that it starts from; None for none.
        group: group over which images from all of y are averaged; None for no average.
        method: name of the method: without an average if it is not equivariant.
    """
    given = dict(zip(BY_DATA, (split_ratio, eval_split_input, consistency_weight, weighting, step), strict=True))
    taken: dict[str, Choice] = {}
    if AUTO in given.values():
        warm = warm_images > 0 or warm_start is not None
        found = evidence(data_file, physics, sigma, sigma_factor)
        choices = choose(found, warm and group_of(method, group) is not None)
        taken = {name: choices[name] for name, value in given.items() if value == AUTO}
    for name, choice in taken.items():
        logger.info("%s: %s, chosen by the measurements (%s)", name, choice.value, choice.why)
    values: dict[str, Any] = {name: taken[name].value if name in taken else value for name, value in given.items()}
    return Settings(**values, why={name: choice.why for name, choice in taken.items()})


def knobs_to_keep(
    configuration: Mapping[str, Any], written: Mapping[str, Any], defaults: Mapping[str, Any], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is kept of a configuration with the weights: plain data, without places of this machine.

    A data file is kept if its path is relative. References and expressions of the bundle's own file are left out: they hold
    for whoever has the knobs that they refer to.

    Args:
        configuration: the configuration with its plain values evaluated.
        written: the same as written.
        defaults: the bundle's own file.
        chosen: values of the knobs that were `auto`.
    """
    kept = {}
    for name, value in configuration.items():
        own_expression = _is_expression(written[name]) and written[name] == defaults.get(name)
        if name in (*NO_KNOBS, *OF_MACHINE) or own_expression or _is_expression(value):
            continue
        if name == "data_file" and (Path(value).is_absolute() or ".." in Path(value).parts):
            continue
        kept[name] = value
    return json.loads(json.dumps(kept | dict(chosen), default=str))


def read_knobs_of(path: Path) -> dict[str, Any]:
    """Read the knobs that weights were trained with; weights of before know only some that follow from the data."""
    state = read_state(path, TRAIN_FIRST)
    if state.get("configuration"):
        return state["configuration"]
    older = complete(state.get("settings", {}))
    names = {"split_ratio": "split_ratio", "eval_split_input": "averages_splits"}
    found = {name: older[own] for name, own in names.items() if older.get(own) is not None}
    return found | {name: value for name, value in state.get("knobs", {}).items() if name != "why"}


def taken_knobs(
    given: Mapping[str, Any], files: Sequence[Mapping[str, Any]], typed: Set[str], kept: Mapping[str, Any], weights: Path
) -> dict[str, Any]:
    """Return the entries of a configuration that are those of trained weights: name -> value.

    What the user gives, in an overlay or on the command line, stays, but for `NETWORK`: the weights' own values are used, and
    others on the command line are refused.

    Args:
        given: the configuration.
        files: contents of the bundle's files; the first has the defaults.
        typed: names on the command line.
        kept: the knobs of the weights (see `read_knobs_of`).
        weights: file of the weights, for messages.

    Raises:
        ValueError: the user asks for another network than that of the weights; or the weights name a network that must not be
            built from a file of weights, or, being of an early version, do not say how they were trained.
    """
    taken, refused = {}, []
    for name, value in kept.items():
        if name not in given or _same(given[name], value):
            continue
        default = files[0].get(name)
        in_files = any(name in file and _same(file[name], given[name]) for file in files)
        if name in NETWORK and (name in typed or not in_files):
            refused.append(f"{name}: {_shown(value)} in training, {_shown(given[name])} is given")
        elif name in NETWORK or given[name] == AUTO or (_same(given[name], default) and _may_follow(name, value, given, typed)):
            taken[name] = value
    if refused:
        raise ValueError(f"{weights} is of another network ({'; '.join(refused)}): leave it out, the weights know their own")
    if missing := sorted(name for name in BY_DATA if name in files[0] and given[name] == AUTO and name not in taken):
        raise ValueError(f"{weights} does not say its {' and '.join(missing)}: give a value in place of {AUTO}")
    for name, value in taken.items():
        _check_plain(name, value, set(_texts(given)), weights)
    if taken:
        logger.info("knobs of %s: %s", weights, ", ".join(f"{name} {_shown(value)}" for name, value in taken.items()))
    return taken


def _may_follow(name: str, value: object, given: Mapping[str, Any], typed: Set[str]) -> bool:
    """Whether a knob that the user did not give is that of the weights."""
    if name == "data_file":  # a relative path
        return Path(str(value)).is_file() and not typed & {"data_file", "dataset_dir"}
    return name not in typed and not (isinstance(value, dict)) and not (name in OPERATOR and given[name] is None)


def _same(first: object, second: object) -> bool:
    if isinstance(first, dict | list) or isinstance(second, dict | list):
        return first == second
    return same_knob(first, second)


def _shown(value: object) -> str:
    return str(value.get("_target_", value)) if isinstance(value, dict) else str(value)


def _is_expression(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("$", "@", "%"))


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - any part of a configuration
    """Every text in a configuration."""
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(item)
    if isinstance(value, str):
        yield value


def _check_plain(name: str, value: object, own: Set[str], weights: Path) -> None:
    """Raise ValueError if a value from a file of weights would run code other than the bundle's own, or a known network."""
    targets = set(re.findall(r'"_target_": "([^"]*)"', json.dumps(value)))
    odd = [text for text in _texts(value) if _is_expression(text) and text not in own and not re.fullmatch(r"@\w+", text)]
    odd += [target for target in targets - own if not _is_trusted(target)]
    odd += [key for key in re.findall(r'"(_\w+_)":', json.dumps(value)) if key != "_target_"]
    if odd:
        raise ValueError(
            f"{weights} was trained with {name} {odd[0]}, which is not built from a file of weights: give the configuration "
            "file of the training that defines it"
        )


def _is_trusted(target: str) -> bool:
    """Whether a target is a class or function of a module of networks or groups."""
    if "." not in target:
        target = f"{ComponentLocator().get_component_module_name(target)}.{target}"
    found = locate(target) if target.startswith(TRUSTED) else None
    return f"{getattr(found, '__module__', '')}.".startswith(TRUSTED)
