"""Report of a diagnosis: numbers, words and pictures, written as files and as an MLflow run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from es_medical.data import file_digest
from es_medical.diagnostics.actions import ACTIONS
from es_medical.diagnostics.diagnosis import GROUPS, Diagnosis, diagnose, support_of
from es_medical.diagnostics.figures import coverage_figure, png, spectrum_figure
from es_medical.diagnostics.split_ratios import SplitFinding, by_split_ratio, split_words
from es_medical.diagnostics.suggestions import suggest
from es_medical.diagnostics.verdict import table, verdict
from es_medical.jobs.bundle_operator import Subject
from es_medical.jobs.diagnosis_tags import summary_tags
from es_medical.tracking import Tracker


class Sinks(NamedTuple):
    """Where a report is written.

    Attributes:
        folder: folder of the files, created if absent.
        tracking_uri: MLflow tracking URI; None uses MLFLOW_TRACKING_URI, else sqlite:///mlflow.db in the working directory.
        track: whether to create an MLflow run.
    """

    folder: Path
    tracking_uri: str | None
    track: bool


@dataclass(frozen=True)
class Report:
    """A diagnosis in numbers, words and pictures.

    Attributes:
        subject: the diagnosed operator.
        diagnosis: the numbers.
        table: columns of text.
        verdict: paragraphs in plain words.
        pictures: PNG contents by file name.
        splits: findings for one split, by its ratio.
    """

    subject: Subject
    diagnosis: Diagnosis
    table: Mapping[str, Sequence[str]]
    verdict: Sequence[str]
    pictures: Mapping[str, bytes]
    splits: Sequence[SplitFinding] = ()

    @property
    def title(self) -> str:
        """Name of the bundle, and where the operator comes from."""
        return f"{self.subject.bundle or 'operator'}: {self.subject.words}"

    @property
    def text(self) -> str:
        """Title and verdict."""
        return "\n\n".join([self.title, *self.verdict]) + "\n"

    def write(self, sinks: Sinks) -> list[Path]:
        """Write the files and, if requested, an MLflow run with them; return the paths of the files.

        Raises:
            OSError: the folder cannot be written.
            ValueError: the tracking URI is a file store.
        """
        sinks.folder.mkdir(parents=True, exist_ok=True)
        contents = {**self.pictures, "verdict.txt": self.text.encode(), "table.json": json.dumps(self.table).encode()}
        for name, content in contents.items():
            (sinks.folder / name).write_bytes(content)
        files = [sinks.folder / name for name in contents]
        if sinks.track:
            self._log(files, sinks)
        return files

    def _log(self, files: Sequence[Path], sinks: Sinks) -> None:
        subject = self.subject
        name = f"diagnosis-{subject.bundle}" if subject.bundle else "diagnosis"
        with Tracker(sinks.tracking_uri, subject.experiment, name, sinks.folder / "unsent", system_interval=None) as tracker:
            knobs = dict(subject.knobs)
            tracker.start(knobs, yaml.safe_dump(knobs, sort_keys=False), self._tags())
            if subject.data_file is not None:
                n = self.diagnosis.n_images
                tracker.log_dataset(subject.data_file, subject.data_file.name, "diagnosis", file_digest(subject.data_file), n)
            tracker.log_metrics(metrics(self.diagnosis) | split_metrics(self.splits), 0)
            for path in files:
                if path.suffix != ".json":
                    tracker.log_artifact(path, "diagnosis")
            tracker.log_table(self.table, "diagnosis/table.json")

    def _tags(self) -> dict[str, str]:
        found = self.diagnosis
        note = {"kind": "diagnosis", "bundle": self.subject.bundle, "mlflow.note.content": self.text}
        best = found.best or found.alone
        return note | summary_tags(best, found.alone) | {"diagnosis.operator": self.subject.words}


def report(
    subject: Subject, actions: Sequence[str] | None = None, seed: int = 0, ratios: Sequence[float] | None = None
) -> Report:
    """Diagnose an operator and describe the result in words, a table and pictures.

    Args:
        subject: the operator, and typical images.
        actions: sets of transformations; None for all.
        seed: seed of splits, and of random vectors if a spectrum is estimated.
        ratios: split ratios; None for the configured one.

    Raises:
        ValueError: an unknown set of transformations, or a split ratio out of range.
    """
    physics, support = subject.physics, support_of(subject.physics)
    found = diagnose(physics, actions or ACTIONS, subject.images, support, seed)
    remarks: list[str] = []
    try:
        splits = _splits(subject, found, ratios, seed)
    except ValueError as error:
        if ratios is not None:  # explicitly requested
            raise
        splits, remarks = (), [f"No split of these measurements can be drawn: {error}"]
    drawn = {"coverage.png": coverage_figure(physics, found), "spectrum.png": spectrum_figure(found)}
    pictures = {name: png(figure) for name, figure in drawn.items() if figure is not None}
    source = "" if subject.data_file is None else subject.data_file.name
    advice = [suggestion.text for suggestion in suggest(physics, found, seed) if suggestion.kind == "acquisition"]
    words = verdict(found, [split_words(splits), *remarks], advice, source)
    return Report(subject, found, table(found), words, pictures, splits)


def _splits(subject: Subject, found: Diagnosis, ratios: Sequence[float] | None, seed: int) -> Sequence[SplitFinding]:
    """Examine splits under the best set, else the largest that acts; empty if no split is configured."""
    if subject.split is None:
        return ()
    acting = [finding for finding in found.findings if finding.action in GROUPS]
    action = (found.best or (acting or found.findings)[-1]).action
    chosen = [subject.split.split_ratio] if ratios is None else ratios
    return by_split_ratio(subject.physics, subject.split, action, chosen, support_of(subject.physics), seed)


def metrics(diagnosis: Diagnosis) -> dict[str, float]:
    """Return the numbers of a diagnosis as metrics "<set>/<number>", as fractions of n."""
    values: dict[str, float] = {}
    for finding in diagnosis.findings:
        numbers = {
            "rank": finding.share,
            "rank_error": finding.share_error,
            "effective_rank": finding.effective_rank / diagnosis.n,
            "gain": finding.gain,
            "lost": finding.lost,
            "joint": finding.joint,
        }
        values |= {f"{finding.action}/{name}": value for name, value in numbers.items() if value is not None}
    return values


def split_metrics(found: Sequence[SplitFinding]) -> dict[str, float]:
    """Return the ranks of splits as metrics "split_<ratio>/<set>/rank", as fractions of n."""
    values: dict[str, float] = {}
    for finding in found:
        values |= {
            f"split_{finding.ratio:g}/none/rank": finding.alone.share,
            f"split_{finding.ratio:g}/{finding.moved.action}/rank": finding.moved.share,
        }
    return values
