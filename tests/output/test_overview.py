"""The page of a run: what it keeps, how large it is, and that nothing in it can be taken for markup."""

import json
from dataclasses import asdict

import pytest
import torch

from es_medical.output.overview import BUDGET, MOST_EPOCHS, MOST_POINTS, Overview, thinned

NAMES = {"baseline": "zero-filled", "target": "ground truth"}


def page(epochs, side=16, slices=1, channels=2):
    made = Overview("key", "ES, <b>demo</b>", NAMES)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        made.add_point("PSNR (dB)", "validation", epoch, 20 + epoch)
        for i in range(slices):
            images = torch.rand(4, channels, side, side, generator=generator)
            made.add_pictures(f"slice {i}", epoch, *images)
    return made


def test_a_resumed_training_goes_on_with_its_own_page_alone(tmp_path):
    page(6).write(tmp_path / "overview.html")
    found = Overview.read(tmp_path / "overview.html", "key", 3)
    assert [frame["epoch"] for frame in found.slices["slice 0"]["frames"]] == [0, 1, 2, 3]
    assert [epoch for epoch, _ in found.curves["PSNR (dB)"]["validation"]] == [0, 1, 2, 3]
    assert Overview.read(tmp_path / "overview.html", "another", 3) is None
    assert Overview.read(tmp_path / "absent.html", "key", 3) is None
    (tmp_path / "torn.html").write_text('<script id="data" type="application/json">{"key"</script>')
    assert Overview.read(tmp_path / "torn.html", "key", 3) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_a_long_training_of_large_images_fits_with_its_first_and_last_epoch(tmp_path, channels):
    made = page(5, side=512, slices=3, channels=channels)  # noise: the worst case for PNG
    made.write(tmp_path / "overview.html")
    assert (tmp_path / "overview.html").stat().st_size < 3_000_000
    for one in made.slices.values():
        assert [one["frames"][0]["epoch"], one["frames"][-1]["epoch"]] == [0, 4]
    assert len(json.dumps(made.slices)) < BUDGET


def test_curves_and_pictures_are_thinned_and_keep_their_ends():
    made = page(100, side=2)
    for epoch in range(2000):
        made.add_point("loss", "training", epoch, 1.0)
    points, frames = made.curves["loss"]["training"], made.slices["slice 0"]["frames"]
    assert MOST_POINTS / 3 < len(points) <= MOST_POINTS
    assert points[-1][0] == 1999
    assert MOST_EPOCHS / 3 < len(frames) <= MOST_EPOCHS
    assert (frames[0]["epoch"], frames[-1]["epoch"]) == (0, 99)
    assert thinned([1]) == [1]


def test_names_are_text_and_nothing_is_loaded_from_elsewhere(tmp_path):
    made = page(1)
    made.facts, made.rows = {"a": "</script><script>alert(1)"}, [{"id": "<i>", "psnr": 30.0, "equiv": "inf"}]
    made.write(tmp_path / "overview.html")
    text = (tmp_path / "overview.html").read_text()
    assert "<b>demo" not in text
    assert "<i>" not in text
    assert "<script>alert" not in text
    assert "http" not in text.replace("http-equiv", "")
    found = Overview.read(tmp_path / "overview.html", "key", 0)
    assert json.dumps(asdict(found)) == json.dumps(asdict(made))
