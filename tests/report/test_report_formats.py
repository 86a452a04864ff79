"""The files of a report: LaTeX that compiles, CSV that reads back, HTML that needs nothing else."""

import csv
import math
import re
from html.parser import HTMLParser

import pytest
from report_store import case_picture, items

from es_medical.knobs import number
from es_medical.report.formats import write_report
from es_medical.report.reading.runs import read_runs
from es_medical.report.report import make_report


@pytest.fixture
def report(store, tmp_path):
    """A report of a store whose names hold what LaTeX, HTML and Markdown must escape; and its folder."""
    store.log("supervised", items(31, equiv=math.inf))
    store.log("es", items(28), files=case_picture(50), tags={"data_set": "<b>50%_of|a&b<b> #1 $x^2$ {y} ~.h5"})
    store.log("splitting", items(27))
    made = make_report(read_runs(store.uri), store.context)
    write_report(made, tmp_path / "out")
    return made, tmp_path / "out"


def read_csv(path):
    """Rows of a CSV file: numbers as float, "" as None, True and False as bool."""

    def value(text):
        return {"": None, "True": True, "False": False}.get(text, text if number(text) is None else float(text))

    with path.open(newline="", encoding="utf-8") as stream:
        return [{name: value(text) for name, text in row.items()} for row in csv.DictReader(stream)]


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
    depths = [bare[:i].count("{") - bare[:i].count("}") for i in range(len(bare) + 1)]
    assert min(depths) == depths[-1] == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", body):
        assert kind == "begin" or opened.pop() == name
        opened += [name] if kind == "begin" else []
    assert opened == []
    assert not set(bare) & set("%#~^_<>|"), set(bare) & set("%#~^_<>|")
    assert bare.count("$") % 2 == 0
    assert body.isascii(), [character for character in body if not character.isascii()]
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", body)[1]
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) > 2
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(columns) - 1}


def test_the_check_of_latex_finds_what_is_wrong():
    good = "\\begin{table}\n\\begin{tabular}{lc}\nA & 1 \\\\\nB & 2 \\\\\nC & 3 \\\\\n\\end{tabular}\n\\end{table}"
    check_latex(good)
    for wrong in ("50%", "A & B", "a_1", "{A"):
        with pytest.raises(AssertionError):
            check_latex(good.replace("A", wrong))


def test_csv_reads_back_the_numbers_exactly(report):
    made, out = report
    for table in (table for section in made.sections for table in section.tables):
        rows = read_csv(out / "csv" / f"{table.slug}.csv")
        assert [row["method"] for row in rows] == [row.method for row in table.rows]
        for read, row in zip(rows, table.rows, strict=True):
            for name in ("psnr", "ssim", "equiv"):
                score = row.scores.get(name)
                found = tuple(read[f"{name}{suffix}"] for suffix in ("", "_sd", "_best"))
                assert found == ((score.mean, score.sd, score.best) if score else (None, None, None))
                assert read[f"paper_{name}"] == (getattr(row.paper, name).mean if row.paper else None)
            assert read["training_s"] == (row.training.seconds if row.training else None)
            assert (read["setting"], read["command"] or "") == (table.ours, row.command)


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


def test_the_page_needs_nothing_else_and_has_scores_beside_the_papers_and_commands_of_missing_rows(report):
    text = (report[1] / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in page.links)
    assert not page.tags & {"script", "link", "iframe", "object", "b"}  # the data set's own <b> is escaped
    assert "@import" not in text
    assert "url(" not in text
    for part in ("28.00 ± 0.37", "28.54 ± 2.75", "∞", "--method ei", "<b>50%_of|a&b<b>"):
        assert part in " ".join(page.text)


def test_markdown_has_whole_tables_the_best_in_bold_every_picture_and_each_command_once(report):
    made, out = report
    text = (out / "report.md").read_text()
    for block in re.findall(r"(?:^\| .*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block
    assert "| **28.00 ± 0.37** |" in text
    shown = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(shown) >= 2
    assert all((out / path).read_bytes().startswith(b"\x89PNG") for path in shown)
    assert [row.method for row in made.sections[0].tables[0].rows if row.command] == ["ei", "sure"]
    assert "(1) EI:" in text
    empty = next(section for section in made.sections if section.title.startswith("CT"))
    commands = {row.method: row.command for row in empty.tables[0].rows}
    assert commands["es"] == commands["baseline"]
    assert "(2) ES, FBP:" in text


def test_differences_and_times_are_written_as_numbers(report):
    files = {path.name.rpartition("-")[2]: path for path in (report[1] / "csv").glob("*.csv")}
    rows = read_csv(files["differences.csv"])
    assert {row["method"] for row in rows} == {"supervised", "splitting", "baseline"}
    assert next(row["mean"] for row in rows if (row["method"], row["name"]) == ("splitting", "psnr")) == pytest.approx(1.0)
    assert {row["method"] for row in read_csv(files["times.csv"])} == {"supervised", "es", "splitting"}
