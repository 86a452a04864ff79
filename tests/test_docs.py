"""The pages that users read: nothing unfinished, no link to nowhere."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("bundles/*/docs/*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_is_finished_and_its_links_exist(page):
    text = page.read_text()
    assert "@@" not in text
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_readme_is_short_and_has_two_commands_that_set_everything_up():
    """CI runs the second one as it stands."""
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 900
    for marker in ("main job", "tests"):
        block = text.split(f"<!-- {marker} -->")[1].split("```")[1]
        assert block.removeprefix("bash").strip().count("\n") == 0
        assert "python3 -m venv .venv" in block


def test_changelog_names_the_version_of_a_tree_without_tags():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["fallback-version"]
    assert re.search(rf"^(## |Version ){re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
