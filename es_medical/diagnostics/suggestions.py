"""The best group for an operator, and the smallest change of the acquisition that lets a group show more."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from es_medical.diagnostics.actions import SETS
from es_medical.diagnostics.conditional_gram import joint_rank, rarest_pair
from es_medical.diagnostics.coverage import coverage, plane_of
from es_medical.diagnostics.diagnosis import LITTLE, Diagnosis
from es_medical.diagnostics.mean_gram import pixel_weights
from es_medical.diagnostics.other_views import other_views
from es_medical.diagnostics.verdict import FULL, percent
from es_medical.physics import MRI, Operator
from es_medical.physics.masks import center_lines
from es_medical.physics.pixels import Pixels

Lines = Bool[Tensor, " w"]
"""Measured k-space columns."""


class Suggestion(NamedTuple):
    """A suggested change, with its gain.

    Attributes:
        kind: "group" for other transformations, "acquisition" for other measurements.
        text: one or two sentences, with numbers.
        before: what is within reach now, as a share of n (of the same operator as `after`).
        after: what is within reach then.
    """

    kind: Literal["group", "acquisition"]
    text: str
    before: float
    after: float


def suggest(physics: Operator, diagnosis: Diagnosis, seed: int = 0) -> list[Suggestion]:
    """Suggest the best group of a diagnosis, then changes of the acquisition that gain 1 % of n or more; the smallest first.

    Only a CT scanner may get one more view; lines, pixels and columns are moved, never added.

    Args:
        physics: the operator A.
        diagnosis: what each group adds to it.
        seed: of new masks.
    """
    if diagnosis.alone.usable >= FULL:
        return []
    changes: list[Suggestion] = []
    if getattr(physics, "geometry", None) is not None:
        changes = [Suggestion("acquisition", *change) for change in other_views(physics)]
    elif plane_of(physics) == "k-space":
        changes = _other_lines(physics, seed)
    elif isinstance(physics, Pixels):
        changes = _other_pixels(physics, seed)
    return _best_group(diagnosis) + [change for change in changes if change.after - change.before >= LITTLE]


def _best_group(diagnosis: Diagnosis) -> list[Suggestion]:
    best, alone = diagnosis.best, diagnosis.alone
    if best is None:
        return []
    text = (
        f"Use {best.label}: {percent(best.usable)} of n is within reach, against {percent(alone.usable)} of the "
        "operator alone; no smaller set of transformations shows as much as evenly."
    )
    return [Suggestion("group", text, alone.usable, best.usable)]


def _other_lines(physics: Operator, seed: int) -> list[Suggestion]:
    """Suggest other lines of k-space: a flip moves a line to its mirror image about zero frequency, perhaps measured too."""
    height, width = physics.image_size
    action = "d4" if height == width else "flips"
    mask = physics.mask[0].flatten(0, -3)[0].bool().cpu().expand(height, width)
    options = _other_masks(mask, bool((mask == mask[:1]).all()), seed)
    now, after = coverage(physics, action).share, _coverage_of(physics, action)
    changes = [
        Suggestion("acquisition", _kspace_words(change, action, now, after(other)), now, after(other))
        for change, other in options.items()
    ]
    return changes + _square(physics, mask, now)


def _other_masks(mask: Tensor, lines: bool, seed: int) -> dict[str, Tensor]:
    """List other masks with as many samples, by a description; the smallest change first."""
    height, width = mask.shape
    moved, options = mask.roll(1, -1), {}
    if bool(moved[height // 2, width // 2]):  # zero frequency is still measured
        options["Move the mask by one line" if lines else "Move the mask by one sample along the rows"] = moved
    if not lines:
        return options
    options["Measure another line in place of one of each mirrored pair"] = without_mirrors(mask[0], seed).expand(height, width)
    pairs, measured = mirror_images(mask[0]), int(mask[0].sum())
    why = f"{pairs} of {measured} k-space lines are mirror images of each other about zero frequency"
    return {f"{change} ({why})": other for change, other in options.items()}


def _square(physics: Operator, mask: Tensor, now: float) -> list[Suggestion]:
    """Suggest square images where they aren't: turns by 90 degrees add lines in the other direction."""
    height, width = physics.image_size
    if height == width or not bool((mask == mask[:1]).all()):
        return []
    squared = coverage(MRI(mask[0], (width, width)), "d4").share
    words = f"Crop or pad the images to {width} x {width}, so that turns by 90 degrees add lines of the other direction"
    return [Suggestion("acquisition", _kspace_words(words, "d4", now, squared), now, squared)]


