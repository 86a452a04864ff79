"""Factories called by a bundle's configuration: each takes plain knobs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset

from es_medical import losses
from es_medical.data import CachedSlices, SliceDataset, read_header
from es_medical.data.cache import cache_place
from es_medical.data.slices import collate
from es_medical.engine.config import positive_int
from es_medical.engine.distributed import SharedBatches, local_device, rank, world_size
from es_medical.engine.methods import group_of, loss_group
from es_medical.engine.operators import read_transmission
from es_medical.engine.schedule import Schedule
from es_medical.engine.weights.averaging import WeightAverage
from es_medical.groups import Group
from es_medical.groups.base import Transform
from es_medical.inferers import Inferer
from es_medical.knobs import AUTO
from es_medical.losses import Loss, PhotonSplitting, SeveralSplits, Untrained, attach_multiplier, build_weighting
from es_medical.methods import method_of
from es_medical.networks import Accelerated, ArtifactRemoval, MoDL, ReynoldsAveraging, learning_free, shift_unet, unet
from es_medical.networks.modl import Start
from es_medical.splits import Split

ARCHITECTURES = ("modl", "adjoint", "pseudo_inverse")
FIRST_GUESS = 0.002  # noise level that unsure starts from: below the true one, to which it rises by one per cent per step
FREE_SPLITS = 2  # for methods that learn nothing, used only for the held-out error: TV takes minutes for each


def build_loss(
    method: str,
    data_file: str,
    split: Split,
    group: Group,
    transform: Transform,
    sigma: float | None = None,
    alpha: float = 0.5,
    consistency_weight: float = 1.0,
    sigma_factor: float = 1.0,
    weighting: str = "none",
    rotations: int = 1,
    equivariance_weight: float = 1.0,
    tau: float | None = None,
    n_splits: float = 1,
    photons: float | None = None,
    log_domain: str = "pre",
) -> Loss:
    """Build the loss of a method for the slices of a file (see `es_medical.losses.build_loss`).

    Args:
        method: see `es_medical.methods.METHODS`.
        data_file: HDF5 file of slices (schema 1); if it is noise-free, ei and sure save a network pass.
        split: draws M1, for the splitting losses.
        group: es_neq draws an explicit g from it.
        transform: transformation of images in ei.
        sigma: assumed noise level; None for that of each slice.
        alpha: recorruption strength.
        consistency_weight: weight of the consistency term of es.
        sigma_factor: factor that multiplies sigma.
        weighting: weighting of the measurement residuals.
        rotations: number of angles, fractions of the view spacing of a CT scanner, that es turns the operator by; 1 for none.
        equivariance_weight: weight of the equivariance term of ei.
        tau: step of the divergence in sure, unsure and ei.
        n_splits: splits per slice and step, for the splitting losses; each costs a network pass.
        photons: photons per ray in air of a CT file: the splitting losses then divide photons (`PhotonSplitting`) and need
            no sigma; None for Gaussian noise.
        log_domain: "pre" or "post": domain of the residual in `PhotonSplitting`.

    Raises:
        ValueError: an unknown method, or a knob out of range.
    """
    if not method_of(method).trained:
        return Untrained()
    drawn = loss_group(method, group, rotations)
    noisy = read_header(data_file).sigma != 0
    if photons is not None and method_of(method).split_input:
        counted, weigh = read_transmission(data_file, photons), build_weighting(weighting)
        loss: Loss = PhotonSplitting(split, counted, alpha, consistency_weight, drawn, log_domain, weigh)
    else:
        loss = losses.build_loss(
            method, split, sigma, alpha, consistency_weight, sigma_factor, weighting, drawn, transform, noisy,
            equivariance_weight, tau,
        )  # fmt: skip
    several = positive_int("n_splits", n_splits)
    return SeveralSplits(loss, several) if several > 1 and method_of(method).split_input else loss


def build_denoiser(method: str, channels: int, widths: Sequence[int], zero_residual: bool = False) -> nn.Module:
    """Build the denoiser for the group of shifts: shift-equivariant, or a plain UNet for a method that is not equivariant."""
    return (shift_unet if method_of(method).equivariant else unet)(channels, widths, zero_residual)


def build_reconstructor(
    network: nn.Module,
    group: Group | None,
    device: torch.device | str,
    iterations: int = 3,
    step: float = 1.0,
    noise_level: float | None = None,
    amp: bool | None = None,
    channels_last: bool | None = None,
    compiled: bool | str | None = None,
    architecture: str = "modl",
    method: str = "es",
    start: Start = "initial",
) -> nn.Module:
    """Unroll a denoiser with the operator (MoDL) and average it over a group (Reynolds).

    Args:
        network: the image-domain denoiser.
        group: the group; None for no average: the denoiser is itself equivariant, or the reconstructor is not.
        device: device of the reconstructor.
        iterations: number of unrolled steps K.
        step: initial step size gamma.
        noise_level: for denoisers that take one.
        amp: bfloat16 inside the denoiser; None turns it on for CUDA, off for the CPU and for losses that need differences
            of network passes.
        channels_last: memory format inside the denoiser; None turns it on for CUDA.
        compiled: torch.compile the denoiser; "reduce-overhead" with CUDA graphs; None turns it on for CUDA, without.
        architecture: "modl", or the denoiser alone on A^T y ("adjoint") or A^dagger y ("pseudo_inverse").
        method: name of the method: no average if it is not equivariant, a multiplier for unsure, no network if it learns
            nothing (see `es_medical.networks.learning_free`).
        start: first image of modl, the operator's "initial" (A^T y; filtered backprojection in CT) or "estimate".

    Raises:
        ValueError: an unknown architecture or start, a start of another architecture than modl, or a knob out of range.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {architecture!r}")
    for name, knob in (("amp", amp), ("channels_last", channels_last)):
        if knob not in (None, True, False):
            raise ValueError(f"{name} must be true, false or null, got {knob!r}")
    if not method_of(method).trained:
        return learning_free(method).to(device)
    cuda = torch.device(device).type == "cuda"
    if method_of(method).precise:
        torch.backends.cudnn.allow_tf32 = False
        amp = bool(amp)  # only if asked for
    amp, channels_last = (cuda if knob is None else bool(knob) for knob in (amp, channels_last))
    compiled = cuda if compiled is None else compiled
    if amp or channels_last or compiled:
        network = Accelerated(network, amp, channels_last, compiled)
    unrolled: nn.Module
    if architecture == "modl":
        unrolled = MoDL(network, iterations, step, noise_level, start)
    elif start != "initial":
        raise ValueError(f"start {start} is of the architecture modl; {architecture} has its own: set start to initial")
    else:
        unrolled = ArtifactRemoval(network, architecture)  # type: ignore[arg-type]  # checked above
    averaged = group_of(method, group)
    result = unrolled if averaged is None else ReynoldsAveraging(unrolled, averaged)
    if method == "unsure":
        attach_multiplier(result, FIRST_GUESS)
    return result.to(device)


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
    photons: float | None = None,
    data_file: str = "",
    eval_split_input: bool = True,
) -> Inferer:
    """Build the inferer of a method: it averages over splits if trained on splits, and uses whole measurements otherwise.

    With `photons`, the photons of the CT sinograms in `data_file` are divided as in training, in place of added noise.
    Without `eval_split_input`, every method reconstructs from whole measurements. Methods that learn nothing take at
    most two splits.

    Raises:
        ValueError: a knob out of range.
    """
    known, averaged = method_of(method), group_of(method, group)
    counted = None if photons is None else read_transmission(data_file, photons)
    splits = n_samples if known.trained else min(n_samples, FREE_SPLITS)
    return Inferer(
        split, splits, sigma, alpha, averaged, known.split_input, whole_group, seed, sigma_factor, counted, eval_split_input
    )


