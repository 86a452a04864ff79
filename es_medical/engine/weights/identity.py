"""What weights were trained for: saved with them, and compared wherever they are resumed, loaded or calibrated."""

import hashlib
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from es_medical.inferers import Inferer, complete
from es_medical.methods import current_name
from es_medical.networks import ReynoldsAveraging
from es_medical.physics import Operator
from es_medical.types import Mask


class Identity(NamedTuple):
    """Facts about network, operator and input that the weights themselves do not show.

    Attributes:
        architecture: number of unrolled steps (they share weights), group of the average, and how the first image is made.
        mask: sampling mask, on the CPU.
        scanner: geometry and norm of a CT scanner, or the digest of a dense matrix; empty for MRI.
        settings: what the network expects of its input (see `Inferer.settings`).
    """

    architecture: Mapping[str, Any]
    mask: Mask
    scanner: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, network: nn.Module, physics: Operator, inferer: Inferer) -> "Identity":
        """Describe a reconstructor, its operator and how it is used."""
        return cls(architecture(network, physics), physics.mask.cpu(), scanner(physics), inferer.settings)

    @classmethod
    def kept(cls, state: Mapping[str, Any]) -> "Identity":
        """Read the identity in a checkpoint; version 0.1 saved less of it."""
        return cls(
            complete_architecture(state["architecture"]),
            state["mask"],
            state.get("scanner", {}),
            complete(state.get("settings", {})),
        )

    def refuse_other_network(self, given: "Identity", what: str, folder: str | Path) -> None:
        """Raise ValueError if weights would load into a network, or for an input, other than their own.

        Args:
            given: identity of the configured network.
            what: "weights" or "training", for the message.
            folder: folder of the weights, for the message.
        """
        before, now = ({**own.architecture, "split_input": own.settings.get("split_input")} for own in (self, given))
        refuse_other_architecture(before, now, what, folder)

    def same_mask(self, given: "Identity") -> bool:
        """Whether both have the same sampling mask."""
        return torch.equal(self.mask, given.mask)

    def other_scanner(self, given: "Identity") -> str:
        """Return the names of what differs between the scanners, e.g. "angles, size"; "" if no difference is known."""
        names = set(changed(self.scanner, given.scanner)) | (self.scanner.keys() - given.scanner.keys())
        old, new = self.scanner.get("norm"), given.scanner.get("norm")
        if old is None or new is None or math.isclose(old, new, rel_tol=1e-4):  # an iterative estimate; older files have none
            names.discard("norm")
        return ", ".join(sorted(names)) if self.scanner else ""

    def warn_of_other_use(self, given: "Identity", folder: str | Path) -> None:
        """Warn of every difference between training and use of the weights: settings, mask and scanner."""
        different = changed(self.settings, given.settings)
        averages = different.pop("averages_splits", None)
        texts = [
            f"were trained with {name} {before}, they are used with {now}: expect a worse result"
            for name, (before, now) in different.items()
        ]
        if averages:
            before, now = ("averages over splits" if yes else "made from all measurements" for yes in averages)
            texts.append(
                f"were chosen by images that are {before}, these are {now}: set eval_split_input as in training to get "
                "images like those tested"
            )
        if not self.same_mask(given):
            measured = f"({int(self.mask.sum())} and {int(given.mask.sum())} measured entries)"
            texts.append(f"were trained with another sampling mask than the data has {measured}: expect a worse result")
        if other := self.other_scanner(given):
            texts.append(f"were trained for another operator than the data has: other {other}: expect a worse result")
        for text in texts:
            warnings.warn(f"the weights in {folder} {text}", stacklevel=3)


def refuse_other_architecture(before: Mapping[str, Any], now: Mapping[str, Any], what: str, place: str | Path) -> None:
    """Raise ValueError for the first fact about a network that differs between its weights and the configuration.

    Args:
        before: facts saved with the weights; older weights lack some.
        now: those of the configured network.
        what: "weights" or "training", for the message.
        place: file or folder of the weights, for the message.
    """
    for name, value in now.items():
        if before.get(name) not in (None, value):
            hint = "; it is True for --method es, False for supervised and mc" if name == "split_input" else ""
            raise ValueError(f"the {what} in {place} had {name} {before[name]}, the configuration gives {value}{hint}")


def changed(kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from those saved with weights or a calibration: name -> (saved, given).

    >>> changed({"sigma": 0.1, "method": "ei_lot"}, {"sigma": 0.2, "method": "ei_alternating"})
    {'sigma': (0.1, 0.2)}
    """
    before = dict(kept)
    if "method" in before:
        before["method"] = current_name(str(before["method"]))
    return {name: (before.get(name), value) for name, value in given.items() if before.get(name) != value}


def architecture(network: nn.Module, physics: Operator) -> dict[str, Any]:
    """Describe what a reconstructor's weights do not show: unrolled steps (they share weights), group and first image.

    For a first image that is the operator's estimate, its name and constants too: another estimate is another network.
    """
    group = type(network.group).__name__ if isinstance(network, ReynoldsAveraging) else "none"
    unrolled = network.reconstructor if isinstance(network, ReynoldsAveraging) else network
    start = getattr(unrolled, "start", "initial")
    facts = {"iterations": getattr(unrolled, "n_iterations", 0), "group": group, "start": start}
    return facts | ({"estimate": physics.estimated} if start == "estimate" else {})


def complete_architecture(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Complete what an older version saved: its unrolled networks had no other start than "initial".

    >>> complete_architecture({"iterations": 3, "group": "D4"})["start"], complete_architecture({"iterations": 0}).get("start")
    ('initial', None)
    """
    return ({"start": "initial"} if kept.get("iterations") else {}) | dict(kept)


def scanner(physics: Operator) -> dict[str, Any]:
    """Describe the operator beyond its mask: geometry and norm of a CT scanner, digest of a dense matrix; empty for MRI."""
    geometry, norm, matrix = (getattr(physics, name, None) for name in ("geometry", "norm", "matrix"))
    if isinstance(matrix, Tensor):
        return {"matrix": hashlib.sha256(matrix.detach().cpu().float().numpy().tobytes()).hexdigest()}
    return {} if geometry is None or norm is None else geometry.to_dict() | {"norm": float(norm)}


def module_settings(network: nn.Module) -> list[list[Any]]:
    """Describe each module of a network, by its name, class and plain attributes: what its weights do not show."""
    plain = bool | int | float | str | None
    found = []
    for name, module in network.named_modules():
        own = {key: value for key, value in vars(module).items() if key[0] != "_" and key != "training"}
        found.append([name, type(module).__name__, {key: value for key, value in own.items() if isinstance(value, plain)}])
    return found


def weights_digest(network: nn.Module) -> str:
    """Return a digest of the weights of a network and their names."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
