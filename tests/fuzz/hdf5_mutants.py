"""Mutations of HDF5 files: other kinds, types and shapes of objects, sizes that no file holds, broken links, odd values."""

from contextlib import suppress

import h5py
import numpy as np
from byte_mutants import changed_bytes
from hypothesis import strategies as st

HUGE = 2**20  # rows and columns of 10^12 pixels, of which nothing is stored
KINDS = (
    "u1", "i2", ">i4", "i8", "f2", "f4", ">f8", "c8", "c16", "?", "S5", "V8", [("r", "f4"), ("i", "f4")],
    [("real", "f8"), ("imag", "f8")], [("a", "S3")], "text", "ragged", "enum", "reference", "opaque",
)  # fmt: skip
SHAPES = ((), (0,), (1,), (3,), (2, 2), (0, 4, 4), (3, 0, 4), (1, 1, 1), (4, 8, 6), (2, 2, 8, 6), (1, 1, 1, 1, 1))
NUMBERS = (0.0, -1.0, np.nan, np.inf, -np.inf, 1e30, 1e300, 1e-300, 5e-324, 2.0**31)
TEXTS = ("", "x", "\0", "nan", "[]", "{}", "{", "é" * 300, "-1", "1e999", "9" * 400)
ATTRIBUTES = (*NUMBERS, *TEXTS, b"\xff\xfe", 7, -(2**63), [], [1, 2], ["a"], [[0.5]], None, "reference")
LINKS = ("nowhere", "itself", "missing file", "this file", "virtual", "group", "none")


def dtype_of(kind):
    """The type of h5py that a name of `KINDS` stands for."""
    special = {
        "text": h5py.string_dtype(), "ragged": h5py.vlen_dtype("f4"), "enum": h5py.enum_dtype({"A": 0, "B": 1}, "i1"),
        "reference": h5py.ref_dtype, "opaque": h5py.opaque_dtype(np.dtype("M8[s]")),
    }  # fmt: skip
    return special[kind] if isinstance(kind, str) and kind in special else np.dtype(kind)


def changed_objects(names, most=2):
    """Strategy of lists of changes to the datasets of these names."""
    name = st.sampled_from(names)
    change = st.one_of(
        st.tuples(st.just("type"), name, st.sampled_from(KINDS)),
        st.tuples(st.just("shape"), name, st.sampled_from(SHAPES)),
        st.tuples(st.just("side"), name, st.tuples(st.integers(0, 4), st.sampled_from([-3, -1, 1, 5]))),
        st.tuples(st.just("huge"), name, st.integers(0, 4)),
        st.tuples(st.just("value"), name, st.tuples(st.sampled_from(NUMBERS), st.sampled_from(["one", "all", "row"]))),
        st.tuples(st.just("link"), name, st.sampled_from(LINKS)),
        st.tuples(st.just("text"), name, st.sampled_from(TEXTS)),
        st.tuples(st.just("filter"), name, st.sampled_from(["gzip", "damaged", "unknown"])),
        st.tuples(st.just("empty"), name, st.none()),
    )
    return st.lists(change, min_size=1, max_size=most)


def changed_attributes(names):
    """Strategy of changes to the attributes of the file."""
    return st.lists(
        st.tuples(st.just("attribute"), st.sampled_from(names), st.sampled_from(ATTRIBUTES)), min_size=1, max_size=2
    )


def change_file(path, changes):
    """Make the changes in the file; one that the library itself cannot write is left out."""
    with h5py.File(path, "r+") as file:
        for kind, name, what in changes:
            with suppress(KeyError, OSError, RuntimeError, TypeError, ValueError):
                (_attribute if kind == "attribute" else _object)(file, name, kind, what)


def _attribute(file, name, _, what):
    file.attrs.pop(name, None)
    if what == "reference":
        file.attrs[name] = file.ref
    elif what is not None:
        file.attrs[name] = h5py.Empty("f") if what == [] else what.replace("\0", " ") if isinstance(what, str) else what


