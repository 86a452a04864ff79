"""The Slurm script of docs/how-to/cluster.md, run as it stands by bash; only Slurm and torchrun are stand-ins."""

import ast
import os
import subprocess
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "cluster.md"
BUNDLES = Path(__file__).parents[1] / "bundles"
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >>"$HOME/srun"; shift; done
for i in 0 1; do SLURM_PROCID=$i "$@" & done
wait"""
SCONTROL = """#!/bin/bash
[[ $* == "show hostnames node[07-08]" ]] && printf 'node07\\nnode08\\n'"""
TORCHRUN = """#!/bin/bash
{ pwd; echo "$OMP_NUM_THREADS $TORCH_DISABLE_SHARE_RDZV_TCP_STORE"; printf '%s\\n' "$@"; } >"$HOME/task$SLURM_PROCID\""""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder of a user whose job ran on two machines: what srun and each torchrun was given."""
    home = tmp_path_factory.mktemp("home")
    bin_, clone = home / ".local", home / "es_medical"
    for path, text in (("srun", SRUN), ("scontrol", SCONTROL), ("torchrun", TORCHRUN)):
        bin_.mkdir(exist_ok=True)
        (bin_ / path).write_text(text)
        (bin_ / path).chmod(0o755)
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "activate").write_text(f"export PATH={bin_}:$PATH")
    (clone / "bundles").symlink_to(BUNDLES)
    (home / "job.sh").write_text(PAGE.read_text().split("## Slurm")[1].split("```bash\n")[1].split("```")[0])
    job = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[07-08]", "SLURM_CPUS_PER_TASK": "16"}
    subprocess.run(["bash", "-eu", str(home / "job.sh")], env=os.environ | job | {"HOME": str(home)}, check=True)
    return home


def test_every_machine_joins_the_launch_of_the_first_one(home):
    asked = [(home / f"task{i}").read_text().splitlines()[2:] for i in range(2)]
    assert asked[0] == asked[1]
    given = get_args_parser().parse_args(asked[0])
    assert (given.nnodes, given.rdzv_backend, given.rdzv_endpoint, given.rdzv_id) == ("2", "c10d", "node07:29400", "4711")
    assert (int(given.max_restarts), given.module, given.training_script) == (3, True, "monai.bundle")
    run, option, files = given.training_script_args
    assert (run, option) == ("run", "--config_file")
    assert all((BUNDLES / "fastmri_real" / file).is_file() for file in ast.literal_eval(files))


def test_machines_have_the_folder_the_settings_and_their_processors(home):
    for task in ("task0", "task1"):
        folder, settings, *_ = (home / task).read_text().splitlines()
        assert (Path(folder).name, settings) == ("fastmri_real", "4 1")
    assert (home / "srun").read_text().split() == ["--cpus-per-task=16"]  # srun does not take sbatch's, since Slurm 22.05
