"""Commands in processes of their own, and what MLflow holds of them."""

import os
import subprocess
import sys

PYTHON = [sys.executable, "-W", "ignore"]


def shell(command, cwd, **environment):
    """Runs a command to its end, on one thread, and returns what it printed."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | environment
    settings.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def runs(client, name):
    """The runs of an experiment, the first one first."""
    return client.search_runs([client.get_experiment_by_name(name).experiment_id], order_by=["start_time ASC"])
