"""Commands as processes: all end, failures are reported with their log, GPUs are taken in turn."""

import os
import subprocess
import sys
import time

import pytest

from es_medical.report.running.launch import CommandJob, last_lines, run_jobs


def job(folder, name, code):
    return CommandJob(name, (sys.executable, "-c", code), folder / f"{name}.txt", folder)


def test_jobs_run_in_their_folder_and_one_that_fails_does_not_stop_the_others(tmp_path):
    codes = {"a": "print('hello')", "b": "raise SystemExit(3)", "c": "open('made.txt', 'w').close()"}
    finished = {one.job.name: one.status for one in run_jobs([job(tmp_path, *one) for one in codes.items()], 2)}
    assert finished == {"a": 0, "b": 3, "c": 0}
    assert last_lines(tmp_path / "a.txt") == "hello"
    assert (tmp_path / "made.txt").is_file()


def test_last_lines_are_the_end_of_the_log(tmp_path):
    list(run_jobs([job(tmp_path, "a", "import sys\nfor i in range(9): print(i)\nprint('no', file=sys.stderr)")]))
    assert "no" in last_lines(tmp_path / "a.txt", 10)
    assert len(last_lines(tmp_path / "a.txt", 2).splitlines()) == 2
    assert last_lines(tmp_path / "none.txt") == ""


@pytest.mark.parametrize("parallel", [1, 2])
def test_gpus_are_taken_in_turn_and_cores_are_shared(tmp_path, monkeypatch, parallel):
    monkeypatch.setattr("es_medical.report.running.launch.usable_cores", lambda: 8)
    code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OMP_NUM_THREADS']); time.sleep(0.2)"
    list(run_jobs([job(tmp_path, str(i), code) for i in range(4)], parallel, ("5", "7")))
    seen = {last_lines(tmp_path / f"{i}.txt") for i in range(4)}
    assert seen == ({"5 8"} if parallel == 1 else {"5 4", "7 4"})


def test_a_run_held_to_one_core_takes_one_thread():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); from es_medical.cores import usable_cores; print(usable_cores())"
    held = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert held.stdout.strip() == "1"


def test_an_interruption_ends_the_running_job_and_starts_no_other(tmp_path):
    long = "import pathlib, sys, time; pathlib.Path(sys.argv[0] + 'late').touch(); time.sleep(60)"
    jobs = [job(tmp_path, "first", "pass"), job(tmp_path, "second", long), job(tmp_path, "third", long)]
    start, runs = time.monotonic(), run_jobs(jobs)
    assert next(runs).job.name == "first"
    while not (tmp_path / "-clate").exists():
        time.sleep(0.01)
    with pytest.raises(KeyboardInterrupt):
        runs.throw(KeyboardInterrupt)
    assert time.monotonic() - start < 30
    assert not (tmp_path / "third.txt").exists()
