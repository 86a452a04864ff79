import logging

import pytest
import torch
from tiny import Parts, execute, runs, workflow, write_sinograms, write_slices

from es_medical.diagnostics.blur import IsotropicBlur
from es_medical.diagnostics.diagnosis import diagnose
from es_medical.groups import D4, FineRotations, Flips, Rotations, Shifts
from es_medical.jobs import diagnosis_tags as module
from es_medical.jobs.diagnosis_tags import diagnosis_tags, group_in_use, summary_tags
from es_medical.losses import EquivariantImaging, EquivariantSplitting, MeasurementConsistency, SeveralSplits, Supervised
from es_medical.physics import MRI, Inpainting, even_columns
from es_medical.splits import Split
from es_medical.tracking import with_hidden

SPLITTING = EquivariantSplitting(Split())


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return Parts(write_slices(tmp_path_factory.mktemp("tags") / "slices.h5"))


@pytest.fixture
def told(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("es_medical"), "propagate", True)  # a bundle's logging.conf may have changed it
    caplog.set_level(logging.INFO, logger="es_medical")
    return caplog


# --- the group in use


@pytest.mark.parametrize(
    ("loss", "method", "expected"),
    [
        (SPLITTING, "es", "d4"),
        (SPLITTING, "splitting", None),
        (EquivariantSplitting(Split(), group=Flips()), "es_neq", "flips"),
        (EquivariantSplitting(Split(), group=Rotations(2)), "es", "fine_rotations"),
        (SeveralSplits(EquivariantSplitting(Split(), group=Rotations(2)), 2), "es", "fine_rotations"),
        (EquivariantImaging(FineRotations(), 1.0, 0.0), "ei_neq", "fine_rotations"),
        (EquivariantImaging(Shifts((16, 16)), 1.0, 0.0), "ei", "shifts"),
        (MeasurementConsistency(), "mc", "d4"),
        (MeasurementConsistency(), "mc_neq", None),
        (SPLITTING, "a_method_of_the_user", "d4"),
    ],
)
def test_group_in_use_is_that_of_the_loss_or_of_the_network(parts, loss, method, expected):
    assert group_in_use(parts.evaluator(equiv_group=D4()), loss, method) == expected
    if expected == "d4":
        assert group_in_use(parts.evaluator(equiv_group=None), loss, method) is None


# --- tags


def test_tags_hold_the_rank_with_and_without_a_useful_group_of_which_is_told(parts, told):
    assert diagnosis_tags(parts.evaluator(equiv_group=D4()), SPLITTING, "splitting") == {}  # no group in use
    assert not told.records
    tags = diagnosis_tags(parts.evaluator(equiv_group=D4()), SPLITTING, "es")
    assert (tags["diagnosis.group"], tags["diagnosis.n"], tags["diagnosis.rank_alone"]) == ("d4", "512", "256")
    gain = (int(tags["diagnosis.rank"]) - 256) / 512
    assert gain > 0.2
    assert tags["diagnosis.gain"] == f"{100 * gain:.2f} %"
    assert [record.levelname for record in told.records] == ["INFO"]
    assert "adds" in told.text


def test_group_that_adds_nothing_is_warned_of(parts, told):
    tags = diagnosis_tags(parts.evaluator(equiv_group=Shifts((16, 16))), SPLITTING, "es")
    assert tags["diagnosis.gain"] == "0.00 %"
    assert [record.levelname for record in told.records] == ["WARNING"]
    assert "cyclic shifts" in told.text
    assert "nothing new" in told.text
    assert "es_medical.diagnose" in told.text


def test_training_with_ground_truth_is_not_warned(parts, told):
    diagnosis_tags(parts.evaluator(equiv_group=Shifts((16, 16))), Supervised(), "supervised")
    assert [record.levelname for record in told.records] == ["INFO"]


