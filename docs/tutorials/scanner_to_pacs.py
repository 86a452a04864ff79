# %% [markdown]
# # From scanner files to PACS
#
# Raw k-space to one file of slices, training without ground truth, and a new scan to a DICOM series: three commands. The
# scans are simulated around the brain template that nilearn ships; with your own, leave the first command out. [What is read,
# refused and assumed](../inputs.md) lists the file formats (fastMRI, ISMRMRD, Siemens twix, ...).

# %%
import os
import subprocess
import sys
from pathlib import Path

import pydicom

BUNDLE = Path(__file__).resolve().parents[2] / "bundles" / "fastmri_real"
EPOCHS = os.environ.get("EPOCHS", "10")


def run(command: str) -> None:
    """Run `python -m COMMAND`, and stop at an error."""
    print(f"$ python -m {command}", flush=True)
    subprocess.run([sys.executable, "-m", *command.split()], check=True)


# %% [markdown]
# ## Scans
# Five patients; the last one is kept for the end, as tomorrow's scan.

# %%
run("data_prep demo kspace scans --coils 0 --volumes 5 --slices 4")
tomorrow = sorted(Path("scans").glob("*.h5"))[-1].rename("tomorrow.h5")

# %% [markdown]
# ## One file of slices
# All slices are resampled to one grid and get one mask; the noise level of each is estimated. `--without-image` keeps no
# image.

# %%
run(
    "data_prep fastmri scans slices.h5 --measurements real --slices all --without-image --size 64 "
    "--acceleration 4 --center-fraction 0.12 --val 1 --test 0.25"
)

# %% [markdown]
# ## Training
# The best weights are those of the least held-out error. The small network is for speed, and so short a training not for use.

# %%
knobs = "--acceleration 4 --center_fraction 0.12 --num_workers 0 --lr 0.003 --n_samples 4"
run(
    f"monai.bundle run --config_file {BUNDLE}/configs/train.yaml --bundle_root {BUNDLE} --data_file slices.h5 "
    f"--ckpt_dir models --output_dir training --widths [8,16] --epochs {EPOCHS} {knobs}"
)

# %% [markdown]
# ## Reconstruction
# The new scan goes through the same preparation, with the settings that are kept with the weights. `--source_dicom SERIES/`
# puts the result into the study, geometry and patient of an existing series.

# %%
run("es_medical.reconstruct models tomorrow.h5 reconstruction")

# %% [markdown]
# ## The series
# A derived series of the images, and one of their spread (a parametric map). Any DICOM tool sends them, for example `storescu
# PACS 104 reconstruction/dicom/...`. This is for research, not for a diagnosis.

# %%
series = [pydicom.dcmread(path) for path in sorted(Path("reconstruction").rglob("*.dcm"))]
for image in series:
    print(image.Modality, f"{image.Rows} x {image.Columns}", image.SeriesDescription, list(image.ImageType))
