"""What weights were trained for: other networks and methods are refused, other masks, scanners and settings warned of."""

import pytest
import torch
from tiny import Parts, write_slices

from es_medical.engine.checkpoint import BEST, LAST, load_weights
from es_medical.physics.ct import CT
from es_medical.physics.ct_geometry import ParallelBeam
from es_medical.splits import Split


@pytest.fixture(scope="module")
def kept(data_file, tmp_path_factory):
    """Folder with the weights and the last state of an ES training."""
    folder, parts = tmp_path_factory.mktemp("kept"), Parts(data_file)
    parts.checkpoints(folder).save_best(1.0, 1)
    parts.checkpoints(folder).save_last(parts.trainer, "run", {"method": "es", "key_metric": "heldout"})
    return folder


def load(folder, parts):
    return load_weights(folder, parts.network, parts.physics, parts.inferer)


def resume(folder, parts, method="es"):
    checkpoints = parts.checkpoints(folder)
    checkpoints.resume(checkpoints.read_last(), parts.trainer, {"method": method, "key_metric": "heldout"})


def unrolled(parts, steps):
    parts.network.reconstructor.n_iterations = steps
    return parts


def from_estimate(parts):
    parts.network.reconstructor.start = "estimate"
    return parts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: Parts(data, widths=(8, 16)), "are of another network"),
        (lambda data: Parts(data, widths=(4, 8, 16)), "are of another network"),
        (lambda data: Parts(data, equivariant=False), "had group D4, the configuration gives none"),
        (lambda data: unrolled(Parts(data), 3), "had iterations 1, the configuration gives 3"),  # any number would load
        (lambda data: from_estimate(Parts(data)), "had start initial, the configuration gives estimate"),
    ],
)
def test_weights_of_another_network_are_refused(data_file, kept, change, message):
    other = change(data_file)
    for use in (load, resume):
        with pytest.raises(ValueError, match=message):
            use(kept, other)


def test_weights_that_start_from_the_estimate_are_taken_back_by_the_same_start_alone(data_file, tmp_path):
    parts = from_estimate(Parts(data_file))
    parts.checkpoints(tmp_path).save_best(1.0, 1)
    parts.checkpoints(tmp_path).save_last(parts.trainer, "run", {"method": "es", "key_metric": "heldout"})
    for use in (load, resume):
        use(tmp_path, from_estimate(Parts(data_file)))
        with pytest.raises(ValueError, match="had start estimate, the configuration gives initial"):
            use(tmp_path, Parts(data_file))


def test_weights_that_do_not_say_where_they_start_started_from_the_initial_image(data_file, kept, tmp_path):
    for name in (BEST, LAST):
        state = torch.load(kept / name)
        del state["architecture"]["start"]
        torch.save(state, tmp_path / name)
    for use in (load, resume):
        use(tmp_path, Parts(data_file))
        with pytest.raises(ValueError, match="had start initial, the configuration gives estimate"):
            use(tmp_path, from_estimate(Parts(data_file)))


def test_weights_of_another_method_are_refused(data_file, kept):
    other = Parts(data_file, method="supervised")
    with pytest.raises(ValueError, match="had split_input True, .* gives False; it is True for --method es"):
        load(kept, other)
    with pytest.raises(ValueError, match="by method es .* this one is by supervised"):
        resume(kept, other, "supervised")


def test_another_mask_is_not_resumed_and_warned_of(kept, tmp_path):
    other = Parts(write_slices(tmp_path / "other.h5", mask_seed=1))
    with pytest.raises(ValueError, match="resume with the same method and data"):
        resume(kept, other)
    with pytest.warns(UserWarning, match="another sampling mask"):
        load(kept, other)


def test_a_training_is_resumed_under_the_new_name_of_its_method(data_file, tmp_path):
    parts = Parts(data_file)
    parts.checkpoints(tmp_path).save_last(parts.trainer, "run", {"method": "ei_lot", "key_metric": "heldout"})
    resume(tmp_path, parts, "ei_alternating")


def test_weights_for_another_image_size_warn_in_place_of_crashing(kept, tmp_path):
    other = Parts(write_slices(tmp_path / "other.h5", size=(24, 24)))
    with pytest.warns(UserWarning, match="8 and 12 measured entries"), pytest.warns(UserWarning, match="n_center 4, .* with 6"):
        load(kept, other)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sigma", 0.5, "trained with sigma .*, they are used with 0.5"),
        ("alpha", 0.7, "trained with alpha .*, they are used with 0.7"),
        ("split", Split("lines", 0.5, 4), r"split_ratio 0\.8, they are used with 0\.5"),
        ("eval_split_input", False, "chosen by .* averages over splits, these are made from all measurements"),
    ],
)
def test_weights_for_other_settings_warn(data_file, kept, name, value, message):
    parts = Parts(data_file)
    setattr(parts.inferer, name, value)
    with pytest.warns(UserWarning, match=message):
        load(kept, parts)


def test_checkpoints_of_version_01_say_less(data_file, kept, tmp_path, recwarn):
    """Its weights averaged splits and counted no photons; its last state has no settings."""
    for name in (BEST, LAST):
        state = torch.load(kept / name)
        state["settings"] = {
            key: value for key, value in state["settings"].items() if key not in ("photons", "averages_splits")
        }
        torch.save({key: value for key, value in state.items() if name == BEST or key != "settings"}, tmp_path / name)
    parts = Parts(data_file)
    load(tmp_path, parts)
    resume(tmp_path, parts)
    assert not recwarn.list
    parts.inferer.eval_split_input = False
    with pytest.warns(UserWarning, match="averages over splits"):
        load(tmp_path, parts)


def test_norm_of_a_scanner_is_kept_with_the_weights_and_compared(data_file, tmp_path):
    parts = Parts(data_file)
    parts.physics = CT(ParallelBeam((16, 16), n_views=6))
    parts.checkpoints(tmp_path).save_best(1.0, 1)
    parts.checkpoints(tmp_path).save_last(parts.trainer, "run", {"method": "es"})
    assert torch.load(tmp_path / BEST, weights_only=True)["scanner"]["norm"] == float(parts.physics.norm) > 1
    parts.physics.norm = parts.physics.norm * 1.000001
    load(tmp_path, parts)  # warnings are errors
    parts.physics = CT(ParallelBeam((16, 16), n_views=6), unit_norm=False)
    with pytest.warns(UserWarning, match="other norm"):
        load(tmp_path, parts)
    with pytest.raises(ValueError, match="from a training for another operator: other norm; resume with its data"):
        resume(tmp_path, parts)
