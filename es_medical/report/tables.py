"""The paper's tables with our numbers next to the paper's: of methods, of architectures, of unknown noise."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from es_medical.methods import BASELINE, LEARNING_FREE, SELF_SUPERVISED
from es_medical.report.catalogue import STUDIES, Study
from es_medical.report.commands import planned_command, sibling_command
from es_medical.report.groups import Group
from es_medical.report.methods import PAIRS, kind, label, place, shown
from es_medical.report.paper import DURATIONS, Duration, PaperRow, PaperTable
from es_medical.report.reading.runs import Run
from es_medical.report.reading.scores import SCORES, Score, Training, score, training, with_best
from es_medical.report.reading.setting import describe

NO_RUNS = "no runs yet"
UNKNOWN = "noise level taken as zero"


class Row(NamedTuple):
    """One method of a table.

    Attributes:
        method: its name for `--method`, "baseline" for the operator's own linear reconstruction.
        label: its name in the table.
        known: whether the loss knows the noise level.
        scores: those of psnr, ssim and equiv that exist; empty for a missing run.
        training: its duration, None for an untrained method.
        seeds: number of runs that were averaged.
        paper: the paper's row.
        paper_training: the paper's duration.
        command: command that fills the row, "" if it is filled.
    """

    method: str
    label: str
    known: bool
    scores: Mapping[str, Score]
    training: Training | None
    seeds: int
    paper: PaperRow | None
    paper_training: Duration | None
    command: str


class Table(NamedTuple):
    """A table of methods, our numbers next to the paper's.

    Attributes:
        slug: name of its files.
        title: what is compared, and on what.
        ours: setting of our numbers.
        theirs: the paper's table, None where there is none.
        rows: in the paper's order.
        notes: remarks on the rows.
        data_command: command that makes the data, where there are no runs yet.
    """

    slug: str
    title: str
    ours: str
    theirs: PaperTable | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    data_command: str = ""


class Context(NamedTuple):
    """What the commands need: the URI of the store, and the folder of the bundles."""

    tracking_uri: str | None = None
    bundles: Path = Path("bundles")


Command = Callable[[str, bool], str]
"""(method, whether the loss knows the noise level) -> the command that runs it."""


def method_table(group: Group, context: Context) -> Table:
    """Make the table of methods of a group: the paper's rows, and every other method that has equivariant runs."""
    study = group.study
    paper = study.table(group.operator) if study and not group.key.variant else None
    tested = [method for method in group.runs if shown(method).equivariant or kind(method) == LEARNING_FREE]
    expected = study.methods if study and not group.key.variant else ()
    methods = sorted({*tested, *expected, BASELINE}, key=place)
    rows = _rows([(method, True) for method in methods], group.runs, paper, study, _command(group, study, context))
    title = f"{paper.title if paper else group.key.bundle}{': ' + group.key.variant if group.key.variant else ''}"
    return Table(slug(group), title, describe(group.any_run), paper, rows, (*group.remarks, *_notes(rows)))


def ablation_table(group: Group, context: Context) -> Table | None:
    """Make the comparison of architectures of a group, None where neither the paper nor a run has one."""
    study = group.study
    paper = study.ablation if study and not group.key.variant else None
    expected = {row.method for row in paper.rows} if paper else set()
    methods = {method for pair in PAIRS if pair[1] in group.runs for method in pair} | expected
    if not methods:
        return None
    order = [(method, True) for method in sorted(methods, key=place)]
    rows = _rows(order, group.runs, paper, study, _command(group, study, context))
    title = paper.title if paper else f"Impact of equivariant architectures: {group.key.bundle}"
    return Table(f"{slug(group)}-ablation", title, describe(group.any_run), paper, rows, _notes(rows))


def noise_table(group: Group, others: Iterable[Group], context: Context) -> Table | None:
    """Make the table of losses that don't know the noise level, None where neither the paper nor a run has one.

    Runs with the level taken as zero come from the groups of `others` with the same bundle, scale, operator and data.
    """
    study = group.study
    paper = study.unknown_noise if study else None
    alike = [other for other in others if other.key.variant == UNKNOWN and _alike(group, other)]
    unknown = max(alike, key=lambda other: (other.key.study == group.key.study, other.any_run.start), default=None)
    if group.key.variant or (paper is None and unknown is None):
        return None
    wanted = {(row.method, row.known) for row in paper.rows} if paper else {("es", True), ("supervised", True)}
    wanted |= {(method, False) for method in unknown.runs} if unknown else set()
    wanted |= {(method, True) for method in ("unsure",) if method in group.runs}
    order = sorted(wanted, key=lambda one: (place(one[0]), not one[1]))
    rows = _rows(order, group.runs, paper, study, _command(group, study, context), unknown.runs if unknown else {})
    title = paper.title if paper else f"Noise level unknown: {group.key.bundle}"
    notes = (*(unknown.remarks if unknown else ()), *_notes(rows))
    return Table(f"{slug(group)}-noise", title, describe(group.any_run), paper, rows, notes)


