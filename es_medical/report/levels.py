"""PSNR against the compression level, collected from the groups of compressed sensing, one operator for each level."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from es_medical.knobs import number
from es_medical.methods import BASELINE
from es_medical.report.catalogue import STUDIES, Study
from es_medical.report.commands import sibling_command
from es_medical.report.grids import Cell, Grid, score_cell
from es_medical.report.groups import Group
from es_medical.report.methods import label, place
from es_medical.report.paper import LEVELS, RATIOS
from es_medical.report.reading.scores import Score, score
from es_medical.report.tables import Context


class Levels(NamedTuple):
    """One figure.

    Attributes:
        experiment: name of the MLflow experiment, and the study; runs of different ones are never joined.
        scale: scale of the runs.
        points: PSNR by method and ratio m / n.
        notes: remarks on points of different items or files.
        commands: commands of the paper's points that have no run, by their labels.
    """

    experiment: str
    scale: str
    points: Mapping[str, Mapping[float, Score]]
    notes: tuple[str, ...]
    commands: Mapping[str, str]


def gather(groups: Iterable[Group], context: Context) -> list[Levels]:
    """Collect the groups of compressed sensing, one figure for each experiment, study and scale."""
    by_experiment: dict[tuple[str, str, str], list[Group]] = defaultdict(list)
    for group in groups:
        if group.study and group.study.key == "sensing" and not group.key.variant and "ratio" in group.operator:
            by_experiment[group.key.experiment, group.key.study, group.key.scale].append(group)
    return [
        _levels(" ".join(part for part in (experiment, study) if part), scale, members, context)
        for (experiment, study, scale), members in by_experiment.items()
    ]


def levels_grid(levels: Levels) -> Grid:
    """Lay out the figure's points, ours and the paper's."""
    methods = sorted({*levels.points, *LEVELS}, key=place)
    ratios = sorted({*RATIOS, *(ratio for one in levels.points.values() for ratio in one)})
    titles = ("Method", *(f"{100 * (1 - ratio):g} %" for ratio in ratios))
    rows = []
    for method in methods:
        ours = levels.points.get(method, {})
        rows.append((Cell(f"{label(method)}, ours"), *(score_cell(ours.get(ratio), "psnr", "") for ratio in ratios)))
        if method in LEVELS:
            printed = dict(zip(RATIOS, LEVELS[method], strict=True))
            cells = (Cell(f"{printed[ratio]:.2f}" if ratio in printed else "") for ratio in ratios)
            rows.append((Cell(f"{label(method)}, paper"), *cells))
    notes = (f"PSNR (dB) at each compression level, 1 - m / n; MLflow experiment {levels.experiment}.", *levels.notes)
    commands = {command: [name] for name, command in levels.commands.items()}
    return Grid("Compression levels", titles, tuple(rows), notes, commands=commands)


def _levels(experiment: str, scale: str, members: list[Group], context: Context) -> Levels:
    by_ratio: dict[float, list[Group]] = defaultdict(list)
    for group in members:
        by_ratio[number(group.operator["ratio"]) or 0.0].append(group)
    shown = {ratio: max(same, key=lambda group: group.any_run.start) for ratio, same in sorted(by_ratio.items())}
    notes = [
        f"m / n = {ratio:g}: {len(same)} data sets; the point is of {shown[ratio].key.digest[:8]}, the one used last"
        for ratio, same in sorted(by_ratio.items())
        if len(same) > 1
    ]
    points: dict[str, dict[float, Score]] = defaultdict(dict)
    for ratio, group in shown.items():
        for method, one in _scores(group).items():
            points[method][ratio] = one
    items = {ratio: frozenset(group.any_run.details.items) for ratio, group in shown.items()}
    if len(set(items.values())) > 1:
        notes.append("the test items are not the same at all levels")
    return Levels(experiment, scale, points, tuple(notes), _missing(points, shown, context))


def _scores(group: Group) -> dict[str, Score]:
    found = {method: score(runs, "psnr") for method, runs in group.runs.items()}
    if BASELINE not in found:
        found[BASELINE] = score([group.any_run], "baseline_psnr")
    return {method: one for method, one in found.items() if one is not None}


def _missing(points: Mapping[str, Mapping[float, Score]], shown: Mapping[float, Group], context: Context) -> dict[str, str]:
    """Return commands for the paper's points that have no run; for a level without any run they make the data first."""
    study = next(study for study in STUDIES if study.key == "sensing")
    some = next(iter(shown.values()))
    commands = {}
    for ratio in RATIOS:
        group = next((group for shown_ratio, group in shown.items() if abs(shown_ratio - ratio) < 1e-6), None)
        for method in study.methods:
            if any(abs(one - ratio) < 1e-6 for one in points.get(method, {})):
                continue
            name = f"{label(method)}, {100 * (1 - ratio):g} %"
            if group is not None:
                commands[name] = sibling_command(study, method, group.any_run, context.tracking_uri, context.bundles)
            else:
                commands[name] = _new_level(study, method, ratio, some, context)
    return commands


def _new_level(study: Study, method: str, ratio: float, some: Group, context: Context) -> str:
    """Return the command that makes the data of a level and runs a method on them, in the experiment of the other levels."""
    demo = some.key.scale == "demo"
    file = f"demo_digits_ratio{ratio:g}.h5" if demo else f"bundles/{study.bundle}/data/mnist_ratio{100 * ratio:.0f}.h5"
    data = f"python -m data_prep {'demo digits' if demo else 'mnist SRC'} {file} --ratio {ratio:g}"
    knobs = {"ratio": f"{ratio:g}", "data_file": file}
    run = sibling_command(study, method, some.any_run, context.tracking_uri, context.bundles, knobs=knobs)
    return f"{data} && {run}"
