"""A diagnosis in plain words, and as a table."""

from collections.abc import Sequence

from es_medical.diagnostics.actions import N_ANGLES, SETS
from es_medical.diagnostics.diagnosis import LITTLE, Diagnosis, Finding

FULL = 0.999  # share of n that counts as full rank


def verdict(
    diagnosis: Diagnosis, remarks: Sequence[str] = (), suggestions: Sequence[str] = (), source: str = "the data file"
) -> tuple[str, ...]:
    """Describe what the operator measures, what transformations add, and what stays unknown; a paragraph each.

    Args:
        diagnosis: findings of the operator.
        remarks: more paragraphs, before the advice.
        suggestions: what would help, one or two sentences each (see `es_medical.diagnostics.suggestions`).
        source: where the typical images come from.
    """
    paragraphs = [_alone(diagnosis), _added(diagnosis), _blind(diagnosis), _refused(diagnosis), _pairs(diagnosis)]
    paragraphs += [_null_space(diagnosis), _energy(diagnosis, source), *remarks, _advice(diagnosis)]
    if suggestions:
        paragraphs.append("\n".join(["What would help:", *(f"- {one}" for one in suggestions)]))
    return tuple(paragraph for paragraph in paragraphs if paragraph)


def summary_line(finding: Finding, alone: Finding) -> str:
    """Describe in one line what a set of transformations adds, for logs."""
    label, more = finding.label, f"{percent(finding.share)} of n against {percent(alone.share)} without"
    if finding.gain < LITTLE:
        return f"the group in use ({label}) shows this operator nothing new: {more}"
    if finding.usable - alone.usable < LITTLE:
        pairs = f"but only {percent(finding.usable)} is ever measured along with what a split shows"
        return f"the group in use ({label}) can teach nothing new: {more}, {pairs}"
    return f"the group in use ({label}) adds {percent(finding.gain)} of n to what the operator sees: {more}"


def table(diagnosis: Diagnosis) -> dict[str, list[str]]:
    """Lay out the findings as columns of text, in percent of n; "-" where a number was not computed."""
    findings, joint = diagnosis.findings, any(one.joint is not None for one in diagnosis.findings)
    columns = {
        "transformations": [SETS[one.action].short for one in findings],
        "rank, %": [_number(one) for one in findings],
        "gain, %": ["" if one.action == "none" else f"{100 * one.gain:+.1f}" for one in findings],
        "effective rank, %": [f"{100 * one.effective_rank / diagnosis.n:.1f}" for one in findings],
        "energy lost, %": ["-" if one.lost is None else f"{100 * one.lost:.2f}" for one in findings],
        "range of A^T": ["" if one.action == "none" else ("the same" if one.invariant else "moves") for one in findings],
    }
    if joint:
        columns["seen in pairs, %"] = ["-" if one.joint is None else f"{100 * one.joint:.1f}" for one in findings]
    for action in diagnosis.refused:
        for name, column in columns.items():
            column.append({"transformations": SETS[action].short, "range of A^T": "no action"}.get(name, "-"))
    return columns


def percent(share: float) -> str:
    """Write a share in percent.

    >>> percent(0.125), percent(0.0004)
    ('12.5 %', '0.04 %')
    """
    return f"{100 * share:.1f} %" if share >= 0.001 or share <= 0 else f"{100 * share:.1g} %"


def _number(finding: Finding) -> str:
    error = 100 * finding.share_error
    return f"{100 * finding.share:.1f}" + (f" ± {max(error, 0.01):.1g}" if error > 0 else "")


def _alone(diagnosis: Diagnosis) -> str:
    channels, height, width = diagnosis.shape
    numbers, whole = f"{diagnosis.n:,} numbers of an image", channels * height * width
    where = "" if diagnosis.n == whole else f" (those of its {whole:,} in the circle that every view sees)"
    text = (
        f"The operator alone measures {_number(diagnosis.alone)} % of the n = {numbers}{where}. Counted are eigenvalues above "
        "a thousandth of the largest."
    )
    if any(finding.share_error > 0 for finding in diagnosis.findings):
        text += " ± is the standard error of an estimate (stochastic Lanczos quadrature)."
    return text


