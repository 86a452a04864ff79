import pytest
import torch

from es_medical.diagnostics.diagnosis import Diagnosis, Finding
from es_medical.diagnostics.spectrum import Spectrum
from es_medical.diagnostics.verdict import LABELS, SHORT, summary_line, table, verdict

N = 100


def finding(action, rank, alone=20, lost=None, invariant=False, joint=None, error=0.0):
    values = torch.tensor([1.0, 0.0], dtype=torch.float64)
    spectrum = Spectrum(values, torch.tensor([float(rank), N - rank]), N, "Lanczos" if error else "exact", error)
    return Finding(action, spectrum, rank, rank, (rank - alone) / N, lost, invariant, joint)


def diagnosis(*findings, alone=20, **options):
    return Diagnosis((finding("none", alone, alone, invariant=True), *findings), (1, 10, 10), N, **options)


def text(found, *suggestions):
    return " ".join("\n".join(verdict(found, (), suggestions)).split())


def test_share_of_the_operator_alone_and_what_is_added_are_told():
    words = text(diagnosis(finding("d4", 55)))
    assert "measures 20.0 % of the n = 100 numbers" in words
    assert "D4 (rotations by 90 degrees and flips): 35.0 % more, 55.0 % in all" in words


def test_common_null_space_cannot_be_learnt():
    words = text(diagnosis(finding("d4", 55)))
    assert "45.0 % of n, the common null space" in words
    assert "can't be learnt from these measurements, whatever the network" in words
    assert "full rank" not in words


def test_full_rank_is_called_necessary_and_no_guarantee():
    words = text(diagnosis(finding("shifts", 100)))
    assert "full rank" in words
    assert "necessary" in words
    assert "no guarantee" in words
    assert "can't be learnt" not in words


def test_blind_sets_are_named_and_not_among_what_adds():
    words = text(diagnosis(finding("flips", 20, invariant=True), finding("d4", 55)))
    assert "Blind: flips." in words
    assert "- flips" not in words


def test_sets_that_add_little_are_told_apart_from_blind_ones():
    words = text(diagnosis(finding("flips", 20.5)))
    assert "Blind" not in words
    assert "flips (+0.5 %)" in words


def test_nothing_helps_is_said_plainly():
    words = text(diagnosis(finding("flips", 20, invariant=True)))
    assert "None of the transformations" in words
    assert "No set of transformations brings this operator 1 % or more" in words


def test_an_operator_that_sees_everything_needs_no_transformations():
    words = text(diagnosis(finding("flips", 100, alone=100, invariant=True), alone=100))
    assert "no transformation is needed" in words
    assert "change the acquisition" not in words


def test_full_rank_without_pairs_is_no_success():
    words = text(diagnosis(finding("shifts", 100, joint=0.5)))
    assert "50.0 % under cyclic shifts" in words
    assert "may put anything there" in words
    assert "Nothing is out of reach" not in words


def test_permutations_are_never_advised():
    words = text(diagnosis(finding("permutations", 100), finding("d4", 30)))
    assert "images are not invariant to them" in words
    assert "Best to train with: D4" in words


@pytest.mark.parametrize("turns", [True, False])
def test_fine_rotations_are_advised_where_a_scanner_is_turned(turns):
    words = text(diagnosis(finding("fine_rotations", 80), turns=turns))
    assert ("Best to train with: fine rotations" in words) == turns
    assert ("they interpolate" in words) != turns


def test_error_bars_stand_where_a_spectrum_is_estimated():
    assert "±" not in text(diagnosis(finding("d4", 55)))
    words = text(diagnosis(finding("d4", 55, error=2.0)))
    assert "55.0 ± 2 %" in words
    assert "standard error" in words


def test_energy_is_told_where_there_are_images():
    assert "energy" not in text(diagnosis(finding("d4", 55))).lower()
    found = diagnosis(finding("d4", 55, lost=0.04), n_images=3)
    found = Diagnosis((found.alone._replace(lost=0.12), *found.findings[1:]), found.shape, N, n_images=3)
    words = text(found)
    assert "(3 of the data file)" in words
    assert "misses 12.0 %, and 4.0 % with D4" in words


def test_causes_of_refusal_and_suggestions_are_passed_on():
    words = text(diagnosis(refused={"d4": "The image is not square."}), "Measure 51 views.")
    assert "D4 (rotations by 90 degrees and flips). The image is not square." in words
    assert words.endswith("- Measure 51 views.")


def test_remarks_stand_before_the_advice():
    words = " ".join(verdict(diagnosis(finding("d4", 55)), ["", "A remark."]))
    assert words.index("A remark.") < words.index("Best to train with")


def test_table_has_a_row_for_each_set_also_refused_ones():
    found = diagnosis(finding("flips", 20, invariant=True), finding("shifts", 100, joint=0.5), refused={"d4": "no"})
    columns = table(found)
    assert {len(column) for column in columns.values()} == {4}
    assert columns["transformations"] == ["operator alone", "flips", "cyclic shifts", "D4"]
    assert columns["rank, %"] == ["20.0", "20.0", "100.0", "-"]
    assert columns["range of A^T"] == ["", "the same", "moves", "no action"]
    assert columns["seen in pairs, %"] == ["-", "-", "50.0", "-"]


def test_column_of_pairs_stands_for_missing_pixels_alone():
    assert "seen in pairs, %" not in table(diagnosis(finding("flips", 30)))


def test_summary_of_a_group_that_adds_nothing_says_so():
    found = diagnosis(finding("d4", 20.4))
    assert "nothing new: 20.4 % of n against 20.0 % without" in summary_line(found.of("d4"), found.alone)
    found = diagnosis(finding("d4", 55))
    assert "adds 35.0 % of n" in summary_line(found.of("d4"), found.alone)


def test_every_set_has_its_words():
    from es_medical.diagnostics.actions import ACTIONS

    assert set(LABELS) == set(SHORT) == set(ACTIONS)
