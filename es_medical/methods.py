"""The table of methods: everything that is known of a method by its name, for training, testing and the report."""

from typing import Literal, NamedTuple

MethodKind = Literal["supervised", "self-supervised", "learning-free", "other"]
SUPERVISED: MethodKind = "supervised"
SELF_SUPERVISED: MethodKind = "self-supervised"
LEARNING_FREE: MethodKind = "learning-free"
OTHER: MethodKind = "other"


class Method(NamedTuple):
    """One method, a row of the table.

    Attributes:
        name: for `--method`.
        label: in tables and figures.
        kind: supervised, self-supervised, learning-free; other for a method that is not ours.
        loss: family of its loss, see `es_medical.losses.build_loss`; "" for a learning-free method.
        passes: network passes of a training step, without noise and with noise.
        equivariant: the network is equivariant (Reynolds average, or a shift-equivariant denoiser).
        split_input: the network is trained on split measurements, and by default averaged over splits at test time.
        precise: the loss takes differences of two passes, in which bfloat16 made the gradient of a divergence 85 % wrong.
        pair: the method with the same loss and an equivariant network, which an ablation compares it with; "" for none.
        colour: of its curves, a name of matplotlib's; curves of a network that is not equivariant are dashed.
    """

    name: str
    label: str
    kind: MethodKind = SELF_SUPERVISED
    loss: str = ""
    passes: tuple[int, int] = (0, 0)
    equivariant: bool = True
    split_input: bool = False
    precise: bool = False
    pair: str = ""
    colour: str = "tab:purple"

    @property
    def trained(self) -> bool:
        """Whether it trains a network."""
        return self.kind != LEARNING_FREE


def _plain(method: Method, name: str, label: str = "", colour: str = "") -> Method:
    """Return the method with the same loss and a network that is not equivariant."""
    label = label or f"{method.label}, not equivariant"
    return method._replace(name=name, label=label, equivariant=False, pair=method.name, colour=colour or method.colour)


def _learning_free(name: str, label: str, colour: str = "tab:purple") -> Method:
    return Method(name, label, LEARNING_FREE, equivariant=False, colour=colour)


_SUPERVISED = Method("supervised", "Supervised", SUPERVISED, "supervised", (1, 1), colour="black")
_ES = Method("es", "ES", loss="splitting", passes=(1, 1), split_input=True, colour="tab:orange")
_EI = Method("ei", "EI", loss="ei", passes=(2, 3), precise=True, colour="tab:pink")
_SURE = Method("sure", "SURE", loss="sure", passes=(1, 2), precise=True, colour="tab:blue")
_MC = Method("mc", "MC", loss="mc", passes=(1, 1), colour="tab:green")

BASELINE = "baseline"
"""The operator's own linear reconstruction: zero-filled, filtered backprojection, incomplete image, pseudo-inverse.

Every table has it; `--method` does not take it.
"""

TABLE: dict[str, Method] = {
    method.name: method
    for method in (
        _SUPERVISED,
        _plain(_SUPERVISED, "supervised_neq"),
        _ES,
        _plain(_ES, "es_neq"),
        _plain(_ES, "splitting", "Splitting, not equivariant", "tab:red"),
        _EI,
        _plain(_EI, "ei_neq"),
        _EI._replace(name="ei_alternating", label="EI, alternating terms", passes=(2, 2), colour="tab:olive"),
        _SURE,
        _plain(_SURE, "sure_neq"),
        Method("unsure", "UNSURE", loss="unsure", passes=(2, 2), precise=True, colour="tab:cyan"),
        _MC,
        _plain(_MC, "mc_neq"),
        _learning_free(BASELINE, "Baseline", "tab:gray"),
        _learning_free("pseudo_inverse", "Pseudo-inverse"),
        _learning_free("tikhonov", "Tikhonov"),
        _learning_free("tv", "Total variation"),
        _learning_free("biharmonic", "Biharmonic"),
    )
}
"""Every row of a table of results, in the paper's order: supervised, self-supervised, learning-free."""

METHODS: dict[str, Method] = {name: method for name, method in TABLE.items() if name != BASELINE}
"""Every method that `--method` takes."""

TRAINED: tuple[str, ...] = tuple(name for name, method in METHODS.items() if method.trained)
"""Names of the methods that train a network."""

RENAMED = {"ei_lot": "ei_alternating"}
"""Names of version 0.1, which are still accepted: in commands, weights, calibrations and stored runs."""


def current_name(name: str) -> str:
    """Return the current name of a method; an unknown name is returned unchanged.

    >>> current_name("ei_lot"), current_name("es"), current_name("mine")
    ('ei_alternating', 'es', 'mine')
    """
    return RENAMED.get(name, name)


def method_of(name: str) -> Method:
    """Return a method by its name, current or earlier.

    Raises:
        ValueError: an unknown name; the message lists the valid ones.
    """
    if current_name(name) not in METHODS:
        raise ValueError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[current_name(name)]
