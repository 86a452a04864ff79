"""Scores of every slice, the same for any batch size, with and without ground truth."""

import math

import pytest
import torch
from tiny import Parts, write_slices

from es_medical.engine import evaluator as evaluator_module
from es_medical.engine.evaluator import Evaluator
from es_medical.groups import D4
from es_medical.metrics import psnr
from es_medical.physics import Batch


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    return write_slices(tmp_path_factory.mktemp("evaluator") / "slices.h5", data_ranges=(1.0, 0.5))


@pytest.fixture(scope="module")
def parts(data_file):
    return Parts(data_file)


def run(evaluator):
    evaluator.run()
    return evaluator


def test_same_numbers_for_any_batch_size(parts):
    single, whole = (run(parts.evaluator(batch_size=n, equiv_group=D4())) for n in (1, 3))
    assert single.state.metrics.keys() == whole.state.metrics.keys()
    for name, value in single.state.metrics.items():
        assert value == pytest.approx(whole.state.metrics[name], rel=1e-4, abs=1e-6), name
    assert [row["id"] for row in single.rows] == [row["id"] for row in whole.rows]


def test_twice_gives_identical_numbers_whatever_was_drawn_between(parts):
    evaluator = parts.evaluator()
    first = dict(run(evaluator).state.metrics)
    torch.manual_seed(123)
    torch.rand(10)
    assert run(evaluator).state.metrics == first
    assert len(evaluator.rows) == 3  # not 6


def test_another_seed_gives_other_splits(parts, data_file):
    other = Parts(data_file)
    other.network.load_state_dict(parts.network.state_dict())
    other.inferer.seed = 1
    assert run(other.evaluator()).state.metrics["heldout"] != run(parts.evaluator()).state.metrics["heldout"]


def test_rows_means_and_deviations(parts):
    evaluator = run(parts.evaluator())
    assert [(row["id"], row["index"]) for row in evaluator.rows] == [("item6", 6), ("item7", 7), ("item8", 8)]
    for name in ("heldout", "psnr", "ssim", "baseline_psnr", "psnr_volume"):
        values = [row[name] for row in evaluator.rows]
        mean = sum(values) / 3
        assert evaluator.state.metrics[name] == pytest.approx(mean)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
        assert evaluator.state.metrics[f"{name}_sd"] == pytest.approx(deviation)


def test_scores_are_those_of_the_inferers_reconstruction(parts):
    evaluator = run(parts.evaluator(batch_size=3))
    (batch,) = evaluator.data_loader
    result = parts.inferer(parts.network.eval(), Batch(batch["measurement"], parts.physics, ids=batch["id"]))
    assert [row["psnr"] for row in evaluator.rows] == pytest.approx(psnr(result.image, batch["image"], 1.0).tolist())
    assert [row["heldout"] for row in evaluator.rows] == pytest.approx(result.heldout.tolist())
    zero_filled = psnr(parts.physics.A_adjoint(batch["measurement"]), batch["image"], 1.0)
    assert [row["baseline_psnr"] for row in evaluator.rows] == pytest.approx(zero_filled.tolist())


def test_volume_range_is_the_slices_own(parts):
    differences = [row["psnr"] - row["psnr_volume"] for row in run(parts.evaluator()).rows]
    assert differences == pytest.approx([0, 20 * math.log10(2), 0], abs=1e-4)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_volume_range_unknown_for_some_slices(tmp_path, batch_size):
    data_file = write_slices(tmp_path / "slices.h5", data_ranges=(1.0, float("nan")))
    evaluator = run(Parts(data_file).evaluator(batch_size=batch_size))
    assert "psnr_volume" not in evaluator.state.metrics
    assert not any("volume" in name for row in evaluator.rows for name in row)
    assert math.isfinite(evaluator.state.metrics["psnr"])


def test_without_ground_truth_the_heldout_error_is_left(tmp_path, parts):
    data_file = write_slices(tmp_path / "slices.h5", with_image=False)
    blind = Parts(data_file)
    blind.network.load_state_dict(parts.network.state_dict())
    evaluator = run(blind.evaluator(n_cases=1))
    assert set(evaluator.state.metrics) == {"heldout", "heldout_sd"}
    assert evaluator.cases[0].target is None
    assert evaluator.state.metrics["heldout"] == run(parts.evaluator()).state.metrics["heldout"]


def test_key_metric_is_larger_for_the_better(parts, tmp_path):
    by_error, by_psnr = run(parts.evaluator(key_metric="heldout")), run(parts.evaluator())
    assert by_error.score == -by_error.state.metrics["heldout"]
    assert by_psnr.score == by_psnr.state.metrics["psnr"]
    with pytest.raises(ValueError, match="heldout or psnr, got 'ssim'"):
        parts.evaluator(key_metric="ssim")
    blind = Parts(write_slices(tmp_path / "slices.h5", with_image=False))
    assert run(blind.evaluator()).score < 0  # minus the held-out error: what there is
    with pytest.raises(ValueError, match="these slices have no image: choose heldout"):
        blind.evaluator(key_metric="psnr")


def test_ssim_is_left_out_of_images_smaller_than_its_window(tmp_path):
    metrics = run(Parts(write_slices(tmp_path / "slices.h5", size=(8, 8))).evaluator()).state.metrics
    assert "psnr" in metrics
    assert not any("ssim" in name for name in metrics)


