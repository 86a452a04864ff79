"""Command line of data_prep: raw files in, one HDF5 file of slices out."""

import signal
import sys

from data_prep.cli import app

__all__ = ["app"]


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a terminated run also removes its temporary file
    app(prog_name="python -m data_prep")


if __name__ == "__main__":
    main()
