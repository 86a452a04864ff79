"""Read the images of a few test items that runs logged: arrays if there are any, else pictures."""

import re
from io import BytesIO
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from es_medical.report.reading.runs import Run
from es_medical.report.reading.store import ReportError, artifact_bytes, artifact_paths

ARRAYS = "test/cases.npz"
"""`id` (n,) text; `baseline`, `reconstruction`, optional `target` (n, C, H, W), in stored units; `window` (2,), shown as
black and white; optional `spread` and `error_max`."""

PICTURE = re.compile(r"images/test~(.+?)\+step\+(\d+)\+timestamp\+(\d+)\+[0-9a-f-]+\.png")
Array = npt.NDArray[np.floating]


class Cases(NamedTuple):
    """Arrays of one run: images (C, H, W) by id, and the display window."""

    baseline: dict[str, Array]
    reconstruction: dict[str, Array]
    target: dict[str, Array]
    window: tuple[float, float]


def arrays(run: Run) -> Cases | None:
    """Return the logged arrays of a run, None where there are none.

    Raises:
        ReportError: the file does not have the format of `ARRAYS`.
    """
    if ARRAYS not in artifact_paths(run.client, run.run_id, "test"):
        return None
    try:
        with np.load(BytesIO(artifact_bytes(run.client, run.run_id, ARRAYS)), allow_pickle=False) as stored:
            ids = [str(item) for item in stored["id"]]
            named = [dict(zip(ids, stored[name], strict=True)) if name in stored else {} for name in Cases._fields[:3]]
            low, high = stored["window"].tolist()
    except (ValueError, KeyError, OSError) as error:
        raise ReportError(f"{ARRAYS} of run {run.name} cannot be read: {error}") from error
    return Cases(named[0], named[1], named[2], (float(low), float(high)))


def pictures(run: Run) -> dict[str, bytes]:
    """Return the logged pictures of test items as PNG, by the name of the case or slice; the newest of several."""
    newest: dict[str, tuple[int, str]] = {}
    for path in artifact_paths(run.client, run.run_id, "images"):
        if found := PICTURE.fullmatch(path):
            case, time = found[1], int(found[3])
            newest[case] = max(newest.get(case, (0, "")), (time, path))
    return {case: artifact_bytes(run.client, run.run_id, path) for case, (_, path) in sorted(newest.items())}
