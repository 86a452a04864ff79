"""`python -m tests.endurance --minutes 20 --seed 0`: disturb the commands in every way we know.

Kills take two thirds of the time, at random moments that the seed draws; every other fault is tried once, then again with
other draws while there is time. The commands run in forked children of this process, on the smallest inputs.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "data_prep")]


def main() -> int:
    """Run the campaign; return exit status 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.endurance")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=200, help="kill at most so often")
    parser.add_argument("--only", default="", help="run only what this regular expression finds in `GROUP: ROW`")
    parser.add_argument("--folder", type=Path, help="keep what all experiments start from here, and take it from here")
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--page", type=Path, help="write the table to this page, from the JSON files given as --results")
    parser.add_argument("--results", type=Path, nargs="+", default=[], help="with --page: results of campaigns; run nothing")
    given = parser.parse_args()
    if given.page:
        from endurance.page import write_page

        write_page(given.page, [json.loads(path.read_text()) for path in given.results])
        return 0
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    with tempfile.TemporaryDirectory(prefix="endurance-") as folder:
        place = given.folder.resolve() if given.folder else Path(folder)
        os.environ |= {"OMP_NUM_THREADS": "1", "ES_MEDICAL_CACHE": str(place / "cache")}
        rows = campaign(place, given.minutes * 60, given.seed, given.kills, given.only, given.out)
    wrong = [row for row in rows if row["faults"]]
    kills = sum(row["kills"] for row in rows)
    print(f"{len(rows)} experiments, {kills} kills, {len(wrong)} with a fault")
    return 1 if wrong else 0


def campaign(folder: Path, seconds: float, seed: int, kills: int, only: str, out: Path | None) -> list[dict[str, Any]]:
    """Try everything in turn until the time is over; the results are in `out` after every experiment."""
    from endurance import child
    from endurance import kills as killing
    from endurance.work import make_source

    child.import_all()
    source = make_source(folder / "source")
    kept = folder / "undisturbed.json"
    expected = json.loads(kept.read_text()) if kept.is_file() else killing.undisturbed(source, folder / "undisturbed")
    kept.write_text(json.dumps(expected))
    end = time.monotonic() + seconds
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": _commit(), "seed": seed, "seconds": seconds}
    rows: list[dict[str, Any]] = []
    for number, (name, group, experiment) in enumerate(_in_turn(source, expected, random.Random(seed), kills, rows)):
        if not re.search(only, f"{group}: {name}"):
            if number > 10_000:
                break
            continue
        if time.monotonic() > end:
            break
        place = folder / f"{number:04d}"
        shutil.rmtree(place, ignore_errors=True)  # of an earlier campaign
        start = time.monotonic()
        outcome = experiment(place)
        if not outcome.faults:
            shutil.rmtree(place, ignore_errors=True)
        row = {"name": name, "group": group, "kills": outcome.kills, "faults": outcome.faults, "where": outcome.where}
        rows.append(row | {"seconds": round(time.monotonic() - start, 1)})
        print(
            f"{'FAULT' if outcome.faults else 'ok':5} {rows[-1]['seconds']:5.1f} s  {group}: {name}: {outcome.where}",
            flush=True,
        )
        for fault in outcome.faults[:6]:
            print(f"      {fault[:1500]}", flush=True)
        if out:
            out.write_text(json.dumps(about | {"rows": rows}, indent=1))
    return rows


Experiment = Callable[[Path], Any]


def _in_turn(
    source: Path, expected: dict[str, Any], rng: random.Random, kills: int, rows: list[dict[str, Any]]
) -> Iterator[tuple[str, str, Experiment]]:
    """Two kills, then one other disturbance, and again."""
    from endurance import disturbances
    from endurance import kills as killing

    stages = killing.STAGES
    others = disturbances.ALL
    for turn in range(100_000):
        for stage in (stages[2 * turn % len(stages)], stages[(2 * turn + 1) % len(stages)]):
            if sum(row["kills"] for row in rows) < kills:
                wanted, seconds = expected[stage.job.name]
                own = random.Random(rng.random())
                yield (
                    stage.name,
                    "kill -9",
                    lambda place, s=stage, w=wanted, t=seconds, r=own: killing.experiment(s, source, place, w, t, r),
                )
        if not others:
            continue
        other, own = others[turn % len(others)], random.Random(rng.random())
        yield other.name, other.group, lambda place, o=other, r=own: o.run(source, place, expected, r)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
