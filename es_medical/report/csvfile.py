"""Tables as CSV: plain numbers in full precision, one row for each method, the settings in every row."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from es_medical.report.methods import kind
from es_medical.report.reading.scores import SCORES, Score
from es_medical.report.tables import Row, Table

Value = str | float | int | bool | None


def write_csv(table: Table, path: Path) -> None:
    """Write a table; missing values are empty."""
    write_records([_flat(table, row) for row in table.rows], path)


def read_csv(path: Path) -> list[dict[str, Value]]:
    """Read what `write_csv` wrote: numbers as float, "" as None, True and False as bool, the rest as text."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(stream)]


TEXT = ("table", "method", "label", "kind", "setting", "paper_setting", "paper_source", "command", "name", "verdict")


def _flat(table: Table, row: Row) -> dict[str, Value]:
    took, paper = row.training, row.paper_training
    flat: dict[str, Value] = {"table": table.title, "method": row.method, "label": row.label, "kind": kind(row.method)}
    flat |= {"noise_known": row.known, "seeds": row.seeds}
    for name in SCORES:
        flat |= _score(name, row.scores.get(name))
    flat |= {"training_s": took.seconds if took else None, "epochs": took.epochs if took else None}
    for name in SCORES:
        printed = getattr(row.paper, name) if row.paper else None
        flat |= {f"paper_{name}": printed.mean if printed else None, f"paper_{name}_sd": printed.sd if printed else None}
    flat |= {"paper_s_per_epoch": paper.seconds_per_epoch if paper else None, "paper_epochs": paper.epochs if paper else None}
    theirs = table.theirs
    flat |= {
        "setting": table.ours,
        "paper_setting": theirs.setting if theirs else "",
        "paper_source": theirs.source if theirs else "",
    }
    return flat | {"command": row.command}


def _score(name: str, score: Score | None) -> dict[str, Value]:
    if score is None:
        return dict.fromkeys((name, *(f"{name}_{what}" for what in ("sd", "items", "exact_items", "sd_between_seeds", "best"))))
    return {
        name: score.mean,
        f"{name}_sd": score.sd,
        f"{name}_items": score.n,
        f"{name}_exact_items": score.exact,
        f"{name}_sd_between_seeds": score.between_seeds,
        f"{name}_best": score.best,
    }


def _value(name: str, text: str) -> Value:
    if name in TEXT:
        return text
    if text in ("True", "False"):
        return text == "True"
    return float(text) if text else None


def write_records(rows: Sequence[Mapping[str, Value]], path: Path) -> None:
    """Write plain records that have the same names; missing values are empty."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
