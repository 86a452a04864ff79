"""Factories of a bundle: refusals by name, and loaders that give the same batches whatever reads them."""

import random
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from ignite.utils import manual_seed
from tiny import CASES, CENTER, SIGMA, SPLITS, causes, workflow, write_images, write_sinograms, write_slices, write_slices_for

from es_medical.engine import distributed, operators, setup
from es_medical.groups import D4, FineRotations
from es_medical.methods import TRAINED
from es_medical.networks import Accelerated, MoDL, ReynoldsAveraging, unet


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    return str(write_slices(tmp_path_factory.mktemp("setup") / "slices.h5"))


def ids(loader):
    return [key for batch in loader for key in batch["id"]]


@pytest.mark.parametrize(
    ("name", "value"), [("acceleration", 8), ("center_fraction", 0.03), ("sigma", 0.1), ("sigma", 0.01001)]
)
def test_measurements_made_with_other_values_are_refused(data_file, name, value):
    wanted = {"acceleration": 2, "center_fraction": CENTER, "sigma": SIGMA}
    with pytest.raises(ValueError, match="was made with") as caught:
        operators.build_physics(data_file, **(wanted | {name: value}))
    message = str(caught.value)
    assert f"made with {name} {wanted[name]:g}, the configuration asks for {name} {value:g}" in message
    assert f"--{name.replace('_', '-')} {value:g}" in message
    assert "python -m data_prep" in message


def test_operator_has_the_mask_of_the_file(data_file):
    physics = operators.build_physics(data_file, 2, CENTER, SIGMA)
    assert physics.image_size == (16, 16)
    assert int(physics.mask.sum()) == 8


OTHER_OPERATORS = {
    "blur": ("diagnostics.blur.IsotropicBlur, size: '$(16, 16)', channels: 2", "data of the operator MR"),
    "pixels": ("physics.Inpainting, mask: '$[1] * 16', size: '$(16, 16)', channels: 2", "data of the operator MR"),
    "mask": ("physics.MRI, mask: '$[1] * 16', size: '$(16, 16)'", "another mask"),
    "size": ("physics.MRI, mask: '$[1] * 24', size: '$(16, 24)'", "the file is of (2, 16, 16)"),
}


@pytest.mark.parametrize(
    ("other", "files"),
    [
        *((other, ["train.yaml"]) for other in OTHER_OPERATORS),
        ("blur", ["train.yaml", "evaluate.yaml"]),
        ("mask", ["inference.json"]),
    ],
)
def test_operator_that_did_not_measure_the_file_is_refused_wherever_it_comes_from(other, files, data_file, tmp_path):
    overlay, (text, message) = tmp_path / "mine.yaml", OTHER_OPERATORS[other]
    split = "{_target_: es_medical.splits.Split, unit: lines, split_ratio: 0.8}"
    overlay.write_text(f"physics: {{_target_: es_medical.{text}}}\nsplit: {split}\n")
    one = workflow([*files, overlay], tmp_path, data_file, "sqlite:///none.db", split_ratio=0.8, eval_split_input=True)
    one.initialize()
    with pytest.raises(RuntimeError) as caught:
        one.parser.get_parsed_content("weights" if files == ["inference.json"] else "checkpoints")
    assert "of the configuration" in causes(caught.value)
    assert message in causes(caught.value)


@pytest.mark.parametrize("case", [*CASES, "photons"])
def test_operator_of_every_file_is_its_own_and_no_other_ones(case, tmp_path):
    write = partial(write_sinograms, photons=1e4) if case == "photons" else partial(write_slices_for, case)
    file = write(tmp_path / "slices.h5")
    physics = operators.operator_of(str(file))
    operators.check_operator(physics, file)
    other = partial(write_images, sensing=case != "mnist_cs")(tmp_path / "other.h5")
    with pytest.raises(ValueError, match=r"did not measure"):
        operators.check_operator(physics, other)