def _added(diagnosis: Diagnosis) -> str:
    found = [one for one in diagnosis.findings[1:] if one.gain >= LITTLE]
    if not found:
        return "None of the transformations examined adds 1 % of n or more to that."
    lines = [f"- {one.label}: {percent(one.gain)} more, {_number(one)} % in all{_note(one, diagnosis)}" for one in found]
    return "\n".join(["What transformations of the image add to that:", *lines])


def _note(finding: Finding, diagnosis: Diagnosis) -> str:
    if finding.action == "permutations":
        return " (for comparison: images are not invariant to them)"
    if finding.action == "fine_rotations" and not diagnosis.turns:
        angles = f"{N_ANGLES} random ones of the 360 angles: all of them together show more than ± says"
        return f" ({angles}; they interpolate: equivariant imaging, method ei, draws them; es does not)"
    return ""


def _blind(diagnosis: Diagnosis) -> str:
    blind, rest = diagnosis.blind, [one for one in diagnosis.findings[1:] if not one.invariant and one.gain < LITTLE]
    text = ""
    if blind:
        names = ", ".join(SETS[action].label for action in blind)
        text = f"Blind: {names}. They map what the operator sees onto itself, so that A T_g shows nothing that A does not."
    if rest:
        names = ", ".join(f"{one.label} ({100 * one.gain:+.1f} %)" for one in rest)
        text += f"{' ' if text else ''}Of little use, less than 1 % of n: {names}."
    return text


def _refused(diagnosis: Diagnosis) -> str:
    return "\n".join(f"Not for this operator: {SETS[action].label}. {cause}" for action, cause in diagnosis.refused.items())


def _pairs(diagnosis: Diagnosis) -> str:
    """Report values that some A T_g measures, but never along with others: the paper's push-broom scanner."""
    pairs = {one.action: one.joint for one in diagnosis.findings if one.joint is not None and one.share >= FULL}
    if all(joint >= FULL for joint in pairs.values()):
        return ""
    shares = ", ".join(f"{percent(joint)} under {SETS[action].label}" for action, joint in pairs.items())
    return (
        "Every value is measured by some A T_g, but not along with every other one. At most these shares of n are measured "
        f"along with a value that a split shows: {shares}. For the rest the loss asks nothing of a network that sees the "
        "split: it may put anything there."
    )


def _null_space(diagnosis: Diagnosis) -> str:
    """Describe the null space; only necessary conditions can be computed, so the words promise no more."""
    finding = diagnosis.best or diagnosis.alone
    seen = "the operator" if finding is diagnosis.alone else f"the operator under {finding.label}"
    if finding.share >= FULL and finding.usable >= FULL:
        return (
            f"Nothing is out of reach of {seen}: the mean Gram matrix has full rank. This is necessary for learning without "
            "ground truth, and no guarantee: the noise, the number of measurements, and the theorem's own condition on each "
            "split count too."
        )
    if finding.share >= FULL:
        return ""
    return (
        f"Out of reach of {seen}: {percent(1 - finding.share)} of n, the common null space of all A T_g. It can't be learnt "
        "from these measurements, whatever the network: what an image shows there comes from the network's architecture and "
        "training, as a prior."
    )


def _energy(diagnosis: Diagnosis, source: str) -> str:
    alone, best = diagnosis.alone, diagnosis.best
    if alone.lost is None:
        return ""
    text = f"Of the energy of typical images ({diagnosis.n_images} of {source}) the operator alone misses {percent(alone.lost)}"
    if best is not None and best.lost is not None:
        text += f", and {percent(best.lost)} with {best.label}"
    return f"{text}. Energy lies mostly in coarse structure: small shares can still hold the fine details."


def _advice(diagnosis: Diagnosis) -> str:
    best = diagnosis.best
    if best is None and diagnosis.alone.share >= FULL:
        return "The operator alone sees everything: no transformation is needed."
    if best is None:
        return (
            "No set of transformations adds 1 % of n or more to this operator: what it does not see needs another acquisition "
            "or ground truth. A training without ground truth can still denoise what it sees."
        )
    knob = " (in the CT bundle: --rotations 4)" if best.action == "fine_rotations" else ""
    return (
        f"Best to train with: {best.label}{knob}. They teach the right thing only if transformed images are as likely "
        "as the images themselves."
    )
