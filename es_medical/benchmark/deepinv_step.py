"""The same training step with deepinv's own `EquivariantSplittingLoss` and `EquivariantReconstructor`."""

from deepinv.loss import EquivariantSplittingLoss, MCLoss
from deepinv.loss.metric import MSE
from deepinv.models import MoDL
from deepinv.physics import MRI
from deepinv.physics.generator import GaussianSplittingMaskGenerator
from deepinv.transform import Reflect, Rotate
from torch import Tensor, nn

from es_medical.benchmark.timing import Job


def deepinv_job(denoiser: nn.Module, iterations: int, mask: Tensor, y: Tensor) -> Job:
    """Make the job: forward, loss and backward with one random g and one split.

    The consistency term is plain measurement consistency: with R2RLoss in its place deepinv 0.5.0 fails.

    Args:
        denoiser: phi(x, noise level), shared with the other jobs.
        iterations: unrolled steps K.
        mask: measured lines (W,).
        y: measurements (B, 2, H, W).
    """
    height, width = y.shape[-2:]
    physics = MRI(mask=mask.float().expand(height, width), device=y.device)
    loss = EquivariantSplittingLoss(
        mask_generator=GaussianSplittingMaskGenerator((2, height, width), split_ratio=0.8, device=y.device),
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
