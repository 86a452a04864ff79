"""Tell from the names of files which of them are of one subject."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from os.path import commonpath
from pathlib import PurePosixPath

from data_prep.mr_images.grid import Scan
from data_prep.run.manifest import PrepError

SHOWN = 6  # most names in a line, and most lines
NAMED = re.compile(r"(?<![a-z])(?:sub|subj|subject|patient|pat|case)[-_]?[a-z]{0,3}[0-9][0-9a-z]*", re.IGNORECASE)
BIDS = re.compile(r"(?<![a-z])sub-[0-9a-z]+", re.IGNORECASE)
CONTRAST = re.compile(
    r"(t1|t2|pd)(w|c|ce|gd|km|map|star|rho)?|t1wc?e?|flair|dwi|adc|swi|mprage|mp2rage|space|tse|fse|gre|tof|"
    r"(study|ses|session|visit|scan|series|run|acq|time|tp|fu)\d*|baseline|followup|brain|head|raw|n4|reg",
    re.IGNORECASE,
)


def subjects_of(names: Sequence[str], pattern: str | None) -> dict[str, str]:
    """The subject of each file.

    Args:
        names: paths below the source folder.
        pattern: regular expression of the subject in a path; its first group, if it has one. None looks for ``sub-01``,
            ``patient01`` and the like; else takes the first folder in which the files differ; else the file's name without
            words for contrasts and visits.

    Raises:
        PrepError: the pattern is not found in a path.

    >>> list(subjects_of(["patient01_study1_T1.nii", "patient01_study2_FLAIR.nii.gz", "IXI012-HH-T1.nii"], None).values())
    ['patient01', 'patient01', 'IXI012-HH']
    """
    if pattern is not None:
        return {name: subject_in(name, pattern) for name in names}
    shared = commonpath([PurePosixPath(name).parent.as_posix() for name in names]) if names else ""
    return {name: _guessed(PurePosixPath(name), shared) for name in names}


def subject_in(name: str, pattern: str) -> str:
    """The subject that a regular expression finds in a path; raises PrepError if it finds none."""
    found = re.search(pattern, name)
    if found is None:
        raise PrepError(f"--subject-pattern {pattern} is not found in {name}")
    return next((group for group in found.groups() if group), found.group())


def _guessed(name: PurePosixPath, shared: str) -> str:
    for pattern in (BIDS, NAMED):
        if found := pattern.search(name.as_posix()):
            return found.group().lower()
    below = name.relative_to(shared) if shared else name
    if len(below.parts) > 1:
        return f"{below.parts[0]}/"
    stem = name.name.split(".", 1)[0]
    return "-".join(word for word in re.split(r"[-_ ]+", stem) if not CONTRAST.fullmatch(word)) or stem


def by_content(scans: Sequence[Scan]) -> list[Scan]:
    """Identify subjects that names tell by the content of their files, so that names do not decide splits and hashes."""
    digests = defaultdict[str, list[str]](list)
    for scan in scans:
        digests[scan.label].append(scan.digest)
    return [scan._replace(subject=f"files/{min(digests[scan.label])}") if scan.label else scan for scan in scans]


def statement(scans: Sequence[Scan]) -> Iterator[str]:
    """Say which volumes count as one subject, for the terminal; a name of a subject is shown if names of files tell it."""
    groups = defaultdict[str, list[Scan]](list)
    for scan in scans:
        groups[scan.subject].append(scan)
    yield f"{len(scans)} volumes of {len(groups)} subjects, each in one split only (--subject-pattern tells them otherwise)"
    several = [group for group in groups.values() if len(group) > 1]
    for group in several[:SHOWN]:
        more = f" and {len(group) - SHOWN} more" if len(group) > SHOWN else ""
        yield f"  {group[0].label or 'one patient'}: {', '.join(scan.name for scan in group[:SHOWN])}{more}"
    if len(several) > SHOWN:
        yield f"  and {len(several) - SHOWN} more of several volumes"
    if len(groups) == 1 < len(scans):
        yield "all volumes count as one subject, so all go to one split: if they are of several, give --subject-pattern"