def test_equivariance_of_the_reynolds_network_alone_is_exact_which_is_no_fault_and_no_number(data_file, caplog):
    plain, parts = Parts(data_file, equivariant=False), Parts(data_file)
    plain.inferer.split_input = False
    assert run(plain.evaluator(equiv_group=D4())).state.metrics["equiv"] < 90
    parts.inferer.whole_group, parts.inferer.split_input = True, False
    evaluator = run(parts.evaluator(equiv_group=D4()))
    assert [row["equiv"] for row in evaluator.rows] == [math.inf] * 3
    assert evaluator.state.metrics["equiv"] == math.inf
    assert evaluator.state.metrics["equiv_exact"] == 3
    assert "equiv_sd" not in evaluator.state.metrics
    assert "not finite" not in caplog.text


def test_mean_of_equivariance_is_that_of_the_slices_that_are_not_exact(data_file, caplog, monkeypatch):
    scores = torch.tensor([50.0, math.inf, 70.0])
    monkeypatch.setattr(evaluator_module, "equivariance", lambda reconstruct, y, physics, group: scores[: len(y)])
    metrics = run(Parts(data_file).evaluator(batch_size=3, equiv_group=D4())).state.metrics
    assert (metrics["equiv"], metrics["equiv_exact"]) == (60.0, 1.0)
    assert metrics["equiv_sd"] == pytest.approx(200**0.5)
    assert "not finite" not in caplog.text


def test_one_slice_has_no_deviation(tmp_path):
    data_file = write_slices(tmp_path / "slices.h5", splits={"train": 2, "val": 1, "test": 1})
    assert "psnr_sd" not in run(Parts(data_file).evaluator()).state.metrics


def test_cases_are_spread_over_the_split(parts):
    assert [case.id for case in run(parts.evaluator(n_cases=2)).cases] == ["item6", "item7"]
    assert [case.id for case in run(parts.evaluator(n_cases=9)).cases] == ["item6", "item7", "item8"]
    assert run(parts.evaluator()).cases == []
    case = run(parts.evaluator(n_cases=1)).cases[0]
    assert {one.shape for one in (case.baseline, case.reconstruction, case.spread, case.target)} == {(2, 16, 16)}


def test_a_second_run_shows_the_weights_of_then(data_file):
    parts = Parts(data_file)
    evaluator = run(parts.evaluator(n_cases=2))
    rows, cases = evaluator.rows, evaluator.cases
    parts.trainer.run()
    run(evaluator)
    assert len(evaluator.cases) == 2
    assert not torch.equal(evaluator.cases[0].reconstruction, cases[0].reconstruction)
    assert [row["psnr"] for row in evaluator.rows] != [row["psnr"] for row in rows]


def test_the_network_evaluates_and_keeps_no_gradient(parts):
    parts.network.train()
    modes = []
    handle = parts.denoiser.register_forward_hook(lambda module, *_: modes.append((module.training, torch.is_grad_enabled())))
    run(parts.evaluator())
    handle.remove()
    assert set(modes) == {(False, False)}


def test_an_item_that_two_processes_took_counts_once(parts, monkeypatch):
    monkeypatch.setattr(evaluator_module, "gather", lambda rows: [*rows[1:], *rows, rows[0]])
    evaluator = run(parts.evaluator())
    assert [row["index"] for row in evaluator.rows] == [6, 7, 8]
    assert evaluator.state.metrics["psnr"] == pytest.approx(sum(row["psnr"] for row in evaluator.rows) / 3)


def test_handlers_are_attached(parts):
    class Handler:
        done = 0

        def attach(self, engine):
            from ignite.engine import Events

            engine.add_event_handler(Events.COMPLETED, self.count)

        def count(self):
            self.done += 1

    handler = Handler()
    engines = (parts.network, parts.inferer, parts.physics)
    run(Evaluator("cpu", parts.loader("test"), *engines, val_handlers=[handler]))
    assert handler.done == 1


def test_measurements_that_are_not_finite_stop_by_name(tmp_path):
    poisoned = Parts(write_slices(tmp_path / "slices.h5", poison={7: "measurement"}))  # a test slice
    with pytest.raises(FloatingPointError, match="measurements of item7 in .*slices.h5 hold NaN"):
        run(poisoned.evaluator())


def test_blank_measurement_is_left_out_of_the_mean(tmp_path, caplog):
    import h5py

    path = write_slices(tmp_path / "slices.h5")
    with h5py.File(path, "r+") as file:
        del file["checksum"]  # changed on purpose
        file["measurement"][7] = 0
    with caplog.at_level("WARNING", logger="es_medical"):
        evaluator = run(Parts(path).evaluator())
    others = [row["heldout"] for row in evaluator.rows if row["id"] != "item7"]
    assert evaluator.state.metrics["heldout"] == pytest.approx(sum(others) / len(others))
    assert "heldout is not finite for 1 slices (item7): left out" in caplog.text


def test_peak_of_each_slice_is_the_range_of_its_scores():
    """Recorded slices are not in [0, 1]: twice the range is 6 dB more, and SSIM is that of the slice divided by its peak."""
    from es_medical.engine.evaluator import image_scores

    x, noise = torch.rand(2, 2, 16, 16), 0.1 * torch.randn(2, 2, 16, 16)
    unknown = torch.full((2,), torch.nan)
    one = image_scores(x + noise, x, torch.ones(2), unknown)
    other = image_scores(3 * (x + noise), 3 * x, torch.tensor([3.0, 6.0]), unknown)
    gain = 20 * torch.log10(torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(other["psnr"], one["psnr"] + gain)
    torch.testing.assert_close(other["psnr_complex"], one["psnr_complex"] + gain)
    torch.testing.assert_close(other["ssim"][0], one["ssim"][0])