def build_optimizer(network: nn.Module, lr: float, weight_decay: float = 1e-8) -> AdamW:
    """Build the paper's AdamW: betas (0.9, 0.999), no AMSGrad; over one unused number if the network has no parameters."""
    parameters = list(network.parameters()) or [nn.Parameter(torch.zeros(()))]
    return AdamW(parameters, lr=float(lr), weight_decay=float(weight_decay), betas=(0.9, 0.999))


def build_scheduler(
    optimizer: Optimizer,
    milestones: Sequence[int],
    factor: float,
    schedule: str = "step",
    warmup: float = 0,
    epochs: float = 1,
    lr_end: float = 0.01,
) -> Schedule:
    """Build the learning rate schedule (see `es_medical.engine.schedule.Schedule`).

    Args:
        optimizer: optimiser whose learning rate is scheduled.
        milestones: epochs after each of which "step", the paper's schedule, multiplies the rate by `factor`.
        factor: factor of "step".
        schedule: "step" or "cosine".
        warmup: number of steps of the linear warm-up.
        epochs: number of epochs, for "cosine".
        lr_end: fraction of the learning rate that "cosine" has in the last epoch.

    Raises:
        ValueError: an unknown schedule, or a number out of range.
    """
    steps = [int(epoch) for epoch in milestones]
    return Schedule(optimizer, schedule, steps, float(factor), positive_int("epochs", epochs), float(lr_end), warmup)


