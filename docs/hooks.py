"""What the documentation site is made of: the pages of the repository, at the same places, so that one link serves both.

Two kinds of pages are made while the site is built: tutorials from their scripts, and `api/MODULE.md` from docstrings.
"""

import re
import textwrap
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "docs/**/*.yaml", "docs/*.css", "bundles/*/docs/README.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put the repository's pages in place of those of docs/ alone."""
    site = Files([file for file in files if file.src_dir != config.docs_dir])  # the theme's
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        site.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for script in sorted(ROOT.glob("docs/tutorials/*.py")):
        name = script.relative_to(ROOT)
        text = f"{percent_to_markdown(script.read_text(encoding='utf-8'))}*This page is the script `{name.as_posix()}`.*\n"
        site.append(File.generated(config, name.with_suffix(".md").as_posix(), content=text))
    for page in next(entry["API"] for entry in config.nav or [] if "API" in entry):
        module = Path(page).stem
        text = f"# {module}\n\n::: {module}\n    options: {{show_root_heading: false}}\n"
        site.append(File.generated(config, page, content=text))
    return site


def on_page_markdown(markdown: str, **_mkdocs: object) -> str:
    """Links to a tutorial's script lead to its page."""
    return re.sub(r"(\]\([\w./]+)\.py\)", r"\1.md)", markdown)


def percent_to_markdown(script: str) -> str:
    """Return a script in percent format as a page: text cells as they are, code cells as blocks."""
    cells = re.split(r"^# %%(.*)\n", script, flags=re.MULTILINE)
    page = ""
    for kind, cell in zip(cells[1::2], cells[2::2], strict=True):
        text = re.sub(r"^# ?", "", cell, flags=re.MULTILINE) if "markdown" in kind else f"```python\n{cell.strip()}\n```\n"
        page += f"{text.strip()}\n\n"
    return page


class Doctests(griffe.Extension):
    """Our docstrings have examples without a heading; griffe wants one."""

    def on_object(self, *, obj: griffe.Object, **_griffe: object) -> None:
        """Put each block of `>>>` lines under "Examples:"."""
        if obj.docstring:
            blocks = obj.docstring.value.split("\n\n")
            marked = ["Examples:\n" + textwrap.indent(block, "    ") if block.startswith(">>>") else block for block in blocks]
            obj.docstring.value = "\n\n".join(marked)
