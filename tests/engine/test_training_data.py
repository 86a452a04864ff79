"""Weights know the subjects and pixels of their training: a test on a subject that was trained on is refused."""

import shutil

import h5py
import numpy as np
import pytest
import torch
from tiny import causes, execute, set_texts, workflow, write_slices

from es_medical.data.pixels import Pixels, cut
from es_medical.engine.training_data import preparation, refuse_seen, seen, warn_of_other_pixels
from es_medical.engine.weights.state_file import BEST, LAST, read_state

EVALUATE = ["train.yaml", "evaluate.yaml"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, workflow_uri):
    """A training on eight patients in files of their own; the last two are test patients."""
    folder = tmp_path_factory.mktemp("split")
    source = people(folder / "slices.h5", "aabbccdd", spacing=(0.75, 0.75))
    execute(workflow(["train.yaml"], folder, source, workflow_uri, epochs=1))
    return folder


def people(path, subjects, tests="d", salt="", sources=True, **options):
    """A slice file of these subjects, one letter a slice: those in `tests` for test, the first other one for validation."""
    write_slices(path, splits={"train": len(subjects)}, **options)
    rest = [letter for letter in subjects if letter not in tests]
    splits = ["test" if letter in tests else "val" if letter == rest[0] else "train" for letter in subjects]
    with h5py.File(path, "r+") as file:
        set_texts(file, "split", splits)
        set_texts(file, "subject", [salt + letter for letter in subjects])
        set_texts(file, "source", [f"file of {letter}" if sources else "" for letter in subjects])
    return path


def run(trained, tmp_path, source, uri, *files, **knobs):
    """Evaluate or resume with a copy of the weights, as a user types it."""
    shutil.copytree(trained / "models", tmp_path / "models")
    return execute(workflow(list(files), tmp_path, source, uri, **knobs))


# --- another split of the same patients


@pytest.mark.parametrize("files", [EVALUATE, ["train.yaml", "calibrate.yaml"]])
def test_trained_patient_is_never_a_test_patient(files, trained, tmp_path, workflow_uri):
    other = people(tmp_path / "other.h5", "aabbccdd", tests="bd")
    with pytest.raises(RuntimeError) as caught:
        run(trained, tmp_path, other, workflow_uri, *files)
    assert f"1 of 2 test subjects of {other} were in the training or validation" in causes(caught.value)


def test_validation_patient_is_none_either(trained, tmp_path, workflow_uri):
    with pytest.raises(RuntimeError) as caught:
        run(trained, tmp_path, people(tmp_path / "other.h5", "aabbccdd", tests="a"), workflow_uri, *EVALUATE)
    assert "1 of 1 test subjects" in causes(caught.value)


def test_another_salt_or_seed_hides_nobody(trained, tmp_path, workflow_uri):
    other = people(tmp_path / "other.h5", "aabbccdd", tests="abd", salt="renamed ")
    with pytest.raises(RuntimeError) as caught:
        run(trained, tmp_path, other, workflow_uri, *EVALUATE)
    assert "2 of 3 test subjects" in causes(caught.value)


def test_training_is_not_resumed_with_another_split(trained, tmp_path, workflow_uri):
    other = people(tmp_path / "other.h5", "aabbccdd", tests="bd")
    with pytest.raises(RuntimeError) as caught:
        run(trained, tmp_path, other, workflow_uri, "train.yaml", epochs=2, resume=True)
    assert "1 of 2 test subjects" in causes(caught.value)
    assert torch.load(tmp_path / "models" / "last.pt")["epoch"] == 1


def test_weights_of_another_split_start_no_training(trained, tmp_path, workflow_uri):
    other, start = people(tmp_path / "other.h5", "aabbccdd", tests="c"), trained / "models" / "reconstructor.pt"
    with pytest.raises(RuntimeError) as caught:
        execute(workflow(["train.yaml"], tmp_path, other, workflow_uri, epochs=1, warm_start=str(start)))
    assert "1 of 1 test subjects" in causes(caught.value)


def test_same_split_new_patients_and_unknown_ones_are_tested(trained, tmp_path, workflow_uri):
    run(trained, tmp_path, people(tmp_path / "grown.h5", "aabbccddee", tests="de"), workflow_uri, *EVALUATE)
    kept = torch.load(trained / "models" / "reconstructor.pt")["seen"]
    for name, subjects, tests in (("same", "aabbccdd", "d"), ("others", "xyz", "yz"), ("none", "abc", "")):
        refuse_seen(kept, people(tmp_path / f"{name}.h5", subjects, tests=tests), "models")