def _object(file, name, kind, what):
    value = _value(file, name)
    if name in file:
        del file[name]
    match kind:
        case "link":
            _link(file, name, what, value)
        case "text":
            file[name] = what.replace("\0", " ")
        case "empty":
            file[name] = h5py.Empty("c8")
        case _ if value is None:
            pass
        case "type":
            _typed(file, name, dtype_of(what), value)
        case "shape":
            file[name] = np.resize(value, what)
        case "side":
            file[name] = _another_side(np.asarray(value), *what)
        case "huge":
            _huge(file, name, np.asarray(value), what)
        case "filter":
            _filtered(file, name, np.asarray(value), what)
        case "value":
            file[name] = _set(np.array(value), *what)


def _value(file, name):
    """The old value; None where an earlier change left none."""
    try:
        return file[name][()] if np.prod(file[name].shape) < HUGE else None
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError):
        return None


def _typed(file, name, dtype, value):
    value = np.asarray(value)
    if dtype.kind in "biufc" and value.dtype.kind in "biufc":
        with np.errstate(all="ignore"):
            file[name] = (value if dtype.kind == "c" else value.real).astype(dtype)
    else:
        file.create_dataset(name, value.shape, dtype)


def _another_side(value, axis, more):
    if value.ndim == 0:
        return value
    shape = list(value.shape)
    shape[axis % value.ndim] = max(shape[axis % value.ndim] + more, 0)
    return np.resize(value, shape)


def _huge(file, name, value, axis):
    """The same type with sides of 2^20, in chunks of which one is stored."""
    if value.ndim == 0:
        file.create_dataset(name, (HUGE,), value.dtype, chunks=(16,))
        return
    shape = [HUGE if (i - axis) % 3 != 2 or value.ndim < 3 else side for i, side in enumerate(value.shape)]
    data = file.create_dataset(name, shape, value.dtype, chunks=tuple(min(side, 4) for side in shape))
    data[(0,) * value.ndim] = value.reshape(-1)[0] if value.size else np.zeros((), value.dtype)


def _filtered(file, name, value, what):
    if value.ndim == 0 or not value.size:
        return
    data = file.create_dataset(name, data=value, chunks=value.shape, compression="gzip")
    if what == "damaged":
        data.id.write_direct_chunk((0,) * value.ndim, b"\x78\x9c broken")
    elif what == "unknown":
        data.id.write_direct_chunk((0,) * value.ndim, value.tobytes(), 1)


def _set(value, number, where):
    if value.dtype.kind not in "fc" or not value.size:
        return value
    index = {"one": (0,) * value.ndim, "row": (slice(None),) * max(value.ndim - 1, 0) + (0,), "all": ...}[where]
    with np.errstate(all="ignore"):
        value[index if value.ndim else ...] = number
    return value


def _link(file, name, what, value):
    links = {
        "nowhere": h5py.SoftLink("/nowhere"),
        "itself": h5py.SoftLink(f"/{name}"),
        "missing file": h5py.ExternalLink("gone.h5", "/x"),
        "this file": h5py.ExternalLink(file.filename, f"/{name}"),
    }
    if what in links:
        file[name] = links[what]
    elif what == "group":
        file.create_group(name)
    elif what == "virtual" and value is not None and np.ndim(value):
        layout = h5py.VirtualLayout(np.shape(value), np.asarray(value).dtype)
        layout[...] = h5py.VirtualSource("gone.h5", "x", np.shape(value))
        file.create_virtual_dataset(name, layout)


def hdf5_mutants(content, names, attributes=()):
    """Strategy of changes: to objects, attributes, bytes of the file."""
    some = [changed_objects(names), *([changed_attributes(attributes)] if attributes else [])]
    return st.one_of(*some, changed_bytes(content, head=4096))


def write_mutant(path, content, mutant):
    """Write the file that a mutant stands for."""
    if isinstance(mutant, bytes):
        path.write_bytes(mutant)
        return
    path.write_bytes(content)
    change_file(path, mutant)