def _coverage_of(physics: Operator, action: str) -> Callable[[Tensor], float]:
    """Return the coverage of k-space as a function of the mask; coil sensitivity maps do not matter."""
    return lambda mask: coverage(MRI(mask, physics.image_size), action).share


def _kspace_words(change: str, action: str, before: float, after: float) -> str:
    return f"{change}: with {SETS[action].label} {percent(after)} of k-space is covered in place of {percent(before)}."


def mirror_images(lines: Lines) -> int:
    """Count the measured lines at k whose mirror image, another line at -k, is measured too."""
    own = mirrored(torch.arange(len(lines))) == torch.arange(len(lines))  # zero frequency, and -n/2 of an even n
    return int((lines & mirrored(lines) & ~own).sum())


def mirrored(lines: Shaped[Tensor, " w"]) -> Shaped[Tensor, " w"]:
    """Return the lines at -k of those at k: index (2 (n // 2) - i) mod n, as a flip of the image moves them.

    >>> mirrored(torch.tensor([True, True, False, False])).int().tolist()  # k = -2 (its own mirror image) and -1
    [1, 0, 0, 1]
    """
    n = len(lines)
    return lines[(2 * (n // 2) - torch.arange(n)) % n]


def without_mirrors(lines: Lines, seed: int) -> Lines:
    """Move one line of each mirrored pair outside the central block to where neither it nor its mirror image is measured.

    The number of lines stays; each moves to the nearest free place in |k|, on a random side.

    Args:
        lines: measured columns (W,), zero frequency at index W // 2.
        seed: of the sides.
    """
    n = len(lines)
    result, frequency = lines.clone(), torch.arange(n) - n // 2
    pairs = lines & mirrored(lines) & ~_center(lines) & (frequency > 0)
    sides = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.5
    for i in pairs.nonzero().flatten().tolist():
        k = int(frequency[i])
        free = (~result & ~mirrored(result) & (frequency > 0)).nonzero().flatten() - n // 2
        if len(free) == 0:
            break
        new = int(free[(free - k).abs().argmin()])
        result[n // 2 + (k if sides[i] else -k)] = False
        result[n // 2 + (new if sides[i] else -new)] = True
    return result


def _center(lines: Lines) -> Lines:
    """Mark the widest block of lines around zero frequency that are all measured."""
    n = len(lines)
    blocks = [center_lines(n, width) for width in range(1, n + 1)]
    whole = [block for block in blocks if bool(lines[block].all())]
    return whole[-1] if whole else torch.zeros_like(lines)


def _other_pixels(physics: Pixels, seed: int) -> list[Suggestion]:
    """Suggest random pixels: of pairs that no shift measures together, no split asks for one given the other."""
    values = pixel_weights(physics).cpu() > 0
    if not bool(values.any()):
        return []
    before = joint_rank(values, "shifts")
    columns = bool((values == values[:1, :1]).all())
    other = _redrawn(values[0, 0] if columns else values, seed).expand_as(values)
    kind = "columns" if columns else "pixels"
    after = joint_rank(other, "shifts")
    text = (
        f"Measure as many {kind} at random places: as it is, shifts show every pixel, but only {percent(before)} of the pairs "
        "of pixels are ever measured together. Given one of another pair no split asks the network for its partner, which it "
        f"is free to fill with anything (the push-broom failure). At random places {percent(after)} of the pairs are, the "
        f"rarest in {percent(rarest_pair(other))} of the shifts that measure one of it."
    )
    return [Suggestion("acquisition", text, before, after)]


def _redrawn(values: Tensor, seed: int) -> Tensor:
    """Draw the same number of values at random places."""
    drawn = torch.zeros(values.numel(), dtype=torch.bool)
    drawn[torch.randperm(values.numel(), generator=torch.Generator().manual_seed(seed))[: int(values.sum())]] = True
    return drawn.view(values.shape)
