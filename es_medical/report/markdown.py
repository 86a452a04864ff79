"""Tables as Markdown: the commands of missing rows follow the table."""

from collections.abc import Sequence

from es_medical.report.cells import Cell, cells, fillers, header, settings
from es_medical.report.tables import Table


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Lay out any cells; the first column is aligned left, the others right."""
    lines = [list(titles), ["---", *["---:"] * (len(titles) - 1)]]
    lines += [[f"**{plain(cell.text)}**" if cell.bold else plain(cell.text) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(table: Table) -> str:
    """Lay out a table with its title, settings, notes and the commands that fill empty rows."""
    commands = fillers(table)
    numbers = {command: i for i, command in enumerate(commands, 1)}
    body = [cells(table, row, f"missing ({numbers.get(row.command, 0)})") for row in table.rows]
    parts = [f"### {plain(table.title)}", *(plain(text) for text in settings(table)), markdown_table(header(table), body)]
    parts += ["\n".join(f"- {plain(note)}" for note in table.notes)] if table.notes else []
    parts += [f"The data first:\n\n{code(table.data_command)}"] if table.data_command else []
    parts += [f"({numbers[one]}) {plain(', '.join(labels))}:\n\n{code(one)}" for one, labels in commands.items()]
    return "\n\n".join(parts) + "\n"


def code(command: str) -> str:
    """Lay out a command."""
    return f"```bash\n{command}\n```"


def plain(text: str) -> str:
    """Text that does not end a cell or begin an emphasis."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
