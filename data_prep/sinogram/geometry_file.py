"""The geometry file of `data_prep sinogram`: a YAML file that says what a file of sinograms does not say itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from data_prep.run.manifest import PrepError

if TYPE_CHECKING:
    from data_prep.sinogram.scan import Values

EXAMPLE = """\
# Geometry of measured sinograms, for: python -m data_prep sinogram SRC OUT --geometry THIS_FILE.yaml
# Lengths in mm, angles in degrees. Delete what does not apply. Data Exchange and Helsinki files need no geometry file;
# what one says then holds in place of the file's own words.

kind: fan                       # parallel, or fan: with a flat detector, also the central row of a cone beam
arc: 360                        # the views are evenly spaced over it; whether the last one repeats the first is looked at
# angles: [0.0, 0.5, 1.0]       # or the angle of each view; or the name of a dataset in each file, or of a text file beside it
start: 0                        # added to every angle
direction: counter-clockwise    # how the views go round the image: counter-clockwise or clockwise
mirrored: false                 # true: the first bin is at the right, seen with the source below the object

source_origin: 410.66           # from the source to the centre of rotation (fan)
source_detector: 553.74         # from the source to the detector (fan)
bin_width: 0.2                  # of the detector; a parallel beam without it has results for each bin, not for each cm
row_height: 0.2                 # distance of detector rows, for the spacing of slices
# centre: 279.5                 # bin of the centre of rotation, counted from 0; estimated where it is absent
# pixel: 0.3                    # width of a pixel of the image; --pixel has precedence

values: counts                  # counts, transmission (share of the counts in air), or attenuation (line integrals)
white: 47000                    # counts without object: a number, or the name of a dataset or of a file beside the data
dark: 100                       # values without radiation: likewise
# air_bins: 10                  # in place of white: bins at each end of the detector that no object crosses

# dataset: scan/projections     # which array of an HDF5 or .mat file, if it holds several
axes: [views, rows, bins]       # of that array; also [rows, views, bins], [views, bins], ...
files: scans                    # each file is a scan; views or rows: each file of a folder is one view, or one row, of a scan
"""
LENGTH = {"type": "number", "exclusiveMinimum": 0}
NUMBER = {"type": "number"}
FRAMES = {"type": ["number", "string"]}
SCHEMA: dict[str, dict[str, Any]] = {
    "kind": {"enum": ["parallel", "fan"]},
    "arc": LENGTH,
    "angles": {"anyOf": [{"type": "array", "items": NUMBER, "minItems": 1}, {"type": "string"}]},
    "start": NUMBER,
    "direction": {"enum": ["counter-clockwise", "clockwise"]},
    "mirrored": {"type": "boolean"},
    "source_origin": LENGTH,
    "source_detector": LENGTH,
    "bin_width": LENGTH,
    "row_height": LENGTH,
    "centre": NUMBER,
    "pixel": LENGTH,
    "values": {"enum": ["counts", "transmission", "attenuation"]},
    "white": FRAMES,
    "dark": FRAMES,
    "air_bins": {"type": "integer", "minimum": 1},
    "dataset": {"type": "string"},
    "axes": {"enum": [list(order) for n in (2, 3) for order in permutations(("views", "rows", "bins"), n)]},
    "files": {"enum": ["scans", "views", "rows"]},
}
TOGETHER = ({"arc", "angles"}, {"white", "air_bins"})


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The content of a geometry file, None where it says nothing: see `EXAMPLE`."""

    kind: Literal["parallel", "fan"] | None = None
    arc: float | None = None
    angles: Sequence[float] | str | None = None
    start: float = 0.0
    direction: Literal["counter-clockwise", "clockwise"] = "counter-clockwise"
    mirrored: bool | None = None
    source_origin: float | None = None
    source_detector: float | None = None
    bin_width: float | None = None
    row_height: float | None = None
    centre: float | None = None
    pixel: float | None = None
    values: Values | None = None
    white: float | str | None = None
    dark: float | str | None = None
    air_bins: int | None = None
    dataset: str | None = None
    axes: Sequence[str] | None = None
    files: Literal["scans", "views", "rows"] = "scans"


def read_geometry(path: Path) -> dict[str, Any]:
    """Read and check a geometry file: the arguments of a `Setup`, as plain values.

    Raises:
        PrepError: no such file, no YAML, an unknown name, or a value that cannot be.
    """
    import yaml
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PrepError(f"geometry file {path.name} cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PrepError(f"geometry file {path.name} is no YAML: {str(error).splitlines()[0]}") from error
    schema = {"type": "object", "properties": SCHEMA, "additionalProperties": False}
    wrong = best_match(Draft202012Validator(schema).iter_errors(content))
    if wrong is not None:
        name = ".".join(map(str, wrong.path))
        raise PrepError(f"geometry file {path.name}: {name and f'{name}: '}{wrong.message}; a template: --example-geometry")
    numbers = [value for value in content.values() if isinstance(value, float)] + [*(content.get("angles") or [])]
    if not all(math.isfinite(value) for value in numbers if isinstance(value, int | float)):
        raise PrepError(f"geometry file {path.name}: a number is not finite")
    for both in TOGETHER:
        if both <= content.keys():
            raise PrepError(f"geometry file {path.name}: {' and '.join(sorted(both))}: give one of them")
    return content


def print_example(wanted: bool) -> None:
    """Print the template and end, as the option --example-geometry does."""
    if wanted:
        typer.echo(EXAMPLE, nl=False)
        raise typer.Exit
