import io
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace

import h5py
import numpy as np
import pytest
from rich.console import Console

from data_prep.demo import brain as demo
from data_prep.demo import kspace as coil_simulation
from data_prep.demo import kspace as demo_kspace
from data_prep.demo.kspace import blocks, write_volumes
from data_prep.demo.options import KspaceOptions
from data_prep.mr_images import receive
from data_prep.mri.resample import sinc_resample
from data_prep.mri.simulation import Wanted, inspect
from data_prep.run.manifest import PrepError
from es_medical.data import file_digest

pytest.importorskip("nilearn", reason="the demo needs the extra `demo`")
SMALL = KspaceOptions(size=24, coils=4, sigma=0.0, volumes=3, slices=2, gap=2)


def written(out, options, overwrite=False):
    """What the command prints."""
    text = io.StringIO()
    write_volumes(out, options, overwrite, Console(file=text, width=200))
    return text.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("raw") / "demo"
    assert "3 written" in written(out, SMALL)
    return out


def volumes(out):
    return sorted(out.glob("*.h5"))


def test_each_volume_is_multi_coil_fastmri_data_of_its_own_patient(folder):
    assert [path.name for path in volumes(folder)] == ["volume_00.h5", "volume_01.h5", "volume_02.h5"]
    found = [inspect(path, path.name, "digest", Wanted("multi", "auto", "all")) for path in volumes(folder)]
    assert [volume.subject for volume in found] == ["demo-0", "demo-1", "demo-2"]
    for path, volume in zip(volumes(folder), found, strict=True):
        assert (volume.target, volume.slices, volume.size) == ("reconstruction_rss", (0, 1), (24, 24))
        assert volume.spacing == pytest.approx((233 / 24, 233 / 24), rel=1e-5)
        with h5py.File(path) as file:
            assert file["kspace"].shape == (2, 4, 48, 27)
            assert file["kspace"].dtype == np.complex64
            assert file.attrs["max"] == file["reconstruction_rss"][:].max()
            assert file.attrs["norm"] == pytest.approx(np.linalg.norm(file["reconstruction_rss"][:]))
            assert "simulated" in file.attrs["origin"]


def test_single_coil_files_have_no_coil_axis_and_an_esc_target(tmp_path):
    written(tmp_path, replace(SMALL, coils=0, volumes=1))
    volume = inspect(volumes(tmp_path)[0], "a", "digest", Wanted("single", "auto", "all"))
    assert volume.target == "reconstruction_esc"
    with h5py.File(volumes(tmp_path)[0]) as file:
        assert file["kspace"].shape == (2, 48, 27)
        image = np.abs(sinc_resample(file["kspace"][:], (24, 24)).image)
        assert np.allclose(image, file["reconstruction_esc"][:], rtol=1e-4, atol=1e-10)


def test_noise_free_kspace_gives_the_reconstruction_and_nothing_outside_of_it(folder):
    for path in volumes(folder):
        with h5py.File(path) as file:
            images = sinc_resample(file["kspace"][:], (48, 27)).image  # (slices, coils, rows, columns)
            target = file["reconstruction_rss"][:]
        full = np.sqrt((np.abs(images) ** 2).sum(1))
        rows, columns = slice(24 - 12, 24 + 12), slice(13 - 12, 13 + 12)
        assert np.abs(full[:, rows, columns] - target).max() < 1e-4 * target.max()
        full[:, rows, columns] = 0
        assert full.max() < 1e-4 * target.max()


def test_the_reconstruction_is_the_template_upright_and_has_the_values_of_a_scanner(folder):
    template, _ = demo.axial_slices(demo.template_path(), 24)
    for path, block in zip(volumes(folder), blocks(len(template), SMALL), strict=True):
        with h5py.File(path) as file:
            target = file["reconstruction_rss"][:]
            assert 1e-6 < np.abs(file["kspace"][:]).max() < 1e-3
        expected = template[block.start : block.stop] / template.max()
        assert np.abs(target / demo_kspace.SCALE - expected).max() < 1e-3


def test_images_are_complex_with_a_smooth_phase_that_differs_from_slice_to_slice():
    template, planes = demo.axial_slices(demo.template_path(), 24)
    spacing = planes[0].spacing[0]
    images = template[60:62] / template.max()
    k = demo_kspace.simulate(images, spacing, 0, replace(SMALL, coils=0))
    x = sinc_resample(k, (24, 24)).image
    inside = images > 0.3
    step = np.angle(x[:, 1:] / np.where(inside[:, 1:], x[:, :-1], 1))[inside[:, 1:] & inside[:, :-1]]
    assert np.abs(step).max() < 1
    both = inside.all(0)
    assert np.angle(x[0] * x[1].conj())[both].std() > 0.1
    assert np.angle(x[0][both] / x[0][both].mean()).std() > 0.1


