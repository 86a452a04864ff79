"""Stand-ins for a bootstrap and a reconstructor, whose distances a test chooses, and measurements of some images."""

import torch
from helpers import rng

from es_medical.physics import Batch, Inpainting, measure
from es_medical.uncertainty import Replica

SIZE = (8, 8)


class Around:
    """Images x_hat + s, with the distances s that the test asks for."""

    def __init__(self, steps):
        self.steps, self.n_samples = steps, len(steps)

    def __call__(self, f, x_hat, batch):
        for step in self.steps:
            yield Replica(torch.full_like(x_hat, step), torch.full_like(x_hat, step))


def measured_pixels(x, sigma=0.0):
    """Six of ten pixels of images x, with noise of level sigma, beside the images."""
    physics = Inpainting(torch.rand(1, *SIZE, generator=rng(2)) < 0.6, SIZE, 1)
    y, ids = measure(physics, x, sigma, rng(1)), [f"item{i}" for i in range(len(x))]
    return Batch(y, physics, torch.full((len(x),), sigma), x, ids)


def nothing(batch):
    """Reconstruct empty images."""
    return torch.zeros(len(batch), *batch.physics.img_size)
