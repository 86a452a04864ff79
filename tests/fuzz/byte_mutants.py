"""Mutations of bytes: flipped, overwritten by odd values, cut, lengthened, repeated."""

from hypothesis import strategies as st

ODD = (b"\0", b"\xff", b"\x7f", b"\x80", b"\0" * 4, b"\xff" * 4, b"\x7f" + b"\xff" * 3, b"\xff" * 8, b"\xff\xff\xff\x7f")


class Changed(bytes):
    """Bytes that are shown by their changes."""

    changes: list

    def __repr__(self):
        return f"{len(self)} bytes, changed: {self.changes}"


def changed_bytes(content: bytes, most: int = 3, head: int | None = None):
    """Strategy of files like `content` with up to `most` changes, most of them in the first `head` bytes."""
    places = st.integers(0, len(content) - 1)
    if head is not None:
        places = st.integers(0, min(head, len(content)) - 1) | places
    change = st.one_of(
        st.tuples(st.just("flip"), places, st.integers(0, 7)),
        st.tuples(st.just("put"), places, st.sampled_from(ODD) | st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("cut"), places, st.none()),
        st.tuples(st.just("remove"), places, st.integers(1, 64)),
        st.tuples(st.just("repeat"), places, st.integers(1, 64)),
    )
    return st.lists(change, min_size=1, max_size=most).map(lambda changes: apply(content, changes))


def apply(content, changes):
    """The content after all changes, in order."""
    new = bytearray(content)
    for kind, at, what in changes:
        place = at % max(len(new), 1)
        if not new:
            break
        if kind == "flip":
            new[place] ^= 1 << what
        elif kind == "put":
            new[place : place + len(what)] = what
        elif kind == "cut":
            del new[place:]
        elif kind == "remove":
            del new[place : place + what]
        else:
            new[place:place] = new[place : place + what]
    done = Changed(new)
    done.changes = changes
    return done
