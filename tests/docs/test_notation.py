"""docs/notation.md names files that exist, and what it says is in them is in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    row
    for row in (ROOT / "docs" / "notation.md").read_text(encoding="utf-8").splitlines()
    if re.search(r"`[\w/]+\.py`", row)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:30])
def test_names_are_where_the_page_says(row):
    columns = row.split("|")
    place = re.search(r"`([\w/]+\.py)`", columns[4])
    assert place, "the fourth column names the file"
    path = ROOT / place[1] if place[1].startswith("tests/") else ROOT / "src/isfed" / place[1]
    source = path.read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+)`", columns[3]):
        assert re.search(rf"\b{name}\b", source), f"{name} is not in {place[1]}"


def test_the_page_was_read():
    assert len(ROWS) > 35
