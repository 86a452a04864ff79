"""What a bundle's configuration builds: each factory takes plain knobs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from es_medical.data import SliceDataset, SliceHeader, cached, read_header
from es_medical.engine.distributed import rank, world_size
from es_medical.groups import Group, Rotations
from es_medical.inferers import Inferer
from es_medical.networks import Accelerated, MoDL, ReynoldsAveraging
from es_medical.physics import MRI, MultiCoilProtocol, Operator
from es_medical.physics.line_masks import line_counts
from es_medical.splits import KSPACE_UNITS, Split


def build_physics(
    data_file: str,
    acceleration: float | None,
    center_fraction: float | None,
    sigma: float | None = None,
    device: torch.device | str = "cpu",
) -> MRI | MultiCoilProtocol:
    """Make the operator of a slice file, single- or multi-coil as the file is, once it is what the configuration says.

    Args:
        data_file: HDF5 file of slices (schema 1).
        acceleration: nominal acceleration that the file must have; None takes any, also below.
        center_fraction: share of central lines that the file must have.
        sigma: noise level that the file must have; None also where each slice has its own.
        device: where the operator works.

    Raises:
        ValueError: the file was made with other values: measurements are simulated once, by data_prep.
    """
    header = _kspace(data_file)
    found = {"acceleration": header.acceleration, "center_fraction": header.center_fraction, "sigma": header.sigma}
    wanted = {"acceleration": acceleration, "center_fraction": center_fraction, "sigma": sigma}
    _check_made_with(data_file, found, wanted)
    return (MultiCoilProtocol if header.coils else MRI)(header.mask, header.size).to(device)


def build_scanner(
    data_file: str,
    views: int | None,
    sigma: float | None,
    rotations: int = 1,
    device: torch.device | str = "cpu",
) -> Operator:
    """Make the CT scanner of a slice file, once it is what the configuration says.

    Args:
        data_file: HDF5 file of sinograms (schema 1).
        views: number of views that the file must have; None takes any, also below.
        sigma: noise level that the file must have.
        rotations: number of angles, fractions of the view spacing, that the scanner can be turned by (see `Rotations`).
        device: where the operator works.

    Raises:
        ValueError: the file holds no sinograms, or was made with other values.
        ImportError: astra-toolbox is not installed.
    """
    from es_medical.physics.ct import CT
    from es_medical.physics.ct_geometry import geometry_from_dict

    header = read_header(data_file)
    if header.modality != "CT" or not header.operator:
        raise ValueError(f"{data_file} holds {header.modality} data without a scanner's geometry: expected CT sinograms")
    geometry = geometry_from_dict(header.operator)
    _check_made_with(data_file, {"views": geometry.shape[0], "sigma": header.sigma}, {"views": views, "sigma": sigma})
    scanner = CT(geometry, header.mask)
    return scanner.with_turns(Rotations(rotations).angles(geometry.spacing)).to(device)


def build_rotations(rotations: int, base: Group) -> Rotations | None:
    """Make what the ES loss draws angles from: none for one angle, where the reconstructor's own group is all there is."""
    return None if rotations == 1 else Rotations(rotations, base)


def build_split(data_file: str, unit: str, split_ratio: float, acs_in_input: bool, mode: str = "exact") -> Split:
    """Make the split of a slice file; with `acs_in_input` its fully sampled centre always stays in M1.

    Raises:
        ValueError: the file holds no k-space, or its mask has too few lines or samples to divide.
    """
    header = _kspace(data_file)
    encoded = header.encoded_lines or header.size[1]
    kept = acs_in_input and unit in KSPACE_UNITS
    n_center = line_counts(encoded, header.acceleration, header.center_fraction)[1] if kept else 1
    result = Split(unit, float(split_ratio), n_center, mode)  # type: ignore[arg-type]  # Split checks the names
    result.check(MRI(header.mask, header.size))  # here once: on a GPU no training step looks
    return result


def build_reconstructor(
    network: nn.Module,
    group: Group | None,
    device: torch.device | str,
    iterations: int = 3,
    step: float = 1.0,
    noise_level: float | None = None,
    amp: bool | None = None,
    channels_last: bool | None = None,
    compiled: bool | None = None,
) -> nn.Module:
    """Unroll a denoiser with the operator (MoDL) and average it over a group (Reynolds).

    Args:
        network: the image-domain denoiser.
        group: the group, None for a network that is not equivariant.
        device: where it runs.
        iterations: unrolled steps K.
        step: initial step gamma.
        noise_level: for denoisers that take one.
        amp: bfloat16 inside the denoiser; None is on for CUDA, off for the CPU.
        channels_last: memory format inside the denoiser; None as above.
        compiled: torch.compile the denoiser; None as above.

    Raises:
        ValueError: amp, channels_last or compiled is neither true, false nor None.
    """
    for name, knob in (("amp", amp), ("channels_last", channels_last), ("compiled", compiled)):
        if knob not in (None, True, False):
            raise ValueError(f"{name} must be true, false or null, got {knob!r}")
    cuda = torch.device(device).type == "cuda"
    amp, channels_last, compiled = (cuda if knob is None else bool(knob) for knob in (amp, channels_last, compiled))
    if amp or channels_last or compiled:
        network = Accelerated(network, amp, channels_last, compiled)
    unrolled = MoDL(network, iterations, step, noise_level)
    return (unrolled if group is None else ReynoldsAveraging(unrolled, group)).to(device)


