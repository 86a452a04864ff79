"""Simulated scans of discs, whose line integrals are known exactly, in the layouts that the readers know."""

import h5py
import numpy as np
import scipy.io

DISCS = ((0.0, 0.0, 20.0, 0.2), (6.0, 4.0, 5.0, 0.3), (-8.0, 2.0, 3.0, -0.2))  # x, y, radius in mm; attenuation in 1/cm
PHOTONS = 1e5


def line_integrals(angles, u, source_origin=np.inf, source_detector=np.inf, discs=DISCS):
    """-log of the transmission (V, D) at positions u in mm on a flat detector; angles in degrees, counter-clockwise."""
    fan = np.isfinite(source_origin)
    gamma = np.arctan(u / source_detector) if fan else 0 * u
    s = source_origin * np.sin(gamma) if fan else u
    theta = np.deg2rad(np.asarray(angles))[:, None] - gamma
    p = np.zeros((len(angles), len(u)))
    for x, y, radius, mu in discs:
        off = s - x * np.cos(theta) - y * np.sin(theta)
        p += mu / 10 * 2 * np.sqrt(np.clip(radius**2 - off**2, 0, None))
    return p


def positions(bins, width, centre):
    return width * (np.arange(bins) - centre)


def counts(p, photons=PHOTONS, seed=0, dark=100.0):
    """Poisson counts on top of a dark field."""
    return np.random.default_rng(seed).poisson(photons * np.exp(-p)) + dark


def exchange(path, values, theta, white=None, dark=None, axes="theta:y:x"):
    """A Data Exchange file of (V, rows, D)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        group = file.create_group("exchange")
        group["data"] = values
        group["data"].attrs["axes"] = axes
        group["theta"] = theta
        if white is not None:
            group["data_white"], group["data_dark"] = white, dark
    return path


def fields(rows, bins, photons=PHOTONS, dark=100.0, frames=10, seed=1):
    """White and dark frames."""
    rng = np.random.default_rng(seed)
    return rng.poisson(photons, (frames, rows, bins)) + dark, np.full((3, rows, bins), dark)


def helsinki(path, sinogram, angles, pixel=0.4, **parameters):
    """A Helsinki file; distances of a fan beam of 400 and 550 mm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {"distanceSourceOrigin": 400.0, "distanceSourceDetector": 550.0, "distanceUnit": "mm", "pixelSizePost": pixel}
    scipy.io.savemat(path, {"CtDataFull": {"sinogram": sinogram, "parameters": known | {"angles": angles} | parameters}})
    return path
