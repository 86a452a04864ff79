"""MR volumes of known geometry and values, written as files; and what a slice file says about its places and values."""

import nibabel as nib
import numpy as np
from columns import columns

from es_medical.data.geometry import Geometry

ROTATED = np.array([[0.9, -0.3, 0.316], [0.36, 0.92, -0.15], [-0.245, 0.25, 0.937]])
AFFINES = {  # voxel axes to RAS mm, without voxel sizes
    "right, front, up": np.eye(3),
    "left, back, up": np.diag([-1.0, -1.0, 1.0]),
    "back, down, left": np.array([[0.0, 0, -1], [-1, 0, 0], [0, -1, 0]]),
    "oblique": np.linalg.qr(ROTATED)[0] * np.sign(np.diag(np.linalg.qr(ROTATED)[1])),
}
ORIGIN = (-31.0, 12.0, 7.5)


def head(shape=(20, 24, 18), seed=0):
    """A bright ellipsoid with a texture in air, (i, j, k): its values differ everywhere."""
    at = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
    texture = np.random.default_rng(seed).random(shape)
    return (np.where((at**2).sum(0) < 0.8, 100 + 50 * texture, 0.1 * texture)).astype(np.float32)


def affine_of(directions=AFFINES["right, front, up"], sides=(1.5, 1.5, 1.5), origin=ORIGIN):
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = directions * np.array(sides), origin
    return affine


def write_nifti(path, voxels, affine=None, change=None):
    """A NIfTI file; `change(image)` alters its header before it is written."""
    image = nib.Nifti1Image(voxels, affine_of() if affine is None else affine)
    if change:
        change(image)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)
    return path


def raw_values(found):
    """Values of all slices in the units of their file, (n, H, W)."""
    scale, offset = (part[:, None, None] for part in found["scale"].T)
    return np.hypot(found["image"][:, 0], found["image"][:, 1]) * scale + offset


def planes(found):
    names = ("position", "orientation", "spacing", "slice_spacing")
    return [Geometry(*values) for values in zip(*(found[name] for name in names), strict=True)]


def looked_up(found, value, step=7):
    """Pairs of values of some pixels: as stored, and by `value(LPS mm)`; None of a pixel outside the volume is left out."""
    pairs = []
    for image, plane in zip(raw_values(found), planes(found), strict=True):
        for row in range(0, image.shape[0], step):
            for column in range(0, image.shape[1], step):
                known = value(plane.world(row, column))
                if known is not None:
                    pairs.append((image[row, column], known))
    return np.array(pairs).T


def in_nifti(path, volume=None):
    """`value` of a NIfTI file; its pixel must be a voxel."""
    image = nib.load(path)
    voxels, inverse = image.get_fdata(), np.linalg.inv(image.affine)
    voxels = voxels if volume is None else voxels[..., volume]

    def value(lps):
        at = inverse @ [-lps[0], -lps[1], lps[2], 1]
        index = np.rint(at[:3]).astype(int)
        assert np.abs(at[:3] - index).max() < 0.01
        return float(voxels[tuple(index)]) if (index >= 0).all() and (index < voxels.shape).all() else None

    return value


def of_volumes(path):
    """Columns of each volume of a slice file, in the order of the file."""
    found = columns(path)
    keys = list(dict.fromkeys(found["volume"]))
    return [
        {name: column[found["volume"] == key] for name, column in found.items() if len(column) == len(found["id"])}
        for key in keys
    ]
