"""Trained weights as a user gives them: their folder, the bundle that they are of, and commands made from their knobs."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from es_medical.engine.checkpoint import read_preparation
from es_medical.engine.settings import read_knobs_of, taken_knobs
from es_medical.engine.weights.state_file import BEST, MODEL
from es_medical.knobs import ARCHITECTURE, BUNDLES, read_configuration


def weights_folder(weights: Path) -> Path:
    """Return the folder of trained weights, given as such, as their file, or as the bundle's folder around it."""
    if weights.is_file() and weights.name != BEST:
        raise ValueError(
            f"{weights} is not the file to reconstruct with: give the folder that holds {BEST}; a copy of that file by another "
            f"name goes into a folder of its own, as {BEST}"
        )
    inside = weights / "models"
    return weights.parent if weights.is_file() else inside if (inside / BEST).is_file() else weights


def own_parts(files: Sequence[Path], config: Path, folder: Path) -> dict[str, Any]:
    """The parts of an operator that is not the bundle's: what configuration files say for `config`, and what that refers to.

    Raises:
        ValueError: the weights were trained with such an operator, and no file defines it.
    """
    given = {name: value for file in files for name, value in read_configuration(file).items()}
    known, trained = read_configuration(config), read_knobs_of(folder / BEST).get("physics") or {}
    own = str(trained.get("_target_"))
    if trained and own != known["physics"]["_target_"] and "physics" not in given:
        raise ValueError(
            f"the weights in {folder} were trained with an operator of their own ({own}): add --config_file FILE, the "
            "configuration that defines it"
        )
    parts = {name: value for name, value in given.items() if name in known}
    while more := {name for name in set(re.findall(r"@(\w+)", json.dumps(parts))) - parts.keys() if name in given}:
        parts |= {name: given[name] for name in more}
    return parts


def inference_file(folder: Path) -> Path:
    """Return `inference.json` of the bundle that weights are of: ours by its name, else the one that they lie in.

    Raises:
        FileNotFoundError: there are no weights, or their bundle is unknown and not beside them.
    """
    name = read_knobs_of(folder / BEST).get("tags", {}).get("bundle", "")
    places = [place / str(name) for place in BUNDLES if name]
    for bundle in (*places, folder.resolve().parent):
        if (bundle / "configs" / "inference.json").is_file():
            return bundle / "configs" / "inference.json"
    raise FileNotFoundError(
        f"the weights in {folder} are of {f'the bundle {name}' if name else 'an early version and name no bundle'}: put them "
        "into the folder models/ of their bundle"
    )


def export_command(weights: Path, out: Path) -> tuple[str, ...]:
    """The arguments of monai.bundle that write the denoiser of trained weights as TorchScript, in the size of its images.

    Raises:
        FileNotFoundError: there are no weights, or no denoiser among them.
        ValueError: they say no size, or name code that is not built from a file of weights.
    """
    folder = weights_folder(weights)
    config, denoiser = inference_file(folder), folder / MODEL
    if not denoiser.is_file():
        raise FileNotFoundError(f"no {denoiser}: the method of these weights has no denoiser, or the file was moved")
    written = read_configuration(config)
    taken = taken_knobs(written, [written], set(), read_knobs_of(folder / BEST), folder / BEST)
    own = [name for name in (*ARCHITECTURE, "network_def") if name in taken]
    knobs = [part for name in own for part in (f"--{name}", json.dumps(taken[name]))]
    meta = config.with_name("metadata.json")
    channels = read_configuration(meta)["network_data_format"]["inputs"]["image"]["num_channels"]
    shape = [1, channels, *read_preparation(folder)["size"]]
    files = ("--meta_file", str(meta), "--config_file", str(config), "--ckpt_file", str(denoiser), "--filepath", str(out))
    return ("ckpt_export", "--net_id", "network_def", *files, "--use_trace", "True", "--input_shape", str(shape), *knobs)
