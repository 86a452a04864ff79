"""The input of a bundle's inference: a slice file as it is, or a fastMRI volume prepared as the training data was."""

from pathlib import Path

from data_prep.fastmri import Job, Options, run
from data_prep.manifest import PrepError, Pseudonyms, default_salt
from es_medical.data import read_header


def slice_file(
    source: str,
    output_dir: str,
    acceleration: float,
    center_fraction: float,
    sigma: float,
    seed: int = 0,
    mask_seed: int | None = None,
) -> str:
    """Return the path of a slice file for `source`.

    A slice file is returned as it is. The slices of a fastMRI volume are all prepared into `output_dir` in the synthetic
    setting: k-space is simulated from its magnitude reconstruction, with the mask and noise given.
    The file's name is a pseudonym of the source's.

    Args:
        source: HDF5 slice file, fastMRI volume, or a folder of volumes.
        output_dir: where a prepared slice file is written.
        acceleration: of the simulated k-space.
        center_fraction: of the simulated k-space.
        sigma: noise of the simulated k-space.
        seed: of its noise.
        mask_seed: of its mask, None takes `seed`; that of the training data gives the training data's mask.

    Raises:
        FileNotFoundError: there is no `source`.
        PrepError: it is neither a slice file nor a usable volume.
    """
    from rich.console import Console

    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"no input at {path}: give a slice file or a fastMRI volume as --data_file")
    try:
        read_header(path)
    except (ValueError, OSError):
        pseudonym = Pseudonyms(default_salt(seed)).of("input", path.name)  # the name itself may be a patient's
        out = Path(output_dir) / f"{pseudonym}_slices.h5"
        options = Options("all", acceleration, center_fraction, sigma, seed, train=1, test=0, val=0, mask_seed=mask_seed)
        if not run(Job(path, out, options, default_salt(seed), 1, None, Console()), dry_run=False, overwrite=False):
            raise PrepError(f"not every volume of {path} could be prepared: see the list above") from None
        return str(out)
    return str(path)
