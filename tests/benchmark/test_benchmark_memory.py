import numpy as np
import pytest
from tiny import write_slices

from data_prep.cli import app
from es_medical.benchmark.memory import (
    LARGE,
    MANY,
    SMALL,
    SOURCES,
    MemoryResult,
    Run,
    Size,
    commands,
    data_read,
    growth,
    peak,
    table,
)
from es_medical.data import read_header


def test_peak_is_that_of_the_command_alone(tmp_path):
    held = np.ones(2**25)  # 256 MiB in this process, whose peak a process that it starts inherits
    lines = "held = bytearray(b'a') * 2**27", "import time; time.sleep(0.2)"
    whole, own = peak(["timeit", "-n", "1", "-r", "1", *lines], tmp_path)
    assert 128 < own < whole < 200
    del held


def test_a_command_that_fails_is_an_error_with_its_last_lines(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)json.tool nothing failed: status 2.*nothing"):
        peak(["json.tool", "nothing"], tmp_path)


def test_sizes_are_ten_times_the_volumes_and_four_times_the_pixels():
    sizes = Size(4, 8, (64, 48)).grown()
    assert list(sizes) == [SMALL, MANY, LARGE]
    assert (sizes[MANY].volumes, sizes[MANY].kspace) == (40, (64, 48))
    assert (sizes[LARGE].volumes, sizes[LARGE].kspace) == (4, (128, 96))
    assert sizes[MANY].slices == sizes[LARGE].slices == 8


def test_data_are_what_the_command_reads(tmp_path):
    slices = write_slices(tmp_path / "slices.h5")  # 4, 2 and 3 of train, val and test
    whole = slices.stat().st_size / 2**20
    assert data_read("train", tmp_path, slices) == pytest.approx(whole)
    assert data_read("evaluate", tmp_path, slices) == pytest.approx(whole * 3 / 9)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more").write_bytes(bytes(2**19))
    assert data_read("reconstruct", tmp_path, slices) == pytest.approx(whole + 0.5)


@pytest.mark.parametrize("command", ["data_prep lidc", "data_prep mr", "data_prep div2k", "data_prep sinogram"])
def test_preparation_reads_the_files_that_are_made_for_it(command, tmp_path, monkeypatch):
    words = commands(size := Size(4, 1, (64, 48)))[command]
    source = tmp_path / words[2]
    source.mkdir()
    SOURCES[source.name](source, size)
    monkeypatch.chdir(tmp_path)
    app(words[1:], standalone_mode=False)
    assert read_header(tmp_path / words[3]).n == 4
    assert data_read(command, source, tmp_path) > 0


def test_table_has_the_growth_of_every_command_beside_its_data():
    runs = {SMALL: Run(800, 400, 10), MANY: Run(840, 405, 110), LARGE: Run(1200, 790, 40)}
    assert growth(runs[SMALL], runs[MANY]) == (40, 5, 100)
    sizes = Size().grown()
    text = table(MemoryResult(sizes, dict.fromkeys(commands(sizes[SMALL]), runs)))
    cells = text.count("840 (1.05 x)    +40     +5 of  100"), text.count("1200 (1.50 x)   +400   +390 of   30")
    assert cells == (len(commands(sizes[SMALL])),) * 2
    assert "4 volumes of 8 slices of 160 x 160" in text
