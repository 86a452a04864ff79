"""The commands that fill empty cells: complete, to be run in the folder that holds `bundles/`."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from es_medical.knobs import PLACE, read_knobs, same_knob
from es_medical.report.catalogue import Study
from es_medical.report.reading.runs import Run


def train_command(
    bundle: str,
    method: str,
    overlays: tuple[str, ...] = (),
    knobs: Mapping[str, str] | None = None,
    seed: str = "0",
    tracking_uri: str | None = None,
) -> str:
    """Return the command that trains and tests one method; its weights get their own folder.

    >>> print(train_command("lidc_ct", "es").partition(" --ckpt_dir")[0])
    python -m monai.bundle run --config_file bundles/lidc_ct/configs/train.yaml --bundle_root bundles/lidc_ct --method es
    """
    files = [f"bundles/{bundle}/configs/{name}.yaml" for name in ("train", *overlays)]
    chosen = files[0] if len(files) == 1 else '"[' + ",".join(f"'{file}'" for file in files) + ']"'
    options = {"method": method, "ckpt_dir": _folder(bundle, method, overlays, knobs or {}, seed)} | dict(knobs or {})
    options |= ({"seed": seed} if seed != "0" else {}) | ({"tracking_uri": tracking_uri} if tracking_uri else {})
    text = " ".join(f"--{name} {_quoted(value)}" for name, value in options.items())
    return f"python -m monai.bundle run --config_file {chosen} --bundle_root bundles/{bundle} {text}"


def planned_command(study: Study, method: str, scale: str, tracking_uri: str | None = None) -> str:
    """Return the command of one method of a study that has no run yet: the unchanged configuration."""
    demo = scale == "demo"
    overlays = study.demo_overlays if demo else study.overlays
    knobs = dict(study.demo_knobs) if demo else {}
    return train_command(study.bundle, method, overlays, knobs, tracking_uri=tracking_uri)


def sibling_command(
    study: Study,
    method: str,
    sibling: Run,
    tracking_uri: str | None,
    bundles: Path,
    unknown_noise: bool = False,
    knobs: Mapping[str, str] | None = None,
) -> str:
    """Return the command that adds a method to an existing run: same data, operator, network and experiment.

    Args:
        study: study of both.
        method: method to run.
        sibling: the existing run.
        tracking_uri: store of the existing run.
        bundles: folder of the bundles, for the defaults of their configurations; without them, only the knobs of data,
            operator and experiment are set.
        unknown_noise: add the overlay of unknown noise.
        knobs: knobs that differ from the sibling's.
    """
    overlays = study.demo_overlays if sibling.scale == "demo" else study.overlays
    defaults = _defaults(bundles / study.bundle / "configs", overlays)
    needed = {"data_file": sibling.params.get("data_file", ""), "experiment": sibling.experiment} | dict(sibling.operator)
    given = {name: value for name, value in sibling.params.items() if name in defaults and name not in PLACE}
    wanted = needed | given | dict(knobs or {})
    differing = {name: value for name, value in wanted.items() if value and not same_knob(defaults.get(name, ""), value)}
    if unknown_noise:
        overlays, differing = (*overlays, "noise_unknown"), _without_experiment(differing)
    return train_command(study.bundle, method, overlays, differing, sibling.seed, tracking_uri)


def _folder(bundle: str, method: str, overlays: tuple[str, ...], knobs: Mapping[str, str], seed: str) -> str:
    """Return the folder of the weights: those of different trainings never overwrite each other."""
    ratio = f"ratio{knobs['ratio']}" if "ratio" in knobs else ""
    parts = [method, *overlays, ratio, f"seed{seed}" if seed != "0" else ""]
    return f"bundles/{bundle}/models/{'-'.join(part for part in parts if part)}"


def _without_experiment(knobs: Mapping[str, str]) -> dict[str, str]:
    """Leave out the experiment, which the overlay of unknown noise names itself."""
    return {name: value for name, value in knobs.items() if name not in ("experiment", "assumed_sigma")}


def _defaults(configs: Path, overlays: tuple[str, ...]) -> dict[str, Any]:
    """Return plain top-level values of the configurations that exist; expressions ("@", "$") are left out."""
    values = read_knobs(configs, [name for name in ("train", *overlays) if (configs / f"{name}.yaml").is_file()])
    plain = {name: value for name, value in values.items() if not isinstance(value, dict)}
    return {name: value for name, value in plain.items() if not str(value).startswith(("@", "$"))}


def _quoted(value: str) -> str:
    """Quote a value for the shell; lists in the form that MONAI's command line reads."""
    return f'"{value}"' if value.startswith("[") and '"' not in value else shlex.quote(value)
