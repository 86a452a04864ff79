"""Build the operator of a bundle's configuration: from its data file if there is one, else from its knobs."""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from monai.bundle import ConfigParser
from torch.utils.data import default_collate

from es_medical.data import SliceDataset
from es_medical.engine.config import as_typed, cause, check_names
from es_medical.knobs import AUTO
from es_medical.physics import (
    MRI,
    CompressedSensing,
    Inpainting,
    Operator,
    bernoulli_mask,
    even_columns,
    gaussian_line_mask,
    gaussian_matrix,
    random_columns,
)
from es_medical.physics.masks import center_block
from es_medical.splits import KSPACE_UNITS, Split, unit_of
from es_medical.types import Image

PAPER_RATIO = 0.8
"""Split ratio of the paper, for `auto` without a data file."""


class Subject(NamedTuple):
    """Operator to diagnose, and its configuration.

    Attributes:
        physics: the operator.
        images: typical images (B, C, H, W) of the data file; None if it has none, or without a file.
        data_file: the slice file; None if the operator is built from the knobs alone.
        words: description of where the operator comes from.
        knobs: the configuration's plain values.
        split: how the measurements are divided; None if not configured.
        bundle: name of the bundle; "" if not configured.
        experiment: MLflow experiment of its runs.
        tracking_uri: MLflow tracking URI of the configuration.
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
    """Read a bundle's configuration and build its operator, without networks or losses.

    Args:
        files: configuration files; later ones override earlier ones.
        overrides: knobs by name; they override all files.
        data_file: slice file; None uses the configured one if it exists, else the knobs alone.
        n_images: number of typical images to read, spread over the file.
        size: rows and columns of the images, if there is no data file.

    Raises:
        FileNotFoundError: no such configuration file, or data file.
        ValueError: a file that is no bundle configuration, an unknown knob, or a data file made with other values.
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
        if knobs.get("split_ratio") == AUTO:
            knobs |= {"split_ratio": PAPER_RATIO}
            words += f"; split_ratio {PAPER_RATIO:g}, since {AUTO} needs a data file"
        return Subject(physics, None, None, words, knobs, _split(knobs, physics), *names)
    if size is not None:
        raise ValueError(f"the size of the images is that of the data file, {found}: --size is for use without a data file")
    physics, images = _read(parser, found, n_images)
    if knobs.get("split_ratio") == AUTO:
        knobs |= {"split_ratio": _built(parser, "settings").split_ratio}
    knobs |= {"data_file": found.name}  # the path is left out on purpose
    return Subject(physics, images, found, f"the operator of {found.name}", knobs, _split(knobs, physics), *names)


def config_files(given: Sequence[str]) -> list[str]:
    """Split the names of configuration files as monai.bundle does: repeated options, or a list in one text.

    >>> config_files(["a.yaml"]), config_files(["['a.yaml', 'b.yaml']"])
    (['a.yaml'], ['a.yaml', 'b.yaml'])
    """
    try:
        return [str(name) for text in given for name in (ast.literal_eval(text) if text.startswith("[") else [text])]
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
        raise ValueError(f"{file} is no configuration of a bundle: it holds a {type(content).__name__}, not named values")


def _knobs(parser: ConfigParser) -> dict[str, Any]:
    """Return the plain values, the paths built from them, and the network's `channels`."""
    plain = {name: value for name, value in parser.get().items() if not isinstance(value, dict | list)}
    knobs = {name: parser.get_parsed_content(name) for name in plain if name != "_meta_"}
    return knobs | {"channels": (parser.get("network_def") or {}).get("channels")}


def _split(knobs: Mapping[str, Any], physics: Operator) -> Split | None:
    """Build the split from the knobs; with `acs_in_input` the fully sampled centre lines stay in M1."""
    if "split_unit" not in knobs or "split_ratio" not in knobs:
        return None
    unit = unit_of(physics.mask) if knobs["split_unit"] == AUTO else knobs["split_unit"]
    kept, rows = bool(knobs.get("acs_in_input")) and unit in KSPACE_UNITS, 0
    center = round(physics.image_size[1] * float(knobs.get("center_fraction") or 0)) if kept else 1
    if kept and unit_of(physics.mask) == "samples":
        rows, center = center_block(physics.mask.bool()[0].flatten(0, -3)[0])
    return Split(unit, float(knobs["split_ratio"]), max(center, 1), n_rows=rows)


def _factory(parser: ConfigParser, files: Sequence[str]) -> str:
    target = str(parser.get("physics").get("_target_", ""))
    if not target:
        raise ValueError(f"{', '.join(files)} is no configuration of a bundle: its physics has no _target_")
    return target.rpartition(".")[2]


def _existing(path: object) -> Path | None:
    return Path(str(path)) if path and Path(str(path)).is_file() else None


