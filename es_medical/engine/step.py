"""One training step as a pure function: a descent step on the loss of a batch."""

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from es_medical.losses import Loss, Reconstructor
from es_medical.physics import Batch
from es_medical.types import Generator


def training_step(
    loss: Loss,
    reconstructor: Reconstructor,
    optimizer: Optimizer,
    batch: Batch,
    generator: Generator | None,
    clip: float | None = 1.0,
) -> dict[str, Tensor]:
    """Take one descent step on the mean loss over the batch: theta <- optimizer(theta, clip(grad mean_b L_b)).

    Nothing is read back from the device, so the GPU never waits for the CPU. Only the parameters, their gradients, the
    optimizer's state and the generator change. Everything but the denoiser (see `Accelerated`) is float32.

    A gradient that is not finite counts as zero, so that the weights stay finite until the caller checks. The caller must
    check: "loss" and "grad_norm" are then not finite, and an error must be raised. In distributed training, "grad_norm" is
    then not finite on every process, "loss" only on the process whose batch was the cause.

    Args:
        loss: the loss to minimise; it draws its random numbers from `generator`.
        reconstructor: f(y, A), in training mode.
        optimizer: holds the parameters.
        batch: measurements and their operator, with the images and noise levels that the loss needs.
        generator: source of the splits, the noise and g; on the device of y (a CPU generator works, but copies).
        clip: largest Euclidean norm of the whole gradient, None for no limit.

    Returns:
        Detached scalar tensors on the device of y: "loss", each part of the loss (means over the batch), and
        "grad_norm", the norm before clipping.
    """
    optimizer.zero_grad(set_to_none=True)
    value = loss(reconstructor, batch, generator)
    value.total.mean().backward()
    norm = apply_gradient(optimizer, clip)
    parts = {name: part.detach().mean() for name, part in value.parts.items()}
    return {"loss": value.total.detach().mean(), **parts, "grad_norm": norm}


def apply_gradient(optimizer: Optimizer, clip: float | None) -> Tensor:
    """Clip the gradient and step the optimiser, as `training_step` does; return the norm before clipping."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = get_total_norm([p.grad for p in parameters])
    if clip is not None:
        clip_grads_with_norm_(parameters, clip, norm)
    broken = ~norm.isfinite()
    for parameter in parameters:
        parameter.grad.masked_fill_(broken, 0.0)
    optimizer.step()
    return norm
