"""Make the runs that the paper's tables lack, several at a time; a second call continues where the first stopped."""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from es_medical.knobs import AUTO, logged_knobs, same_knob
from es_medical.methods import METHODS, current_name
from es_medical.report.reading.store import ReportError
from es_medical.report.running.launch import CommandJob, Finished, last_lines, run_jobs
from es_medical.report.running.plan import Planned, decisive_knobs
from es_medical.tracking import with_hidden
from es_medical.tracking.server import connect, experiment_of, resolve_uri, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun
    from rich.console import Console


@dataclass(frozen=True)
class Reproduction:
    """Where and how the runs are made.

    Attributes:
        scale: "demo" or "paper".
        seed: seed of the trainings.
        uri: address of the MLflow store.
        bundles: folder of the bundles.
        work: folder for data, weights and logs.
        parallel: runs at a time.
        devices: GPUs that they take in turn.
        console: for messages.
        knobs: knobs of every run, in addition to its own.
        data_ready: whether the data files are in `work` already.
    """

    scale: str
    seed: int
    uri: str
    bundles: Path
    work: Path
    parallel: int
    devices: tuple[str, ...]
    console: "Console"
    knobs: Mapping[str, str]
    data_ready: bool = False

    def experiment(self, run: Planned) -> str:
        """Name of the MLflow experiment of a run: one for each data set and operator."""
        level = "" if run.ratio is None else "_levels"
        return f"{self.scale}_{run.study.key}{level}"

    def folder(self, run: Planned) -> Path:
        """Folder of the weights and log of a run; a training of other length or with other knobs never resumes from them."""
        epochs = [f"{run.knobs['epochs']}epochs"] if "epochs" in run.knobs else []
        own = [f"{name}{value}" for name, value in sorted(self.knobs.items())]
        parts = [run.name, f"seed{self.seed}", *epochs, *own]
        return self.work / self.scale / "-".join(re.sub(r"[^\w.]+", "_", part) if part in own else part for part in parts)


def reproduce(todo: Sequence[Planned], how: Reproduction, dry_run: bool = False) -> bool:
    """Make the data and the runs that are missing.

    Returns:
        Whether all runs are there at the end.
    """
    database = sqlite_path(how.uri)
    client = None if dry_run and database and not database.is_file() else connect(how.uri)  # a dry run creates no database
    missing = [run for run in todo if client is None or not is_there(client, run, how)]
    how.console.print(f"{len(todo) - len(missing)} of {len(todo)} runs are there, {len(missing)} to make")
    if dry_run or client is None:
        data = dict.fromkeys(run.data for run in missing if run.data)
        for command in [*data, *(shlex.join(_job(run, how, "").command) for run in missing)]:
            how.console.print(command, soft_wrap=True, markup=False, highlight=False)
        return not missing
    ready = _with_data(missing, how)
    parents = {name: parent_of(name, how) for name in dict.fromkeys(how.experiment(run) for run in ready)}
    jobs = [_job(run, how, parents[how.experiment(run)]) for run in ready]
    try:
        failed = [one for one in run_jobs(jobs, how.parallel, how.devices) if _failed(one, how)]
    finally:  # also if interrupted: the next call makes the missing runs
        for parent in parents.values():
            client.set_terminated(parent, "FINISHED")
    return not failed and len(ready) == len(missing)


def is_there(client: "MlflowClient", run: Planned, how: Reproduction) -> bool:
    """Whether the store has a finished run of the same study, method, level and seed, with the knobs that decide its result."""
    experiment = client.get_experiment_by_name(how.experiment(run))
    if experiment is None:
        return False
    query = f"tags.study = '{experiment.name}' and tags.scale = '{how.scale}' and attributes.status = 'FINISHED'"
    found = client.search_runs([experiment.experiment_id], query)
    same_method = [one for one in found if current_name(one.data.tags.get("method", "")) == run.method]
    return any("test/heldout" in one.data.metrics and _same(one, run, how) for one in same_method)


