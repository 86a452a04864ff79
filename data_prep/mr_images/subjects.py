"""Tell from the names of files which of them are of one subject."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from os.path import commonpath
from pathlib import PurePosixPath

from data_prep.run.manifest import PrepError

NAMED = re.compile(r"(?<![a-z])(?:sub|subj|subject|patient|pat|case)[-_]?[0-9a-z]*[0-9][0-9a-z]*", re.IGNORECASE)
BIDS = re.compile(r"(?<![a-z])sub-[0-9a-z]+", re.IGNORECASE)
CONTRAST = re.compile(
    r"(t1|t2|pd)(w|c|ce|gd|km|map|star|rho)?|t1wc?e?|flair|dwi|adc|swi|mprage|mp2rage|space|tse|fse|gre|tof|"
    r"(study|ses|session|visit|scan|series|run|acq|time|tp|fu)\d*|baseline|followup|brain|head|raw|n4|reg|\d",
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
        return {name: _matched(name, re.compile(pattern)) for name in names}
    shared = commonpath([PurePosixPath(name).parent.as_posix() for name in names]) if names else ""
    return {name: _guessed(PurePosixPath(name), shared) for name in names}


def _matched(name: str, pattern: re.Pattern[str]) -> str:
    found = pattern.search(name)
    if found is None:
        raise PrepError(f"--subject-pattern {pattern.pattern}: not found in {name}")
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


def statement(subjects: Mapping[str, str]) -> list[str]:
    """Say which files count as one subject, for the terminal.

    >>> statement({"p1_T1.nii": "p1", "p1_T2.nii": "p1", "p2_T1.nii": "p2"})
    ['3 files of 2 subjects (one subject is never in two splits; --subject-pattern changes this):', \
'  p1: p1_T1.nii, p1_T2.nii', '  and 1 of one file each']
    """
    files = defaultdict[str, list[str]](list)
    for name, subject in subjects.items():
        files[subject].append(name)
    several = {subject: names for subject, names in files.items() if len(names) > 1}
    lines = [
        f"{len(subjects)} files of {len(files)} subjects (one subject is never in two splits; --subject-pattern changes this):"
    ]
    lines += [f"  {subject}: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}" for subject, names in several.items()]
    rest = len(files) - len(several)
    return [*lines, *([f"  and {rest} of one file each"] if rest else [])]
