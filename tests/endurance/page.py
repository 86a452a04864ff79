"""Write docs/reliability.md from the results of campaigns: what was tried, how often, and what happened."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from endurance.disturbances import ALL
from endurance.kills import STAGES

INTRO = """# What happens when something breaks

Every row was run, by `python -m tests.endurance --minutes 45 --seed 0 --out results.json`, in parts (`--only "^kill -9"`; seeds
are at the end), and this page was written from the results by `python -m tests.endurance --page docs/reliability.md --results
results.json`. The commands are those that a user types, on an archive of four CT patients of three slices each, a network of
two levels and three epochs.

**Kills.** A command is killed by `kill -9`, at a random moment, or before or shortly after a random call of a function, up to
eight times, and typed again each time (`--resume true` once there is a checkpoint) until it ends. *Right* means: equal to an
undisturbed run in the bytes of the slice file and its manifest; the bits of all weights, the optimiser and the random numbers;
every point of every curve in MLflow, each once; its parameters, pictures and artifacts; the values of every HDF5, NIfTI and
DICOM file (UIDs and times differ). Nothing half-written is left.

**Other faults.** *Right* means: the command gives the same result, or an exit status other than 0 and a message with the cause;
and the same command, undisturbed, then gives the same result.

**Flipped bits.** One bit at a random place of a file. *Right* means: the reader says that the file is damaged, and which, or
reads the same values. Readers of NIfTI, PNG and `reconstructions.h5` are `gzip` and nibabel, Pillow and h5py.
"""

OPEN = """
## What is not covered

- Pixels of source files (DICOM, NIfTI, HDF5 of scanners) have no checksum in their formats: a bit that flipped before the first
  preparation cannot be seen. Their SHA-256 is kept, so that a later change is.
- As long as a slice file is up to date, so is its manifest: a file that is left out and changes (a scan that is no longer a CT
  image, say) is not listed anew.
- Slice files of before (and reconstructions from them) have text of any length, of which HDF5 keeps no checksum: a flipped bit
  changes a name, never a number, or HDF5 reads without end.
- DICOM files that were written, the database of MLflow and the numbers on the page `overview.html` have no checksum of ours.
- Slice files, logs and calibrations of versions before 0.2 have no checksums; their weights do.
- A power cut was not tried. Slice files, manifests and weights are on the disk before they get their names.
"""


def write_page(path: Path, campaigns: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of all campaigns together."""
    groups: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in (row for campaign in campaigns for row in campaign["rows"]):
        groups[row["group"]][row["name"]].append(row)
    lines = [INTRO]
    for group, names in groups.items():
        kills = sum(row["kills"] for rows in names.values() for row in rows)
        lines += [f"\n## {group[0].upper() + group[1:]}\n"]
        lines += [
            "| what | kills | runs to the end | right | what happened |"
            if kills
            else "| what | tried | right | what happened |"
        ]
        lines += ["|---|--:|--:|--:|---|" if kills else "|---|--:|--:|---|"]
        for name, rows in names.items():
            right, times = sum(not row["faults"] for row in rows), sum(row["kills"] for row in rows)
            lines += [f"| {' | '.join([name, *([str(times)] if kills else []), str(len(rows)), str(right), _said(rows)])} |"]
        if kills:
            total = sum(len(rows) for rows in names.values())
            right = sum(not row["faults"] for rows in names.values() for row in rows)
            lines += [f"| **in all** | **{kills}** | **{total}** | **{right}** | |"]
    known = [*(stage.name for stage in STAGES), *(one.name for one in ALL)]
    open_rows = [name for name in known if not any(name in names for names in groups.values())]
    lines += [f"\n## Not tried yet\n\n{'; '.join(open_rows)}."] if open_rows else []
    told = [
        f"{one['date']}, commit {one['commit']}, seed {one['seed']}: {len(one['rows'])} experiments{one.get('note', '')}"
        for one in campaigns
    ]
    path.write_text(
        "\n".join([*lines, OPEN, "## Where this is from\n", *(f"- {text}" for text in told)]) + "\n", encoding="utf-8"
    )


def _said(rows: Sequence[Mapping[str, Any]]) -> str:
    """What happened, in a few words: bits by what became of them, else how the commands ended."""
    if rows[0]["group"] == "a flipped bit":
        counts = Counter[str]()
        for row in rows:
            for name, n in re.findall(r"(.+?): (\d+)(?:, |$)", row["where"]):
                counts[name] += int(n)
            counts["; ".join(row["faults"])] += not row["where"]  # the reader itself ended
        return ", ".join(f"{name}: {n}" for name, n in counts.most_common() if n)
    wrong = [row["faults"][0] for row in rows if row["faults"]]
    if wrong:
        return "; ".join(sorted({re.sub(r"\s+", " ", text)[:200].replace("|", "/") for text in wrong}))
    if rows[0]["group"] == "kill -9":
        return "same results"
    ends = Counter(_end(row["where"]) for row in rows)
    return ", ".join(f"{text}: {n}" for text, n in ends.items()) + "; afterwards the same results"


def _end(where: str) -> str:
    """How a disturbed command ended."""
    if re.search(r"exit status -?[1-9]", where):
        return "stopped, with the cause"
    if re.search(r"exit statuses .*[1-9]", where):
        return "one says that the other runs"
    return "the rest of the log was sent later" if "rest sent later" in where else "ended as usual"