def _same(found: "MlflowRun", run: Planned, how: Reproduction) -> bool:
    """Whether a run has the knobs of a planned one; older runs lack newer knobs, and had their defaults.

    A knob that is to follow from the data is the same in a run where it did: its parameter is what was chosen.
    """
    tags = with_hidden(found.data.tags)
    params = logged_knobs(found.data.params, tags)
    wanted = decisive_knobs(run, how.bundles) if METHODS[run.method].trained else {}
    wanted |= {name: (value, value) for name, value in how.knobs.items()} | {"seed": (how.seed, 0)}
    wanted |= {} if run.ratio is None else {"ratio": (run.ratio, None)}
    params |= {name: AUTO for name, (value, _) in wanted.items() if value == AUTO and f"auto.{name}" in tags}
    return all(same_knob(params.get(name, default), value) for name, (value, default) in wanted.items())


def _job(run: Planned, how: Reproduction, parent: str) -> CommandJob:
    folder = how.folder(run)
    log = {"tracking_uri": how.uri, "experiment": how.experiment(run), "study": how.experiment(run), "scale": how.scale}
    log |= {"seed": str(how.seed)} | ({"parent_run": parent} if parent else {}) | dict(how.knobs)
    return CommandJob(run.name, run.command(how.bundles.resolve(), folder.resolve(), log), folder / "log.txt", how.work)


def _with_data(runs: Sequence[Planned], how: Reproduction) -> list[Planned]:
    """Make the demo's data files; leave out, and name, runs whose data can't be made."""
    how.work.mkdir(parents=True, exist_ok=True)
    commands = [] if how.data_ready else list(dict.fromkeys(run.data for run in runs if run.data))
    broken = {command for command in commands if not _made(command, how)}
    return [run for run in runs if run.data not in broken]


def _made(commands: str, how: Reproduction) -> bool:
    """Run `python -m data_prep ... && python -m data_prep ...`, each as a job."""
    for i, command in enumerate(commands.split(" && ")):
        words = shlex.split(command)
        log = how.work / "logs" / f"{'-'.join(words[3:6]).replace('/', '_')}-{i}.txt"
        job = CommandJob(command, (sys.executable, *words[1:]), log, how.work)
        if any(_failed(one, how) for one in run_jobs([job])):
            return False
    return True


def _failed(one: Finished, how: Reproduction) -> bool:
    how.console.print(f"{one.job.name}: {'done' if one.status == 0 else 'FAILED'} in {one.seconds:.0f} s", markup=False)
    if one.status != 0:
        how.console.print(f"{last_lines(one.job.log)}\nits log: {one.job.log}", markup=False, soft_wrap=True)
    return one.status != 0


def parent_of(name: str, how: Reproduction) -> str:
    """Return the parent MLflow run of an experiment, made if absent."""
    client = connect(how.uri)
    experiment_id = experiment_of(client, name, how.uri)
    found = client.search_runs([experiment_id], "tags.parent_of = 'study'")
    tags = {"parent_of": "study", "scale": how.scale}
    return found[0].info.run_id if found else client.create_run(experiment_id, run_name=name, tags=tags).info.run_id


def store(uri: str | None) -> str:
    """Return the address of a store in a form that does not depend on the working directory.

    Raises:
        ReportError: MLflow does not accept it.
    """
    try:
        found = resolve_uri(uri)
    except ValueError as error:
        raise ReportError(str(error)) from error
    prefix = "sqlite:///"
    return prefix + str(Path(found.removeprefix(prefix)).resolve()) if found.startswith(prefix) else found


def parse_knobs(given: Iterable[str]) -> dict[str, str]:
    """Read knobs given as NAME=VALUE. Raises ReportError for any other form.

    >>> parse_knobs(["cache_device=cuda"])
    {'cache_device': 'cuda'}
    """
    pairs = [one.partition("=") for one in given]
    if wrong := [name for name, equals, _ in pairs if not (name and equals)]:
        raise ReportError(f"--set takes NAME=VALUE, got {', '.join(wrong)}")
    return {name: value for name, _, value in pairs}
