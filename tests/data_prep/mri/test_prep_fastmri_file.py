import h5py
import numpy as np
import pytest
from columns import stored
from raw import HEADER, kspace_of, phantom, seen_by_coils

from data_prep.mri.fastmri_file import open_volume, read_kspace
from data_prep.mri.simulation import Wanted, inspect, magnitude
from data_prep.run.manifest import PrepError, SkipError


def test_kspace_keeps_its_phase(tmp_path):
    x = np.exp(0.01j * np.arange(48)) * np.ones((2, 64, 1))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["kspace"] = x.astype(np.complex64)
    with open_volume(tmp_path / "a.h5") as file:
        k = read_kspace(file, 1)
    assert k.dtype == np.complex64
    assert np.abs(np.angle(k * x[1].conj())).max() < 1e-5


@pytest.mark.parametrize("shape", [(64, 37), (21, 30)])
def test_constant_kspace_is_a_peak_at_the_origin(shape):
    x = magnitude(np.full(shape, 1 / np.sqrt(np.prod(shape)), np.complex64))
    assert np.unravel_index(x.argmax(), shape) == (shape[0] // 2, shape[1] // 2)
    assert x.max() == pytest.approx(1, abs=1e-6)
    assert x.sum() == pytest.approx(1, abs=1e-4)


def test_empty_edge_columns_are_padding_and_empty_columns_inside_the_limits_are_not(tmp_path, make_volume):
    wanted = Wanted()
    for header, edge in ((False, 5), (True, 5)):
        path = make_volume(tmp_path / "a.h5", keys=(), header=header)
        with h5py.File(path, "r+") as file:
            file["kspace"][..., :edge] = 0
        if header:  # the header says that all 48 columns were encoded
            with pytest.raises(PrepError, match="5 of 48 encoded columns are empty"):
                inspect(path, "a", "d", wanted)
        else:
            volume = inspect(path, "a", "d", wanted)
            assert volume.target == "ifft(kspace)"
            assert volume.note == "5 empty edge columns taken as padding"


def test_mask_of_ones_is_fully_sampled_subject_to_the_check(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5", keys=(), mask=np.ones(48, np.uint8))
    assert inspect(path, "a", "d", Wanted()).target == "ifft(kspace)"
    with h5py.File(path, "r+") as file:
        file["kspace"][..., 10:14] = 0
    with pytest.raises(PrepError, match="4 of 48 encoded columns are empty"):
        inspect(path, "a", "d", Wanted())
    with h5py.File(path, "r+") as file:
        file["mask"][10:14] = 0
    with pytest.raises(SkipError, match="stored mask"):
        inspect(path, "a", "d", Wanted())


def test_constant_slices_are_left_out_with_a_note(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["reconstruction_esc"][0] = 0
    volume = inspect(path, "a", "d", Wanted(slices="all"))
    assert volume.slices == (1, 2)
    assert volume.note == "1 constant slices left out"


def test_damaged_data_is_an_error_without_the_path(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        x = file["kspace"][()]
        del file["kspace"]
        data = file.create_dataset("kspace", data=x, chunks=(1, 64, 48), compression="gzip")
        where = data.id.get_chunk_info(1)
    with path.open("r+b") as raw:
        raw.seek(where.byte_offset)
        raw.write(b"\xff" * where.size)
    with pytest.raises(PrepError, match="kspace slice 1 cannot be read: damaged") as caught:
        inspect(path, "a", "d", Wanted())
    assert str(tmp_path) not in str(caught.value)


def fields(x, names):
    """Complex numbers as HDF5 compound values."""
    stored = np.empty(x.shape, [(names[0], "f4"), (names[1], "f4")])
    stored[names[0]], stored[names[1]] = x.real, x.imag
    return stored


STORED = {
    "real, imag": lambda k: fields(k, ("real", "imag")),
    "re, im": lambda k: fields(k, ("re", "im")),
    "R, I": lambda k: fields(k, ("R", "I")),
    "last axis": lambda k: np.stack([k.real, k.imag], -1),
}


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("coils", [0, 2])
def test_complex_numbers_stored_in_parts_are_the_same_kspace(tmp_path, make_volume, prep, kind, coils):
    """R3: fields of any usual name, or a last axis of 2."""
    k = kspace_of(seen_by_coils(phantom((2, 64, 48)), coils) if coils else phantom((2, 64, 48)))
    options = ("--measurements", "real", "--coils", "multi" if coils else "single", "--slices", "all", "--center-fraction", 0.2)
    files = []
    for name, data in (("plain", k), ("parts", STORED[kind](k))):
        make_volume(tmp_path / name / "a.h5", kspace=data, keys=())
        prep("fastmri", tmp_path / name, tmp_path / f"{name}.h5", *options, "--acceleration", 2, "--size", 32)
        files.append(stored(tmp_path / f"{name}.h5", "measurement", "scale"))
    for one, other in zip(*files, strict=True):
        np.testing.assert_allclose(np.sort(one.ravel()), np.sort(other.ravel()))
    with open_volume(tmp_path / "parts" / "a.h5") as file:
        np.testing.assert_array_equal(read_kspace(file, 1), k[1])


def test_real_numbers_are_refused_as_kspace(tmp_path, make_volume, prep):
    make_volume(tmp_path / "a.h5", kspace=np.ones((3, 64, 48), np.float32))
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", "--measurements", "real", code=1)
    assert "kspace is float32, expected complex: its imaginary part is lost" in result.stdout


@pytest.mark.parametrize("measurements", ["real", "synthetic"])
@pytest.mark.parametrize("slices", ["all", "middle"])
@pytest.mark.parametrize("keys", [(), ("reconstruction_esc",)])
def test_one_blank_slice_leaves_the_others(tmp_path, make_volume, prep, measurements, slices, keys):
    """R2: also the middle one, in whose place the nearest is taken."""
    with h5py.File(make_volume(tmp_path / "a.h5", keys=keys), "r+") as file:
        for name in ("kspace", *keys):
            file[name][1] = 0
    options = ("--measurements", measurements, "--acceleration", 2, "--center-fraction", 0.2, "--slices", slices)
    out = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", *options).stdout
    assert stored(tmp_path / "out.h5", "slice").tolist() == ([0, 2] if slices == "all" else [0])
    assert ("left out" if slices == "all" else ": slice 0 is taken") in out


def refused(path, **wanted):
    with pytest.raises(PrepError) as caught:
        inspect(path, "a", "d", Wanted(**wanted))
    return str(caught.value)


@pytest.mark.parametrize("link", [h5py.SoftLink("/nowhere"), h5py.SoftLink("/kspace"), h5py.ExternalLink("gone.h5", "/x")])
def test_broken_link_is_a_stated_error(tmp_path, make_volume, link):
    path = make_volume(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["kspace"]
        file["kspace"] = link
    assert "broken link" in refused(path)


def test_shape_that_the_file_does_not_hold_is_refused_before_memory_is_asked_for(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5", keys=())
    with h5py.File(path, "r+") as file:
        del file["kspace"]
        file.create_dataset("kspace", (3, 2**20, 2**20), np.complex64, chunks=(1, 64, 64))[0, 0, 0] = 1
    assert "(3, 1048576, 1048576): 8796093022208 bytes to read, the file stores 32768" in refused(path)


def test_reconstruction_much_finer_than_the_samples_is_refused(tmp_path, make_volume):
    header = HEADER.format(width=48, maximum=47, center=24).replace("<x>32</x><y>32</y>", "<x>999999</x><y>999999</y>")
    path = make_volume(tmp_path / "a.h5", keys=(), header=False, ismrmrd_header=header)
    assert "(999999, 999999) pixels from (64, 48) samples" in refused(path)


@pytest.mark.parametrize("measurements", ["real", "synthetic"])
def test_pixels_of_another_order_than_the_recorded_ones_are_refused(tmp_path, make_volume, prep, measurements):
    """A field of view of a kilometre is no reconstruction, and asks for no memory."""
    header = HEADER.format(width=48, maximum=47, center=24)
    field = "<fieldOfView_mm><x>320</x><y>192</y><z>3</z></fieldOfView_mm></encodedSpace>"
    header = header.replace("</encodedSpace>", field).replace("<x>160</x>", "<x>9999</x>")
    make_volume(tmp_path / "a.h5", keys=(), header=False, ismrmrd_header=header)
    result = prep("fastmri", tmp_path / "a.h5", tmp_path / "out.h5", "--measurements", measurements, code=1)
    assert "8 times as wide at most expected" in result.stdout


def test_header_of_values_that_are_no_text_is_none(tmp_path, make_volume):
    path = make_volume(tmp_path / "a.h5", header=False)
    with h5py.File(path, "r+") as file:
        file.create_dataset("ismrmrd_header", (), h5py.vlen_dtype("f4"))[()] = np.zeros(3, np.float32)
    assert np.isnan(inspect(path, "a", "d", Wanted()).spacing).all()


def test_patient_number_that_is_no_text_is_one_all_the_same(tmp_path, make_volume):
    subjects = []
    for number in (b"M\xfcller", b"M\xf6ller"):
        with h5py.File(make_volume(tmp_path / "a.h5"), "r+") as file:
            file.attrs["patient_id"] = number
        subjects.append(inspect(tmp_path / "a.h5", "a", "d", Wanted()).subject.encode())
    assert subjects == [b"M\\xfcller", b"M\\xf6ller"]
