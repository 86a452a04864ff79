"""Every method of every bundle, trained by one process and by two that torchrun starts: losses, scores and weights agree.

    python tests/endurance/matrix.py

Gradient accumulation and bfloat16 have rows of their own. Two processes take batches of two slices, one each. A product with
one slice can round differently from one with two, which CT, bfloat16 and the solvers of methods that learn nothing amplify:
there, the single process takes its slices one by one, and adds up their gradients. Tiny networks and images, gloo, on the CPU.
It takes some minutes and is not collected by the suite. Exit status 1 if a training failed or differs.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from tiny import CASES, runs, steps, workflow, write_slices_for  # noqa: E402

from es_medical.methods import METHODS  # noqa: E402

SPLITS = {"train": 5, "val": 2, "test": 2}  # the last batch has one slice, for two processes
ONE, TWO = "one", "two"
KINDS = ("train/", "val/", "test/")
CLOSE, CLOSE_WEIGHTS = 1e-3, 1e-3
"""Largest relative difference of a loss or score, and of weights, each of which a step changes by up to 0.01."""
ACCUMULATED: dict[str, Any] = {"batch_size": 2, "accumulate": 2}


class Row(NamedTuple):
    """A training, and how far its two results are apart at most: curves and scores, relative, and weights."""

    name: str
    values: float = 0.0
    worst: str = ""
    weights: float = 0.0
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Whether both trainings ended, with equal results up to rounding."""
        return not self.fault and self.values < CLOSE and self.weights < CLOSE_WEIGHTS


class Training(NamedTuple):
    """A case of `tiny.CASES`, and its knobs."""

    name: str
    case: str
    knobs: dict[str, Any]

    def run(self, folder: Path, uri: str, *overlays: str) -> None:
        """Train in this process, or as one of several."""
        own: dict[str, Any] = {"experiment": f"{folder.name}-{self.name}", "logging_file": False}
        if folder.name == ONE and (self.case == "lidc_ct" or "amp" in self.knobs or not METHODS[self.knobs["method"]].trained):
            own |= {"batch_size": 1, "accumulate": 2 * self.knobs.get("accumulate", 1)}
        place, data = folder / self.name, folder.parent / f"{self.case}.h5"
        one = workflow(["train.yaml", *overlays], place, data, uri, self.case, **(self.knobs | own))
        one.initialize()
        one.run()  # finalize would end the process group


def trainings(cases: Sequence[str], methods: Sequence[str]) -> Iterator[Training]:
    """Yield every method of every case, and a method each of what else divides or rounds a batch."""
    for case in cases:
        for method in methods:
            if method != "biharmonic" or case == "div2k_inpainting":  # the others refuse it
                yield Training(f"{case} {method}", case, {"method": method})
        for method in sorted({"es", "sure"}.intersection(methods)):
            yield Training(f"{case} {method}, accumulate 2", case, {"method": method, "epochs": 1} | ACCUMULATED)
        if "es" in methods:
            yield Training(f"{case} es, bfloat16, accumulate 2", case, {"method": "es", "amp": True, "epochs": 1} | ACCUMULATED)


def train(wanted: Sequence[Training], folder: Path, uri: str, processes: int) -> dict[str, str]:
    """Train all in one launch, and again in the next after one that failed; return the last lines of those that failed."""
    faults: dict[str, str] = {}
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    folder.mkdir()
    left = list(wanted)
    while left:
        (folder / "todo.json").write_text(json.dumps(left))
        command = [sys.executable, "-W", "ignore", *launch, __file__, "--child", str(folder), uri]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        ended = [one.name for one in left if (folder / one.name / "ended").exists()]
        if done.returncode == 0:
            break
        failed, *left = left[len(ended) :]
        faults[failed.name] = done.stdout[-3000:]
    return faults


