"""Share the work of a run among processes, of this machine or of several, by dask.distributed; only this file knows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import dask
import torch
from dask.tokenize import normalize_token, tokenize
from distributed import Client, Future, KilledWorker, LocalCluster, WorkerPlugin, get_worker

from data_prep.run.manifest import LOST, PrepError, Pseudonyms, only_writer
from data_prep.run.parts import Part, part_of, parts_folder, read_part, whole_parts
from data_prep.run.plan import Made, Plan, Task
from data_prep.run.workers import R, T, tracked
from es_medical import __version__

ATTEMPTS = 3  # further ones after a process ended while it had a task
MOST = 256  # items that are sent together
SETTINGS = {
    "distributed.scheduler.allowed-failures": ATTEMPTS,
    "distributed.deploy.lost-worker-timeout": "2 minutes",  # a new process may start slowly
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,  # else arrays are given back at once: 1.7 x the time
}
WAIT = 60  # seconds for the first process of a scheduler
LOOK, PATIENCE = 10, 600  # seconds between looks at the processes, and until one is back where all are gone


@normalize_token.register(torch.Tensor)
def _token(x: torch.Tensor) -> object:
    """What tells tensors apart: their pickles hold a random number."""
    return normalize_token(x.detach().cpu().numpy())


class _Shared(WorkerPlugin):
    """The plan of a run, once in each process; a new one gets it too."""

    def __init__(self, plan: Plan[Any], folder: Path) -> None:
        self.plan, self.folder, self.version = plan, folder, __version__


@dataclass
class Cluster:
    """Processes, and the folder of the parts that they write.

    Attributes:
        client: the connection to their scheduler.
        folder: where parts are.
        pseudonyms: of the run.
        keep: whether the parts stay, see `VirtualWriter`.
        used: names of the parts of this run.
    """

    client: Client
    folder: Path
    pseudonyms: Pseudonyms
    keep: bool
    used: set[str] = field(default_factory=set)

    def mapped(self, function: Callable[[T], R], items: Sequence[T], lost: Callable[[T], R] | None = None) -> Iterator[R]:
        """The results in order; `lost` gives that of an item at which a process ends again and again.

        Raises:
            PrepError: there is such an item, and no `lost`.
        """
        processes = max(sum(self.client.nthreads().values()), 1)
        n = min(max(len(items) // (8 * processes), 1), MOST)
        blocks = [items[i : i + n] for i in range(0, len(items), n)]
        futures = self.client.map(partial(_each, function), blocks, pure=False)[::-1]
        for block in blocks:
            try:
                yield from self._result(futures.pop())
            except KilledWorker:
                yield from self._one_by_one(function, block, lost)

    def _one_by_one(self, function: Callable[[T], R], block: Sequence[T], lost: Callable[[T], R] | None) -> Iterator[R]:
        for item in block:
            try:
                yield self._result(self.client.submit(_each, function, [item], pure=False))[0]
            except KilledWorker as error:
                if lost is None:
                    raise PrepError(LOST, f"({item})") from error
                yield lost(item)

    def results(
        self, plan: Plan[Any], configuration: Mapping[str, object], digests: Mapping[str, str], say: Callable[[str], None]
    ) -> Iterator[tuple[Task[Any], Made]]:
        """The tasks of a plan with their results, in order, from the parts that are there and those that are made."""
        shared = replace(plan, tasks=(), outcomes=(), report=_nothing, whole=frozenset(), preview=None)
        groups = [list(group) for _, group in groupby(plan.tasks, key=lambda task: task.source)]
        common = tokenize(
            configuration, __version__, plan.make, plan.measure, plan.batch, plan.shapes, ensure_deterministic=True
        )
        known = dict[int, str]()
        keys = [self._key(common, group, digests, known) for group in groups]
        self.folder.mkdir(parents=True, exist_ok=True)
        if there := len(set(keys) & whole_parts(self.folder).keys()):
            say(f"resumed: {there} of {len(keys)} volumes are done")
        plugin = f"es_medical {common}"
        self.client.register_plugin(_Shared(shared, self.folder), name=plugin)
        futures = self.client.map(partial(_part, plugin), groups, keys, pure=False)[::-1]
        for group in tracked(iter(groups), len(groups), "volumes"):
            try:
                part: Part = self._result(futures.pop())
            except KilledWorker:
                yield group[0]._replace(file=""), Made(failure=LOST)
                continue
            if part.name and not (self.folder / part.name).exists():
                raise PrepError(
                    f"a process wrote a part that is not in {self.folder}: expected a folder that all machines share"
                )
            self.used.add(part.name)
            yield from read_part(part, group, self.folder, self.keep)
        self.client.unregister_worker_plugin(plugin)

    def _result(self, future: Future) -> Any:  # noqa: ANN401
        """The result of a future; while it takes long, processes of this machine that ended for good are replaced.

        Raises:
            PrepError: no process is left.
        """
        waited = 0
        while waited < PATIENCE:
            try:  # also where it is done: a result is lost with its process, and made again by another one
                return future.result(timeout=LOOK)
            except TimeoutError:
                if future.status == "error":
                    raise
            waited = 0 if self.client.nthreads() else waited + LOOK
            if self.client.cluster is not None:
                self.client.cluster.scale(len(self.client.cluster.worker_spec))
        raise PrepError("no process is left: start the command again, it goes on with the finished volumes")

    def tidy(self) -> None:
        """Remove the parts of other runs, where the parts are kept."""
        for path in self.folder.glob("*") if self.keep else ():
            if path.name not in self.used:
                path.unlink(missing_ok=True)

    def _key(self, common: str, group: Sequence[Task[Any]], digests: Mapping[str, str], known: dict[int, str]) -> str:
        works = [(*_tokens(task.work, known), task.file, task.digest or digests.get(task.source, "")) for task in group]
        return self.pseudonyms.of("part", common, tokenize(works, ensure_deterministic=True))


def _tokens(work: object, known: dict[int, str]) -> Iterator[str]:
    """Tokens of the parts of a task's work; `known` holds those that tasks share, such as the series of a slice."""
    for part in work if isinstance(work, tuple) else (work,):
        if id(part) not in known:
            known[id(part)] = tokenize(part, ensure_deterministic=True)
        yield known[id(part)]


