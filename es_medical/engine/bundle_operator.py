"""The operator of a bundle's configuration files: that of the data file where there is one, else the one its knobs describe."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from monai.bundle import ConfigParser
from torch.utils.data import default_collate

from es_medical.data import SliceDataset
from es_medical.engine.assumed_operator import assumed_operator
from es_medical.engine.config import as_typed, cause, check_names
from es_medical.physics import Operator
from es_medical.splits import KSPACE_UNITS, Split
from es_medical.types import Image


class Subject(NamedTuple):
    """What is looked at.

    Attributes:
        physics: the operator.
        images: typical images (B, C, H, W) of the data file; None where it has none, or there is no file.
        data_file: the slice file; None where the knobs stand in.
        words: where the operator comes from.
        knobs: the configuration's plain values.
        split: how the measurements are divided; None where the configuration doesn't say.
        bundle: name of the bundle; "" where the configuration doesn't say.
        experiment: MLflow experiment of its runs.
        tracking_uri: MLflow's, as the configuration says.
    """

    physics: Operator
    images: Image | None
    data_file: Path | None
    words: str
    knobs: Mapping[str, Any]
    split: Split | None
    bundle: str
    experiment: str
    tracking_uri: str | None


def read_subject(
    files: Sequence[str],
    overrides: Mapping[str, Any],
    data_file: Path | None = None,
    n_images: int = 4,
    size: int | None = None,
) -> Subject:
    """Read a bundle's configuration and make its operator, without networks or losses.

    Args:
        files: configuration files, later ones over earlier ones.
        overrides: knobs by name, over all files.
        data_file: slice file; None takes that of the configuration where it exists, else the knobs alone.
        n_images: typical images to read, spread over the file.
        size: rows and columns of the images, without a data file.

    Raises:
        FileNotFoundError: no such configuration file, or data file.
        ValueError: a file that is no configuration of a bundle, an unknown knob, or a data file that was made otherwise.
        ImportError: CT without astra-toolbox.
    """
    parser = _parser(files, overrides)
    knobs = _knobs(parser)
    found = data_file or _existing(knobs.get("data_file"))
    texts = {name: str(knobs[name]) for name in ("experiment", "tracking_uri") if knobs.get(name)}
    names = (str((parser.get("tags") or {}).get("bundle", "")), texts.get("experiment", "diagnosis"), texts.get("tracking_uri"))
    if found is None:
        physics, assumed = assumed_operator(_factory(parser, files), knobs, size)
        words = f"no data file was read; assumed from the configuration: {assumed}"
        return Subject(physics, None, None, words, knobs, _split(knobs, physics), *names)
    if size is not None:
        raise ValueError(f"the size of the images is that of the data file, {found}: --size is for a look without one")
    physics, images = _read(parser, found, n_images)
    knobs |= {"data_file": found.name}  # the folder is nobody's business
    return Subject(physics, images, found, f"the operator of {found.name}", knobs, _split(knobs, physics), *names)


def config_files(given: Sequence[str]) -> list[str]:
    """Take apart what names configuration files, as monai.bundle does: repeated, or a list in one text.

    >>> config_files(["a.yaml"]), config_files(["['a.yaml', 'b.yaml']"])
    (['a.yaml'], ['a.yaml', 'b.yaml'])
    """
    try:
        return [str(one) for text in given for one in (ast.literal_eval(text) if text.startswith("[") else [text])]
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{' '.join(given)}: a list of files is written \"['train.yaml','demo.yaml']\"") from error


def _parser(files: Sequence[str], overrides: Mapping[str, Any]) -> ConfigParser:
    for file in files:
        _check_file(file)
    content: dict[str, Any] = ConfigParser.load_config_files(list(files))
    if not isinstance(content.get("physics"), dict):
        raise ValueError(f"{', '.join(files)} is no configuration of a bundle: it defines no physics")
    check_names(dict(content) | dict(overrides), content)
    parser = ConfigParser(content)
    for name, value in (dict(overrides) | as_typed(overrides, content)).items():
        parser[name] = value
    return parser


def _check_file(file: str) -> None:
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no configuration file {file}")
    try:
        content = ConfigParser.load_config_file(file)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{file} can't be read as a configuration: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} is no configuration of a bundle: it holds a {type(content).__name__} in place of names")


def _knobs(parser: ConfigParser) -> dict[str, Any]:
    """Plain values, and the paths that are put together from them; `channels` of the network beside."""
    plain = {name: value for name, value in parser.get().items() if not isinstance(value, dict | list)}
    knobs = {name: parser.get_parsed_content(name) for name in plain if name != "_meta_"}
    return knobs | {"channels": (parser.get("network_def") or {}).get("channels")}


def _split(knobs: Mapping[str, Any], physics: Operator) -> Split | None:
    """Make the split of the knobs; lines of a fully sampled centre stay in it where the knobs say so."""
    if "split_unit" not in knobs or "split_ratio" not in knobs:
        return None
    kept = bool(knobs.get("acs_in_input")) and knobs["split_unit"] in KSPACE_UNITS
    center = round(physics.image_size[1] * float(knobs.get("center_fraction") or 0)) if kept else 1
    return Split(knobs["split_unit"], float(knobs["split_ratio"]), max(center, 1))


def _factory(parser: ConfigParser, files: Sequence[str]) -> str:
    target = str(parser.get("physics").get("_target_", ""))
    if not target:
        raise ValueError(f"{', '.join(files)} is no configuration of a bundle: its physics has no _target_")
    return target.rpartition(".")[2]


def _existing(path: object) -> Path | None:
    return Path(str(path)) if path and Path(str(path)).is_file() else None


def _read(parser: ConfigParser, data_file: Path, n_images: int) -> tuple[Operator, Image | None]:
    """Build the operator of a file on the CPU; where each slice has its own, that of the first slice and its image alone."""
    dataset = SliceDataset(data_file, limit=n_images)
    parser["data_file"], parser["device"] = str(data_file), "cpu"
    try:
        shared: Operator = parser.get_parsed_content("physics")
    except RuntimeError as error:  # MONAI's wrapper
        raise cause(error) from None
    first = default_collate([dataset[0]])
    physics = shared.of(first)
    if not dataset.with_image:
        return physics, None
    several = first if physics is not shared else default_collate([dataset[i] for i in range(len(dataset))])
    return physics, several["image"]
