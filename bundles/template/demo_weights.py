"""Make the weights that come with a bundle: `python bundles/template/demo_weights.py [BUNDLE ...]`.

The demo is trained as in the README, in a temporary folder; its weights and model card go to bundles/BUNDLE/models/demo. No
data under terms that forbid it may be trained on: the MRI demo's template may be used for anything, and CT is a phantom.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

BUNDLES = Path(__file__).parents[1]
DATA = {
    "fastmri_synthetic": ("demo", "mri", "demo.h5"),
    "lidc_ct": ("demo", "ct", "demo_ct.h5", "--source", "phantom"),
}
KNOBS = {"lidc_ct": ("--warm_images", "1000", "--epochs", "2")}  # a phantom is learnt soon


def main(names: list[str]) -> None:
    """Train the demo of each bundle and keep its weights and card."""
    for name in names or DATA:
        with TemporaryDirectory() as folder:
            training = ("es_medical", "train", name, "--demo", "--processes", "2", "--batch_size", "4", *KNOBS.get(name, ()))
            for command in (("data_prep", *DATA[name]), training):
                subprocess.run([sys.executable, "-m", *command], cwd=folder, check=True)
            keep(Path(folder) / name / "models", BUNDLES / name / "models" / "demo")


def keep(trained: Path, place: Path) -> None:
    """Copy weights and card, and say in the card how they are made anew."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(trained / "reconstructor.pt", place)
    card = (trained / "README.md").read_text(encoding="utf-8")
    command = f"python bundles/template/demo_weights.py {place.parents[1].name}"
    note = f"- Weights of a small demo, to try the program with. Made anew by `{command}`.\n"
    (place / "README.md").write_text(card + note, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
