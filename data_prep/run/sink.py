"""From the slices of the tasks to the rows of the slice file, source by source."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from data_prep.run.manifest import LISTED, Outcome
from data_prep.run.plan import Plan, Tally
from es_medical.data import SliceWriter

SOURCE_DIGITS = 16  # of a file's SHA-256 that are stored with each of its slices


class Sink:
    """Collect slices, measure them in batches and write them to the file; in a dry run, discard them."""

    def __init__(self, plan: Plan[Any], writer: SliceWriter | None) -> None:
        self.plan, self.writer = plan, writer
        self.pending, self.sources = list[Any](), list[tuple[str, str]]()
        self.volumes: dict[str, set[str]] = defaultdict(set)

    def begin(self) -> None:
        """Start a source."""
        self.start = self.writer.n if self.writer is not None else 0
        self.levels = list[tuple[float, float, float]]()  # scale, maximum in raw units and data_range of each slice

    def add(self, slices: Iterable[Any], digest: str, tally: Tally) -> None:
        """Count and add slices of a source's file with this SHA-256, and write them once a batch is complete."""
        for item in slices:
            tally.splits[item.split] += 1
            if self.writer is None:
                continue
            self.pending.append(item)
            self.sources.append((digest[:SOURCE_DIGITS], tally.name))
            if len(self.pending) == self.plan.batch:
                self.flush()

    def flush(self) -> None:
        """Write the pending slices."""
        if self.writer is not None and self.pending:
            for record, (source, name) in zip(self.plan.measure(self.pending), self.sources, strict=True):
                self.writer.append(record._replace(source=source))
                self.volumes[name].add(record.volume or record.id)
                self.levels.append((record.scale, record.scale * record.peak, record.data_range))
            self.pending.clear()
            self.sources.clear()

    def named(self, outcome: Outcome) -> Outcome:
        """The outcome of a source with its volumes."""
        volumes = sorted(self.volumes[outcome.name]) if outcome.status == "done" else []
        return replace(outcome, volumes=volumes) if len(volumes) <= LISTED else outcome

    def end(self, tally: Tally) -> None:
        """End a source: remove the slices of a broken source, or store the common maximum of a whole one as data range."""
        if self.writer is None:
            return
        if tally.broken:
            self.writer.rollback(self.start)
        elif tally.name in self.plan.whole and self.writer.with_image and self.levels:
            scales, maxima, ranges = zip(*self.levels, strict=True)
            if all(map(math.isnan, ranges)):
                self.writer.set_data_range(self.start, [max(maxima) / scale for scale in scales])
