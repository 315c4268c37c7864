"""Every block of the documents is run, or a comment before it says why it is not.

`support/page_blocks.py` says which comments there are.
"""

import re
import sys

import pytest
from page_blocks import FENCE, ROOT, blocks, parse, run_page, unseen

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def test_no_document_is_elsewhere():
    folders = ("benchmarks", "src", "tests", "tools")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.md")]
    assert found == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/extend.md"])
def test_blocks_are_run_or_say_why_not(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["python"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    run_page(page, tmp_path)  # test_extend.py runs docs/extend.md and looks at what it defines


@pytest.mark.parametrize("page", PAGES)
def test_code_stands_in_fenced_blocks(page):
    assert unseen(text_of(page)) == []


def test_code_that_is_in_no_fenced_block_is_seen():
    assert unseen("Text:\n\n    isfed run\n    more\n") == ["    isfed run"]
    assert unseen("- a list\n  ```\n  code\n  ```\n") == ["  ```", "  ```"]
    assert unseen("```python title\nx = 1\n```\n") != []
    assert unseen("- a list\n\n    - inside\n\n```\nisfed run\n```\n") == []


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_comment_names_exist(page):
    for block in blocks(text_of(page)):
        for path in re.findall(r"\btests/[\w/]+(?:\.py)?", block.mark):
            assert (ROOT / path).exists(), f"{page}: {block.mark}"


@pytest.mark.parametrize("page", PAGES)
def test_scripts_that_the_text_names_exist(page):
    folders = "benchmarks|tools|examples|docs/make"
    for script in re.findall(rf"\b((?:{folders})/[\w/]+\.py)", text_of(page)):
        assert (ROOT / script).exists(), f"{page} names {script}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_the_text_names_exist(page):
    for command in re.findall(r"`(isfed [^`\n]+)`", FENCE.sub("", text_of(page))):
        parse(command.replace("'", ""))
