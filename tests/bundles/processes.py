"""Commands in processes of their own, and reconstructions by a bundle."""

import os
import subprocess
import sys

import h5py
import torch
from tiny import execute, workflow

PYTHON = [sys.executable, "-W", "ignore"]


def shell(command, cwd, **environment):
    """Runs a command to its end, on one thread, and returns what it printed."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"} | environment
    settings.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def reconstruct(bundle, folder, source, *overlays, **knobs):
    """Runs the inference with the weights in a folder, without DICOM; returns (images, ids), the images finite."""
    settings = ({"dicom": False} if bundle.startswith(("lidc_ct", "fastmri_real")) else {}) | knobs
    one = execute(workflow(["inference.json", *overlays], folder, source, "", bundle, **settings), check=True)
    with h5py.File(one.parser.get_parsed_content("output_dir") + "/reconstructions.h5") as file:
        images, ids = torch.from_numpy(file["reconstruction"][()]), file["id"].asstr()[()].tolist()
    assert images.isfinite().all()
    return images, ids
