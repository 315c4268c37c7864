"""What the site says of the arguments of a record that derives from another."""

# pyright: reportMissingImports=false
import sys
from pathlib import Path

import pytest

pytest.importorskip("griffe")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import griffe
from site_docstrings import (
    InheritedArguments,
    with_inherited,
)

BASE = "Common.\n\nArgs:\n    step: how far,\n        each time.\n    count: how many."


def test_what_only_a_base_explains_is_added():
    own = "Mine.\n\nArgs:\n    count: my own.\n\nMore."
    text = with_inherited(own, [BASE])
    assert text == (
        "Mine.\n\nArgs:\n    count: my own.\n    step: how far,\n        each time.\n\nMore."
    )
    assert with_inherited("Mine.", [BASE]) == "Mine.\n\n" + BASE.partition("\n\n")[2]
    assert with_inherited(own, ["Common."]) == own
    several = with_inherited(own, ["Common.\n\nArgs:\n    count, size: of the base."])
    assert several == "Mine.\n\nArgs:\n    count: my own.\n    size: of the base.\n\nMore."


def test_every_method_on_the_site_explains_the_step_size(tmp_path):
    package = griffe.load(
        "isfed",
        search_paths=[Path(__file__).parents[2] / "src"],
        extensions=griffe.load_extensions(InheritedArguments),
    )
    text = package["methods.fedprox.FedProx"].docstring.value
    assert "    step_size: " in text
    assert "    num_active: " in text
