"""The preparation commands as a table, each with a tiny input and bad files to put beside it."""

import gzip
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from columns import columns
from ct_archives import ct, write, write_patients
from dicom_parts import scanned, source_plane, write_slice
from idx_bytes import idx, images, put
from mr_volumes import affine_of, head, write_nifti
from PIL import Image
from sinogram_scans import helsinki, line_integrals, positions
from tiny import write_slices

REAL = ("--measurements", "real", "--acceleration", 2, "--center-fraction", 0.2)


def volumes(folder, make_volume):
    """Four volumes of two patients."""
    for k in range(4):
        make_volume(folder / "SECRETFOLDER" / f"SECRET{k}.h5", seed=k, patient=f"SECRETPATIENT{k // 2}")


def series(folder, _):
    """Four patients of three slices."""
    write_patients(folder / "SECRETFOLDER", 4, 3)


def photographs(folder, _):
    """Six images."""
    (folder / "SECRETFOLDER").mkdir(parents=True)
    for k in range(6):
        pixels = np.random.default_rng(k).integers(0, 256, (24, 20, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "SECRETFOLDER" / f"SECRET{k}.png")


def digit_files(folder, _):
    """Two files of digits."""
    for k in range(2):
        put(folder / "SECRETFOLDER" / f"SECRET{k}.gz", images(20, seed=k))


def recorded_slices(folder):
    """A slice file of two coils whose slices have noise levels of their own."""
    folder.mkdir()
    return write_slices(folder / "SECRETLIKE.h5", coils=2, sigmas=(0.01, 0.03))


def bad_volumes(folder, make_volume):
    whole = next(folder.rglob("SECRET0.h5")).read_bytes()
    (folder / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (folder / "page.h5").write_text("<!DOCTYPE html><html>403</html>")
    (folder / "empty.h5").touch()
    make_volume(folder / "none.h5", kspace=np.zeros((0, 64, 48), np.complex64), keys=())
    make_volume(folder / "float.h5", kspace=np.zeros((3, 64, 48), np.float32), keys=())
    return {
        "cut.h5": "truncated HDF5",
        "page.h5": "not an HDF5 file (looks like a web page",
        "empty.h5": "empty file (0 bytes)",
        "none.h5": "holds no slices",
        "float.h5": "kspace is float32, expected complex",
    }


def bad_series(folder, _):
    one = write(ct(patient="p9"), folder / "short" / "000.dcm")
    one.write_bytes(one.read_bytes()[:-300])
    (folder / "random.dcm").write_bytes(np.random.default_rng(0).bytes(5000))
    return {"short/000.dcm": "1748 bytes, expected 2048", "random.dcm": "not a DICOM file, in spite of its suffix"}


def bad_photographs(folder, _):
    whole = next(folder.rglob("SECRET0.png")).read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "page.png").write_text("<html>404</html>")
    (folder / "void.jpg").touch()
    Image.new("RGB", (60, 15)).save(folder / "tiny.png")
    return {
        "cut.png": "cut short: the file ends before its image",
        "page.png": "not an image: it holds a web page",
        "void.jpg": "empty file",
        "tiny.png": "60 x 15 pixels: the shorter side is below the crop of 16, and no image is enlarged",
    }


def bad_digits(folder, _):
    put(folder / "short", idx(images(9, seed=3))[:-1])
    put(folder / "half.gz", gzip.compress(idx(images(9, seed=4)))[:-20])
    return {"short": "270 bytes, the file has 269", "half.gz": "gzip cut off before its end"}


def heads(folder, _):
    """Four volumes in files, and a DICOM series."""
    for k in range(3):
        write_nifti(folder / "SECRETFOLDER" / f"SECRET{k}.nii", head((12, 14, 5), seed=k), affine_of())
    plane = partial(source_plane, size=(14, 12), spacing=(1.5, 1.5))
    voxels = (100 * head((6, 14, 12), seed=9)).astype("<u2")
    for k in (2, 3):
        one = scanned(plane(k), k, (14, 12), PatientID="SECRETID", StudyInstanceUID="1.2.3", BitsStored=16, HighBit=15)
        one.PixelData = voxels[k].tobytes()
        write_slice(folder / "SECRETFOLDER" / f"SECRETSERIES{k}.dcm", one)


def bad_heads(folder, _):
    whole = write_nifti(folder / "whole.nii.gz", head((12, 14, 5), seed=7))
    (folder / "cut.nii.gz").write_bytes(whole.read_bytes()[:-500])
    whole.unlink()
    (folder / "page.nii").write_text("<html>404</html>")
    (folder / "void.nrrd").touch()
    (folder / "random.dcm").write_bytes(np.random.default_rng(0).bytes(5000))
    return {
        "cut.nii.gz": "the voxels cannot be read",
        "page.nii": "the header cannot be read",
        "void.nrrd": "the header cannot be read",
        "random.dcm": "not a DICOM file, in spite of its suffix",
    }


def sinograms(folder, _):
    """Four scans of one scanner."""
    angles = np.arange(60) * 6.0
    for k in range(4):
        p = line_integrals(angles + k, positions(40, 1.5, 19.5), 400.0, 550.0)
        helsinki(folder / "SECRETFOLDER" / f"SECRET{k}.mat", p, angles, 1.5)


def bad_sinograms(folder, _):
    whole = next(folder.rglob("SECRET0.mat")).read_bytes()
    (folder / "cut.mat").write_bytes(whole[: len(whole) // 2])
    (folder / "page.h5").write_text("<html>404</html>")
    (folder / "void.tif").touch()
    angles = np.arange(60) * 6.0
    helsinki(folder / "angles.mat", line_integrals(angles, positions(40, 1.5, 19.5), 400.0, 550.0), angles[1:])
    return {
        "cut.mat": "damaged MATLAB file",
        "page.h5": "not a .h5 file: it holds a web page",
        "void.tif": "empty file (0 bytes)",
        "angles.mat": "59 angles for a sinogram of 60 views",
    }


class Command(NamedTuple):
    """A command and how it is tried.

    Attributes:
        words: of the command line.
        options: that fit the tiny input.
        n: slices that it makes.
        change: an option that changes the file, and what is said of it.
        default: name of the file in a folder.
        fill: writes the input into a folder; None for a demo.
        spoil: adds bad files; their causes by name.
        workers: whether it takes a number of threads.
        preview: what a dry run says, "" where there is none; the others take a salt too.
        package: that it needs.
        like: writes the slice file that it takes, which is no raw input.
        image: whether it has images that --without-image leaves out.
    """

    words: str
    options: tuple[object, ...]
    n: int
    change: tuple[tuple[object, ...], str]
    default: str
    fill: Callable[[Path, object], None] | None = None
    spoil: Callable[[Path, object], dict[str, str]] | None = None
    workers: bool = False
    preview: str = ""
    package: str = "h5py"
    like: Callable[[Path], Path] | None = None
    image: bool = True


SMALL_CT, SMALL_PHOTOS = ("--size", 16, "--views", 5), ("--size", 20, "--crop", 16)
SIGMA = (("--sigma", 0.1), "sigma 0.001 -> 0.1")
COMMANDS = {
    "synthetic": Command(
        "fastmri", (), 4, (("--sigma", 0.1), "sigma 0.005 -> 0.1"), "fastmri.h5", volumes, bad_volumes, True,
        "SECRET2.h5: 1 slices from reconstruction_esc to",
    ),
    "all slices": Command(
        "fastmri", ("--slices", "all"), 12, (("--normalise", "volume"), "normalise slice -> volume"), "fastmri.h5", volumes,
        bad_volumes, True, "dry run: would write 12 slices of 32 x 32 (train 6 · val 0 · test 6) to",
    ),
    "recorded": Command(
        "fastmri", (*REAL, "--slices", "all"), 12, (("--added-noise", 0.1), "added_noise 0.0 -> 0.1"), "fastmri.h5", volumes,
        bad_volumes, True, "3 slices from image of kspace to",
    ),
    "mr": Command(
        "mr", ("--size", 16, "--center-fraction", 0.2, "--subject-pattern", ".+"), 11, (("--sigma", 0.1), "sigma 0.005 -> 0.1"),
        "mr.h5", heads, bad_heads, True, "would write 11 slices of 16 x 16",
    ),
    "lidc": Command("lidc", SMALL_CT, 4, SIGMA, "lidc.h5", series, bad_series, True, "patient1: 1 of 3 slices to"),
    "lidc all": Command(
        "lidc", (*SMALL_CT, "--slices", "all", "--photons", 1e4), 12, (("--photons", 2e4), "photons 10000.0 -> 20000.0"),
        "lidc.h5", series, bad_series, True, "would write 12 slices of 16 x 16",
    ),
    "div2k": Command(
        "div2k", (*SMALL_PHOTOS, "--sigma", 0.01), 6, (("--resize", "stretch"), "resize short -> stretch"), "div2k.h5",
        photographs, bad_photographs, True, "would write 6 slices of 16 x 16 (train 4 · val 1 · test 1)",
    ),
    "mnist": Command(
        "mnist", ("--sigma", 0.01), 40, (("--ratio", 0.5), "ratio 0.3 -> 0.5"), "mnist.h5", digit_files, bad_digits, False,
        "would write 40 slices of 6 x 5",
    ),
    "sinogram": Command(
        "sinogram", ("--size", 16, "--views", 12, "--reference", "--noise", "detector"), 4,
        (("--views", 10), "views 12 -> 10"), "sinograms.h5", sinograms, bad_sinograms, True,
        "would write 4 slices of 16 x 16", image=False,
    ),
    "synthetic images": Command(
        "synthetic", ("--n", 40), 40, (("--seed", 1), "seed 0 -> 1"), "synthetic.h5", like=recorded_slices
    ),
    "demo mri": Command(
        "demo mri", ("--size", 16, "--center-fraction", 0.1), 38, (("--acceleration", 2), "acceleration 4.0 -> 2.0"),
        "demo_mri.h5", package="nilearn",
    ),
    "demo ct": Command("demo ct", (*SMALL_CT, "--source", "phantom"), 12, SIGMA, "demo_ct.h5"),
    "demo natural": Command(
        "demo natural", ("--size", 64), 46, (("--keep", 0.4), "keep None -> 0.4"), "demo_natural.h5", package="skimage"
    ),
    "demo digits": Command(
        "demo digits", ("--n", 40, "--val", 10, "--test", 10), 40, (("--ratio", 0.5), "ratio 0.3 -> 0.5"), "demo_digits.h5",
        preview="would write 40 slices of 28 x 28",
    ),
}  # fmt: skip
OF_FILES = [name for name, command in COMMANDS.items() if command.fill]
EACH = [name for name, command in COMMANDS.items() if name not in ("all slices", "recorded", "lidc all")]  # once each
DRY = [name for name, command in COMMANDS.items() if command.preview]


class Tried:
    """A command, its input and its output below a temporary folder; `kept` holds a copy of both for several tests."""

    def __init__(self, command, tmp_path, prep, make_volume, kept=None):
        self.command, self.prep, self.make_volume = command, prep, make_volume
        self.source, self.out, self.kept = tmp_path / "in", tmp_path / "out" / "a.h5", kept
        given = kept / "in" if kept else None
        if given and given.exists():
            shutil.copytree(given, self.source)
        elif command.fill:
            command.fill(self.source, make_volume)
        if command.like:
            self.source = command.like(self.source)
        elif given and command.fill and not given.exists():
            shutil.copytree(self.source, given)

    def first(self, out=None):
        """What a run with one thread writes, made once for all tests; returns what it printed last."""
        made, said = self.kept / "out", self.kept / "said.txt"
        if not made.exists():
            source = self.kept / "in" if self.command.fill else None
            threads = ("--workers", 1) if self.command.workers else ()
            lines = self.run(*threads, out=made / "a.h5", source=source).splitlines()
            said.write_text(lines[-1].replace(str(made), str(self.out.parent)))
        self.out.parent.mkdir(exist_ok=True)
        for suffix in (".h5", ".manifest.json"):
            shutil.copy2(made / f"a{suffix}", (out or self.out).with_suffix(suffix))
        return said.read_text()

    def run(self, *options, out=None, source=None, code=0):
        source = [source or self.source] if self.command.fill or self.command.like else []
        words = self.command.words.split()
        return self.prep(*words, *source, out or self.out, *self.command.options, *options, code=code).output

    def written(self):
        """Whatever lies beside the output."""
        return sorted(path.name for path in self.out.parent.iterdir()) if self.out.parent.exists() else []

    def columns(self, out=None):
        """The file's datasets, by name."""
        return columns(out or self.out)

    def manifest(self):
        return json.loads(self.out.with_suffix(".manifest.json").read_text())