@pytest.mark.parametrize("coils", [0, 4])
def test_noise_is_of_the_stated_level(coils):
    """The standard deviation of n real values of white noise is off by 1 / sqrt(2 n) of it: five of these are allowed.

    Coils are correlated by at most a quarter, which leaves at least half of the degrees of freedom.
    """
    images = np.zeros((6, 32, 32))
    options = replace(SMALL, size=32, coils=coils, sigma=0.05)
    k = demo_kspace.simulate(images, 5.0, 1, options) / demo_kspace.SCALE
    for part in (k.real, k.imag):
        error = 5 / np.sqrt(k.size)
        assert np.sqrt((part**2).mean()) == pytest.approx(0.05, rel=error)
        assert abs(part.mean()) < 0.05 * 5 * np.sqrt(2 / k.size)


def test_noise_is_correlated_between_coils_as_told():
    options = replace(SMALL, size=32, coils=5, sigma=0.05)
    k = demo_kspace.simulate(np.zeros((6, 32, 32)), 5.0, 1, options) / demo_kspace.SCALE
    samples = np.moveaxis(k, 1, 0).reshape(5, -1)
    covariance = samples @ samples.conj().T / samples.shape[1] / (2 * 0.05**2)
    mixing = coil_simulation.noise_mixing(5, np.random.default_rng([0, 1, 0]))
    expected = mixing @ mixing.conj().T
    assert np.abs(covariance - expected).max() < 5 * 1.6 / np.sqrt(samples.shape[1])  # levels reach 1.25, squared 1.6
    correlation = np.abs(expected) / np.sqrt(np.outer(np.diag(expected), np.diag(expected)).real)
    assert 0.15 < correlation[np.triu_indices(5, 1)].max() < 0.6


@pytest.mark.parametrize("coils", [1, 2, 3, 8, 32])
def test_coil_maps_are_normalised_smooth_and_different(coils):
    maps = receive.coil_maps(coils, (32, 36), 0.02, np.random.default_rng(0))
    assert maps.shape == (coils, 32, 36)
    assert np.allclose((np.abs(maps) ** 2).sum(0), 1)
    centre = maps[:, 6:-6, 8:-8]  # the head
    assert np.abs(np.diff(centre, axis=1)).max() < 0.2
    peaks = {np.unravel_index(np.abs(one).argmax(), one.shape) for one in maps}
    assert coils == 1 or len(peaks) > coils // 2


def test_field_on_the_axis_of_a_loop_is_that_of_the_formula(monkeypatch):
    """B = 2 pi a^2 / (a^2 + d^2)^(3/2) / a along the axis for wire segments of direction dl / ds = 1."""
    monkeypatch.setattr(receive, "WIRE", 0.0)
    radius, distance = 0.3, 0.25
    point = np.array([receive.RING - distance, 0.0, 0.0])
    field = receive.loop_field(point, 0.0, radius) * 2 * np.pi / receive.SEGMENTS
    assert abs(field) == pytest.approx(2 * np.pi * radius / (radius**2 + distance**2) ** 1.5, rel=1e-6)
    assert abs(field.imag) < 1e-9
    turned = receive.loop_field(np.array([0.0, receive.RING - distance, 0.0]), np.pi / 2, radius)
    assert turned * 2 * np.pi / receive.SEGMENTS == pytest.approx(-1j * field)


def test_header_says_what_was_encoded(folder):
    with h5py.File(volumes(folder)[0]) as file:
        root = ElementTree.fromstring(file["ismrmrd_header"][()])
    values = {name: root.findtext(f".//{{*}}{name.replace('/', '/{*}')}") for name in (
        "encodedSpace/matrixSize/x", "encodedSpace/matrixSize/y", "reconSpace/matrixSize/x", "reconSpace/matrixSize/y",
        "kspace_encoding_step_1/minimum", "kspace_encoding_step_1/maximum", "kspace_encoding_step_1/center", "receiverChannels",
    )}  # fmt: skip
    assert list(values.values()) == ["48", "27", "24", "24", "0", "26", "13", "4"]
    field = [float(root.findtext(f".//{{*}}{space}/{{*}}fieldOfView_mm/{{*}}x")) for space in ("encodedSpace", "reconSpace")]
    assert field == pytest.approx([466, 233])


