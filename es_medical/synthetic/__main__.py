"""Command line: `python -m es_medical.synthetic synthetic.png mr=demo.h5 ct=demo_ct.h5`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from es_medical.synthetic.compare import compare, figure
from es_medical.synthetic.kinds import KINDS


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw a picture of synthetic images beside those of slice files, and print how far apart their statistics are."""
    options = _parser().parse_args(arguments)
    comparisons = [compare(kind, path, options.images, options.seed) for kind, path in options.like]
    for one in comparisons:
        print(f"{one.kind}: power spectra {one.decades:.2f} decades apart, histograms of gradients share {one.overlap:.2f}")
    figure(comparisons).savefig(options.out, format="png", dpi=90)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m es_medical.synthetic", description=main.__doc__)
    parser.add_argument("out", type=Path, help="PNG file to write")
    parser.add_argument("like", nargs="+", type=_like, metavar="KIND=FILE", help=f"kind ({', '.join(KINDS)}) and slice file")
    parser.add_argument("--images", type=int, default=200, help="images of each (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the synthetic images (default 0)")
    return parser


def _like(text: str) -> tuple[str, str]:
    kind, _, path = text.partition("=")
    if kind not in KINDS or not path:
        raise argparse.ArgumentTypeError(f"{text!r}: give KIND=FILE with one of the kinds {', '.join(KINDS)}")
    return kind, path


if __name__ == "__main__":
    main()
