"""Reconstruction at test time: an average over splits, noise and group, or over the group; with spread and held-out score."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from es_medical.groups import Group
from es_medical.metrics.heldout import heldout_error
from es_medical.physics.base import Operator, noise_level, recorruption
from es_medical.physics.batch import Batch
from es_medical.physics.transmission import Transmission
from es_medical.splits import Split
from es_medical.types import Image, Measurement, PerItem


class Reconstruction(NamedTuple):
    """Result of an inferer."""

    image: Image
    """Mean over the network passes on splits, or on all of y, (B, C, H, W)."""
    spread: Image
    """Standard deviation over passes, per pixel and channel, (B, C, H, W); those on splits if it was trained on splits."""
    heldout: PerItem
    """Held-out-measurement score, the mean over the splits (see `es_medical.metrics.heldout`)."""


Settings = Mapping[str, str | float | bool | None]


def complete(settings: Settings) -> Settings:
    """Complete the settings of an inferer saved by an older version with the values that it implied.

    >>> complete({"split_input": True}) == {"split_input": True, "photons": None, "averages_splits": True}
    True
    """
    return {"photons": None, "averages_splits": settings.get("split_input")} | dict(settings)


class Inferer:
    """f_bar(y, A) = 1/J sum_j f(y_1^(j) + alpha omega^(j), A_1^(j)), equation (12) of the paper.

    Each of the J samples has its own split, recorruption noise and random g. Networks that were trained on whole
    measurements (supervised) are given all of y and averaged over the group instead, and the splits only give their
    held-out score. `eval_split_input=False` (deepinv's name) does the same with a network trained on splits:
    it sees more than in training. With a group the image takes |G| passes and is exactly equivariant, else one pass. The
    splits are drawn as before, for the spread and the held-out score, which then are not those of that image.

    Args:
        split: draws M1.
        n_samples: J.
        sigma: standard deviation of the noise, in the units of y; None takes that of each item.
        alpha: recorruption strength.
        group: the group of the reconstructor, None when it has none (then it is called without `g`).
        split_input: whether the network was trained on split measurements (ES) or on all of y.
        eval_split_input: whether the image of a network trained on splits is the average over splits, or comes from all of y.
        whole_group: use every g for each sample (|G| times the cost) in place of a random one.
        seed: of the splits, noise and g, which are drawn for each item from its id, whatever its batch.
        sigma_factor: factor by which sigma is multiplied, as in training.
        transmission: for photon counts, of which the network sees a random share, as in training by `PhotonSplitting`; None for
            additive noise of level sigma.
    """

    def __init__(
        self,
        split: Split,
        n_samples: int = 10,
        sigma: float | None = 0.0,
        alpha: float = 0.5,
        group: Group | None = None,
        split_input: bool = True,
        whole_group: bool = False,
        seed: int = 0,
        sigma_factor: float = 1.0,
        transmission: Transmission | None = None,
        eval_split_input: bool = True,
    ) -> None:
        if n_samples < 1 or n_samples != int(n_samples):
            raise ValueError(f"n_samples must be a whole number, at least 1, got {n_samples}")
        if not isinstance(eval_split_input, bool):
            raise ValueError(f"eval_split_input must be true or false, got {eval_split_input!r}")
        if not (sigma is None or sigma >= 0) or not alpha > 0 or not sigma_factor >= 0:
            raise ValueError(f"sigma and sigma_factor must be >= 0 and alpha > 0, got {sigma}, {sigma_factor} and {alpha}")
        self.split, self.n_samples, self.sigma, self.alpha = split, n_samples, sigma, alpha
        self.group, self.split_input, self.whole_group, self.seed = group, split_input, whole_group, seed
        self.sigma_factor, self.transmission, self.eval_split_input = sigma_factor, transmission, eval_split_input

    @property
    def averages_splits(self) -> bool:
        """Whether images are averages over splits; otherwise they come from all of y."""
        return self.split_input and self.eval_split_input

    @property
    def settings(self) -> dict[str, str | float | bool | None]:
        """What a network trained for this inferer expects of its input; kept with its weights."""
        return {
            "split_unit": self.split.unit,
            "split_ratio": self.split.split_ratio,
            "n_center": self.split.n_center,
            "split_input": self.split_input,
            "averages_splits": self.averages_splits,
            "sigma": self.sigma,
            "sigma_factor": self.sigma_factor,
            "alpha": self.alpha,
            "photons": None if self.transmission is None else self.transmission.photons,
        }

    @torch.no_grad()
    def __call__(self, reconstructor: nn.Module, batch: Batch) -> Reconstruction:
        """Reconstruct a batch, whose items have ids.

        Raises:
            ValueError: neither the inferer nor the batch has a noise level, or the items lack ids.
        """
        y, physics = batch.y, batch.physics
        level = 0.0 if self.transmission is not None else self.sigma_factor * noise_level(self.sigma, batch.sigma)
        generators = batch.generators(self.seed, "inference")
        of_splits, scores = _Moments(), []
        for _ in range(self.n_samples):
            m1 = self.split(physics, len(y), generators)
            physics1, physics2 = physics.masked(m1), physics.masked(physics.mask - m1)
            y1 = self._recorrupted(y, physics1, level, generators)
            passes = list(self._passes(reconstructor, y1, physics1, generators))
            scores.append(heldout_error(torch.stack(passes).mean(0), y, physics2))
            of_splits.extend(passes if self.split_input else [])
        of_images = of_splits if self.averages_splits else self._moments_of_all(reconstructor, batch)
        spread = (of_splits if self.split_input else of_images).deviation()
        return Reconstruction(of_images.mean, spread, torch.stack(scores).mean(0))

    @torch.no_grad()
    def image(self, reconstructor: nn.Module, batch: Batch) -> Image:
        """Return only the image; if it comes from all of y, the passes of the held-out score are saved."""
        if self.averages_splits:
            return self(reconstructor, batch).image
        return self._moments_of_all(reconstructor, batch).mean

    def _moments_of_all(self, reconstructor: nn.Module, batch: Batch) -> "_Moments":
        """Return the moments, over the group, of the images from all of y."""
        moments = _Moments()
        moments.extend(self._passes(reconstructor, batch.y, batch.physics, None))
        return moments

    def _recorrupted(
        self, y: Measurement, physics1: Operator, level: float | Tensor, generators: list[torch.Generator]
    ) -> Measurement:
        """y_1 + alpha omega, or the logarithm of thinned counts, on M1."""
        if self.transmission is None:
            return physics1.mask * y + self.alpha * recorruption(physics1, y, level, generators)
        return physics1.mask * self.transmission.recorrupt(y, self.alpha, generators).input

    def _passes(
        self, reconstructor: nn.Module, y: Measurement, physics: Operator, generators: list[torch.Generator] | None
    ) -> Iterator[Image]:
        """Yield one pass for a random g of each item (given generators), or one for every g."""
        if self.group is None:
            yield reconstructor(y, physics)
        elif self.whole_group or generators is None:
            for g in self.group.elements().to(y.device):
                yield reconstructor(y, physics, g=g.expand(len(y), *g.shape))
        else:
            yield reconstructor(y, physics, g=self.group.sample(len(y), generators, y.device))


class _Moments:
    """Running mean and standard deviation of images (Welford)."""

    def __init__(self) -> None:
        self.n, self.mean, self.squares = 0, torch.zeros(()), torch.zeros(())

    def extend(self, images: list[Tensor] | Iterator[Tensor]) -> None:
        for image in images:
            self.n += 1
            step = image - self.mean if self.n > 1 else image
            self.mean = self.mean + step / self.n if self.n > 1 else image
            self.squares = self.squares + step * (image - self.mean)

    def deviation(self) -> Tensor:
        return (self.squares / max(self.n - 1, 1)).clamp(min=0).sqrt()
