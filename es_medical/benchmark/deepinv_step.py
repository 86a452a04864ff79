"""The same training step with deepinv's `EquivariantSplittingLoss` and `EquivariantReconstructor`."""

from deepinv.loss import EquivariantSplittingLoss, MCLoss
from deepinv.loss.metric import MSE
from deepinv.models import MoDL
from deepinv.physics import LinearPhysics
from deepinv.physics.generator import PhysicsGenerator
from deepinv.transform import Reflect, Rotate
from torch import Tensor, nn

from es_medical.benchmark.timing import Job


def deepinv_job(denoiser: nn.Module, iterations: int, physics: LinearPhysics, masks: PhysicsGenerator, y: Tensor) -> Job:
    """Make the job: forward, loss and backward with one random g and one split.

    The consistency term is plain measurement consistency: deepinv 0.5.0 fails with R2RLoss in its place.

    Args:
        denoiser: phi(x, noise level), shared with the other jobs.
        iterations: number of unrolled steps K.
        physics: deepinv's operator.
        masks: draws M1 for measurements of the shape of y without the batch axis.
        y: measurements (B, ...).
    """
    loss = EquivariantSplittingLoss(
        mask_generator=masks,
        consistency_loss=MCLoss(metric=MSE()),
        prediction_loss=MCLoss(metric=MSE()),
        transform=Rotate(n_trans=1, multiples=90, positive=True) * Reflect(n_trans=1, dim=[-1]),
        eval_transform=Rotate(n_trans=4, multiples=90, positive=True) * Reflect(n_trans=2, dim=[-1]),
    )
    network = loss.adapt_model(MoDL(denoiser, iterations).to(y.device)).train()

    def job() -> None:
        network.zero_grad(set_to_none=True)
        x_hat = network(y, physics, update_parameters=True)
        loss(x_net=x_hat, y=y, physics=physics, model=network).mean().backward()

    return job
