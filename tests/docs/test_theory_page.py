"""docs/theory.md and its appendix are what docs/make/theory_page.py makes of its text."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_follows_its_source():
    source = (ROOT / "docs" / "make" / "theory_page.txt").read_text(encoding="utf-8")
    parts = ("theory.md", "appendix/theory.md")
    page = "<!-- appendix -->\n".join(
        (ROOT / "docs" / part).read_text(encoding="utf-8") for part in parts
    )
    pieces = re.split(r"\$(\w+)", source)  # text, name, text, name, ...
    seen: set[str] = set()
    pattern = ""
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            pattern += re.escape(piece)
        elif piece in seen:
            pattern += f"(?P={piece})"  # a number that stands twice is the same number
        else:
            seen.add(piece)
            pattern += f"(?P<{piece}>.*?)"
    found = re.fullmatch(pattern, page, re.S)
    assert found, "docs/theory.md was edited by hand: edit docs/make/theory_page.txt and make it"
