"""Files that are whole or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_or_not(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path` to write to, which keeps its suffixes, and rename it at the end.

    An exception removes the temporary file and leaves what stood at `path`.
    """
    temporary = path.with_name(f".partial_{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)  # noqa: PTH105 - the atomic rename
    finally:
        temporary.unlink(missing_ok=True)
