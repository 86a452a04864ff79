"""The knobs of a warm start."""

from dataclasses import dataclass

from es_medical.engine.config import positive_int


@dataclass(frozen=True)
class WarmKnobs:
    """How a warm start is trained.

    Attributes:
        images: number of synthetic images; 0 for no training.
        epochs: number of times that each is seen.
        kind: kind of the images (see `es_medical.synthetic`); "auto" chooses it by the data file.
        lr: learning rate at the start; a cosine takes it to 2 % of that, step by step.
        batch_size: images of a step, in each process.
        weight_decay: of AdamW.
        clip: largest norm of the gradient, None for no limit.
        alpha: recorruption strength, in steps on split measurements.
        seed: seed of the images, their noise, and their order.

    Raises:
        ValueError: a number is out of range.
    """

    images: int = 0
    epochs: int = 2
    kind: str = "auto"
    lr: float = 0.001
    batch_size: int = 2
    weight_decay: float = 1e-8
    clip: float | None = 1.0
    alpha: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images != 0:
            positive_int("warm_images", self.images)
            positive_int("warm_epochs", self.epochs)
        if not self.lr > 0:
            raise ValueError(f"warm_lr must be positive, got {self.lr}")
