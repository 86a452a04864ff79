import pytest
import torch

from es_medical.diagnostics.decision_table import PAPER, TRANSFORMATIONS, as_rich, decision_table, scanner, show, translations
from es_medical.diagnostics.spectrum import spectrum
from es_medical.physics import Inpainting, bernoulli_mask

pytest.importorskip("astra")

TICKS = """
Isotropic blur       no  no  yes no
Image inpainting     yes yes yes no
Sparse-view CT       no  yes yes no
Accelerated MRI      no  yes yes no
Compressive sensing  yes yes yes no
"""  # the paper's table, columns Translation, Rotation, Permutation, Amplitude


def papers():
    rows = [line.rsplit(maxsplit=4) for line in TICKS.strip().splitlines()]
    return {(name, column): tick == "yes" for name, *ticks in rows for column, tick in zip(TRANSFORMATIONS, ticks, strict=True)}


@pytest.fixture(scope="module")
def table():
    return decision_table(12)


def test_gains_computed_from_operators_give_the_papers_ticks(table):
    assert {(cell.operator, cell.transformation): cell.tick for cell in table.cells} == papers()
    assert table.disagreements == ()


def test_no_gain_is_near_the_tolerance(table):
    """So that the ticks don't depend on where it lies: nothing between 0.5 and 10 % of n."""
    assert all(cell.gain <= 0.005 or cell.gain > 0.1 for cell in table.cells)


def test_the_ticks_don_t_depend_on_the_masks():
    other = decision_table(8, seed=1)
    assert {(cell.operator, cell.transformation): cell.tick for cell in other.cells} == papers()


def test_the_papers_ticks_are_shown_and_not_used(table, monkeypatch):
    monkeypatch.setattr("es_medical.diagnostics.decision_table.PAPER", dict.fromkeys(PAPER, (True,) * 4))
    other = decision_table(8)
    assert [cell.tick for cell in other.cells] == list(papers().values())
    assert {(cell.operator, cell.transformation) for cell in other.disagreements} == {
        key for key, tick in papers().items() if not tick
    }


def test_translations_of_ct_add_directions_never_and_samples_of_wide_bins():
    for bins, least, most in ((0.25, 0.0, 0.01), (1.0, 0.1, 0.4)):
        physics, support = scanner(12, bins=bins)
        alone, moved = spectrum(physics, "none", support), translations(physics, support, 2)
        assert least <= (moved.rank() - alone.rank()) / alone.n <= most


def test_translations_of_pixels_equal_the_mean_of_the_moved_masks():
    mask = bernoulli_mask((1, 9, 9), 0.3, 0)
    support = torch.zeros(9, 9, dtype=torch.float64)
    support[3:6, 3:6] = 1
    found = translations(Inpainting(mask, (9, 9)), support, 1)
    moves = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
    mean = torch.stack([mask[0].double().roll(move, (0, 1)) for move in moves]).mean(0)[3:6, 3:6]
    torch.testing.assert_close(
        found.eigenvalues.repeat_interleave(found.counts.long()).sort().values, mean.flatten().sort().values
    )


def test_objects_that_would_leave_the_image_are_refused():
    with pytest.raises(ValueError, match="within 3 pixels of the edge"):
        translations(Inpainting([1] * 6, (6, 6)), torch.ones(6, 6), 3)


def test_the_table_is_printed_with_both_ticks_and_remarks(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    table = show(8)
    printed = capsys.readouterr().out
    assert as_rich(table).row_count == 5
    assert all(name in printed for name in PAPER)
    assert printed.count("✓ ✓") == sum(papers().values())
    assert "An even number of views is blind" in printed
    assert "Differs from the paper" not in printed
