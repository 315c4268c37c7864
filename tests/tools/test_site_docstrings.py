"""From our docstrings to the sections that the site knows."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("griffe")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from site_docstrings import HouseStyle, to_sections  # pyright: ignore[reportMissingImports]

OURS = """Add numbers.

More about it: nothing.

a, b: what to add,
    on two lines.
c: a third.

>>> 1 + 1
2"""


def test_lists_of_arguments_become_sections():
    text = to_sections(OURS)
    assert text.startswith(
        "Add numbers.\n\nMore about it: nothing.\n\nArgs:\n    a: what to add,\n"
    )
    assert "    b: what to add,\n        on two lines.\n    c: a third." in text
    assert text.endswith("Examples:\n    >>> 1 + 1\n    2")


def test_text_without_a_list_stays_as_it_is():
    assert to_sections("One sentence: no list.") == "One sentence: no list."


def test_text_with_sections_stays_as_it_is():
    assert to_sections("Add.\n\nArgs:\n    a: one.") == "Add.\n\nArgs:\n    a: one."


INHERITED = '''
class Base:
    """A base.

    kept, changed: of the base.
    more: of the base, too.
    """


class Derived(Base):
    """Derived.

    changed: of its own.
    """
'''


def test_what_is_inherited_is_explained_once_and_by_the_nearest_class():
    griffe = pytest.importorskip("griffe")
    with griffe.temporary_visited_module(INHERITED) as module:
        HouseStyle().on_package(pkg=module)
        lines = module["Derived"].docstring.value.splitlines()
    listed = [line.strip() for line in lines if line.startswith("    ")]
    assert listed == [
        "changed: of its own.",
        "kept: of the base.",
        "more: of the base, too.",
    ]
