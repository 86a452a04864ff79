"""One training step as a pure function: a descent step on the loss of a batch."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from es_medical.engine.distributed import average_gradients
from es_medical.losses import Loss, Reconstructor
from es_medical.physics import Batch
from es_medical.types import Generator


class Pass(NamedTuple):
    """What one forward and backward pass works on: a batch, or a part of it.

    Attributes:
        batch: measurements and their operator, with the images and noise levels that the loss needs.
        generator: source of the splits, the noise and g; on the device of y (a CPU generator works, but copies).
        weight: share of the batch; the weights of all passes of all processes have the number of processes as sum.
    """

    batch: Batch
    generator: Generator | None = None
    weight: float = 1.0


def training_step(
    loss: Loss,
    reconstructor: Reconstructor,
    optimizer: Optimizer,
    passes: Iterable[Pass],
    clip: float | None = 1.0,
) -> dict[str, Tensor]:
    """Take one descent step on the mean loss over a batch: theta <- optimizer(theta, clip(grad mean_b L_b)).

    The gradient is added up over the passes (gradient accumulation): sum_p weight_p grad mean_{b in p} L_b.

    Nothing is read back from the device, so the GPU never waits for the CPU. Only the parameters, their gradients, the
    optimizer's state and the generator change. Everything but the denoiser (see `Accelerated`) is float32.

    A gradient that is not finite counts as zero, so that the weights stay finite until the caller checks. The caller must
    check: "loss" and "grad_norm" are then not finite, and an error must be raised. In distributed training, "grad_norm" is
    then not finite on every process, "loss" only on the process whose batch was the cause.

    Args:
        loss: the loss to minimise; it draws its random numbers from `generator`.
        reconstructor: f(y, A), in training mode.
        optimizer: holds the parameters.
        passes: the batch, in one part or several.
        clip: largest Euclidean norm of the whole gradient, None for no limit.

    Returns:
        Detached scalar tensors on the device of y: "loss", each part of the loss (weighted means over the batch), and
        "grad_norm", the norm before clipping.
    """
    optimizer.zero_grad(set_to_none=True)
    means: dict[str, Tensor] = {}
    for batch, generator, weight in passes:
        value = loss(reconstructor, batch, generator)
        total = weight * value.total.mean()
        total.backward()
        own = {"loss": total.detach(), **{name: weight * part.detach().mean() for name, part in value.parts.items()}}
        means = {name: means[name] + mean for name, mean in own.items()} if means else own
    return means | {"grad_norm": apply_gradient(optimizer, clip)}


def apply_gradient(optimizer: Optimizer, clip: float | None) -> Tensor:
    """Average the gradient over the processes, clip it and step the optimiser; return the norm before clipping."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    average_gradients(parameters)
    norm = get_total_norm([p.grad for p in parameters])
    if clip is not None:
        clip_grads_with_norm_(parameters, clip, norm)
    broken = ~norm.isfinite()
    for parameter in parameters:
        parameter.grad.masked_fill_(broken, 0.0)
    optimizer.step()
    return norm
