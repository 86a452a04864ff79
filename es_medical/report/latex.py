r"""Tables as LaTeX (booktabs): `\input` them; the commands of missing rows are comments."""

from es_medical.report.cells import cells, fillers, header, settings
from es_medical.report.methods import kind
from es_medical.report.tables import Table

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "∞": r"$\infty$",
}


def latex(table: Table) -> str:
    """Lay out a table as a `table` environment; rules separate supervised, self-supervised and learning-free methods."""
    titles = header(table)
    lines = [f"% needs \\usepackage{{booktabs, graphicx}}; {' '.join(settings(table))}"]
    lines += [f"% the data first: {table.data_command}"] if table.data_command else []
    lines += [f"% missing ({', '.join(labels)}): {command}" for command, labels in fillers(table).items()]
    lines = [" ".join(line.split()) for line in lines]  # a comment ends with its line
    lines += [r"\begin{table}[htbp]", r"\centering", f"\\caption{{{_caption(table)}}}", f"\\label{{tab:{table.slug}}}"]
    lines += [r"\resizebox{\textwidth}{!}{%", f"\\begin{{tabular}}{{l{'c' * (len(titles) - 1)}}}", r"\toprule"]
    lines += [" & ".join(escape(title) for title in titles) + r" \\", r"\midrule"]
    for i, row in enumerate(table.rows):
        lines += [r"\midrule"] if i and kind(row.method) != kind(table.rows[i - 1].method) else []
        body = cells(table, row, "missing")
        shown = [f"\\textbf{{{escape(cell.text)}}}" if cell.bold else escape(cell.text) for cell in body]
        lines.append(" & ".join(shown) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    r"""Return plain text as LaTeX.

    >>> escape("70 % of A_1 & B: 1 ± 2"), escape("a\nb")
    ('70 \\% of A\\_1 \\& B: 1 $\\pm$ 2', 'a b')
    """
    return "".join(ESCAPES.get(character, character) for character in " ".join(text.split()))


def _caption(table: Table) -> str:
    parts = [f"{table.title}.", *settings(table), *(f"{note}." for note in table.notes)]
    return escape(" ".join(parts)) + r" In \textbf{bold}, the best self-supervised scores."