def _each(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    torch.set_num_threads(1)
    return [function(item) for item in items]


def _part(plugin: str, tasks: Sequence[Task[Any]], key: str) -> Part:
    shared: Any = get_worker().plugins[plugin]  # a `_Shared`
    if shared.version != __version__:
        raise PrepError(f"a process has es_medical {__version__}, expected {shared.version}")
    torch.set_num_threads(1)
    with shared.plan.setting():
        return part_of(shared.plan, tasks, shared.folder, key)


def _nothing(_: object) -> tuple[()]:
    return ()


@contextmanager
def cluster(
    workers: int, scheduler: str | None, out: Path, pseudonyms: Pseudonyms, keep: bool, say: Callable[[str], None]
) -> Iterator[Cluster]:
    """Processes for one run: of a scheduler, or so many on this machine, which end with it.

    Raises:
        PrepError: the scheduler can't be reached or has no process, or another run writes the same file.
    """
    folder = parts_folder(out)
    with ExitStack() as opened:
        opened.enter_context(only_writer(out))
        opened.enter_context(dask.config.set(SETTINGS))
        client = opened.enter_context(_client(workers, scheduler, opened))
        say(f"{len(client.scheduler_info(-1)['workers'])} processes, dashboard: {client.dashboard_link}")
        try:
            yield Cluster(client, folder, pseudonyms, keep)
        except BaseException:
            if n := len(whole_parts(folder)):
                say(f"{n} finished volumes are kept in {folder}: the same command goes on from there")
            raise


def _client(workers: int, scheduler: str | None, opened: ExitStack) -> Client:
    if scheduler is None:
        how = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
        try:
            local = LocalCluster(n_workers=workers, **how)
        except RuntimeError as error:
            raise PrepError(f"{workers} processes could not be started ({error}): is there enough memory?") from error
        return Client(opened.enter_context(local))
    try:
        client = Client(scheduler, timeout=WAIT)
    except (OSError, ValueError) as error:
        raise PrepError(f"no scheduler at {scheduler}: {error}") from error
    try:
        client.wait_for_workers(1, timeout=WAIT)
    except TimeoutError as error:
        client.close()
        raise PrepError(f"the scheduler at {scheduler} has no process: start some by `dask worker {scheduler}`") from error
    return client
