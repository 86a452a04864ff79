"""The writers of small valid files are those of the tests of each reader."""

import sys
from pathlib import Path

PREPARATION = Path(__file__).parents[1] / "data_prep"
sys.path[:0] = [str(PREPARATION / name) for name in ("", "mri", "sinogram", "mr_images")]
