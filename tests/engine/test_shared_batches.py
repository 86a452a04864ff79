"""The gradient of a batch is the same however it is divided: among processes, or among passes (gradient accumulation)."""

import pytest
import torch
from ignite.engine import Events
from monai.inferers import SimpleInferer
from tiny import CENTER, write_sinograms, write_slices

from es_medical.engine import distributed, operators, setup
from es_medical.engine import trainer as trainer_module
from es_medical.groups import D4, FineRotations
from es_medical.methods import TRAINED
from es_medical.networks import unet

ITEMS, BATCH = 5, 4  # a batch of four items, and one of the item that is left
PHOTONS = 1000.0


class Double(torch.utils.data.Dataset):
    """The items of a data set in float64."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return {name: value.double() if torch.is_tensor(value) else value for name, value in self.dataset[i].items()}


@pytest.fixture(scope="module")
def data_files(tmp_path_factory):
    folder, splits = tmp_path_factory.mktemp("shared"), {"train": ITEMS}
    mri = write_slices(folder / "mri.h5", (8, 8), splits, coils=2, sigmas=(0.01, 0.03))
    return {"MRI": str(mri), "CT": str(write_sinograms(folder / "ct.h5", (8, 8), splits, photons=PHOTONS))}


def gradients(data_file, method, monkeypatch, process=(0, 1), batch_size=BATCH, accumulate=1):
    """Gradient and loss of each step of one epoch, in one of several processes; the weights stay the same."""
    for module in (setup, distributed, trainer_module):
        monkeypatch.setattr(module, "rank", lambda: process[0])
        monkeypatch.setattr(module, "world_size", lambda: process[1])
    ct = "ct.h5" in data_file
    photons = PHOTONS if ct else None
    physics = (
        operators.build_scanner(data_file, 6, sigma=None, photons=photons)
        if ct
        else operators.build_physics(data_file, 2.0, CENTER, sigma=None)
    )
    split = setup.Split("views" if ct else "lines", 0.6)
    torch.manual_seed(0)
    denoiser = unet(1 if ct else 2, (4, 8))
    network = setup.build_reconstructor(denoiser, D4(), "cpu", 1, method=method).double()
    loss = setup.build_loss(method, data_file, split, D4(), FineRotations(), photons=photons)
    loader = setup.build_loader(
        Double(setup.build_dataset(data_file, "train", loss.needs_image)), batch_size, True, accumulate=accumulate
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    trainer = trainer_module.Trainer(
        "cpu", 1, loader, network, optimizer, loss, physics, SimpleInferer(), clip=None, accumulate=accumulate
    )
    found = []

    def keep(engine):
        gradient = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        found.append(torch.cat([gradient, engine.state.output["loss"][None]]).clone())

    trainer.add_event_handler(Events.ITERATION_COMPLETED, keep)
    trainer.run()
    return torch.stack(found)


def together(data_file, method, monkeypatch, world, **options):
    """Mean over the processes, as DistributedDataParallel makes it."""
    return torch.stack([gradients(data_file, method, monkeypatch, (rank, world), **options) for rank in range(world)]).mean(0)


@pytest.mark.parametrize("method", [name for name in TRAINED if name not in ("mc_neq", "sure_neq", "supervised_neq")])
def test_processes_and_passes_have_the_gradient_of_the_whole_batch(data_files, monkeypatch, method):
    """Three processes share four items, and one; passes take two items, and one. The three have the losses of mc, sure, ..."""
    alone = gradients(data_files["MRI"], method, monkeypatch)
    assert len(alone) == 2
    assert alone.abs().amax(1).min() > 0
    torch.testing.assert_close(together(data_files["MRI"], method, monkeypatch, 3), alone, rtol=1e-9, atol=1e-12)
    passes = gradients(data_files["MRI"], method, monkeypatch, batch_size=BATCH // 2, accumulate=2)
    torch.testing.assert_close(passes, alone, rtol=1e-9, atol=1e-12)


def test_processes_and_passes_together(data_files, monkeypatch):
    alone = gradients(data_files["MRI"], "es", monkeypatch)
    both = together(data_files["MRI"], "es", monkeypatch, 2, batch_size=BATCH // 2, accumulate=2)
    torch.testing.assert_close(both, alone, rtol=1e-9, atol=1e-12)


def test_divided_photons_are_each_slices_own_where_a_batch_is_divided(data_files, monkeypatch):
    """How many random numbers a binomial draw takes depends on the counts: the numbers can't be those of the whole batch."""
    two, three = (together(data_files["CT"], "es", monkeypatch, world) for world in (2, 3))
    torch.testing.assert_close(two[0], three[0], rtol=1e-9, atol=1e-12)
