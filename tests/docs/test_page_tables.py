"""Every table of the pages has a head, a line under it, and rows of as many cells."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)


def tables(text: str) -> list[list[str]]:
    """Runs of lines that begin with a bar, outside of code."""
    prose = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.M | re.S)
    return [run.splitlines() for run in re.findall(r"(?:^\|.*\n?)+", prose, re.M)]


def complaints(text: str) -> list[str]:
    found = []
    for lines in tables(text):
        if len(lines) < 3 or not re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", lines[1].strip()):
            found.append(f"no line under the head: {lines[0][:60]} / {lines[-1][:60]}")
            continue
        cells = [len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) for line in lines]
        found += [
            f"{n} bars instead of {cells[0]}: {line[:60]}"
            for n, line in zip(cells, lines, strict=True)
            if n != cells[0]
        ]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_whole(page):
    assert complaints(page.read_text("utf-8")) == []


def test_rows_of_another_table_are_noticed():
    """What happened to a page: the rows of one table under the head of another."""
    assert complaints("| | |\n| anybody | drop | 1 |\n| | adjusted | 2 |\n")
    assert complaints("| a | b |\n|---|---|\n| 1 | 2 | 3 |\n")
    assert not complaints("| a | b |\n|---|--:|\n| `x|y` | 2 |\n")
