import re

import h5py
import numpy as np
from fuzzing import fuzz, prepared
from hdf5_mutants import hdf5_mutants, write_mutant
from hypothesis import strategies as st
from ismrmrd_scans import header, readout, readouts, write
from raw import complex_noise, kspace_of, phantom
from test_fuzz_fastmri import check_slices

from data_prep.mri.fastmri import prepare
from data_prep.mri.options import FastMRIOptions
from data_prep.run.manifest import PrepError

SIZE = (64, 32)
HEADS = (
    *("version", "flags", "scan_counter", "number_of_samples", "available_channels", "active_channels", "discard_pre"),
    *("discard_post", "center_sample", "encoding_space_ref", "sample_time_us", "position", "read_dir", "phase_dir"),
    *("slice_dir", "kspace_encode_step_1", "kspace_encode_step_2", "average", "slice", "contrast", "phase", "repetition"),
)  # fmt: skip
VALUES = (0, 1, 2, 31, 32, 63, 64, 255, 65535, 2**31 - 1, 2**31, 2**63, -1, np.nan, np.inf, -1e30)
NUMBERS = (
    "0",
    "-1",
    "1",
    "65535",
    "65536",
    "1e9",
    "1e400",
    "nan",
    "inf",
    "x",
    "",
    "99999999999999999999",
    "0.5",
    "&#0;",
    "<a/>",
)


def scan(path):
    """Two slices, with lines of noise before them."""
    k = kspace_of(phantom((2, *SIZE)))[:, None]
    noise = readout(complex_noise((1, SIZE[0])).astype(np.complex64), flag="NOISE_MEASUREMENT")
    lines = readouts(k, read_dir=(1, 0, 0), phase_dir=(0, 1, 0), slice_dir=(0, 0, 1))
    for line in lines:
        line.position[:] = 0, 0, 5 * line.idx.slice
    write(
        path,
        [noise, *lines],
        header(SIZE, slices=2, recon=SIZE, subject="<subjectInformation><patientID>p</patientID></subjectInformation>"),
    )
    return path.read_bytes()


def changed_heads():
    """Strategy of changes to a field of the heads of one, some or all records."""
    change = st.tuples(st.sampled_from(HEADS), st.sampled_from(VALUES), st.sampled_from(["one", "odd", "all"]))
    return st.lists(change, min_size=1, max_size=2).map(lambda changes: {"heads": changes})


def changed_header():
    """Strategy of changes to numbers, or to a part, of the XML header."""
    change = st.tuples(st.integers(0, 60), st.sampled_from([*NUMBERS, None]))
    return st.lists(change, min_size=1, max_size=2).map(lambda changes: {"xml": changes})


def write_scan(path, content, mutant):
    if not isinstance(mutant, dict):
        write_mutant(path, content, mutant)
        return
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        data, xml = file["dataset/data"], file["dataset/xml"]
        if "xml" in mutant:
            xml[0] = _changed_xml(xml[0].decode(), mutant["xml"])
            return
        records = data[:]
        for name, value, where in mutant["heads"]:
            field = records["head"]["idx"] if name not in records["head"].dtype.names else records["head"]
            rows = {"one": slice(len(records) // 2, len(records) // 2 + 1), "odd": slice(1, None, 2), "all": slice(None)}[where]
            kind = field.dtype[name].base
            if kind.kind == "f":
                field[name][rows] = value
            elif np.isfinite(value):
                field[name][rows] = np.array([int(value) % 2 ** (8 * kind.itemsize)], f"u{kind.itemsize}").view(kind)[0]
        data[...] = records


def _changed_xml(xml, changes):
    for number, text in changes:
        leaves = list(re.finditer(r"<(\w+)>([^<]*)</\1>", xml))
        leaf = leaves[number % len(leaves)]
        xml = xml[: leaf.start(2)] + text + xml[leaf.end(2) :] if text is not None else xml[: leaf.start()] + xml[leaf.end() :]
    return xml


def test_ismrmrd_scan_gives_finite_slices_or_a_stated_error(tmp_path):
    path = tmp_path / "in.h5"
    content = scan(path)
    options = FastMRIOptions(slices="all", measurements="real", acceleration=2, center_fraction=0.2, train=1, test=0)
    objects = hdf5_mutants(content, ("dataset/data", "dataset/xml", "dataset"))

    def ismrmrd_file(mutant):
        write_scan(path, content, mutant)
        with prepared("fastmri", options, tmp_path / "out.h5") as prep:
            prepare(prep, path, overwrite=True)
        check_slices(prep.out, "real")

    fuzz(st.one_of(objects, changed_heads(), changed_header()), ismrmrd_file, PrepError, 80)
