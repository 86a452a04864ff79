"""The files of a report: an HTML page, Markdown with its pictures, LaTeX and CSV of each table.

Documents are jinja2 templates (`templates/`), as pandas' Styler writes single tables, with a style sheet for each. Pandas
writes the CSV files.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_medical.report.grids import Grid
from es_medical.report.methods import kind
from es_medical.report.reading.scores import SCORES
from es_medical.report.report import Report, Section
from es_medical.report.tables import Row, Table

if TYPE_CHECKING:
    from jinja2 import Environment

INTRO = (
    "Scores are means ± standard deviations over test items (not over trainings); PSNR and EQUIV in dB. In bold, the best "
    "self-supervised score of a table. Our numbers and the paper's are side by side, each with its setting: they can be "
    "compared only where the settings agree.",
    "Training is the time of the training steps, validation not counted; the tested weights are those of the epoch that "
    "the validation chose. ∞ is an error below that of 100 dB. Several seeds are averaged item by item.",
)
LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "{}%&#$_"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"},
        "∞": r"$\infty$",
    }
)
SCORE_COLUMNS = {
    "": "mean",
    "_sd": "sd",
    "_items": "n",
    "_exact_items": "exact",
    "_sd_between_seeds": "between_seeds",
    "_best": "best",
}
"""Columns of a score in CSV, as suffixes of its name, and the fields of `Score` that they hold."""


def write_report(report: Report, out: Path) -> list[Path]:
    """Write the report into a folder, made if absent; existing files are replaced.

    Returns:
        The files: report.html, report.md, then csv/*.csv, tex/*.tex and figures/*.png.
    """
    for folder in ("csv", "tex", "figures"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    files = [_write(out / "report.html", html(report)), _write(out / "report.md", markdown(report))]
    for section in report.sections:
        tables = {grid.slug: latex(grid) for grid in section.grids if grid.slug}
        files += [_write(out / "tex" / f"{name}.tex", text) for name, text in tables.items()]
        files += [_write_csv(out / "csv" / f"{name}.csv", rows) for name, rows in records(section).items()]
        for picture in section.pictures:
            files.append(out / "figures" / f"{picture.name}.png")
            files[-1].write_bytes(picture.content)
    return files


def html(report: Report) -> str:
    """Lay out the report as one HTML page without scripts and links; the pictures are embedded."""
    return _environment(autoescape=True).get_template("report.html").render(report=report, intro=INTRO)


def markdown(report: Report) -> str:
    """Lay out the report as Markdown; the commands of missing rows follow their table."""
    return _environment(plain).get_template("report.md").render(report=report, intro=INTRO)


def latex(grid: Grid) -> str:
    r"""Lay out a table as LaTeX (booktabs) to `\input`; the commands of missing rows are comments."""
    comments = [f"needs \\usepackage{{booktabs, graphicx}}; {' '.join(grid.settings)}"]
    comments += [f"the data first: {grid.data_command}"] if grid.data_command else []
    comments += [f"missing ({', '.join(labels)}): {command}" for command, labels in grid.commands.items()]
    template = _environment(escape, brackets="<>").get_template("table.tex")
    return template.render(grid=grid, comments=[" ".join(line.split()) for line in comments])  # a comment ends with its line


def escape(text: str) -> str:
    r"""Return plain text as LaTeX.

    >>> escape("70 % of A_1 & B: 1 ± 2"), escape("a\nb")
    ('70 \\% of A\\_1 \\& B: 1 $\\pm$ 2', 'a b')
    """
    return " ".join(text.split()).translate(LATEX)


def plain(text: str) -> str:
    """Escape text for Markdown, so that it neither ends a table cell nor starts emphasis."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def records(section: Section) -> dict[str, list[dict[str, Any]]]:
    """Return the numbers of a section in full precision: name of a CSV file -> its rows, which have the same columns."""
    found: dict[str, list[dict[str, Any]]] = {
        table.slug: [_record(table, row) for row in table.rows] for table in section.tables
    }
    if section.differences:
        rows = [one._asdict() | one.interval._asdict() | {"verdict": one.verdict} for one in section.differences]
        found[f"{section.slug}-differences"] = [{k: v for k, v in row.items() if k != "interval"} for row in rows]
    if section.race:
        shared = {name: getattr(section.race, name) for name in ("target", "baseline", "equal_time")}
        found[f"{section.slug}-times"] = [one._asdict() | shared for one in section.race.rows]
    return found


def _record(table: Table, row: Row) -> dict[str, Any]:
    """Return one row of a table as plain numbers; None for missing ones."""
    record: dict[str, Any] = {"table": table.title, "method": row.method, "label": row.label, "kind": kind(row.method)}
    record |= {"noise_known": row.known, "seeds": row.seeds}
    for name in SCORES:
        score = row.scores.get(name)
        record |= {f"{name}{suffix}": getattr(score, field, None) for suffix, field in SCORE_COLUMNS.items()}
    record |= {"training_s": getattr(row.training, "seconds", None), "epochs": getattr(row.training, "epochs", None)}
    record |= {"warm_start_s": getattr(row.training, "warm", None)}
    for name in SCORES:
        printed = getattr(row.paper, name, None)
        record |= {f"paper_{name}": getattr(printed, "mean", None), f"paper_{name}_sd": getattr(printed, "sd", None)}
    record |= {"paper_s_per_epoch": getattr(row.paper_training, "seconds_per_epoch", None)}
    record |= {"paper_epochs": getattr(row.paper_training, "epochs", None), "setting": table.ours}
    record |= {f"paper_{name}": getattr(table.theirs, name, "") for name in ("setting", "source")}
    return record | {"command": row.command}


def _environment(escaped: Callable[[str], str] | None = None, brackets: str = "{}", autoescape: bool = False) -> "Environment":
    """Make the environment of the templates.

    Args:
        escaped: how the format escapes text; what the template marks as safe is not escaped. None for HTML.
        brackets: put around "%" for statements, doubled for expressions.
        autoescape: escape as HTML.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return value if escaped is None or isinstance(value, Markup) else escaped(str(value))

    opening, closing = brackets[0], brackets[1]
    environment = Environment(
        block_start_string=f"{opening}%",
        block_end_string=f"%{closing}",
        variable_start_string=2 * opening,
        variable_end_string=2 * closing,
        comment_start_string=f"{opening}#",
        comment_end_string=f"#{closing}",
        loader=PackageLoader("es_medical.report"),
        autoescape=autoescape,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["base64"] = lambda content: b64encode(content).decode()
    return environment


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write records of the same columns; missing values are empty, and NaN stays NaN."""
    import pandas as pd

    table = pd.DataFrame(rows, dtype=object).map(lambda value: "" if value is None else value)
    table.to_csv(path, index=False, na_rep="nan", lineterminator="\n")
    return path


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