def test_group_that_does_not_act_is_told_and_left_out(tmp_path, told):
    parts = Parts(write_slices(tmp_path / "slices.h5", size=(16, 20)), equivariant=False)
    assert diagnosis_tags(parts.evaluator(equiv_group=D4()), SPLITTING, "es") == {}
    assert "16 x 20" in told.text


def test_failure_is_a_warning_with_the_cause(parts, told, monkeypatch):
    def fail(*_: object, **__: object):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "diagnose", fail)
    assert diagnosis_tags(parts.evaluator(equiv_group=D4()), SPLITTING, "es") == {}
    assert [record.levelname for record in told.records] == ["WARNING"]
    assert "RuntimeError: out of memory" in told.text


def test_operator_of_the_training_is_left_as_it_is(parts):
    tester = parts.evaluator(equiv_group=D4())
    before, device = tester.physics.mask.clone(), tester.physics.mask.device
    diagnosis_tags(tester, SPLITTING, "es")
    assert torch.equal(tester.physics.mask, before)
    assert tester.physics.mask.device == device


def test_slices_with_their_own_maps_are_diagnosed_by_the_first(tmp_path, workflow_uri):
    source = write_slices(tmp_path / "slices.h5", size=(8, 8), coils=2, sigmas=(0.01,))
    job = workflow(["train.yaml"], tmp_path, source, workflow_uri, bundle="fastmri_real")
    job.initialize()
    session = job.parser.get_parsed_content("session")
    tags = diagnosis_tags(session.tester, session.trainer.loss, session.record.method)
    assert tags["diagnosis.n"] == "128"
    assert int(tags["diagnosis.rank"]) > int(tags["diagnosis.rank_alone"]) > 64  # coils tell more than the 4 of 8 lines


# --- in a training


def test_training_logs_the_tags_and_warns_and_a_test_of_its_weights_does_not(tmp_path, workflow_uri, client, told):
    source = write_sinograms(tmp_path / "slices.h5")  # six views: even, and blind to D4
    execute(workflow(["train.yaml"], tmp_path, source, workflow_uri, bundle="lidc_ct", epochs=1))
    execute(workflow(["train.yaml", "evaluate.yaml"], tmp_path, source, workflow_uri, bundle="lidc_ct"))
    run, tested = runs(client, tmp_path.name)
    assert not any("diagnosis" in name for name in with_hidden(tested.data.tags))
    assert run.info.status == "FINISHED"
    tags = with_hidden(run.data.tags)
    assert tags.items() >= {"diagnosis.group": "d4", "diagnosis.gain": "0.00 %"}.items()
    assert tags["diagnosis.rank"] == tags["diagnosis.rank_alone"]
    assert "nothing new" in (tmp_path / "models" / "overview.html").read_text()
    warnings = [record.message for record in told.records if record.levelname == "WARNING"]
    assert any("nothing new" in message for message in warnings)


def test_a_group_that_never_shows_pairs_is_warned_of(parts, told):
    """Even push-broom columns under shifts: the mean Gram matrix has full rank, and still nothing new is learnt."""
    found = diagnose(Inpainting(even_columns(16), (16, 16), 3), ["shifts"], quick=True)
    module._log_summary(found, "shifts", SPLITTING, 0.0)
    record = told.records[-1]
    assert record.levelno == logging.WARNING
    assert "can teach nothing new" in record.message
    assert summary_tags(found.of("shifts"), found.alone)["diagnosis.usable"] == "50.00 %"


def test_a_diagnosis_that_would_take_long_is_left_out(parts, told, monkeypatch):
    monkeypatch.setattr(module, "_expected", lambda physics, action: 3600.0)
    assert diagnosis_tags(parts.evaluator(equiv_group=D4()), SPLITTING, "es") == {}
    assert "left out, it would take about 3600 s" in told.records[-1].message


def test_operators_without_a_closed_form_are_timed(parts):
    assert module._expected(MRI(torch.ones(16), (16, 16)), "d4") == 0.0
    assert module._expected(IsotropicBlur((16, 16)), "d4") > 0.0
