"""Write synthetic slices, measured like those of a slice file, as one slice file: the slices that a warm start trains on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from data_prep.run.manifest import Outcome, PrepError, check_replaceable, manifest_path
from data_prep.run.plan import Inventory, Made, Plan, Tally, Task
from data_prep.run.runner import PrepRun, noise_and_truth, run
from data_prep.synthetic.options import PERIOD, SyntheticOptions
from es_medical.data import SliceHeader, SliceRecord, file_digest
from es_medical.engine.synthetic_slices import SYNTHETIC, Likeness
from es_medical.synthetic import draw
from es_medical.synthetic.kinds import block_size


@dataclass(frozen=True)
class SyntheticRun(PrepRun[SyntheticOptions]):
    """A preparation run whose file also keeps how LIKE was made, so that weights trained on it can be used like those of LIKE.

    Attributes:
        like: the configuration of LIKE.
        images: kind of the images.
    """

    like: Mapping[str, object] = field(default_factory=dict)
    images: str = ""

    def configuration(self) -> dict[str, object]:
        """The configuration stored in the file: that of LIKE, the options of this command, and the mark of synthetic images."""
        return dict(self.like) | super().configuration() | {SYNTHETIC: self.images}


@dataclass(frozen=True)
class Acquired:
    """The acquisition of LIKE, as the runner asks for it."""

    like: Likeness
    options: SyntheticOptions

    @property
    def with_image(self) -> bool:
        """Whether ground truth is stored."""
        return self.options.with_image

    def header(self) -> SliceHeader:
        """The header of the file, without configuration, lineage and digest."""
        return self.like.synthetic_header(self.options.n)

    def make(self, numbers: range) -> Made:
        """Make the slices of some numbers."""
        records = self.like.records(len(numbers), numbers.start)
        return Made([self._stored(record, number) for record, number in zip(records, numbers, strict=True)])

    def _stored(self, record: SliceRecord, number: int) -> SliceRecord:
        split = {PERIOD - 2: "val", PERIOD - 1: "test"}.get(number % PERIOD, "train")
        blind = {} if self.with_image else {"image": None, "data_range": math.nan}
        return record._replace(split=split, slice=number, **blind)  # type: ignore[arg-type]


def prepare(prep: PrepRun[SyntheticOptions], source: Path, overwrite: bool = False) -> bool:
    """Write the slice file and its manifest, unless they are up to date.

    Args:
        prep: the preparation run.
        source: LIKE, a slice file; its images and measurements are not read.
        overwrite: make the file anew, and replace any other file.

    Returns:
        True.

    Raises:
        FileNotFoundError: there is no LIKE.
        ValueError: LIKE is no slice file, its images are too small, or the kind of images is unknown or does not fit.
        PrepError: OUT is LIKE, or exists and is no slice file.
    """
    check_replaceable(prep.out, overwrite)
    like = Likeness.of(source, prep.options.kind, prep.options.seed)
    draw(like.kind, 0, like.header.size, like.seed)  # refuses a size that has no such images
    if prep.out.exists() and prep.out.samefile(source):
        raise PrepError(f"{prep.out} is LIKE itself: give another name")
    options = replace(prep.options, kind=like.kind)
    parts = (prep.command, options, prep.out, prep.salt, prep.workers, prep.pool, prep.console)
    own = SyntheticRun(*parts, like=like.header.configuration, images=like.kind)
    digest = file_digest(source)
    inventory = Inventory({source.name: digest}, [], [digest])
    return run(own, inventory, lambda: plan(like, options, source.name), partial(lines, own.out), False, overwrite, False)


def lines(out: Path, header: SliceHeader, _: Sequence[Outcome]) -> tuple[str, ...]:
    """Final lines of output: that the images are synthetic, their noise, and the path of the manifest."""
    noise = "noise levels drawn from those of LIKE" if math.isnan(header.sigma) else ""
    return f"{describe(header)}, {noise_and_truth(header, noise)}", f"manifest: {manifest_path(out)}"


def plan(like: Likeness, options: SyntheticOptions, name: str) -> Plan[range]:
    """Plan tasks of as many slices as are drawn together."""
    acquired, step = Acquired(like, options), block_size(like.header.size)
    tasks = [Task(name, range(start, min(start + step, options.n))) for start in range(0, options.n, step)]

    def report(tally: Tally) -> Iterable[Outcome]:
        return tally.failures or [tally.done((), f"synthetic images of kind {like.kind}")]

    return Plan(acquired, like.shapes, acquired.make, tasks, report, coils=like.header.coils)


def describe(header: SliceHeader) -> str:
    """Say in one line that the images are synthetic, and how they were measured."""
    measured = f"{int(header.mask.sum())} of {header.mask.numel()} entries of the mask measured"
    return f"synthetic images of kind {header.configuration[SYNTHETIC]} (no real image is in them), {measured}"
