"""How tables name, order and classify methods."""

from es_medical.engine.methods import METHODS

SUPERVISED, SELF_SUPERVISED, LEARNING_FREE, OTHER = "supervised", "self-supervised", "learning-free", "other"

BASELINE = "baseline"
"""The operator's own linear reconstruction: zero-filled, filtered backprojection, incomplete image, pseudo-inverse."""

ORDER = (
    *(
        "supervised",
        "supervised_neq",
        "es",
        "es_neq",
        "splitting",
        "ei",
        "ei_neq",
        "ei_lot",
        "sure",
        "sure_neq",
        "unsure",
        "mc",
        "mc_neq",
    ),
    *(BASELINE, "pseudo_inverse", "tikhonov", "tv", "biharmonic"),
)
"""The paper's order: supervised, self-supervised, learning-free. Methods that are not here come between the last two."""

PAIRS = (
    ("supervised", "supervised_neq"),
    ("es", "splitting"),
    ("es", "es_neq"),
    ("ei", "ei_neq"),
    ("sure", "sure_neq"),
    ("mc", "mc_neq"),
)
"""A loss with an equivariant network, and the same loss without."""


def label(method: str) -> str:
    """Return the name of a method in tables."""
    if method == BASELINE:
        return "Baseline"
    return METHODS[method].label if method in METHODS else method


def kind(method: str) -> str:
    """Return supervised, self-supervised, learning-free, or other for a method that is not ours."""
    if method.removesuffix("_neq") == "supervised":
        return SUPERVISED
    if method == BASELINE:
        return LEARNING_FREE
    if method not in METHODS:
        return OTHER
    return SELF_SUPERVISED if METHODS[method].trained else LEARNING_FREE


def place(method: str) -> tuple[int, str]:
    """Return the key that sorts methods as tables list them."""
    return (ORDER.index(method) if method in ORDER else ORDER.index(BASELINE) - 1, method)


def is_equivariant(method: str) -> bool:
    """Whether a method's network is equivariant; methods that are not ours count as such, so that main tables show them."""
    return method not in METHODS or METHODS[method].equivariant
