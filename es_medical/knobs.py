"""Knobs: the top-level values of a bundle's configurations, as files hold them and as MLflow logs them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

BUNDLES = (Path(__file__).parent / "bundles", Path(__file__).parents[1] / "bundles")
"""Where the bundles are: inside an installed package, and in a source tree."""

PLACE = (
    *("method", "seed", "run_name", "ckpt_dir", "output_dir", "bundle_root", "dataset_dir"),
    *("resume", "tracking_uri", "parent_run", "register", "warm_dir"),
)
"""Knobs that name a run and its folders, which are not compared."""

MAIN = ("method", "widths", "iterations", "epochs", "batch_size", "lr", "split_ratio", "warm_images", "seed")
"""Knobs logged as MLflow parameters; the others are in the hidden tag `knobs` and in config.yaml, the operator's in tags."""

NO_RESULT = (
    *("data_file", "experiment", "scale", "key_metric", "val_interval", "lr_milestones", "run_name"),
    *("cache_device", "num_workers", "channels_last", "warm_dir"),
)
"""Knobs that may differ between runs with the same result: place, speed, or what follows from the others."""

OPERATOR = ("acceleration", "center_fraction", "sigma", "views", "mask", "keep", "ratio")
"""Knobs that only check the data file; null accepts any value of it."""

ARCHITECTURE = ("architecture", "widths", "zero_residual", "iterations", "start", "noise_level")
"""Knobs of the network."""

NETWORK = ("method", *ARCHITECTURE, "network_def", "group")
"""Knobs and parts that weights can't be used without: no other value than that of their training."""

OF_MACHINE = (
    *("bundle_root", "dataset_dir", "ckpt_dir", "output_dir", "warm_dir", "warm_start", "tracking_uri", "parent_run", "study"),
    *("run_name", "resume", "register", "knobs_from", "device", "cache_device", "num_workers"),
)
"""Knobs that are not kept with weights: places, the machine, and one run."""

NO_KNOBS = ("initialize", "run", "finalize", "_meta_")
"""Entries of a configuration that are instructions or metadata."""

AUTO = "auto"
"""Value of a knob that follows from the data."""

BY_DATA = ("split_ratio", "eval_split_input", "consistency_weight", "weighting", "step")
"""Knobs that can be `AUTO` (see `es_medical.engine.auto`)."""

OF_SPLITS = ("split_unit", "split_ratio", "acs_in_input", "n_splits", "alpha", "consistency_weight", "eval_split_input")
"""Knobs that only splitting methods use."""

LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reader of YAML: libyaml where it is installed, ten times as fast."""


def read_configuration(path: Path) -> dict[str, Any]:
    """Read the top-level entries of a YAML or JSON file."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.load(text, LOADER) or {}


def read_knobs(configs: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read the top-level values of `NAME.yaml` in a folder; where several have a value, that of the last one.

    Raises:
        FileNotFoundError: there is no such file.
    """
    values: dict[str, Any] = {}
    for name in names:
        path = configs / f"{name}.yaml"
        if not path.is_file():
            raise FileNotFoundError(f"no {path}: give the folder of the bundles as --bundles")
        values |= read_configuration(path)
    return values


def knobs_in_force(logged: Mapping[str, str]) -> dict[str, str]:
    """Return the knobs of a run at its end from MLflow's parameters.

    A knob that had another value on resuming after epoch 40 was logged again as `lr.epoch40`, the second time as
    `lr.epoch40.2`.

    >>> knobs_in_force({"lr": "0.1", "lr.epoch5": "0.2", "lr.epoch40": "0.3"})
    {'lr': '0.3'}
    """
    latest = {name: value for name, value in logged.items() if ".epoch" not in name}
    changed: list[tuple[list[int], str, str]] = []
    for name, value in logged.items():
        base, _, version = name.partition(".epoch")
        if version and version.replace(".", "").isdigit():
            changed.append(([int(part) for part in version.split(".")], base, value))
    return latest | {base: value for _, base, value in sorted(changed)}


def typed_options(arguments: Sequence[str]) -> dict[str, str]:
    """Return the names that a command line sets, with the text of each value.

    >>> typed_options(["run", "--ema", "None", "--lr=0.1", "--warm-start=null", "--resume"])
    {'ema': 'None', 'lr': '0.1', 'warm_start': 'null', 'resume': ''}
    """
    found = {}
    for text, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, separator, value = text.partition("=")
        if name.startswith("--"):
            found[name[2:].replace("-", "_")] = value if separator else following
    return found


def read_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Knobs after the options, `--views 51` or `--views=51`, with values as YAML reads them."""
    knobs: dict[str, Any] = {}
    rest = [part for text in arguments for part in (text.split("=", 1) if text.startswith("--") else [text])]
    while rest:
        name, *rest = rest
        if not name.startswith("--") or not rest:
            raise ValueError(f"{name!r}: knobs are given as --name value, for example --views 51")
        text = rest.pop(0)
        try:
            knobs[name[2:]] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{name} {text}: no value that can be read") from error
    return knobs


def logged_knobs(params: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the knobs of a run at its end: MLflow's parameters, and those of the tag `knobs` (see `with_hidden`).

    >>> logged_knobs({"lr": "0.1"}, {"knobs": '{"alpha": "0.5"}'}), logged_knobs({"lr": "0.1"}, {})
    ({'lr': '0.1', 'alpha': '0.5'}, {'lr': '0.1'})
    """
    return knobs_in_force(params) | json.loads(tags.get("knobs", "{}"))  # newer, if a run of version 0.1 was resumed


def same_knob(first: object, second: object) -> bool:
    """Whether two values mean the same, as files, the command line and MLflow write them.

    >>> same_knob(1, "1.0"), same_knob("[4,8]", [4, 8]), same_knob(True, "true"), same_knob("a.h5", "A.h5")
    (True, True, True, False)
    """
    return _plain(first) == _plain(second)


def number(text: str | None) -> float | None:
    """Read a number; None for no text, for "None" and for words.

    >>> number("0.005"), number("None"), number(None)
    (0.005, None, None)
    """
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _plain(value: object) -> float | str:
    text = str(value).strip()
    if (found := number(text)) is not None:
        return found
    if text.startswith("["):
        return text.replace(" ", "")
    return text.lower() if text.lower() in ("true", "false", "none") else text