def test_what_a_file_has_on_both_sides_says_nothing(tmp_path):
    """All slices of a demo come from one template: its own split is the one that counts."""
    file = people(tmp_path / "demo.h5", "abcd")
    with h5py.File(file, "r+") as one:
        set_texts(one, "source", ["template"] * 4)
    refuse_seen(seen(file), file, "models")
    assert len(seen(file)) == 3
    with h5py.File(file, "r+") as one:
        set_texts(one, "subject", ["volunteer"] * 4)
    refuse_seen(seen(file), file, "models")
    assert len(seen(file)) == 0


def test_older_weights_and_files_know_less_and_stop_nothing(tmp_path):
    file = people(tmp_path / "slices.h5", "abcd", tests="b")
    refuse_seen(None, file, "models")
    with h5py.File(file, "r+") as one:
        del one["source"]
    assert len(seen(file)) == 3
    refuse_seen(seen(file), file, "models")


# --- a state that is cut short


@pytest.mark.parametrize(("share", "cause"), [(0.5, "damaged"), (0.999, "damaged"), (0, "empty")])
def test_half_of_a_state_names_the_file_and_the_way_out(share, cause, trained, tmp_path):
    shutil.copytree(trained / "models", tmp_path / "models")
    last, best = tmp_path / "models" / LAST, tmp_path / "models" / BEST
    last.write_bytes(last.read_bytes()[: int(share * last.stat().st_size)])
    with pytest.raises(ValueError, match=f"{last} can't be read as weights: it is {cause}") as caught:
        read_state(last, "")
    assert f"The best weights of this training are in {best}" in str(caught.value)
    assert f"--warm_start {best}" in str(caught.value)
    best.unlink()
    with pytest.raises(ValueError, match="no other weights of this training: start anew without --resume"):
        read_state(last, "")


def test_resuming_from_half_a_state_says_so(trained, tmp_path, workflow_uri):
    shutil.copytree(trained / "models", tmp_path / "models")
    last = tmp_path / "models" / LAST
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    with pytest.raises(RuntimeError) as caught:
        execute(workflow(["train.yaml"], tmp_path, trained / "slices.h5", workflow_uri, epochs=2, resume=True))
    assert f"{last} can't be read as weights" in causes(caught.value)


# --- pixels


def spaced(path, *spacings):
    write_slices(path, splits={"train": len(spacings)})
    with h5py.File(path, "r+") as file:
        file["spacing"][...] = np.array(spacings)
    return path


def test_scan_of_other_pixels_is_warned_of_at_inference(trained, tmp_path):
    other = people(tmp_path / "scan.h5", "xy", spacing=(0.6, 0.75))
    with pytest.warns(UserWarning, match=r"pixels of 0.75 x 0.75 mm, the data has 0.6 x 0.75 mm: structures appear at another"):
        run(trained, tmp_path, other, "", "inference.json")
    execute(workflow(["inference.json"], tmp_path, people(tmp_path / "alike.h5", "xy", spacing=(0.76, 0.74)), ""))


def test_pixels_within_those_of_the_training_are_none_to_warn_of(tmp_path, recwarn):
    kept = preparation(spaced(tmp_path / "trained.h5", (0.7, 0.7), (0.8, 0.8)))
    for spacing in ((0.7, 0.8), (0.75, 0.75), (0.69, 0.81), (np.nan, np.nan)):
        warn_of_other_pixels(kept, spaced(tmp_path / "scan.h5", spacing), "models")
    warn_of_other_pixels({key: value for key, value in kept.items() if key != "spacing"}, tmp_path / "scan.h5", "models")
    assert not recwarn.list
    for spacing in ((0.6, 0.75), (0.75, 0.9)):
        with pytest.warns(UserWarning, match=r"0.7 x 0.7 to 0.8 x 0.8 mm"):
            warn_of_other_pixels(kept, spaced(tmp_path / "scan.h5", spacing), "models")


def test_unknown_pixels_stay_unknown(tmp_path):
    file = spaced(tmp_path / "slices.h5", (0.7, 0.7), (np.nan, 0.7))
    assert Pixels.kept(preparation(file)) is None
    kept = Pixels.of(file)
    assert kept.nearest((0.5, 0.5)) == (0.5, 0.5)
    assert kept.resampled((10, 10), (0.5, 0.5)) == (10, 10)


def test_field_of_view_is_kept_by_resampling():
    trained = Pixels((320, 320), (0.75, 0.75), (0.75, 0.75))
    assert trained.resampled((384, 512), (0.625, 0.46875)) == (320, 320)
    assert trained.resampled((256, 256), (0.7575, 0.7425)) == (256, 256)  # within 2 %


def test_cut_says_rows_columns_and_millimetres():
    assert cut((320, 320), (320, 320)) == cut((200, 320), (320, 320)) == ""
    assert cut((320, 400), (320, 320)) == "cut from 320 x 400 to 320 x 320 pixels: 80 columns of the image are lost"