def test_scanner_of_other_angles_and_another_matrix_are_refused(tmp_path):
    one, other = (write_sinograms(tmp_path / f"{views}.h5", views=views) for views in (6, 5))
    with pytest.raises(ValueError, match="another mask and geometry"):
        operators.check_operator(operators.operator_of(str(one)), other)
    file = write_images(tmp_path / "sensing.h5", sensing=True)
    with h5py.File(file, "r+") as opened:
        physics = operators.operator_of(str(file))
        opened["matrix"][0, 0] += 1
    with pytest.raises(ValueError, match="another matrix"):
        operators.check_operator(physics, file)


def test_split_keeps_the_fully_sampled_centre(data_file):
    physics = operators.build_physics(data_file, 2, CENTER, SIGMA)
    kept = operators.build_split(data_file, "lines", 0.6, True)
    assert (kept.n_center, operators.build_split(data_file, "lines", 0.6, False).n_center) == (4, 1)
    for seed in range(20):
        m1 = kept(physics, 3, torch.Generator().manual_seed(seed))
        assert (m1[..., 6:10] == 1).all()


def test_unknown_units_list_the_valid_ones(data_file, unchecked):
    with pytest.raises(ValueError, match="lines, samples"):
        operators.build_split(data_file, "blocks", 0.8, True)
    with pytest.raises(TypeError, match="k-space, which has no columns: use lines or samples"):
        operators.build_split(data_file, "columns", 0.8, True)


def test_seed_decides_the_initial_weights_and_all_global_numbers():
    def draws(seed):
        manual_seed(seed)  # what the bundle's `initialize` calls
        return [unet(2, (4, 8)).Conv_1x1.weight.sum().item(), random.random(), float(np.random.rand())]  # noqa: NPY002

    first, again, other = draws(0), draws(0), draws(1)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_learning_rate_may_be_text():
    optimizer = setup.build_optimizer(torch.nn.Linear(1, 1), "1e-4", "1e-3")
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (1e-4, 1e-3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [((["1", 3], "0.5"), [1.0, 0.5, 0.5, 0.25]), (([1], 0.5, "cosine", 0, 4.0, "0.1"), [1.0, 0.775, 0.325, 0.1])],
)
def test_learning_rate_falls_after_its_milestones_or_to_its_fraction(settings, expected):
    optimizer, rates = setup.build_optimizer(torch.nn.Linear(1, 1), 1.0), []
    scheduler = setup.build_scheduler(optimizer, *settings)
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)


def test_cpu_runs_the_plain_network_and_knobs_wrap_it():
    plain = setup.build_reconstructor(unet(2, (4, 8)), D4(), "cpu", 2)
    assert isinstance(plain, ReynoldsAveraging)
    assert not any(isinstance(module, Accelerated) for module in plain.modules())
    single = setup.build_reconstructor(unet(2, (4, 8)), None, "cpu", 2, amp=True, channels_last=False)
    assert isinstance(single, MoDL)
    assert isinstance(single.denoiser, Accelerated)
    assert single.denoiser.autocast


@pytest.mark.usefixtures("unchecked")
def test_start_is_that_of_modl():
    for start in ("initial", "estimate"):
        assert setup.build_reconstructor(unet(2, (4, 8)), None, "cpu", start=start).start == start
    with pytest.raises(ValueError, match="start must be initial or estimate, got 'adjoint'"):
        setup.build_reconstructor(unet(2, (4, 8)), None, "cpu", start="adjoint")
    with pytest.raises(ValueError, match="start estimate is of the architecture modl; adjoint has its own"):
        setup.build_reconstructor(unet(2, (4, 8)), None, "cpu", architecture="adjoint", start="estimate")


@pytest.mark.parametrize("method", ["es", "es_neq"])
def test_denoiser_of_either_kind_can_start_as_the_identity(method):
    x = torch.rand(1, 1, 8, 8)
    assert torch.equal(setup.build_denoiser(method, 1, (4, 8), zero_residual=True)(x), x)
    assert not torch.equal(setup.build_denoiser(method, 1, (4, 8))(x), x)


