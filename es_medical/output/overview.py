"""The page of a run: `overview.html`, one file that opens without a network and shows the result at once."""

import base64
import functools
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_medical.data.atomic import whole_or_not
from es_medical.output.pictures import deviation, panel_values, windowed

if TYPE_CHECKING:
    from jinja2 import Template
    from torch import Tensor

TEMPLATE = Path(__file__).parent / "overview.html.j2"
DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)
SIDE, MOST_POINTS, MOST_EPOCHS, MOST_ROWS = 256, 400, 30, 300
BUDGET = 2_600_000
"""Bytes of all pictures, so that the page stays below 3 MB."""


@dataclass
class Overview:
    """What the page of a run shows. It is kept in the page itself, from which a resumed training reads it.

    Attributes:
        key: of the training, by which its own page is known.
        title: name of the run.
        names: what the panels `baseline` and `target` are called.
        window: values shown as black and white.
        error_max: value shown as white in spread and error.
        verdict: the result in a sentence.
        table: columns of the test's summary.
        facts: other things to know, by title: the diagnosis, what was done without ground truth.
        curves: name of a chart -> name of a curve -> (epoch, value).
        slices: pictures of a slice, by its name.
        rows: scores of each test slice.
    """

    key: str
    title: str
    names: dict[str, str]
    window: tuple[float, float] = (0.0, 1.0)
    error_max: float = 0.2
    verdict: str = ""
    table: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, key: str, epoch: int) -> "Overview | None":
        """Read the page of the training `key`, without what is later than `epoch`; None if it can't be read or is another's."""
        try:
            found = DATA.search(path.read_text(encoding="utf-8"))
            page = cls(**json.loads(found[1])) if found else None
        except (OSError, ValueError, TypeError):
            return None
        if page is None or page.key != key:
            return None
        for curves in page.curves.values():
            for points in curves.values():
                points[:] = [point for point in points if point[0] <= epoch]
        for one in page.slices.values():
            one["frames"] = [frame for frame in one["frames"] if frame["epoch"] <= epoch]
        page.slices = {name: one for name, one in page.slices.items() if one["frames"]}
        return page

    def add_point(self, chart: str, curve: str, epoch: int, value: float) -> None:
        """Add a point to a curve; of a long one every second point is kept."""
        points = self.curves.setdefault(chart, {}).setdefault(curve, [])
        points.append((epoch, float(f"{value:.5g}")))
        if len(points) > MOST_POINTS:
            points[:] = points[::2] if len(points) % 2 else points[1::2]

    def add_pictures(
        self,
        name: str,
        epoch: int,
        baseline: "Tensor",
        reconstruction: "Tensor",
        spread: "Tensor",
        target: "Tensor | None" = None,
    ) -> None:
        """Add the reconstruction of a slice at an epoch; of many epochs every second one is kept, and always the last."""
        one = self.slices.setdefault(name, {"frames": []})
        one["baseline"] = self._picture(baseline)
        if target is not None:
            one["target"] = self._picture(target)
        grey = _encoded(windowed(deviation(spread), (0.0, self.error_max)), 2)
        one["frames"].append({"epoch": epoch, "recon": self._picture(reconstruction), "spread": grey})
        if len(one["frames"]) > MOST_EPOCHS:
            one["frames"] = thinned(one["frames"])

    def write(self, path: Path) -> None:
        """Write the page, whole or not at all."""
        while self._bytes() > BUDGET and any(len(one["frames"]) > 2 for one in self.slices.values()):
            for one in self.slices.values():
                one["frames"] = thinned(one["frames"])
        while self._bytes() > BUDGET and len(self.slices) > 1:
            self.slices.popitem()
        content = asdict(self)
        data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
        text = _template().render(**content, shown=self.rows[:MOST_ROWS], data=data)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_or_not(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _bytes(self) -> int:
        return len(json.dumps(self.slices))

    def _picture(self, image: "Tensor") -> str:
        return _encoded(windowed(image, self.window), -(-max(panel_values(image).shape[:2]) // SIDE))


@functools.cache
def _template() -> "Template":
    """Compile the page's template, once: a training writes its page after every validation."""
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE.read_text(encoding="utf-8"))


def thinned(frames: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the first, every second and the last of several frames.

    >>> thinned([0, 1, 2, 3, 4, 5]), thinned([0, 1, 2])
    ([0, 2, 4, 5], [0, 2])
    """
    return [frame for i, frame in enumerate(frames) if i % 2 == 0 or i == len(frames) - 1]


def _encoded(pixels: Any, factor: int) -> str:  # noqa: ANN401 - uint8 (H, W) or (H, W, 3)
    """Return pixels as base64 PNG, reduced by a whole factor."""
    from PIL import Image

    picture, stream = Image.fromarray(pixels), io.BytesIO()
    (picture.reduce(factor) if factor > 1 else picture).save(stream, "png")
    return base64.b64encode(stream.getvalue()).decode()
