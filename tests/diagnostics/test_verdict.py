import pytest
import torch

from es_medical.diagnostics.diagnosis import Diagnosis, Finding
from es_medical.diagnostics.spectrum import Spectrum
from es_medical.diagnostics.verdict import summary_line, table, verdict

N = 100


def finding(action, rank, alone=20, lost=None, invariant=False, joint=None, error=0.0):
    values = torch.tensor([1.0, 0.0], dtype=torch.float64)
    spectrum = Spectrum(values, torch.tensor([float(rank), N - rank]), N, "Lanczos" if error else "exact", error)
    return Finding(action, spectrum, rank, rank, (rank - alone) / N, lost, invariant, joint)


def diagnosis(*findings, alone=20, **options):
    return Diagnosis((finding("none", alone, alone, invariant=True), *findings), (1, 10, 10), N, **options)


def text(found, *suggestions):
    return " ".join("\n".join(verdict(found, (), suggestions)).split())


D4_ADDS = finding("d4", 55)


@pytest.mark.parametrize(
    ("found", "said", "unsaid"),
    [
        pytest.param(
            diagnosis(D4_ADDS),
            [
                "measures 20.0 % of the n = 100 numbers",
                "D4 (rotations by 90 degrees and flips): 35.0 % more, 55.0 % in all",
                "45.0 % of n, the common null space",
                "can't be learnt from these measurements, whatever the network",
            ],
            ["full rank", "±", "energy", "Energy"],
            id="part of the null space is filled",
        ),
        pytest.param(
            diagnosis(finding("shifts", 100)),
            ["full rank", "necessary", "no guarantee"],
            ["can't be learnt"],
            id="full rank is necessary and no guarantee",
        ),
        pytest.param(
            diagnosis(finding("flips", 20, invariant=True), D4_ADDS), ["Blind: flips."], ["- flips"], id="blind sets are named"
        ),
        pytest.param(diagnosis(finding("flips", 20.5)), ["flips (+0.5 %)"], ["Blind"], id="little is not blind"),
        pytest.param(
            diagnosis(finding("flips", 20, invariant=True)),
            ["None of the transformations", "No set of transformations adds 1 % of n or more to this operator"],
            [],
            id="nothing helps",
        ),
        pytest.param(
            diagnosis(finding("flips", 100, alone=100, invariant=True), alone=100),
            ["no transformation is needed"],
            ["change the acquisition"],
            id="everything is seen",
        ),
        pytest.param(
            diagnosis(finding("shifts", 100, joint=0.5)),
            ["50.0 % under cyclic shifts", "may put anything there"],
            ["Nothing is out of reach"],
            id="full rank without pairs is no success",
        ),
        pytest.param(
            diagnosis(finding("permutations", 100), finding("d4", 30)),
            ["images are not invariant to them", "Best to train with: D4"],
            [],
            id="permutations are never advised",
        ),
        pytest.param(
            diagnosis(finding("fine_rotations", 80), turns=True),
            ["Best to train with: fine rotations"],
            ["they interpolate"],
            id="turns of a scanner",
        ),
        pytest.param(
            diagnosis(finding("fine_rotations", 80)),
            ["they interpolate"],
            ["Best to train with: fine rotations"],
            id="fine rotations that interpolate",
        ),
        pytest.param(diagnosis(finding("d4", 55, error=2.0)), ["55.0 ± 2 %", "standard error"], [], id="estimates"),
    ],
)
def test_words_say_what_was_found_and_no_more(found, said, unsaid):
    words = text(found)
    assert [one for one in said if one not in words] == []
    assert [one for one in unsaid if one in words] == []


def test_energy_is_told_where_there_are_images():
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