def test_only_splitting_methods_reconstruct_from_split_measurements(data_file):
    split = operators.build_split(data_file, "lines", 0.8, True)
    inferers = [setup.build_inferer(method, split, 2, SIGMA, 0.5, D4(), False, 0) for method in TRAINED]
    assert [one.split_input for one in inferers] == [method in ("es", "es_neq", "splitting") for method in TRAINED]
    assert [one.averages_splits for one in inferers] == [one.split_input for one in inferers]
    of_all = setup.build_inferer("es", split, 2, SIGMA, 0.5, D4(), False, 0, eval_split_input=False)
    assert (of_all.split_input, of_all.averages_splits) == (True, False)


@pytest.mark.parametrize(("method", "given", "taken"), [("es", 10, 10), ("sure", 10, 10), ("tv", 10, 2), ("tikhonov", 1, 1)])
def test_methods_that_learn_nothing_take_few_splits(data_file, method, given, taken):
    split = operators.build_split(data_file, "lines", 0.8, True)
    assert setup.build_inferer(method, split, given, SIGMA, 0.5, D4(), False, 0).n_samples == taken


def test_methods_that_are_not_equivariant_have_no_average():
    for method in TRAINED:
        network = setup.build_reconstructor(torch.nn.Identity(), D4(), "cpu", 1, method=method)
        assert isinstance(network, ReynoldsAveraging) == ("neq" not in method and method != "splitting")
        assert hasattr(network, "noise_multiplier") == (method == "unsure")


def test_only_splitting_methods_take_several_splits_and_only_es_neq_draws_g_in_its_loss(data_file):
    split, turned = operators.build_split(data_file, "lines", 0.8, True), FineRotations()
    losses = {method: setup.build_loss(method, data_file, split, D4(), turned, n_splits=3) for method in TRAINED}
    several = {method: loss.loss for method, loss in losses.items() if getattr(loss, "n", 1) == 3}
    assert set(several) == {"es", "es_neq", "splitting"}
    assert [method for method, loss in (losses | several).items() if getattr(loss, "group", None)] == ["es_neq"]
    with pytest.raises(ValueError, match="n_splits must be a whole number"):
        setup.build_loss("es", data_file, split, D4(), turned, n_splits=0)


def test_training_order_is_that_of_seed_and_epoch_alone(data_file):
    def orders(seed, epochs=(0, 1)):
        loader = setup.build_loader(setup.build_dataset(data_file, "train"), 2, True, seed=seed)
        torch.manual_seed(torch.seed() % 1000)
        found = []
        for epoch in epochs:
            loader.batch_sampler.set_epoch(epoch)
            found.append(ids(loader))
        return found

    assert orders(0) == orders(0)
    assert orders(0)[0] != orders(0)[1]
    assert orders(0, (1,))[0] == orders(0)[1]  # resumed at epoch 1
    assert orders(0) != orders(1)
    assert sorted(orders(0)[0]) == [f"item{i}" for i in range(SPLITS["train"])]


def test_workers_give_the_batches_of_none(data_file):
    def batches(workers):
        loader = setup.build_loader(setup.build_dataset(data_file, "train"), 3, True, workers, seed=1)
        found = []
        for epoch in (1, 2):
            loader.batch_sampler.set_epoch(epoch)
            found += list(loader)
        return found

    alone, forked = batches(0), batches(2)
    assert [batch["id"] for batch in alone] == [batch["id"] for batch in forked]
    for one, other in zip(alone, forked, strict=True):
        assert torch.equal(one["measurement"], other["measurement"])


def test_evaluation_order_is_that_of_the_file(data_file):
    loader = setup.build_loader(setup.build_dataset(data_file, "test"), 2, False)
    assert ids(loader) == ["item6", "item7", "item8"]


