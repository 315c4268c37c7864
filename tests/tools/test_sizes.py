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


def test_every_module_is_for_something_and_every_pattern_fits_a_module():
    package = ROOT / "src" / "isfed"
    paths = [path.relative_to(package).as_posix() for path in sizes.sources(ROOT)]
    assert {sizes.capability_of(path) for path in paths} == set(sizes.CAPABILITIES)


def test_lines_are_told_apart(tmp_path):
    path = tmp_path / "some.py"
    path.write_text('"""What it is,\nat length."""\n\nx = 1  # one\n# Alone.\ny = """\na"""\n')
    kinds = sizes.kinds_of_lines(path, ast.parse(path.read_text()))
    assert kinds == {"modules": 1, "lines": 7, "code": 3, "docstrings": 2}