def build_average(network: nn.Module, decay: float | None) -> WeightAverage | None:
    """Build the exponential moving average of a network's weights; None without a decay: the weights are then used."""
    return None if decay is None else WeightAverage(network, float(decay))


def build_dataset(
    data_file: str,
    split: str,
    with_image: bool = True,
    cache_device: torch.device | str | None = None,
    device: torch.device | str | None = None,
) -> Dataset:
    """Open one split of a slice file; with `cache_device`, hold it all on that device (nothing is read while training).

    `cache_device` "auto" chooses a device with enough memory, or none (see `es_medical.data.cache.cache_place`), for a
    training on `device`.
    """
    dataset = SliceDataset(data_file, split, with_image)
    if cache_device == AUTO:
        cache_device = cache_place(dataset, local_device() if device is None else device, world_size())
    return dataset if cache_device is None else CachedSlices(dataset, cache_device)


def build_loader(
    dataset: Dataset, batch_size: int, shuffle: bool, num_workers: int = 0, seed: int = 0, accumulate: int = 1
) -> DataLoader:
    """Batch a data set, divided among the processes: shuffled by (seed, epoch) for training, else in order.

    A training batch has `batch_size` times `accumulate` items over all processes (see `SharedBatches`). Evaluation takes
    each item once; a process left without items takes the first one again (its scores count once). Slices that are held on
    a GPU are read by this process, whatever `num_workers`.
    """
    workers = 0 if isinstance(dataset, CachedSlices) and dataset.device.type == "cuda" else num_workers
    load = partial(DataLoader, dataset, num_workers=workers, persistent_workers=workers > 0, collate_fn=collate)
    if not shuffle:
        return load(batch_size, sampler=list(range(rank(), len(dataset), world_size())) or [0])  # type: ignore[arg-type]
    size = positive_int("batch_size", batch_size) * positive_int("accumulate", accumulate)
    return load(batch_sampler=SharedBatches(dataset, size, seed))


def run_name(
    method: str,
    seed: int,
    suffix: str = "",
    acceleration: float | None = None,
    views: int | None = None,
    rotations: int = 1,
    mask: str | None = None,
    keep: float | None = None,
    ratio: float | None = None,
    operator: str = "",
    data_file: str = "",
) -> str:
    """Name a run by its method, operator, data file and seed.

    >>> run_name("es", 0, acceleration=8, operator="MRI", data_file="data/demo.h5")
    'ES, MRI x8, demo.h5, seed 0'
    >>> run_name("es", 1, "-evaluate", views=16, rotations=4, operator="CT")
    'ES, CT 16 views rotations 4, seed 1, evaluate'
    >>> run_name("es", 0, mask="values", keep=0.3, operator="Inpainting"), run_name("mc", 0, ratio=0.1)
    ('ES, Inpainting values 0.3, seed 0', 'MC, ratio 0.1, seed 0')
    """
    setting = [
        operator,
        "" if acceleration is None else f"x{acceleration:g}",
        "" if views is None else f"{views:g} views",
        f"rotations {rotations}" if rotations > 1 else "",
        mask or "",
        "" if keep is None else f"{keep:g}",
        "" if ratio is None else f"ratio {ratio:g}",
    ]
    parts = [method_of(method).label, " ".join(filter(None, setting)), Path(data_file).name, f"seed {seed}"]
    return ", ".join(filter(None, [*parts, suffix.removeprefix("-").replace("-", " ")]))
