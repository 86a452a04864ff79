"""Diagnose an operator in one call, and print what it means."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from es_medical.diagnostics.actions import ACTIONS
from es_medical.diagnostics.diagnosis import Diagnosis, diagnose, support_of
from es_medical.diagnostics.suggestions import suggest
from es_medical.diagnostics.verdict import table, verdict
from es_medical.physics import Operator
from es_medical.types import Image


class Explanation(NamedTuple):
    """A diagnosis with its words; `print` shows a table and the words.

    Attributes:
        diagnosis: the numbers: `diagnosis.alone`, `.best` and `.of("d4")` are findings with `share`, `gain`, ...
        words: paragraphs in plain words.
    """

    diagnosis: Diagnosis
    words: Sequence[str]

    def __str__(self) -> str:
        """Table and words."""
        return "\n\n".join([_aligned(table(self.diagnosis)), *self.words])


def diagnose_operator(
    physics: Operator, images: Image | None = None, actions: Sequence[str] = ACTIONS, seed: int = 0
) -> Explanation:
    """Explain what transformations of the image can teach about what an operator does not measure, before any training.

    The same as `python -m es_medical.diagnose` without files; docs/can_i_train.md explains the columns of the table.

    Args:
        physics: the operator A, one for all images.
        images: typical images (B, C, H, W), to say how much of their energy is out of reach; None if there are none.
        actions: sets of transformations to look at (see `es_medical.diagnostics.ACTIONS`).
        seed: of random vectors, where a spectrum is estimated.

    Raises:
        ValueError: an unknown set of transformations, or an operator for each item of a batch.
    """
    found = diagnose(physics, actions, images, support_of(physics), seed)
    advice = [one.text for one in suggest(physics, found, seed) if one.kind == "acquisition"]
    return Explanation(found, verdict(found, (), advice, "those given"))


def _aligned(columns: Mapping[str, Sequence[str]]) -> str:
    """Lay out columns as lines of text: the first column to the left, the others to the right."""
    padded = []
    for i, (name, values) in enumerate(columns.items()):
        width = max(len(text) for text in (name, *values))
        padded.append([text.ljust(width) if i == 0 else text.rjust(width) for text in (name, *values)])
    return "\n".join("  ".join(row) for row in zip(*padded, strict=True))
