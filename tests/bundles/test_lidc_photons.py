"""The bundle lidc_ct on photon counts: its overlay, the loss and inferer that divide photons, and what the file must be."""

import functools
import math
import sys

import h5py
import pytest
import torch
from processes import reconstruct
from tiny import Recorder, causes, execute, load, runs, workflow, write_sinograms

from data_prep.ct.options import LIDCOptions
from es_medical.engine import operators, setup
from es_medical.groups import D4
from es_medical.inferers import Inferer
from es_medical.knobs import logged_knobs
from es_medical.losses import PhotonSplitting, SeveralSplits
from es_medical.methods import TRAINED
from es_medical.physics import Batch
from es_medical.physics.noise import target_share
from es_medical.randomness import item_generator
from es_medical.splits import Split
from es_medical.tracking import with_hidden

BUNDLE, PHOTONS = "lidc_ct", 2e4
COUNTED = {"photons": PHOTONS, "sigma": None}


@pytest.fixture(scope="module")
def counted_file(tmp_path_factory):
    return write_sinograms(tmp_path_factory.mktemp("photons") / "slices.h5", photons=PHOTONS)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, counted_file, workflow_uri):
    """Returns the folder of a training by a method in a domain."""

    @functools.cache
    def folder(method, domain):
        place = tmp_path_factory.mktemp(f"photons-{method}-{domain}")
        knobs = COUNTED | {"method": method, "log_domain": domain, "epochs": 1}
        execute(workflow(["train.yaml", "photons.yaml"], place, counted_file, workflow_uri, BUNDLE, **knobs))
        return place

    return folder


def image_of(folder, source, **knobs):
    return reconstruct(BUNDLE, folder, source, "photons.yaml", experiment="none", **(COUNTED | knobs))[0]


@pytest.mark.parametrize(("method", "domain"), [("es", "pre"), ("es_neq", "post")])
def test_photons_train_and_reconstruct(fitted, counted_file, client, method, domain):
    folder = fitted(method, domain)
    (run,) = runs(client, folder.name)
    assert run.info.status == "FINISHED"
    assert all(math.isfinite(run.data.metrics[name]) for name in ("train/loss", "test/psnr", "test/heldout"))
    knobs = logged_knobs(run.data.params, with_hidden(run.data.tags))
    assert (knobs["photons"], knobs["log_domain"]) == (str(PHOTONS), domain)
    found = image_of(folder, counted_file, method=method)
    with h5py.File(counted_file) as file:
        truth = torch.from_numpy(file["image"][()])
    assert ((found - truth).square().sum((1, 2, 3)) < 0.3 * truth.square().sum((1, 2, 3))).all()


@pytest.mark.parametrize(("method", "domain"), [("es", "post"), ("supervised", "post")])
def test_photons_are_trained_on_by_other_methods(built, counted_file, method, domain):
    get = built(BUNDLE, "photons.yaml", source=counted_file, **COUNTED, method=method, log_domain=domain, epochs=1)
    get("train#trainer").run()  # a loss that is not finite is an error


def test_weights_trained_on_photons_are_warned_of_where_noise_is_added_instead(fitted, counted_file, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["monai/bundle/__main__.py", "run", "--photons", "null"]
    )  # what is typed is not taken from the weights
    with pytest.warns(UserWarning, match=r"were trained with photons 20000\.0, they are used with None"):
        image_of(fitted("es", "pre"), counted_file, photons=None)


@pytest.mark.parametrize("photons", [None, PHOTONS])
@pytest.mark.parametrize("method", TRAINED)
def test_splitting_losses_divide_photons_where_they_are_counted(counted_file, method, photons):
    loss = setup.build_loss(method, str(counted_file), Split("views"), D4(), D4(), photons=photons)
    divides = photons is not None and method in ("es", "es_neq", "splitting")
    assert isinstance(loss, PhotonSplitting) == divides
    if divides:
        assert loss.transmission == operators.read_transmission(str(counted_file), PHOTONS)
        assert isinstance(loss.group, D4) == (method == "es_neq")


def test_knobs_reach_the_loss(counted_file):
    loss = setup.build_loss(
        "es", str(counted_file), Split("views"), D4(), D4(), alpha=1.0, consistency_weight=0.3, n_splits=2, photons=PHOTONS,
        log_domain="post", rotations=3,
    )  # fmt: skip
    assert isinstance(loss, SeveralSplits)
    assert (loss.loss.alpha, loss.loss.share, loss.loss.consistency_weight, loss.loss.log_domain) == (1.0, 0.5, 0.3, "post")
    assert loss.loss.group is not None
    with pytest.raises(ValueError, match="use weighting none"):
        setup.build_loss(
            "es", str(counted_file), Split("views"), D4(), D4(), photons=PHOTONS, log_domain="post", weighting="ramp"
        )


def test_inferer_divides_photons_as_the_loss_does(counted_file):
    """Whole thinned photons on M1, other ones in every sample, and nothing on M2; sigma is not asked for."""
    physics = operators.build_scanner(str(counted_file), None, None, photons=PHOTONS)
    scan, share, network = operators.read_transmission(str(counted_file), PHOTONS), target_share(0.5), Recorder(1)
    with h5py.File(counted_file) as file:
        y = torch.from_numpy(file["measurement"][()])[:2]
    split = Split("views", 0.5)
    Inferer(split, 3, None, 0.5, transmission=scan)(network, Batch(y, physics, ids=["a", "b"]))
    inputs = []
    for seen, masked in network.calls:
        inside = masked.mask.expand_as(seen) == 1
        assert (seen[~inside] == 0).all()
        photons = (1 - share) * PHOTONS * scan.transmitted(seen[inside].double())
        whole = photons.round().clamp(min=0.5)
        torch.testing.assert_close(photons, torch.where(photons < 0.75, 0.5, whole), rtol=1e-5, atol=2e-2)
        ratio = photons.sum() / scan.counts(y)[inside].sum()
        assert float(ratio) == pytest.approx(1 - share, abs=0.01)
        inputs.append(seen)
    assert not torch.equal(inputs[0], inputs[1])
    generators = [item_generator(0, one, "inference") for one in ("a", "b")]
    m1 = split(physics, 2, generators)
    assert torch.equal(inputs[0], m1 * scan.recorrupt(y, 0.5, generators).input)  # as in training: split, then photons


def test_overlay_is_what_the_command_makes(tmp_path):
    overlay = load(BUNDLE, "photons.yaml")
    options = LIDCOptions(photons=overlay["photons"])
    assert overlay["sigma"] is None
    assert options.noise == "10000 photons on a ray through air"


def test_photons_of_the_overlay_are_asked_of_the_file(tmp_path, counted_file):
    """The overlay's own 10,000, where 20,000 were sent; and a file of Gaussian noise."""
    gaussian = write_sinograms(tmp_path / "gaussian.h5")
    for source, message in ((counted_file, "was made with photons 20000"), (gaussian, "holds no photon counts")):
        one = workflow(["train.yaml", "photons.yaml"], tmp_path, source, "sqlite:///n.db", BUNDLE, without=("photons", "sigma"))
        with pytest.raises(RuntimeError) as caught:
            execute(one)
        assert message in causes(caught.value)
