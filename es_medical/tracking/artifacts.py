"""Write stepped images and models to local files in MLflow's formats."""

import copy
import hashlib
import logging
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from es_medical.tracking.upload import say

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from torch import Tensor, nn

THUMBNAIL = 1024  # pixels: wide enough for five readable panels side by side
REQUIREMENTS = ("torch", "deepinv", "es_medical")


def plain(value: Any) -> object:  # noqa: ANN401 - numpy scalars, paths
    """Turn what JSON does not know into a number or text."""
    return value.item() if hasattr(value, "item") else str(value)


def write_image(folder: Path, image: npt.NDArray[np.uint8], key: str, step: int, time: int) -> None:
    """Write the full PNG and the small WebP that MLflow's image view expects in `images/` (`client.log_image`).

    Their names hold a digest of the pixels, as the UUID that MLflow expects.

    Args:
        folder: Folder to create.
        image: uint8, (H, W), (H, W, 3) or (H, W, 4).
        key: Name of the series.
        step: Position in the series.
        time: ms since 1970.

    Raises:
        ValueError: Not uint8, or another shape.
    """
    from PIL import Image

    channels = image.shape[2:] or (1,)
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or channels[0] not in (1, 3, 4):
        raise ValueError(f"an image is uint8 of (H, W), (H, W, 3) or (H, W, 4), got {image.dtype} of {image.shape}")
    picture = Image.fromarray(image.squeeze(2) if channels == (1,) and image.ndim == 3 else image)
    content = uuid.UUID(bytes=hashlib.sha256(image.tobytes()).digest()[:16])
    name = f"{key.replace('/', '~')}+step+{step}+timestamp+{time}+{content}"
    folder.mkdir(parents=True)
    picture.save(folder / f"{name}.png")
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    picture.save(folder / f"{name}+compressed.webp")


EXPORT = True
"""Whether models are exported where they can be, which takes seconds; the tests of other things pickle them."""


def save_model(module: "nn.Module", example: "Tensor", folder: Path) -> None:
    """Save a CPU copy of `module` in evaluation mode as an MLflow model folder, with `example` as its input example.

    It is exported as a graph for any batch and image size (`pt2`), which loads without pickle: sides must be multiples of
    those that the network needs without padding. What can't be exported (a shift-equivariant UNet depends on the values
    of its input: `exports` is false) is pickled.
    """
    frozen, example = copy.deepcopy(module).cpu().eval(), example.detach().cpu()
    if EXPORT and getattr(module, "exports", True):
        try:
            return _save(frozen, example, folder, "pt2")
        except Exception as error:
            say(f"the model is pickled, since torch.export can't take it: {str(error).splitlines()[0][:200]}")
            shutil.rmtree(folder, ignore_errors=True)
    return _save(frozen, example, folder, "pickle")


def _save(module: "nn.Module", example: "Tensor", folder: Path, form: Literal["pt2", "pickle"]) -> None:
    import mlflow.pytorch

    requirements = [f"{package}=={version(package).partition('+')[0]}" for package in REQUIREMENTS]
    with _quiet("mlflow"):
        mlflow.pytorch.save_model(
            module,
            folder,
            signature=_signature(module, example),
            input_example=example.numpy(),
            pip_requirements=requirements,
            serialization_format=form,
        )


def _signature(module: "nn.Module", example: "Tensor") -> "ModelSignature":
    """Return the signature (B, C, H, W) -> (B, C', H, W), with B, H and W free."""
    import torch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    with torch.no_grad():
        result = module(example)
    specs = [TensorSpec(x.numpy().dtype, (-1, x.shape[1], *[-1] * (x.ndim - 2))) for x in (example, result)]
    return ModelSignature(Schema([specs[0]]), Schema([specs[1]]))


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence MLflow's warnings: it advises against pickle on every call."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
