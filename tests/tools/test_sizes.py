"""What the counts of tools/sizes.py must stay at."""

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import sizes  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).resolve().parents[2]


def test_a_public_name_is_defined_once():
    assert sizes.twice(sizes.sources(ROOT)) == []


def test_pairs_of_options_are_refused_by_the_rule_of_parts_alone():
    assert sizes.refused_pairs(sizes.sources(ROOT), ROOT / "src" / "isfed") == 0


def test_the_counts_see_what_they_look_for():
    package = Path("isfed")
    code = "def f(self):\n    if self.a and self.b:\n        raise ValueError\nclass C: ...\n"
    modules = {package / "methods" / name: ast.parse(code) for name in ("one.py", "two.py")}
    assert sizes.twice(modules) == ["C", "f"]
    assert sizes.refused_pairs(modules, package) == 2
