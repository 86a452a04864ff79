"""Group the runs that belong in one table: same experiment, bundle, operator and data; the newest of each method and seed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from es_medical.knobs import PLACE, same_knob
from es_medical.methods import LEARNING_FREE
from es_medical.report.catalogue import STUDIES, Study, study_of
from es_medical.report.methods import COLD, kind
from es_medical.report.reading.runs import Run


class Key(NamedTuple):
    """What runs of one table have in common."""

    experiment: str
    study: str
    bundle: str
    scale: str
    operator: tuple[tuple[str, str], ...]
    variant: str
    digest: str


@dataclass(frozen=True)
class Group:
    """Runs of one table.

    Attributes:
        key: what they have in common.
        runs: the runs of each method, one for each seed, sorted by seed.
        remarks: what was left out, and in which knobs the runs differ.
    """

    key: Key
    runs: Mapping[str, tuple[Run, ...]]
    remarks: tuple[str, ...]

    @property
    def operator(self) -> dict[str, str]:
        """The operator's knobs."""
        return dict(self.key.operator)

    @property
    def study(self) -> Study | None:
        """The experiment of the paper that it belongs to."""
        return study_of(self.key.bundle, self.operator)

    @property
    def any_run(self) -> Run:
        """The run that represents the group's data, operator and network: one of ES, else the newest."""
        return self.runs["es"][0] if "es" in self.runs else max(self.all_runs, key=lambda run: run.start)

    @property
    def all_runs(self) -> list[Run]:
        """Every run."""
        return [run for runs in self.runs.values() for run in runs]


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Divide runs into tables, in the paper's order, then by experiment and operator.

    For each method and seed one run is kept: the newest that includes a training, else the newest. Runs on other data, with
    another operator or of another experiment are in separate groups.
    """
    by_key: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        by_key[_key(run)].append(run)
    groups = [_group(key, members) for key, members in by_key.items()]
    order = {study.key: i for i, study in enumerate(STUDIES)}
    rank = {id(group): order[group.study.key] if group.study else len(order) for group in groups}
    return sorted(groups, key=lambda group: (rank[id(group)], group.key))


def _key(run: Run) -> Key:
    study = run.tags.get("study", "")
    return Key(run.experiment, study, run.bundle, run.scale, run.operator, run.variant, run.digest)


def _group(key: Key, members: list[Run]) -> Group:
    by_method: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    warm = {run.method for run in members if run.warm_start}
    for run in sorted(members, key=lambda run: (run.trained_here, run.start), reverse=True):
        cold = run.method in warm and run.trained_here and not run.warm_start
        by_method[run.method + COLD if cold else run.method][run.seed].append(run)
    kept = {method: _alike(tuple(seeds[seed][0] for seed in sorted(seeds))) for method, seeds in sorted(by_method.items())}
    remarks = [_older(method, same) for method, seeds in by_method.items() for same in seeds.values() if len(same) > 1]
    remarks += [f"{method}: mean of {len(kept[method])} seeds" for method in kept if len(kept[method]) > 1]
    if not key.digest:
        remarks.append("the data set was not logged: these runs may have used different files")
    remarks += _other_starts(by_method, kept)
    return Group(key, kept, (*remarks, *_starts(kept), *_differences(kept)))


def _alike(seeds: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs of a method with the warm start of its newest training: a mean over seeds is over one procedure.

    A later test of weights does not say how they were trained; it is kept.
    """
    newest = max(seeds, key=lambda run: (run.trained_here, run.start))
    return tuple(run for run in seeds if run.warm_start == newest.warm_start or not run.trained_here)


def _other_starts(by_method: Mapping[str, Mapping[str, list[Run]]], kept: Mapping[str, tuple[Run, ...]]) -> list[str]:
    """Note the seeds that are left out because their warm start is another one."""
    missing = {method: sorted(seeds.keys() - {run.seed for run in kept[method]}) for method, seeds in by_method.items()}
    return [
        f"{method}: seed {', '.join(seeds)} not shown, with another warm start" for method, seeds in missing.items() if seeds
    ]


def _starts(kept: Mapping[str, tuple[Run, ...]]) -> list[str]:
    """Say where the first weights of the trained methods come from, and which of them differ."""
    by_start: dict[str, list[str]] = defaultdict(list)
    for method, runs in kept.items():
        trainings = [run for run in runs if run.trained_here and kind(method) != LEARNING_FREE]
        if trainings:
            by_start[trainings[0].warm_start or "none"].append(method)
    if set(by_start) <= {"none"}:
        return []
    parts = "; ".join(f"{start} ({', '.join(methods)})" for start, methods in by_start.items())
    alike = f"warm start of all trained methods: {next(iter(by_start))}"
    remarks = [
        alike if len(by_start) == 1 else f"warm starts differ, so scores and times do not compare methods alone: {parts}"
    ]
    free = [method for method, runs in kept.items() if any(run.warm_start and not run.warm_seconds for run in runs)]
    untimed = f"the time of the trainings that first weights come from is not known, and not counted: {', '.join(free)}"
    return remarks + ([untimed] if free else [])


def _older(method: str, same: list[Run]) -> str:
    """Describe the runs of one method and seed that are not shown, and the knobs that differ."""
    shown, others = same[0], same[1:]
    names = sorted({name for run in others for name in _differing(shown, run)})
    knobs = f" (they differ in {', '.join(names)})" if names else ""
    return f"{method}, seed {shown.seed}: {len(others)} older run{'s' if len(others) > 1 else ''} not shown{knobs}"


def _differing(first: Run, second: Run) -> list[str]:
    names = (first.params.keys() | second.params.keys()) - set(PLACE)
    return [name for name in names if not same_knob(first.params.get(name, ""), second.params.get(name, ""))]


def _differences(kept: Mapping[str, tuple[Run, ...]]) -> list[str]:
    """List the knobs that differ between the methods of a table, which should share architecture and training procedure."""
    runs = [run for runs in kept.values() for run in runs]
    names = sorted({name for run in runs[1:] for name in _differing(runs[0], run)})
    found = []
    for name in names:
        by_value: dict[str, list[str]] = defaultdict(list)
        for run in runs:
            by_value[run.params.get(name, "not logged")].append(run.method)
        values = [f"{value} ({', '.join(sorted(set(methods)))})" for value, methods in by_value.items()]
        found.append(f"{name}: {'; '.join(values)}")
    return [f"knobs that differ between rows: {' | '.join(found)}"] if found else []
