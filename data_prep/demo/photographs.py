"""Demo photographs without a download: small crops of those in the wheels of scikit-image, scikit-learn and matplotlib.

Crops of a photograph look alike, so training, validation and test crops come from different photographs. Only everyday scenes
are used; the micrographs, retina, night sky and textures in the wheels are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from torch import Tensor

from data_prep.demo.options import PhotographOptions
from data_prep.demo.packages import shipped
from data_prep.images.div2k import target_size
from data_prep.images.image_file import Picture, quiet_pillow
from data_prep.images.inpainting import Camera, Photo, describe, photo_plan
from data_prep.run.manifest import check_replaceable
from data_prep.run.plan import Inventory, Task
from data_prep.run.runner import PrepRun, measured_by, run
from es_medical.data import file_digest

SCALES = {"train": (2, 3, 4), "val": (3,), "test": (3,)}  # shorter side of the resized photograph, in units of a crop


class Shipped(NamedTuple):
    """A photograph inside an installed package."""

    package: str
    place: str
    split: str


SHIPPED = (
    Shipped("skimage", "data/chelsea.png", "test"),
    Shipped("sklearn", "datasets/images/china.jpg", "test"),
    Shipped("sklearn", "datasets/images/flower.jpg", "val"),
    Shipped("matplotlib", "mpl-data/sample_data/grace_hopper.jpg", "val"),
    Shipped("skimage", "data/astronaut.png", "train"),
    Shipped("skimage", "data/coffee.png", "train"),
    Shipped("skimage", "data/motorcycle_left.png", "train"),
    Shipped("skimage", "data/motorcycle_right.png", "train"),  # the same scene: the same split
    Shipped("skimage", "data/rocket.jpg", "train"),
)
DISTRIBUTIONS = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


def prepare(prep: PrepRun[PhotographOptions], overwrite: bool = False) -> bool:
    """Write the demo data set, unless it is up to date.

    Raises:
        PrepError: a package or its photographs are missing, or OUT exists and is no slice file.
    """
    check_replaceable(prep.out, overwrite)
    knobs = prep.options
    camera = Camera(knobs.size, knobs.mask, knobs.keep, knobs.sigma, knobs.seed, knobs.mask_seed, knobs.with_image)
    paths = [
        shipped(one.package, one.place, "photographs", DISTRIBUTIONS.get(one.package, one.package)) for one in SHIPPED
    ]  # test first
    sources = {path.name: file_digest(path) for path in paths}
    photos = [Photo(path, sources[path.name], photo.split) for path, photo in zip(paths, SHIPPED, strict=True)]
    inventory = Inventory(sources, [], [f"{photo.split}/{photo.digest}" for photo in photos])
    tasks = [Task(photo.path.name, photo) for photo in photos]
    with quiet_pillow():
        plan = photo_plan(prep, tasks, camera, partial(tiles, size=knobs.size), "photographs")
        return run(prep, inventory, lambda: plan, measured_by(describe, prep.out), overwrite=overwrite)


def tiles(picture: Picture, photo: Photo, size: int) -> tuple[list[Tensor], list[str]]:
    """Crops (3, size, size) without overlap, of the photograph resized to each scale of its split; and no notes."""
    old = picture.pixels.height, picture.pixels.width
    targets = [target_size(old, scale * size, "short") for scale in SCALES[photo.split]]  # none is enlarged
    return [tile for target in targets for tile in _tiles(picture.resized(target), size)], []


def _tiles(image: Tensor, size: int) -> Iterator[Tensor]:
    """Cut an image (3, H, W) into as many crops as fit, centred."""
    _, height, width = image.shape
    top, left = height % size // 2, width % size // 2
    for i in range(top, height - size + 1, size):
        for j in range(left, width - size + 1, size):
            yield image[:, i : i + size, j : j + size].clone()