def child(folder: Path, uri: str) -> None:
    """Be one process of a launch."""
    from mlflow.utils import requirements_utils

    from es_medical.engine.distributed import rank, stop, wait
    from es_medical.jobs import training
    from es_medical.tracking import artifacts

    training.diagnosis_tags = lambda *_: {}  # by one process alone; of coils it takes as long as ten trainings
    artifacts.EXPORT = False  # takes seconds for each model, as does MLflow's list of installed packages
    requirements_utils._init_packages_to_modules_map = functools.cache(requirements_utils._init_packages_to_modules_map)
    torch.set_num_threads(1)
    for words in json.loads((folder / "todo.json").read_text()):
        one = Training(*words)
        one.run(folder, uri, *(["multi_gpu_train.yaml"] if folder.name == TWO else []))
        wait()
        if rank() == 0:
            (folder / one.name / "ended").touch()
    stop()


def compare(name: str, folder: Path, client: Any) -> Row:
    """Compare what both trainings logged and saved."""
    (one,), (two,) = runs(client, f"{ONE}-{name}"), runs(client, f"{TWO}-{name}")
    names = [{key for key in run.data.metrics if key.startswith(KINDS)} for run in (one, two)]
    if names[0] != names[1] or not names[0]:
        return Row(name, fault=f"other metrics: {sorted(names[0] ^ names[1])}")
    apart = {key: _apart(steps(client, one, key), steps(client, two, key)) for key in sorted(names[0])}
    worst = max(apart, key=lambda key: apart[key])
    weights = [folder / place / name / "models" / "last.pt" for place in (ONE, TWO)]
    if not weights[0].is_file():  # a method that learns nothing: it has chosen the weight of its penalty
        chosen = [run.data.params.get("weight") for run in (one, two)]
        return Row(name, apart[worst], worst, fault="" if chosen[0] == chosen[1] else f"other weight of the penalty: {chosen}")
    states = [torch.load(path)["reconstructor"] for path in weights]
    return Row(name, apart[worst], worst, max(float((states[1][key] - value).abs().max()) for key, value in states[0].items()))


def _apart(one: list[tuple[int, float]], two: list[tuple[int, float]]) -> float:
    """Return the largest relative difference of two curves; infinite if their steps or lengths differ."""
    if [step for step, _ in sorted(one)] != [step for step, _ in sorted(two)]:
        return float("inf")
    pairs = zip(sorted(one), sorted(two), strict=True)
    return max(0.0 if a == b else abs(a - b) / max(abs(a), abs(b)) for (_, a), (_, b) in pairs)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text, and a summary."""
    lines = [f"{'':45s} {'values':>8s} {'weights':>8s}  worst value, or fault"]
    for row in rows:
        last = row.worst if row.passed else f"FAULT {row.fault or row.worst}"
        lines.append(f"{row.name:45s} {row.values:8.1e} {row.weights:8.1e}  {last}")
    passed = [row for row in rows if row.passed]
    limits = [max((getattr(row, name) for row in passed), default=0.0) for name in ("values", "weights")]
    lines.append(f"{len(passed)} of {len(rows)} agree: values to {limits[0]:.1e}, weights to {limits[1]:.1e}")
    return "\n".join(lines)


def main() -> int:
    """Train and compare; print a row for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundles", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, help="JSON file of the rows")
    parser.add_argument("--child", nargs=2, metavar=("FOLDER", "URI"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(Path(given.child[0]), given.child[1])
        return 0
    from es_medical.tracking.server import connect

    with tempfile.TemporaryDirectory(prefix="matrix-") as place:
        folder = Path(place)
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        client = connect(uri)
        client.search_experiments()  # makes the database
        for case in given.bundles:
            write_slices_for(case, folder / f"{case}.h5", splits=SPLITS)
        wanted = list(trainings(given.bundles, given.methods))
        alone, together = train(wanted, folder / ONE, uri, 1), train(wanted, folder / TWO, uri, 2)
        rows = []
        for one in wanted:
            fault = alone.get(one.name) or together.get(one.name)
            rows.append(Row(one.name, fault=fault) if fault else compare(one.name, folder, client))
    print(table(rows))
    if given.out:
        given.out.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
