"""Writing the report: Markdown with pictures beside it, CSV and LaTeX of each table, one HTML page."""

from pathlib import Path

from es_medical.report.csvfile import write_csv, write_records
from es_medical.report.latex import latex
from es_medical.report.markdown import code, markdown, markdown_table, plain
from es_medical.report.page import page
from es_medical.report.report import Report, Section

INTRO = (
    "Scores are means ± standard deviations over test items (not over trainings); PSNR and EQUIV in dB. In bold, the best "
    "self-supervised score of a table. Our numbers and the paper's stand side by side, each with its setting: they can be "
    "compared only where the settings are alike.",
    "Training is the time of the training steps, validation not counted; the weights that are tested are those of the epoch "
    "that the validation chose. ∞ is an error below what 100 dB mean. Several seeds are averaged item by item.",
)


def write_report(report: Report, out: Path) -> list[Path]:
    """Write the report into a folder, which is made; files of the same names are replaced.

    Returns:
        The files: report.html, report.md, then csv/*.csv, tex/*.tex and figures/*.png.
    """
    for folder in ("csv", "tex", "figures"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    files = [_write(out / "report.html", page(report, INTRO)), _write(out / "report.md", _document(report))]
    for section in report.sections:
        for table in section.tables:
            path = out / "csv" / f"{table.slug}.csv"
            write_csv(table, path)
            files += [path, _write(out / "tex" / f"{table.slug}.tex", latex(table))]
        for picture in section.pictures:
            path = out / "figures" / f"{picture.name}.png"
            path.write_bytes(picture.content)
            files.append(path)
        files += _records(section, out / "csv")
    return files


def _records(section: Section, folder: Path) -> list[Path]:
    """Differences and times as numbers."""
    found = []
    if section.differences:
        rows = [one._asdict() | one.interval._asdict() | {"verdict": one.verdict} for one in section.differences]
        found.append((folder / f"{section.slug}-differences.csv", rows))
    if section.race:
        shared = {"target": section.race.target, "baseline": section.race.baseline, "equal_time": section.race.equal_time}
        found.append((folder / f"{section.slug}-times.csv", [one._asdict() | shared for one in section.race.rows]))
    for path, rows in found:
        write_records([{name: value for name, value in row.items() if name != "interval"} for row in rows], path)
    return [path for path, _ in found]


def _document(report: Report) -> str:
    parts = ["# Results beside the paper's", *INTRO, *(f"- {plain(remark)}" for remark in report.remarks)]
    for section in report.sections:
        parts += [f"## {plain(section.title)}", *(markdown(table) for table in section.tables)]
        for grid in section.grids:
            parts += [f"### {plain(grid.title)}", markdown_table(grid.titles, grid.rows), *map(plain, grid.notes)]
        parts += [f"Missing, {plain(name)}:\n\n{code(command)}" for name, command in section.commands]
        parts += [f"![{picture.caption}](figures/{picture.name}.png)" for picture in section.pictures]
    return "\n\n".join(parts) + "\n"


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
