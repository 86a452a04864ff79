"""UNSURE: SURE for an unknown noise level, which is estimated in training."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from es_medical.losses.base import LossValue, Reconstructor, Weighting, mean_square
from es_medical.losses.sure import RELATIVE_STEP, check_step, divergence, replayed
from es_medical.physics.base import recorruption
from es_medical.physics.batch import Batch
from es_medical.types import Generator

NAME = "noise_multiplier"
"""Name of the parameter that holds log eta."""


class Unsure:
    r"""UNSURE (Tachella, Davies, Jacques, ICLR 2025) for Gaussian noise of unknown level.

    Among all h(y) = A f(y, A) whose divergence is zero on average, find the one nearest to y:

        min_f max_eta  |h(y) - y|^2 / m + 2 eta / (m tau) b^T (h(y + tau b) - h(y)),    b ~ N(0, I) on measured entries.

    This is SURE with the multiplier eta in place of sigma^2. For white noise of level sigma, if the best estimate of A x
    from y has mean square error e over the measured numbers, eta = sigma^2 / (1 - e / sigma^2), and the best h is
    y + eta grad log p(y) (their theorem, with Tweedie's formula). That is near sigma^2 where images are simple, e << sigma^2,
    and more where noise can't be distinguished from them. A weighting W enters as in `Sure`.

    log eta is the parameter `noise_multiplier` of the reconstructor (`attach_multiplier`): it is optimised, saved and shared by
    processes like any weight. Its gradient is reversed: while the optimiser descends in f, it ascends in eta. Adam, whose
    steps are about lr whatever the gradient is, changes eta by a factor of about 1 + lr a step; if eta were much faster than
    f, the two would long oscillate around the saddle point. A first guess that is too low costs less than one that is too
    high. Two network passes.

    Args:
        tau: step in the units of y; None is 0.1 sqrt(eta).
        weighting: W, None for the identity.

    Raises:
        ValueError: tau is not positive.
    """

    needs_image = False

    def __init__(self, tau: float | None = None, weighting: Weighting | None = None) -> None:
        check_step(tau, "of the noise level")
        self.tau, self.weighting = tau, weighting

    def __call__(self, reconstructor: Reconstructor, batch: Batch, generator: Generator | None = None) -> LossValue:
        """Return the loss of each item; the image and noise level are not used. Part "noise_level" is sqrt(eta), for the log.

        Raises:
            ValueError: the reconstructor has no multiplier.
        """
        eta = multiplier(reconstructor).exp()
        level = eta.detach().sqrt()
        y, physics = batch.y, batch.physics
        generator, again = replayed(generator, y.device)
        prediction = physics.A(reconstructor(y, physics, generator))
        consistency = mean_square(prediction - y, physics.mask, self.weighting)
        b = recorruption(physics, y, 1.0, generator)
        tau = RELATIVE_STEP * level if self.tau is None else self.tau
        slope = divergence(reconstructor, batch, prediction, b, tau, self.weighting, again)
        penalty = 2 * reversed_gradient(eta) * slope
        parts = {"consistency": consistency, "divergence": penalty, "noise_level": level.expand(len(y))}
        return LossValue(consistency + penalty, parts)


def reversed_gradient(x: Tensor) -> Tensor:
    """Return x, with the opposite gradient: an optimiser that descends then ascends in x."""
    return 2 * x.detach() - x


def attach_multiplier(module: nn.Module, initial: float) -> nn.Module:
    """Give a reconstructor the parameter `noise_multiplier`, before its optimiser is made; returns the module.

    Args:
        module: the reconstructor.
        initial: first guess of the noise level, in the units of y.

    Raises:
        ValueError: the guess is not positive, or the module has a multiplier.

    >>> round(noise_level_of(attach_multiplier(nn.Linear(1, 1), 0.05)), 6)
    0.05
    """
    if not 0 < initial < math.inf:
        raise ValueError(f"a first guess of the noise level must be positive, got {initial}")
    if has_multiplier(module):
        raise ValueError(f"{type(module).__name__} already has a {NAME}")
    device = next((parameter.device for parameter in module.parameters()), None)
    module.register_parameter(NAME, nn.Parameter(torch.tensor(2 * math.log(initial), device=device)))
    return module


def has_multiplier(module: nn.Module) -> bool:
    """Whether a module, or one inside it, has the parameter `noise_multiplier`."""
    return any(name.split(".")[-1] == NAME for name, _ in module.named_parameters())


def multiplier(reconstructor: Reconstructor | nn.Module) -> Tensor:
    """Return log eta, the parameter `noise_multiplier` of a reconstructor or of a module inside it.

    Wrappers that are modules (Reynolds average, DistributedDataParallel) and `functools.partial` are searched.

    Raises:
        ValueError: there is none.
    """
    for module in _modules(reconstructor):
        for part in module.modules():
            found = part._parameters.get(NAME)
            if found is not None:
                return found
    raise ValueError(f"unsure learns the noise level, and this reconstructor has no {NAME}: call attach_multiplier first")


def noise_level_of(reconstructor: Reconstructor | nn.Module) -> float:
    """Return sqrt(eta), the learnt noise level in the units of y (a GPU has to wait). Raises ValueError where there is none."""
    return math.exp(float(multiplier(reconstructor).detach()) / 2)


def _modules(reconstructor: object) -> Iterator[nn.Module]:
    if isinstance(reconstructor, nn.Module):
        yield reconstructor
    elif isinstance(reconstructor, partial):
        for part in (reconstructor.func, *reconstructor.args, *reconstructor.keywords.values()):
            yield from _modules(part)
