"""The report as one HTML file that needs nothing else: pictures are inside, there is no script and no link."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from es_medical.report.cells import Cell, cells, fillers, header, settings
from es_medical.report.grids import Grid
from es_medical.report.methods import kind
from es_medical.report.report import Picture, Report, Section
from es_medical.report.tables import Row, Table

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: .6em 0; font-size: 14px; }
.scroll { overflow-x: auto; }
th, td { padding: .25em .7em; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-top: 2px solid #222; border-bottom: 1px solid #222; }
tbody tr:last-child td { border-bottom: 2px solid #222; }
tr.rule td { border-top: 1px solid #aaa; }
td.paper, th.paper { background: #f5f2ea; }
.setting, .note { color: #444; font-size: 14px; margin: .3em 0; }
pre { background: #f4f4f4; padding: .5em; white-space: pre-wrap; overflow-wrap: anywhere; text-align: left; font-size: 12px; }
td details pre { max-width: 42em; white-space: pre-wrap; }
img { max-width: 100%; } figure { margin: 1em 0; } figcaption { color: #444; font-size: 14px; }
"""


def page(report: Report, intro: Sequence[str]) -> str:
    """Lay out the report."""
    body = ["<h1>Results beside the paper's</h1>", *(f"<p>{escape(text)}</p>" for text in intro)]
    body += [f'<p class="note">{escape(remark)}</p>' for remark in report.remarks]
    body += ["<ul>", *(f'<li><a href="#s{i}">{escape(one.title)}</a></li>' for i, one in enumerate(report.sections)), "</ul>"]
    for i, section in enumerate(report.sections):
        body += [f'<h2 id="s{i}">{escape(section.title)}</h2>', *_section(section)]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    title = "<title>es_medical: results beside the paper's</title>"
    content = "\n".join(body)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}{title}<style>{STYLE}</style></head><body>\n{content}\n</body></html>\n'
    )


def _section(section: Section) -> list[str]:
    parts = [_table(table) for table in section.tables] + [_grid(grid) for grid in section.grids]
    if section.commands:
        parts.append("<p>Missing points:</p>")
        parts += [f"<details><summary>{escape(name)}</summary>{_code(one)}</details>" for name, one in section.commands]
    return parts + [_picture(picture) for picture in section.pictures]


def _table(table: Table) -> str:
    titles = header(table)
    first_paper = next((i for i, title in enumerate(titles) if title.startswith("paper")), len(titles))
    head = "".join(f"<th{_paper(i, first_paper)}>{escape(title)}</th>" for i, title in enumerate(titles))
    rows = [_row(table, i, first_paper) for i in range(len(table.rows))]
    parts = [f"<h3>{escape(table.title)}</h3>", *(f'<p class="setting">{escape(text)}</p>' for text in settings(table))]
    parts += [f"<p>The data first:</p>{_code(table.data_command)}"] if table.data_command else []
    parts.append(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>')
    parts += [f'<p class="note">{escape(note)}</p>' for note in table.notes]
    for command, labels in fillers(table).items():
        parts.append(f"<details><summary>missing: {escape(', '.join(labels))}</summary>{_code(command)}</details>")
    return "\n".join(parts)


def _row(table: Table, i: int, first_paper: int) -> str:
    row: Row = table.rows[i]
    body = cells(table, row, "missing")
    shown = [f"<td{_paper(j, first_paper)}{_command(row, cell)}>{_cell(cell)}</td>" for j, cell in enumerate(body)]
    rule = ' class="rule"' if i and kind(row.method) != kind(table.rows[i - 1].method) else ""
    return f"<tr{rule}>{''.join(shown)}</tr>"


def _command(row: Row, cell: Cell) -> str:
    """An empty cell says, too, on hovering which command fills it."""
    return f' title="{escape(row.command)}"' if row.command and cell.text == "missing" else ""


def _grid(grid: Grid) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in grid.titles)
    rows = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in grid.rows)
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in grid.notes)
    return f"<h3>{escape(grid.title)}</h3>\n{table}{notes}"


def _picture(picture: Picture) -> str:
    source = f"data:image/png;base64,{b64encode(picture.content).decode()}"
    caption = escape(picture.caption)
    return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'


def _paper(i: int, first_paper: int) -> str:
    return ' class="paper"' if i >= first_paper else ""


def _cell(cell: Cell) -> str:
    return f"<strong>{escape(cell.text)}</strong>" if cell.bold else escape(cell.text)


def _code(command: str) -> str:
    return f"<pre>{escape(command)}</pre>"