def test_same_options_same_bytes_and_another_seed_others(folder, tmp_path):
    written(tmp_path / "again", SMALL)
    written(tmp_path / "other", replace(SMALL, seed=1))
    for path in volumes(folder):
        assert file_digest(tmp_path / "again" / path.name) == file_digest(path)
        assert file_digest(tmp_path / "other" / path.name) != file_digest(path)


def test_second_run_writes_nothing_and_a_changed_knob_only_our_files(tmp_path):
    written(tmp_path, SMALL)
    stamps = [path.stat().st_mtime_ns for path in volumes(tmp_path)]
    assert "up to date" in written(tmp_path, SMALL)
    assert [path.stat().st_mtime_ns for path in volumes(tmp_path)] == stamps
    (tmp_path / "volume_01.h5").unlink()
    assert "1 written" in written(tmp_path, SMALL)
    (tmp_path / "volume_07.h5").write_bytes(b"of somebody else")
    text = written(tmp_path, replace(SMALL, volumes=2, sigma=0.01))
    assert "2 written" in text
    assert "volumes of an earlier run removed: 1" in text
    assert [path.name for path in volumes(tmp_path)] == ["volume_00.h5", "volume_01.h5", "volume_07.h5"]
    assert not list(tmp_path.glob(".partial*"))


def test_a_run_says_that_the_data_are_simulated(folder):
    text = written(folder, SMALL)
    assert "simulated" in text
    assert "not a measurement" in text


def test_foreign_files_are_not_replaced(tmp_path):
    foreign = tmp_path / "volume_02.h5"
    with h5py.File(foreign, "w") as file:
        file["kspace"] = np.ones((1, 4, 4), np.complex64)
    digest = file_digest(foreign)
    with pytest.raises(PrepError, match=r"volume_02\.h5 exists and is no demo volume"):
        written(tmp_path, SMALL)
    assert volumes(tmp_path) == [foreign]
    assert file_digest(foreign) == digest
    assert "3 written" in written(tmp_path, SMALL, overwrite=True)
    with pytest.raises(PrepError, match="is a file: give a folder"):
        written(foreign, SMALL)
    with pytest.raises(PrepError, match="give a folder"):
        written(tmp_path / "demo.h5", SMALL)


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(options, spacing):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_kspace, "header", fail)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, SMALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("volumes", "slices", "gap"), [(12, 9, 2), (1, 134, 0), (5, 1, 30), (134, 1, 0)])
def test_blocks_are_disjoint_with_gaps(volumes, slices, gap):
    layout = blocks(134, KspaceOptions(volumes=volumes, slices=slices, gap=gap))
    assert [len(block) for block in layout] == [slices] * volumes
    assert all(b.start - a.stop == gap for a, b in zip(layout, layout[1:], strict=False))
    assert layout[0].start >= 0
    assert layout[-1].stop <= 134
    assert abs(layout[0].start - (134 - layout[-1].stop)) <= 1


def test_default_options_leave_some_65_slices_to_train_on():
    n = len(demo.axial_slices(demo.template_path(), 64)[0])
    options = KspaceOptions()
    assert len(blocks(n, options)) * options.slices * 0.6 > 60


def test_too_many_slices_are_refused_with_the_numbers():
    with pytest.raises(PrepError, match="20 volumes of 9 slices with gaps of 2 need 218 slices, the template has 134"):
        blocks(134, KspaceOptions(volumes=20))


@pytest.mark.parametrize(
    ("name", "value"),
    [("size", 8), ("coils", -1), ("sigma", -0.1), ("sigma", float("nan")), ("volumes", 0), ("slices", 0), ("gap", -1)],
)
def test_options_out_of_range_are_named(tmp_path, name, value):
    with pytest.raises(PrepError, match=f"{name} {value}: expected at least"):
        written(tmp_path, KspaceOptions(**{**asdict(SMALL), name: value}))
    assert not list(tmp_path.iterdir())


def test_odd_sizes(tmp_path):
    written(tmp_path, replace(SMALL, size=17, volumes=1, slices=1))
    with h5py.File(volumes(tmp_path)[0]) as file:
        assert file["kspace"].shape == (1, 4, 34, 19)
        image = sinc_resample(file["kspace"][0], (17, 17)).image
        target = file["reconstruction_rss"][0]
    assert np.allclose(np.sqrt((np.abs(image) ** 2).sum(0)), target, atol=1e-4 * target.max())
