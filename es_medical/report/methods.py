"""Names and order of methods in tables, including methods that are not ours."""

from es_medical.methods import BASELINE, OTHER, TABLE, Method

PAIRS = tuple((method.pair, name) for name, method in TABLE.items() if method.pair)
"""Each loss with an equivariant network, and the same loss without."""


COLD = ", random weights"
"""Suffix of a method's name for its trainings from random weights, in a table that also has it from a warm start."""


def shown(name: str) -> Method:
    """Return a method by its name; one that is not ours counts as equivariant, so that the main tables show it."""
    if name.endswith(COLD):
        method = shown(name.removesuffix(COLD))
        return method._replace(name=name, label=method.label + COLD, pair="")
    return TABLE.get(name) or Method(name, name, OTHER)


def label(name: str) -> str:
    """Return the name of a method in tables."""
    return shown(name).label


def kind(name: str) -> str:
    """Return supervised, self-supervised, learning-free, or other for a method that is not ours."""
    return shown(name).kind


def place(name: str) -> tuple[int, str]:
    """Return the key that sorts methods as tables list them; those that are not ours come before the baseline."""
    order, known = list(TABLE), name.removesuffix(COLD)
    return (order.index(known) if known in TABLE else order.index(BASELINE) - 1, name)
