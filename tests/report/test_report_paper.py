"""The paper's numbers are those of its source, and complete."""

import re
from pathlib import Path

import pytest

from es_medical.report.paper import ABLATIONS, DURATIONS, LEVELS, RATIOS, TABLES, UNKNOWN_NOISE, sensing_table

EVERY = [*TABLES.values(), *ABLATIONS.values(), *UNKNOWN_NOISE.values()]


@pytest.fixture(scope="module")
def source():
    path = Path(__file__).parents[3] / "shared" / "paper" / "equivariant_splitting.tex"
    if not path.is_file():
        pytest.skip(f"the paper's source, {path}, is not here")
    text = re.sub(r"\\textbf\{([^}]*)\}", r"\1", path.read_text()).replace("\\ ", " ").replace("\\checkmark", "yes")
    return [re.sub(r"\s+", " ", line).strip() for line in text.replace("\\texttimes", "no").splitlines()]


@pytest.mark.parametrize("table", EVERY, ids=[f"{table.key}-{i}" for i, table in enumerate(EVERY)])
def test_every_row_stands_in_the_paper_word_for_word(source, table):
    for row in table.rows:
        numbers = [printed.text for printed in (row.psnr, row.ssim, row.equiv) if printed.text]
        assert any(line.count("&") >= len(numbers) and f"& {' & '.join(numbers)}" in line for line in source), row


def test_points_of_the_figure_stand_in_the_paper(source):
    for method, points in LEVELS.items():
        for ratio, psnr in zip(RATIOS, points, strict=True):
            found = [line for line in source if re.match(r"\(1?\d?[0-9.]+, ", line)]
            values = {tuple(float(part) for part in line.strip("()").split(",")) for line in found}
            assert (100 * ratio, psnr) in {(round(x, 6), y) for x, y in values}, (method, ratio)


def test_durations_stand_in_the_paper(source):
    for durations in DURATIONS.values():
        for one in durations:
            assert any(line.endswith(f"& {one.seconds_per_epoch} & {one.epochs} \\\\") for line in source), one


def test_the_best_self_supervised_method_of_every_main_table_is_es():
    for key in ("inpainting", "mri_x8", "mri_x6", "mri_real", "ct"):
        others = [row for row in TABLES[key].rows if row.method not in ("supervised", "baseline")]
        assert max(others, key=lambda row: row.psnr.mean).method == "es"


def test_shared_rows_agree_between_tables():
    for key, table in (ABLATIONS | UNKNOWN_NOISE).items():
        for row in table.rows:
            same = TABLES[key].row(row.method, row.known)
            if same is not None:
                assert row.psnr == same.psnr


def test_the_figure_has_a_table_at_its_levels_only():
    assert sensing_table(0.1).row("ei").psnr.text == "19.73"
    assert sensing_table(0.25) is None