def _read(parser: ConfigParser, data_file: Path, n_images: int) -> tuple[Operator, Image | None]:
    """Build a file's operator on the CPU and read images; if each slice has its own operator, take the first slice alone."""
    dataset = SliceDataset(data_file, limit=n_images)
    parser["data_file"], parser["device"] = str(data_file), "cpu"
    shared: Operator = _built(parser, "physics")
    first = default_collate([dataset[0]])
    physics = shared.of(first)
    if not dataset.with_image:
        return physics, None
    several = first if physics is not shared else default_collate([dataset[i] for i in range(len(dataset))])
    return physics, several["image"]


def _built(parser: ConfigParser, name: str) -> Any:  # noqa: ANN401 - any object of a configuration
    """Build one object of a configuration; raise its own error in place of MONAI's."""
    try:
        return parser.get_parsed_content(name)
    except RuntimeError as error:
        raise cause(error) from None


SEED = 0
"""Seed of masks and matrices: data_prep's default."""

KSPACE_SIDE, CT_SIDE, PHOTO_SIDE, DIGIT_SIDE = 320, 256, 128, 28
"""Rows and columns of the paper's images."""

Knobs = Mapping[str, Any]


class Assumed(NamedTuple):
    """Operator built without a data file, and a description of what was assumed."""

    physics: Operator
    words: str


def assumed_operator(factory: str, knobs: Knobs, size: int | None = None) -> Assumed:
    """Build an operator from a bundle's knobs, without a data file.

    Args:
        factory: name of the function that the configuration's `physics` calls: build_physics (k-space), build_scanner (CT),
            build_inpainting or build_sensing.
        knobs: the configuration's plain values, and the network's `channels`.
        size: rows and columns of the images; None for the paper's.

    Raises:
        ValueError: another factory, or a knob that the operator needs is missing or null.
        ImportError: CT without astra-toolbox.
    """
    makers: dict[str, Callable[[Knobs, int | None], Assumed]] = {
        "build_physics": _kspace,
        "build_scanner": _scanner,
        "build_inpainting": _inpainting,
        "build_sensing": _sensing,
    }
    if factory not in makers:
        raise ValueError(
            f"no operator can be assumed for physics of {factory}: known are {', '.join(makers)}; give a data file"
        )
    return makers[factory](knobs, size)


def _kspace(knobs: Knobs, size: int | None) -> Assumed:
    side, acceleration, center = size or KSPACE_SIDE, _number(knobs, "acceleration"), _number(knobs, "center_fraction")
    mask = gaussian_line_mask(side, acceleration, center, SEED)
    words = (
        f"{side} x {side} k-space of a single coil, {int(mask.sum())} of {side} lines (x{acceleration:g}, Gaussian), {_seed()}"
    )
    return Assumed(MRI(mask, (side, side)), words)


def _scanner(knobs: Knobs, size: int | None) -> Assumed:
    from es_medical.physics.ct import CT
    from es_medical.physics.ct_geometry import ParallelBeam

    side, views = size or CT_SIDE, _whole(knobs, "views")
    geometry = ParallelBeam((side, side), n_views=views)
    words = f"{side} x {side} images, {views} views evenly over 180 degrees, parallel beam, {geometry.shape[1]} detector bins"
    return Assumed(CT(geometry), words)


def _inpainting(knobs: Knobs, size: int | None) -> Assumed:
    side, channels, kind, keep = size or PHOTO_SIDE, _whole(knobs, "channels"), knobs.get("mask"), _number(knobs, "keep")
    masks = {
        "values": lambda: bernoulli_mask((channels, side, side), keep, SEED),
        "pixels": lambda: bernoulli_mask((1, side, side), keep, SEED),
        "random_columns": lambda: random_columns(side, keep, SEED),
        "even_columns": lambda: even_columns(side),
    }
    if kind not in masks:
        raise ValueError(f"mask must be one of {', '.join(masks)}, got {kind!r}")
    seed = "" if kind == "even_columns" else f", {_seed()}"
    words = f"{side} x {side} images of {channels} channels, mask of {str(kind).replace('_', ' ')}, {100 * keep:g} % kept{seed}"
    return Assumed(Inpainting(masks[kind](), (side, side), channels), words)


def _sensing(knobs: Knobs, size: int | None) -> Assumed:
    side, ratio = size or DIGIT_SIDE, _number(knobs, "ratio")
    m, n = round(ratio * side * side), side * side
    words = f"{side} x {side} images, {m} products with a Gaussian matrix of {m} x {n}, {_seed('matrix')}"
    return Assumed(CompressedSensing(gaussian_matrix(m, n, SEED), (side, side)), words)


def _seed(what: str = "mask") -> str:
    return f"{what} seed {SEED} (data_prep's default)"


def _number(knobs: Knobs, name: str) -> float:
    value = knobs.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number to assume an operator without a data file, got {value!r}")
    return value


def _whole(knobs: Knobs, name: str) -> int:
    value = _number(knobs, name)
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value}")
    return int(value)
