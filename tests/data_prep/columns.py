"""What is in files that were written: of slices, of reconstructions, and volumes; and weights that nothing trained."""

import h5py
import nibabel as nib


def columns(path):
    """Datasets of an HDF5 file by name."""
    with h5py.File(path) as file:
        return {name: data.asstr()[()] if data.dtype.kind in "OS" else data[()] for name, data in file.items()}


def stored(path, *names):
    """Some of these datasets, or one."""
    found = columns(path)
    return found[names[0]] if len(names) == 1 else [found[name] for name in names]


def nifti(path):
    """Values of a volume (slices, H, W)."""
    return nib.load(path).get_fdata().transpose(2, 1, 0)


def save_weights(training):
    """Keep the first weights of a training that is not run."""
    training.initialize()
    training.parser.get_parsed_content("checkpoints").save_best(1.0, 1)
