"""Tiny slice files and bundle runs, which take seconds on one core."""

import copy
import functools
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow

from es_medical.data import Shapes, SliceHeader, SliceRecord, SliceWriter
from es_medical.data.hdf5 import write_texts
from es_medical.physics import (
    MRI,
    CompressedSensing,
    Inpainting,
    MultiCoilMRI,
    Operator,
    bernoulli_mask,
    gaussian_line_mask,
    gaussian_matrix,
    measure,
)
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.physics.transmission import COUNTED, Transmission
from es_medical.randomness import item_generator

BUNDLES = Path(__file__).parents[1] / "bundles"
BUNDLE_NAMES = sorted(path.parents[1].name for path in BUNDLES.glob("*/configs/metadata.json"))
SINGLE = "fastmri_real_single"  # the bundle fastmri_real with k-space of one coil in place of several
CASES = (*BUNDLE_NAMES, SINGLE)
CONFIGS = BUNDLES / "fastmri_synthetic" / "configs"
ACCELERATION, CENTER, SIGMA, VIEWS = 2.0, 0.25, 0.01, 6
MASK, KEEP, RATIO = "values", 0.5, 0.25
SPLITS = {"train": 4, "val": 2, "test": 3}
LEVELS = (0.01, 0.03, 0.005)  # noise levels of the slices of recorded k-space
DEAD = "http://127.0.0.1:9"

KNOBS: dict[str, Any] = {
    "acceleration": ACCELERATION,
    "center_fraction": CENTER,
    "views": VIEWS,
    "mask": MASK,
    "keep": KEEP,
    "ratio": RATIO,
    "sigma": SIGMA,
    "photons": None,
    "widths": [4, 8],
    "iterations": 1,
    "n_samples": 2,
    "batch_size": 2,
    "num_workers": 0,
    "epochs": 2,
    "lr": 0.01,
    "lr_milestones": [1, 3],
    "val_interval": 1,
    "log_interval": 1,
    "n_cases": 1,
    "key_metric": "heldout",
}


