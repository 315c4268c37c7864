"""The command line as a whole: help, version, the list of designs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from rich.table import Table
from rich.text import Text

import isfed
from isfed.cli.app import app
from isfed.cli.command_helpers import console, one_line_errors
from isfed.sampling.designs import ALL_DESIGNS


def test_version(run):
    assert run("--version") == (0, f"isfed {isfed.__version__}\n")


def test_help_explains_every_command(run):
    code, text = run("--help")
    assert code == 0
    for command in ("run", "reproduce", "designs"):
        assert command in text
    code, text = run("run", "--help")
    assert code == 0
    for option in ("--resume", "--overwrite", "--out", "--threads"):
        assert option in text


def test_help_shows_no_types_of_python(run):
    """Some versions of Typer write <bool> beside flags and <int range> beside numbers."""

    def names(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        below = getattr(command, "commands", {})
        return [path, *(name for key in below for name in names(below[key], (*path, key)))]

    paths = names(typer.main.get_command(app), ())
    assert ("reproduce", "regression") in paths
    for path in paths:
        code, text = run(*path, "--help")
        assert code == 0
        assert not re.search(r"<\w+( range)?>", text), path


def test_every_argument_and_option_is_explained():
    def unexplained(command: Any, path: str) -> list[str]:
        found = [
            f"{path} {parameter.name}"
            for parameter in command.params
            if not getattr(parameter, "help", None) and parameter.name != "help"
        ]
        for name, sub in getattr(command, "commands", {}).items():
            found += unexplained(sub, f"{path} {name}")
        return found

    assert unexplained(typer.main.get_command(app), "isfed") == []


def test_brackets_in_help_are_printed(run):
    def plain(text: str | None) -> str:
        return Text.from_markup(text or "").plain

    def lost(command: Any, path: str) -> list[str]:
        below = getattr(command, "commands", {})
        said = command.help if below else inspect.getdoc(command.callback)
        found = [] if plain(command.help) == (said or "") else [path]
        for parameter in command.params:
            text = getattr(parameter, "help", None) or ""
            found += [] if plain(text) == text else [f"{path} {parameter.name}"]
        return found + [place for name, sub in below.items() for place in lost(sub, name)]

    assert lost(typer.main.get_command(app), "isfed") == []
    assert "pip install 'isfed[torch]'" in run("reproduce", "networks", "--help")[1]


@pytest.mark.parametrize("name", ["a [bold] one", "no [/end]"])
def test_brackets_in_names_are_printed(name, capsys):
    table = Table()
    table.add_column("name", no_wrap=True)
    table.add_row(name)
    console.print(table)
    assert name in capsys.readouterr().out


def test_a_missing_extra_is_no_fault_of_ours(capsys):
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise ImportError("this needs PyTorch: pip install 'isfed[torch]'")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "error: this needs PyTorch: pip install 'isfed[torch]'\n"


def test_designs_lists_every_design(run):
    code, text = run("designs")
    assert code == 0
    assert text.count("inclusion probabilities") >= len(ALL_DESIGNS) - 1


@pytest.mark.parametrize("words", [("--help",), ("compare", "--help"), ("--version",)])
def test_help_and_version_load_nothing_heavy(words):
    code = f"""
import sys
from typer.testing import CliRunner
from isfed.cli.app import app
print(CliRunner().invoke(app, {list(words)}).exit_code)
print([m for m in ("numba", "numpy", "scipy", "pyarrow", "matplotlib") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "[]"], done.stderr
