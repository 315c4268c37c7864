"""`isfed methods` and docs/methods.md: one entry for every method, and one source for all."""

import re
from pathlib import Path

import isfed
from isfed.methods.catalogue import CATALOGUE
from isfed.report.methods_table import HEADINGS, TABLE_1, as_markdown, entries
from isfed.studies.name_registry import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_every_method_has_one_entry_and_can_be_imported():
    names = [entry.name for entry in CATALOGUE]
    assert set(names) <= set(METHODS)
    assert len(set(names)) == len(names)
    assert [entry.name for entry in entries()] == [*names, *(n for n in METHODS if n not in names)]
    for name in names:
        assert callable(getattr(isfed, name))


def test_every_entry_says_everything():
    for entry in CATALOGUE:
        for key in HEADINGS:
            assert getattr(entry, key), f"{entry.name}: {key}"
        assert re.search(r"(19|20)\d\d", entry.paper)


def test_what_has_no_public_code_says_so():
    without = {entry.name for entry in CATALOGUE if not entry.confirmed}
    assert {"FOLB", "HybridFL"} <= without
    for entry in CATALOGUE:
        if entry.name in ("FOLB", "HybridFL"):
            assert "nconfirmed" in (METHODS[entry.name].__doc__ or "")


def test_the_page_is_up_to_date():
    """If this fails: python -m isfed methods --markdown, between the two marks."""
    found = re.search(r"<!-- generated -->\n(.*?)<!-- end -->", PAGE.read_text(), re.S)
    assert found
    assert found[1].strip() == as_markdown().strip()


def test_table_1_names_methods_that_exist():
    for row in TABLE_1:
        for name in re.findall(r"[A-Z]\w+", row[0]):
            assert name in METHODS