def absent_tables(groups: Iterable[Group], scale: str, context: Context) -> list[Table]:
    """Make an empty table of each study of the paper that has no run, with the commands that fill it."""
    present = {group.study.key for group in groups if group.study}
    return [_absent(study, scale, context) for study in STUDIES if study.key not in present]


def slug(group: Group) -> str:
    """Return the file name of a group's tables: letters, digits, dots and hyphens."""
    parts = [
        group.key.experiment,
        group.key.study,
        *(f"{name}{value}" for name, value in group.key.operator),
        group.key.variant,
    ]
    return safe("-".join(part for part in (*parts, group.key.scale, group.key.digest[:8]) if part))


def safe(text: str) -> str:
    """Make a text fit for file names and LaTeX labels: letters, digits, dots and hyphens.

    >>> safe("mnist_cs demo/1"), safe("0.3")
    ('mnist-cs-demo-1', '0.3')
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")


def _rows(
    methods: Sequence[tuple[str, bool]],
    known: Mapping[str, tuple[Run, ...]],
    paper: PaperTable | None,
    study: Study | None,
    command: Command,
    unknown: Mapping[str, tuple[Run, ...]] | None = None,
) -> tuple[Row, ...]:
    rows = []
    for method, knows in methods:
        runs = (known if knows else unknown or {}).get(method, ())
        beside = paper.row(method, knows) if paper else None
        scores = _scores(runs) or (_baseline_scores(known) if method == BASELINE else {})
        name = beside.label if beside and method == BASELINE else label(method) + ("" if knows else ", noise unknown")
        durations = DURATIONS.get(study.key, ()) if study and knows else ()
        duration = next((one for one in durations if one.method == method), None)
        missing = "" if scores else command(method, knows)
        took = None if kind(method) == LEARNING_FREE else training(runs)  # these try weights, and have no epochs
        rows.append(Row(method, name, knows, scores, took, len(runs), beside, duration, missing))
    return _marked(rows)


def _scores(runs: Sequence[Run]) -> dict[str, Score]:
    found = {name: score(runs, name) for name in SCORES} if runs else {}
    return {name: one for name, one in found.items() if one is not None}


def _baseline_scores(runs: Mapping[str, tuple[Run, ...]]) -> dict[str, Score]:
    """Return the scores of the baseline, which every run logs too, from the first run that has them."""
    for method in sorted(runs, key=place):
        found = {name: score(runs[method][:1], f"baseline_{name}") for name in SCORES}
        if any(found.values()):
            return {name: one for name, one in found.items() if one is not None}
    return {}


def _marked(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Mark the best self-supervised scores."""
    marked = with_best({str(i): row.scores for i, row in enumerate(rows) if kind(row.method) == SELF_SUPERVISED})
    return tuple(row._replace(scores=marked.get(str(i), row.scores)) for i, row in enumerate(rows))


def _command(group: Group, study: Study | None, context: Context) -> Command:
    def command(method: str, known: bool) -> str:
        if study is None:
            return f"run the method {method} like the other rows of this table"
        if method == BASELINE:
            method = "es"  # every run of a method tests the baseline too
        return sibling_command(study, method, group.any_run, context.tracking_uri, context.bundles, not known)

    return command


def _absent(study: Study, scale: str, context: Context) -> Table:
    paper = study.table({})
    assert paper is not None

    def command(method: str, known: bool) -> str:
        return planned_command(study, "es" if method == BASELINE else method, scale, context.tracking_uri)

    rows = _rows([(row.method, True) for row in paper.rows], {}, paper, study, command)
    data = study.demo_data if scale == "demo" else study.data
    return Table(safe(f"{study.key}-{scale}-absent"), paper.title, NO_RUNS, paper, rows, (), data)


def _alike(first: Group, second: Group) -> bool:
    names = ("bundle", "scale", "operator", "digest")
    return all(getattr(first.key, name) == getattr(second.key, name) for name in names)


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
    """Note where rows have different numbers of items, the time of warm starts, and the deviation between seeds."""
    counts = {row.label: row.scores["psnr"].n for row in rows if "psnr" in row.scores}
    notes = []
    if len(set(counts.values())) > 1:
        notes.append("items with a PSNR differ: " + ", ".join(f"{name} {n}" for name, n in counts.items()))
    warm = {row.label: row.training.warm for row in rows if row.training and row.training.warm}
    if warm:
        parts = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in warm.items())
        notes.append(f"training times include the warm start, seconds per epoch don't: {parts}")
    apart = {row.label: one.between_seeds for row in rows if (one := row.scores.get("psnr")) and one.between_seeds is not None}
    if apart:
        deviations = ", ".join(f"{name} {sd:.2f} dB" for name, sd in apart.items())
        notes.append(f"standard deviation of PSNR between seeds: {deviations}")
    return tuple(notes)
