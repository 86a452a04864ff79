"""A day's work in short: an archive is prepared by two processes; one of them is killed again and again, and so is the command.

    python tests/endurance/preparation.py --volumes 2000 --every 60

The file must have the bytes of an undisturbed run in one process. Not collected by the suite.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from es_medical.benchmark.raw_files import make_volume
from es_medical.data import file_digest

OPTIONS = ("--measurements", "real", "--slices", "all", "--sigma", "1e-7", "--train", "0.9", "--test", "0.1")


def command(source, out, *more):
    return [sys.executable, "-m", "data_prep", "fastmri", str(source), str(out), *OPTIONS, *more]


def manifest(out):
    path = out.with_suffix(".manifest.json")
    return json.loads(path.read_text()) if path.exists() else None


def workers_of(run):
    """The processes that do the work: those that the command spawned, but for the tracker of their resources."""
    try:
        return [one for one in psutil.Process(run.pid).children(True) if "spawn_main" in " ".join(one.cmdline())]
    except psutil.NoSuchProcess:
        return []


def disturbed(source, out, every, ends, processes):
    """Prepare `source`, and kill a worker every so many seconds, and the command itself `ends` times; count both."""
    parts, killed, draw = out.with_suffix(".parts"), {"workers": 0, "commands": 0}, random.Random(0)
    n = len(list(source.iterdir()))
    limits = [n * (k + 1) // (ends + 1) for k in range(ends)]  # parts that are there when the command is killed
    said = []
    while True:
        with (out.parent / "said.txt").open("w+") as text:
            words = command(source, out, "--workers", str(processes), "--parts", "gather")
            run = subprocess.Popen(words, stdout=text, stderr=text, env=os.environ | {"PYTHONUNBUFFERED": "1"})
            begun = time.monotonic()
            while run.poll() is None:
                time.sleep(0.05)
                if limits and len(list(parts.glob("[!.]*.h5"))) >= limits[0]:
                    run.send_signal(signal.SIGKILL)
                    killed["commands"] += 1
                    limits.pop(0)
                elif "dashboard" not in (out.parent / "said.txt").read_text():  # killed while it starts: an error that says so
                    begun = time.monotonic()
                elif time.monotonic() - begun > every and (found := workers_of(run)):
                    draw.choice(found).kill()
                    killed["workers"] += 1
                    begun = time.monotonic()
            run.wait()
            text.seek(0)
            lines = [line.strip() for line in text]
            said += [line for line in lines if "resumed" in line] + (lines[-8:] if run.returncode > 0 else [])
        if run.returncode != -signal.SIGKILL:
            return run.returncode, killed, said


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volumes", type=int, default=2000)
    parser.add_argument("--every", type=float, default=60, help="seconds between kills of a worker")
    parser.add_argument("--ends", type=int, default=2, help="kills of the command itself")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        source, once, out = (Path(folder) / name for name in ("source", "once.h5", "out.h5"))
        source.mkdir()
        for k in range(given.volumes):
            make_volume(source / f"{k:05d}.h5", 2, (64, 48), seed=k)
        start = time.monotonic()
        subprocess.run(command(source, once), check=True, stdout=subprocess.DEVNULL)
        undisturbed, start = time.monotonic() - start, time.monotonic()
        code, killed, said = disturbed(source, out, given.every, given.ends, given.processes)
        result = {
            "exit": code,
            "killed": killed,
            "said": said,
            "same bytes": out.exists() and file_digest(out) == file_digest(once),
            "same manifest": manifest(out) == manifest(once),
            "left": sorted(path.name for path in Path(folder).iterdir()),
            "seconds": {"in threads": round(undisturbed), "disturbed": round(time.monotonic() - start)},
        }
    print(json.dumps(result, indent=2))
    return 0 if result["same bytes"] and result["same manifest"] and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
