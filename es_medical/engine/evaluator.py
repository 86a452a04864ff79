"""Evaluation engine: reconstruct and score each slice, and keep a few cases as images."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from ignite.engine import Engine, Events
from monai.engines import Evaluator as MonaiEvaluator
from torch import Tensor, nn
from torch.utils.data import DataLoader

from es_medical.engine.distributed import gather
from es_medical.engine.progress import Progress
from es_medical.groups import Group
from es_medical.inferers import Inferer, Reconstruction
from es_medical.metrics import equivariance, psnr, ssim
from es_medical.metrics.image import SSIM_WINDOW
from es_medical.physics import Batch, Operator

logger = logging.getLogger(__name__)


class Case(NamedTuple):
    """One slice to display: images (C, H, W) on the CPU; target is None without ground truth."""

    id: str
    baseline: Tensor
    reconstruction: Tensor
    spread: Tensor
    target: Tensor | None


class Evaluator(MonaiEvaluator):
    """Reconstructs every slice and fills `state.metrics` with the mean and standard deviation of each score.

    `rows` has the scores of each slice: always heldout; with ground truth, those of `image_scores`, and the same for the
    operator's linear reconstruction (zero-filled, filtered backprojection) as baseline_*; with `equiv_group`, equiv in dB.
    A score that is not defined for a slice (the held-out error of a blank measurement) is left out of the means, with a
    warning. equiv is infinite where the network is equivariant up to rounding: the mean is over the other slices, and
    infinite if there are none; equiv_exact is the number of such slices, absent if 0.
    The same seed gives the same numbers for any batch size and number of processes.

    Args:
        device: device of the evaluation.
        val_data_loader: batches of a slice file, in order.
        network: the reconstructor.
        inferer: how it reconstructs.
        physics: the operator A.
        val_handlers: MONAI or Ignite handlers.
        key_metric: name of the score that `score` returns: "heldout" (no ground truth used), "psnr", or "auto": psnr with
            ground truth, heldout without.
        equiv_group: group of the EQUIV score; None skips it (it takes one more reconstruction per element, or for each of
            eight elements of a large group).
        n_cases: number of slices kept in `cases`.

    Raises:
        FloatingPointError: a measurement holds NaN or infinite values; the message names the slices.
    """

    def __init__(
        self,
        device: torch.device | str,
        val_data_loader: DataLoader,
        network: nn.Module,
        inferer: Inferer,
        physics: Operator,
        val_handlers: Sequence[Any] | None = None,
        key_metric: str = "auto",
        equiv_group: Group | None = None,
        n_cases: int = 0,
    ) -> None:
        if key_metric not in ("auto", "heldout", "psnr"):
            raise ValueError(f"key_metric must be auto, heldout or psnr, got {key_metric!r}")
        has_image = "image" in val_data_loader.dataset[0]
        if key_metric == "psnr" and not has_image:
            raise ValueError("key_metric psnr needs ground truth, and these slices have no image: choose heldout")
        super().__init__(device=device, val_data_loader=val_data_loader, val_handlers=val_handlers, decollate=False)
        self.network, self.inferer, self.physics = network, inferer, physics
        self.key_metric = ("psnr" if has_image else "heldout") if key_metric == "auto" else key_metric
        self.equiv_group, self.n_cases = equiv_group, n_cases
        self.rows: list[dict[str, Any]] = []
        self.cases: list[Case] = []
        self.progress = Progress(self, "reconstruction")
        self.add_event_handler(Events.STARTED, self._clear)
        self.add_event_handler(Events.EPOCH_COMPLETED, self._summarise)

    @property
    def score(self) -> float:
        """Key metric, larger is better: PSNR, or minus the held-out error."""
        value = self.state.metrics[self.key_metric]
        return float(value if self.key_metric == "psnr" else -value)

    @torch.no_grad()
    def _iteration(self, engine: Engine, batchdata: dict[str, Any]) -> Reconstruction:  # type: ignore[override]
        network = self.network.eval()
        batch = Batch.of(batchdata, self.physics, self.state.device)
        finite = batch.y.flatten(1).isfinite().all(1).tolist()
        bad = [name for name, good in zip(batch.ids, finite, strict=True) if not good]
        if bad:
            source = getattr(self.data_loader.dataset, "path", "the data set")  # type: ignore[union-attr]
            raise FloatingPointError(f"measurements of {', '.join(bad)} in {source} hold NaN or infinite values")
        result = self.inferer(network, batch)
        self._score(result, batch, batchdata)
        return result

    def _score(self, result: Reconstruction, batch: Batch, read: dict[str, Any]) -> None:
        baseline, x = batch.physics.initial(batch.y), batch.image
        columns = {"heldout": result.heldout}
        if x is not None:
            peak, volume_range = read["peak"].to(x), read["data_range"].to(x)
            columns |= image_scores(result.image, x, peak, volume_range)
            columns |= {f"baseline_{n}": v for n, v in image_scores(baseline, x, peak, volume_range).items()}
        if self.equiv_group is not None:
            columns["equiv"] = self._equivariance(batch)
        values = {name: value.tolist() for name, value in columns.items()}
        for i, item in enumerate(batch.ids):
            if len(self.rows) in self._shown:
                target = None if x is None else x[i].cpu()
                self.cases.append(Case(item, baseline[i].cpu(), result.image[i].cpu(), result.spread[i].cpu(), target))
            self.rows.append({"id": item, "index": int(read["index"][i])} | {n: v[i] for n, v in values.items()})

    def _equivariance(self, batch: Batch) -> Tensor:
        network = self.network

        def reconstruct(y: Tensor, physics: Operator) -> Tensor:
            return self.inferer.image(network, replace(batch, y=y, physics=physics))

        return equivariance(reconstruct, batch.y, batch.physics, self.equiv_group)  # type: ignore[arg-type]

    @property
    def _shown(self) -> set[int]:
        """Positions of the cases to keep, spread evenly over the items of this process."""
        n = len(self.data_loader.sampler)  # type: ignore[union-attr, arg-type]
        return {i * n // self.n_cases for i in range(self.n_cases)}

    def _clear(self, engine: Engine) -> None:
        self.rows, self.cases = [], []

    def _summarise(self, engine: Engine) -> None:
        rows = list({row["index"]: row for row in sorted(gather(self.rows), key=lambda row: row["index"])}.values())
        common = [name for name in rows[0] if all(name in row for row in rows)]  # no mean of a score that some slices lack
        self.rows = [{name: row[name] for name in common} for row in rows]
        names = [name for name in common if name not in ("id", "index")]
        values = torch.tensor([[row[name] for name in names] for row in self.rows], dtype=torch.float64)
        self.state.metrics = {}
        for name, column in zip(names, values.T, strict=True):
            self.state.metrics |= self._statistics(name, column)

    def _statistics(self, name: str, column: Tensor) -> dict[str, float]:
        """Return mean and standard deviation of a score over the slices with a finite value; warn of the others by name."""
        finite, exact = column.isfinite(), column.isposinf()  # only EQUIV is ever plus infinity
        without = [row["id"] for row, has in zip(self.rows, (finite | exact).tolist(), strict=True) if not has]
        if without:
            logger.warning("%s is not finite for %d slices (%s): left out", name, len(without), ", ".join(without[:5]))
        kept, n_exact = column[finite], int(exact.sum())
        statistics = {name: math.inf if n_exact and not len(kept) else float(kept.mean())}
        statistics |= {f"{name}_sd": float(kept.std())} if len(kept) > 1 else {}
        return statistics | ({f"{name}_exact": float(n_exact)} if n_exact else {})


def image_scores(x_hat: Tensor, x: Tensor, peak: Tensor, volume_range: Tensor) -> dict[str, Tensor]:
    """Score reconstructions (B, C, H, W) against the ground truth; each score is (B,).

    psnr: of the magnitude of complex images, of all channels of RGB images, with data range `peak` (B,): 1 for slices
    normalised to [0, 1] as in the paper, the maximum of the slice for recorded k-space. psnr_volume: the same error with the
    maximum of the slice's volume as range (as in fastMRI), if known for all. psnr_complex: of complex images, with phase.
    ssim: data range `peak`, for images of at least 11 pixels.
    """
    scores = {"psnr": psnr(x_hat, x, peak)}
    if x.shape[1] == 2:
        scores["psnr_complex"] = psnr(x_hat, x, peak, complex_valued=True)
    if min(x.shape[-2:]) >= SSIM_WINDOW:
        scores["ssim"] = ssim(x_hat, x, peak)
    if bool((volume_range > 0).all()):
        scores["psnr_volume"] = psnr(x_hat, x, volume_range)
    return scores