def smooth_images(n: int, size: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Random low-pass images (n, 2, H, W) with magnitudes in [0, 1]."""
    coarse = torch.rand(n, 2, 4, 4, generator=torch.Generator().manual_seed(seed))
    images = torch.nn.functional.interpolate(coarse, size, mode="bilinear")
    return images / images.square().sum(1, keepdim=True).sqrt().amax((1, 2, 3), keepdim=True)


def smooth_maps(coils: int, size: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Sensitivity maps (2, C, H, W): low-pass, complex, different for every coil, sum over coils of |S|^2 = 1."""
    coarse = torch.randn(2, coils, 3, 3, generator=torch.Generator().manual_seed(seed)) + 0.5
    maps = torch.nn.functional.interpolate(coarse, size, mode="bilinear")
    return maps / maps.square().sum((0, 1)).sqrt()


def set_texts(file: h5py.File, name: str, texts: list[str]) -> None:
    """Replace a column of names in a slice file, whose text has a fixed length."""
    del file[name]
    write_texts(file, name, texts)


def write_slices(
    path: Path,
    size: tuple[int, int] = (16, 16),
    splits: dict[str, int] = SPLITS,
    with_image: bool = True,
    mask_seed: int = 0,
    scale: tuple[float, float] = (1.0, 0.0),
    spacing: tuple[float, float] = (float("nan"), float("nan")),
    data_ranges: tuple[float, ...] = (1.0,),
    acceleration: float = ACCELERATION,
    poison: dict[int, str] | None = None,
    coils: int = 0,
    sigmas: tuple[float, ...] = (),
) -> Path:
    """Write a slice file of MRI; `poison` puts NaN into the "measurement" or "image" of some rows.

    With `coils`, every slice has its own sensitivity maps; with `sigmas`, the slices have these noise levels in turn and the
    header has none, as in files of recorded k-space.
    """
    mask = gaussian_line_mask(size[1], acceleration, CENTER, mask_seed)
    order = [split for split, n in splits.items() for _ in range(n)]
    images = smooth_images(len(order), size)
    header = SliceHeader(float("nan") if sigmas else SIGMA, mask, acceleration, CENTER)
    with SliceWriter(path, header, size, with_image, coils) as writer:
        for i, split in enumerate(order):
            maps = smooth_maps(coils, size, i) if coils else None
            physics = MRI(mask, size) if maps is None else MultiCoilMRI(mask, maps[None])
            sigma = sigmas[i % len(sigmas)] if sigmas else SIGMA
            y = measure(physics, images[i : i + 1], sigma, item_generator(0, str(i), "noise"))[0]
            x, y = (
                torch.full_like(value, torch.nan) if (poison or {}).get(i) == name else value
                for name, value in (("image", images[i]), ("measurement", y))
            )
            subject = f"{split}{i // 2}"
            data_range = data_ranges[i % len(data_ranges)]
            image = x if with_image else None
            own = {"maps": maps, "sigma": sigma if sigmas else float("nan")}
            writer.append(SliceRecord(y, image, f"item{i}", subject, split, *scale, spacing, data_range, i % 2, **own))
    return path


def write_sinograms(
    path: Path,
    size: tuple[int, int] = (16, 16),
    splits: dict[str, int] = SPLITS,
    with_image: bool = True,
    views: int = VIEWS,
    sigma: float = SIGMA,
    seed: int = 0,
    photons: float | None = None,
) -> Path:
    """Write a slice file of CT: discs of tissue with smooth texture in air, and their parallel-beam sinograms.

    With `photons`, the noise is that of photon counting, in place of Gaussian noise of level sigma.
    """
    scanner = CT(ParallelBeam(size, n_views=views))
    order = [split for split, n in splits.items() for _ in range(n)]
    images = disc(size) * (0.4 + 0.4 * smooth_images(len(order), size, seed)[:, :1])
    generators = [item_generator(seed, str(i), "noise") for i in range(len(order))]
    sinograms, levels = measure(scanner, images, sigma, generators), torch.full((len(order),), sigma)
    operator: dict[str, Any] = scanner.geometry.to_dict()
    if photons is not None:
        transmission = Transmission.of_field(photons, float(scanner.norm), size[0])
        counts = transmission.sample(scanner.A(images), generators)
        sinograms, levels, sigma = transmission.post_log(counts), transmission.noise_level(counts), float("nan")
        operator[COUNTED] = transmission.to_dict()
    mask = torch.ones(views, dtype=torch.bool)
    header = SliceHeader(sigma, mask, modality="CT", operator=operator)
    with SliceWriter(path, header, size, with_image, shapes=Shapes.sinogram(size, scanner.geometry.shape)) as writer:
        for i, (split, x, y) in enumerate(zip(order, images, sinograms, strict=True)):
            image, own = x if with_image else None, {"slice": i % 2, "data_range": 1.0, "sigma": float(levels[i])}
            writer.append(SliceRecord(y, image, f"item{i}", f"{split}{i // 2}", split, 2000.0, -1000.0, **own))
    return path


def write_images(
    path: Path,
    size: tuple[int, int] = (16, 16),
    splits: dict[str, int] = SPLITS,
    with_image: bool = True,
    sigma: float = SIGMA,
    seed: int = 0,
    sensing: bool = False,
) -> Path:
    """Write a slice file of smooth colour images with missing values, or (`sensing`) of grey images and their products."""
    order = [split for split, n in splits.items() for _ in range(n)]
    channels = 1 if sensing else 3
    images = (
        smooth_images(2 * len(order), size, seed).abs().reshape(-1, *size)[: channels * len(order)].view(-1, channels, *size)
    )
    if sensing:
        m = round(RATIO * size[0] * size[1])
        matrix, mask = gaussian_matrix(m, size[0] * size[1], 0), torch.ones(m, dtype=torch.bool)
        physics: Operator = CompressedSensing(matrix, size)
        operator, shapes = {"kind": "compressed_sensing", "ratio": RATIO, "seed": 0}, Shapes.rows(size, m)
    else:
        matrix, mask = None, bernoulli_mask((channels, *size), KEEP, 0)
        physics = Inpainting(mask, size, channels)
        operator, shapes = {"kind": "inpainting", "mask": MASK, "keep": KEEP}, Shapes.pixels(size, channels)
    y = measure(physics, images, sigma, [item_generator(seed, str(i), "noise") for i in range(len(order))])
    header = SliceHeader(sigma, mask, modality="IMAGE", operator=operator, matrix=matrix)
    with SliceWriter(path, header, size, with_image, shapes=shapes) as writer:
        for i, split in enumerate(order):
            writer.append(
                SliceRecord(y[i], images[i] if with_image else None, f"item{i}", f"{split}{i}", split, data_range=1.0)
            )
    return path


def disc(size: tuple[int, int]) -> torch.Tensor:
    """Disc (H, W) that touches the nearest edges of an image: 1 inside, 0 outside."""
    rows, columns = (torch.arange(n) - (n - 1) / 2 for n in size)
    return (torch.hypot(rows[:, None], columns) < min(size) / 2).float()


def bundle_of(case: str) -> str:
    """Return the name of the bundle of one of CASES."""
    return "fastmri_real" if case == SINGLE else case


def write_slices_for(case: str, path: Path, **options: Any) -> Path:
    """Write a slice file for a bundle, or for one of CASES."""
    if case == "lidc_ct":
        return write_sinograms(path, **options)
    if case in ("div2k_inpainting", "mnist_cs"):
        return write_images(path, **({"sensing": case == "mnist_cs"} | options))
    kinds: dict[str, dict[str, Any]] = {"fastmri_real": {"coils": 3, "sigmas": LEVELS}, SINGLE: {"sigmas": LEVELS}}
    return write_slices(path, **(kinds.get(case, {}) | options))


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Let trainings give EQUIV for one element of the group."""
    patch.setattr(import_module("es_medical.metrics.equivariance"), "_elements", lambda group, _: group.elements()[1:2])


def load(bundle: str, name: str) -> dict[str, Any]:
    """Read a configuration file of a bundle."""
    return ConfigParser.load_config_file(str(BUNDLES / bundle / "configs" / name))


@functools.cache
def _parsed(path: str, _: int) -> dict[str, Any]:
    return PARSE(path)


PARSE = ConfigParser.load_config_file  # slow, so once for each state of a file
ConfigParser.load_config_file = lambda filepath: copy.deepcopy(_parsed(str(filepath), Path(filepath).stat().st_mtime_ns))


@functools.cache
def entries(config: Path) -> frozenset[str]:
    """Return the top-level names of a configuration file."""
    return frozenset(ConfigParser.load_config_file(str(config)))


def workflow(
    files: list[str | Path],
    folder: Path,
    source: str | Path,
    uri: str,
    bundle: str = "fastmri_synthetic",
    without: tuple[str, ...] = (),
    **overrides: Any,
) -> ConfigWorkflow:
    """Build the workflow of a bundle, or of one of CASES, with tiny knobs; all its output goes to `folder`.

    Knobs in `without` keep the bundle's values; knobs that the first file does not have are left out.
    """
    paths = [str(BUNDLES / bundle_of(bundle) / "configs" / file) for file in files]
    inference = "inference.json" in files
    own = entries(Path(paths[0])).difference(without)
    knobs = {name: value for name, value in KNOBS.items() if name in own}
    places = {"data_file": str(source), "ckpt_dir": str(folder / "models"), "output_dir": str(folder / "eval")}
    log = {} if inference else {"tracking_uri": uri, "experiment": folder.name, "warm_dir": str(folder / "warm")}
    kind = "infer" if inference else "train"
    settings = {"logging_file": False, "workflow_type": kind}
    return ConfigWorkflow(paths, **(settings | knobs | places | log | overrides))


def execute(job: ConfigWorkflow, check: bool = False) -> ConfigWorkflow:
    """Runs a workflow; with `check`, everything that MONAI asks of one of its kind is built first."""
    job.initialize()
    assert not check or job.check_properties() == []
    job.run()
    job.finalize()
    return job


def runs(client: Any, name: str) -> list[Any]:
    """The runs of an experiment in MLflow, the first one first."""
    return client.search_runs([client.get_experiment_by_name(name).experiment_id], order_by=["start_time ASC"])


def steps(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    """A curve of a run."""
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def names(folder: Path) -> set[str]:
    """Return the names of the entries of a folder."""
    return {path.name for path in folder.iterdir()}


def causes(error: BaseException) -> str:
    """Return the messages of an exception and all its causes: MONAI wraps errors raised from a configuration."""
    text, current = [], error
    while current is not None:
        text.append(f"{type(current).__name__}: {current}")
        current = current.__cause__ or current.__context__
    return "\n".join(text)


class Recorder(torch.nn.Module):
    """A reconstructor that records (y, physics) of each call and returns zero images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.calls = channels, []

    def forward(self, y: torch.Tensor, physics: Operator, generator: Any = None, g: Any = None) -> torch.Tensor:
        self.calls.append((y, physics))
        return torch.zeros(len(y), self.channels, *physics.image_size)


class Parts:
    """The objects that a bundle builds, made by the factories, to test one engine at a time."""

    def __init__(
        self,
        data_file: Path,
        method: str = "es",
        epochs: int = 2,
        lr: float = 0.01,
        milestones: tuple[int, ...] = (1, 3),
        widths: tuple[int, ...] = (4, 8),
        channels_last: bool = False,
        equivariant: bool = True,
        seed: int = 0,
        batch_size: int = 2,
        num_workers: int = 0,
        schedule: str = "step",
        warmup: int = 0,
        planned: int = 4,
        ema: float | None = None,
    ) -> None:
        from es_medical.data import read_header
        from es_medical.engine import operators, setup
        from es_medical.engine.trainer import Trainer
        from es_medical.groups import D4
        from es_medical.losses import build_loss
        from es_medical.networks import unet

        torch.manual_seed(seed)
        self.data_file, self.batch_size, self.num_workers = str(data_file), batch_size, num_workers
        acceleration = read_header(data_file).acceleration
        self.physics = operators.build_physics(self.data_file, acceleration, CENTER, SIGMA)
        self.split = operators.build_split(self.data_file, "lines", 0.8, True)
        self.group = D4() if equivariant else None
        self.denoiser = unet(2, widths)
        self.network = setup.build_reconstructor(self.denoiser, self.group, "cpu", 1, channels_last=channels_last)
        self.inferer = setup.build_inferer(method, self.split, 2, SIGMA, 0.5, self.group, False, 0)
        self.loss = build_loss(method, self.split, SIGMA, 0.5, 0.1)
        self.optimizer = setup.build_optimizer(self.network, lr)
        self.scheduler = setup.build_scheduler(self.optimizer, milestones, 0.3, schedule, warmup, planned)
        self.average = setup.build_average(self.network, ema)
        self.trainer: Any = self.make_trainer(Trainer, epochs, seed)

    def make_trainer(self, kind: type, epochs: int, seed: int) -> Any:
        from monai.inferers import SimpleInferer

        loader = self.loader("train", self.loss.needs_image, shuffle=True)
        engines = (self.network, self.optimizer, self.loss, self.physics, SimpleInferer())
        return kind("cpu", epochs, loader, *engines, seed=seed, scheduler=self.scheduler, average=self.average)

    def loader(self, split: str, with_image: bool = True, shuffle: bool = False, batch_size: int | None = None) -> Any:
        from es_medical.engine import setup

        dataset = setup.build_dataset(self.data_file, split, with_image)
        return setup.build_loader(dataset, batch_size or self.batch_size, shuffle, self.num_workers if shuffle else 0)

    def evaluator(self, split: str = "test", with_image: bool = True, batch_size: int = 2, **options: Any) -> Any:
        from es_medical.engine.evaluator import Evaluator

        loader = self.loader(split, with_image, batch_size=batch_size)
        return Evaluator("cpu", loader, self.network, self.inferer, self.physics, **options)

    def checkpoints(self, folder: Path) -> Any:
        from es_medical.engine.checkpoint import Checkpoints

        return Checkpoints(folder, self.network, self.denoiser, self.physics, self.inferer, self.scheduler)