@pytest.mark.parametrize("world", [2, 5])
def test_processes_share_the_items(data_file, monkeypatch, world):
    """Of four training items in batches of three, and three test items."""
    alone = [batch["id"] for batch in setup.build_loader(setup.build_dataset(data_file, "train"), 3, True, seed=0)]
    train, test = [], []
    for module in (setup, distributed):
        monkeypatch.setattr(module, "world_size", lambda: world)
    for rank in range(world):
        for module in (setup, distributed):
            monkeypatch.setattr(module, "rank", lambda rank=rank: rank)
        loader = setup.build_loader(setup.build_dataset(data_file, "train"), 3, True, seed=0)
        train.append([batch["id"][: len(loader.batch_sampler.part(step))] for step, batch in enumerate(loader)])
        assert len(train[-1]) == len(loader)  # as many steps each: no process waits for ever
        test.append(ids(setup.build_loader(setup.build_dataset(data_file, "test"), 2, False)))
    assert [sum(parts, []) for parts in zip(*train, strict=True)] == alone  # together the same batches, nothing twice
    assert {key for part in test for key in part} == {"item6", "item7", "item8"}
    assert all(test)  # a process without an item would leave the others waiting for its scores


def test_batches_with_fewer_slices_than_processes_are_warned_of(data_file, monkeypatch, caplog):
    monkeypatch.setattr(distributed, "world_size", lambda: 5)
    setup.build_loader(setup.build_dataset(data_file, "train"), 2, True, accumulate=2)
    assert "batches of 4 leave some of 5 processes idle" in caplog.text


def test_cached_data_set_has_the_same_items(data_file):
    plain, cached = (setup.build_dataset(data_file, "val", cache_device=device) for device in (None, "cpu"))
    for one, other in zip(plain, cached, strict=True):
        assert one["id"] == other["id"]
        assert torch.equal(one["image"], other["image"])


def test_a_small_data_set_is_cached_where_auto_may_choose(data_file):
    loader = setup.build_loader(setup.build_dataset(data_file, "val", cache_device="auto", device="cpu"), 2, False)
    assert str(loader.dataset.device) == "cpu"
    assert ids(loader) == ids(setup.build_loader(setup.build_dataset(data_file, "val"), 2, False))


def test_device_that_torch_does_not_know_is_said_with_those_there_are(data_file):
    with pytest.raises(ValueError, match="cache_device must be cpu, cuda, auto or null, got 'gpu'"):
        setup.build_dataset(data_file, "val", cache_device="gpu")


def test_slices_on_a_gpu_are_read_without_workers(data_file):
    dataset = setup.build_dataset(data_file, "val", cache_device="cpu")
    assert setup.build_loader(dataset, 2, False, num_workers=2).num_workers == 2
    dataset.device = torch.device("cuda")
    assert setup.build_loader(dataset, 2, False, num_workers=2).num_workers == 0


def test_training_data_set_without_image_never_opens_it(data_file):
    assert "image" not in setup.build_dataset(data_file, "train", with_image=False)[0]
    assert "image" not in setup.build_dataset(data_file, "train", False, "cpu")[0]


def test_run_name_says_what_it_is():
    assert setup.run_name("es", 0, acceleration=8, operator="MRI", data_file="a/b.h5") == "ES, MRI x8, b.h5, seed 0"
    assert setup.run_name("supervised", 3, "-noise-wrong", acceleration=2.5) == "Supervised, x2.5, seed 3, noise wrong"


def test_sinograms_are_no_kspace(tmp_path):
    """Whichever of the two a bundle makes first says so."""
    path = str(write_sinograms(tmp_path / "ct.h5"))
    with pytest.raises(ValueError, match="holds CT data: expected MR"):
        operators.build_split(path, "lines", 0.8, True)
    with pytest.raises(ValueError, match="holds CT data: expected MR"):
        operators.build_physics(path, 4, CENTER)
