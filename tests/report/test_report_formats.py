"""The files of a report: LaTeX that compiles, CSV that reads back, HTML that needs nothing else."""

import csv
import math
import re
from html.parser import HTMLParser

import pytest
from report_store import case_picture, items

from es_medical.knobs import number
from es_medical.report.formats import escape, write_report
from es_medical.report.reading.runs import read_runs
from es_medical.report.report import make_report
from es_medical.report.tables import Context


def read_csv(path):
    """Rows of a CSV file: numbers as float, "" as None, True and False as bool."""

    def value(text):
        return {"": None, "True": True, "False": False}.get(text, text if number(text) is None else float(text))

    with path.open(newline="", encoding="utf-8") as stream:
        return [{name: value(text) for name, text in row.items()} for row in csv.DictReader(stream)]


@pytest.fixture
def report(store, tmp_path):
    """A report of a store whose names hold what LaTeX, HTML and Markdown must escape; and its folder."""
    store.log("supervised", items(31, equiv=math.inf))
    store.log("es", items(28), files=case_picture(50), tags={"data_set": "<b>50%_of|a&b<b> #1 $x^2$ {y} ~.h5"})
    store.log("splitting", items(27))
    made = make_report(read_runs(store.uri), Context(store.uri))
    write_report(made, tmp_path / "out")
    return made, tmp_path / "out"


def test_latex_is_well_formed(report):
    made, out = report
    files = list((out / "tex").glob("*.tex"))
    assert len(files) == sum(len(section.tables) for section in made.sections)
    for file in files:
        check_latex(file.read_text())


def check_latex(text):
    """Braces and environments are closed in order, special characters escaped, every row has the columns of its tabular."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(lines).replace("!}{%\n", "!}{\n")
    bare = re.sub(r"\\[\\%&_#${}~^]", "", body)
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    assert not set(bare) & set("%#~^_<>|"), set(bare) & set("%#~^_<>|")
    assert bare.count("$") % 2 == 0
    assert body.isascii(), [character for character in body if not character.isascii()]
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", body)[1]
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) > 2
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1


def test_the_check_of_latex_finds_what_is_wrong():
    good = "\\begin{table}\n\\begin{tabular}{lc}\nA & 1 \\\\\nB & 2 \\\\\nC & 3 \\\\\n\\end{tabular}\n\\end{table}"
    check_latex(good)
    for wrong in (good.replace("A", "50%"), good.replace("A", "A & B"), good.replace("A", "a_1"), good.replace("A", "{A")):
        with pytest.raises(AssertionError):
            check_latex(wrong)


def test_a_latex_comment_stays_on_its_line():
    assert escape("a\nb") == "a b"


def test_csv_reads_back_the_numbers_exactly(report):
    made, out = report
    for section in made.sections:
        for table in section.tables:
            rows = read_csv(out / "csv" / f"{table.slug}.csv")
            assert [row["method"] for row in rows] == [row.method for row in table.rows]
            for read, row in zip(rows, table.rows, strict=True):
                for name in ("psnr", "ssim", "equiv"):
                    score = row.scores.get(name)
                    assert read[name] == (score.mean if score else None)
                    assert read[f"{name}_sd"] == (score.sd if score else None)
                    assert read[f"{name}_best"] == (score.best if score else None)
                    assert read[f"paper_{name}"] == (getattr(row.paper, name).mean if row.paper else None)
                assert read["training_s"] == (row.training.seconds if row.training else None)
                assert read["setting"] == table.ours
                assert (read["command"] or "") == row.command


class Page(HTMLParser):
    """Tags and their attributes, and whether they are closed in order."""

    VOID = ("meta", "img", "br")

    def __init__(self):
        super().__init__()
        self.links, self.open, self.tags, self.text = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data", "poster", "srcset")]
        self.open += [] if tag in self.VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_needs_nothing_else(report):
    _, out = report
    text = (out / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in page.links)
    assert not page.tags & {"script", "link", "iframe", "object", "b"}  # the data set's own <b> is escaped
    assert "@import" not in text
    assert "url(" not in text


def test_the_page_has_scores_beside_the_papers_and_the_command_of_a_missing_row(report):
    page = Page()
    page.feed((report[1] / "report.html").read_text())
    text = " ".join(page.text)
    for part in ("28.00 ± 0.37", "28.54 ± 2.75", "∞", "--method ei", "<b>50%_of|a&b<b>"):
        assert part in text


def test_every_row_of_a_markdown_table_has_its_columns(report):
    columns = None
    for line in (report[1] / "report.md").read_text().splitlines():
        if not line.startswith("| "):
            columns = None
            continue
        found = len(re.findall(r"(?<!\\)\|", line))
        assert columns in (None, found), line
        columns = found


def test_markdown_shows_the_best_in_bold_and_every_picture_is_there(report):
    out = report[1]
    text = (out / "report.md").read_text()
    assert "| **28.00 ± 0.37** |" in text
    shown = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(shown) >= 2
    assert all((out / path).read_bytes().startswith(b"\x89PNG") for path in shown)


def test_a_command_that_fills_two_rows_stands_once(report):
    table = report[0].sections[0].tables[0]
    assert [row.method for row in table.rows if row.command] == ["ei", "sure"]
    text = (report[1] / "report.md").read_text()
    assert text.count("(1) EI:") >= 1
    empty = next(section for section in report[0].sections if section.title.startswith("CT"))
    es, baseline = (next(row for row in empty.tables[0].rows if row.method == name) for name in ("es", "baseline"))
    assert es.command == baseline.command
    assert "(2) ES, FBP:" in text


def test_differences_and_times_are_written_as_numbers(report):
    files = {path.name.rpartition("-")[2]: path for path in (report[1] / "csv").glob("*.csv")}
    rows = read_csv(files["differences.csv"])
    assert {row["method"] for row in rows} == {"supervised", "splitting", "baseline"}
    assert next(row["mean"] for row in rows if (row["method"], row["name"]) == ("splitting", "psnr")) == pytest.approx(1.0)
    assert {row["method"] for row in read_csv(files["times.csv"])} == {"supervised", "es", "splitting"}