def build_inferer(
    method: str,
    split: Split,
    n_samples: int,
    sigma: float | None,
    alpha: float,
    group: Group | None,
    whole_group: bool,
    seed: int,
    sigma_factor: float = 1.0,
) -> Inferer:
    """Make the inferer of a method: averages over splits for es; whole measurements for the others."""
    return Inferer(split, n_samples, sigma, alpha, group, method == "es", whole_group, seed, sigma_factor)


def build_optimizer(network: nn.Module, lr: float, weight_decay: float = 1e-8) -> AdamW:
    """Make the paper's AdamW: betas (0.9, 0.999), no AMSGrad."""
    return AdamW(network.parameters(), lr=float(lr), weight_decay=float(weight_decay), betas=(0.9, 0.999))


def build_scheduler(optimizer: Optimizer, milestones: Sequence[int], factor: float) -> MultiStepLR:
    """Make the paper's step scheduler: the learning rate times `factor` after each epoch of `milestones`."""
    return MultiStepLR(optimizer, [int(epoch) for epoch in milestones], gamma=float(factor))


def build_dataset(
    data_file: str, split: str, with_image: bool = True, cache_device: torch.device | str | None = None
) -> Dataset:
    """Open one split of a slice file; `cache_device` holds all of it there (nothing is then read while training)."""
    dataset = SliceDataset(data_file, split, with_image)
    return dataset if cache_device is None else cached(dataset, cache_device)


def build_loader(dataset: Dataset, batch_size: int, shuffle: bool, num_workers: int = 0, seed: int = 0) -> DataLoader:
    """Batch a data set: shuffled by (seed, epoch) and divided among the processes for training, in order otherwise.

    Training batches are padded with repeated items so that every process takes the same number of steps; evaluation
    takes each item once, and the first one again in a process for which none is left (its scores count once).
    """
    n = len(dataset)  # type: ignore[arg-type]
    sampler: Any = list(range(rank(), n, world_size())) or [0]
    if shuffle:
        sampler = DistributedSampler(dataset, world_size(), rank(), shuffle=True, seed=seed)
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers, persistent_workers=num_workers > 0)


def _kspace(data_file: str) -> SliceHeader:
    """Read the header of a slice file of k-space; raises ValueError for another modality."""
    header = read_header(data_file)
    if header.modality != "MR":
        raise ValueError(f"{data_file} holds {header.modality} data: expected MR")
    return header


def _check_made_with(data_file: str, found: Mapping[str, float], asked: Mapping[str, float | None]) -> None:
    """Raise ValueError where a slice file was made with other values than the configuration asks for."""
    wanted = {name: value for name, value in asked.items() if value is not None}
    wrong = [name for name in wanted if not math.isclose(found[name], wanted[name], rel_tol=1e-6)]
    if wrong:
        options = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in wanted.items())
        raise ValueError(
            f"{data_file} was made with {', '.join(f'{n} {found[n]:g}' for n in wrong)}, the configuration asks for "
            f"{', '.join(f'{n} {wanted[n]:g}' for n in wrong)}: make new measurements with "
            f"`python -m data_prep ... {options}`, or set these names to what the file has"
        )


def ct_run_name(method: str, views: int | None, rotations: int, seed: int, suffix: str = "") -> str:
    """Name a CT run.

    >>> ct_run_name("es", 50, 1, 0), ct_run_name("es", 16, 4, 0, "-evaluate")
    ('es-50views-seed0', 'es-16views-rot4-seed0-evaluate')
    """
    turned = f"-rot{rotations}" if rotations > 1 else ""
    return f"{method}{'' if views is None else f'-{views:g}views'}{turned}-seed{seed}{suffix}"


def run_name(method: str, acceleration: float | None, seed: int, suffix: str = "") -> str:
    """Name a run: es-x8-seed0; without a nominal acceleration es-seed0.

    >>> run_name("es", 8, 0), run_name("es", None, 0, "-evaluate")
    ('es-x8-seed0', 'es-seed0-evaluate')
    """
    return f"{method}{'' if acceleration is None else f'-x{acceleration:g}'}-seed{seed}{suffix}"
