"""What became of the tasks of a run, and of the sources that they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from data_prep.manifest import Outcome

if TYPE_CHECKING:
    from data_prep.frame import Made, Plan
    from es_medical.data import SliceWriter

COPY = "same pixels as another one: left out"


@dataclass
class _Source:
    """What became of one source so far."""

    splits: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    copies: int = 0

    def outcome(self, name: str, target: str, known: Sequence[str]) -> Outcome:
        """As the manifest tells it."""
        n = self.splits.total()
        if self.failures:
            return Outcome(name, "failed", self.failures[0], slices=n)
        if n == 0:
            return Outcome(name, *(("skipped", COPY) if self.copies else ("failed", "no slice")))
        notes = [*known]
        notes += [note if count == n else f"{note} ({count} of {n})" for note, count in sorted(self.notes.items())]
        notes += [f"{COPY} ({self.copies})"] if self.copies else []
        return Outcome(name, "done", "; ".join(notes), slices=n, target=target, split=", ".join(sorted(self.splits)))


@dataclass
class Gathered:
    """What became of every task."""

    splits: Counter[str] = field(default_factory=Counter)
    sources: dict[str, _Source] = field(default_factory=dict)
    contents: set[str] = field(default_factory=set)

    def add(self, name: str, made: Made, writer: SliceWriter | None) -> None:
        """Write what was made, or note why there is nothing."""
        source = self.sources.setdefault(name, _Source())
        if made.failure:
            source.failures.append(made.failure)
            return
        if made.content and made.content in self.contents:
            source.copies += 1
            return
        self.contents.add(made.content)
        source.notes.update(dict.fromkeys(made.notes, len(made.records)))
        for record in made.records:
            source.splits[record.split] += 1
            self.splits[record.split] += 1
            if writer is not None:
                writer.append(record)

    def outcomes(self, plan: Plan[Any]) -> list[Outcome]:
        """One for each source, in the order of the plan."""
        return [source.outcome(name, plan.target, plan.notes.get(name, ())) for name, source in self.sources.items()]
