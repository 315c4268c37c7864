"""Every block of the documents is run, or a comment before it says why it is not.

    <!-- not run: why -->       before a block that is not executed
    <!-- output: verdict -->    before a block that shows what the command above it prints

Python blocks of a page share their names, and all blocks of a page share a folder. Commands of
isfed that are not run are still parsed, so that no document names an option that is not there.
"""

import importlib.util
import os
import re
import runpy
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from isfed.cli.app import app
from isfed.experiments import read_experiment

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "extend.md"  # test_extend.py runs it and looks at what it defines
)
FENCE = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<lang>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
NEEDS_TORCH = re.compile(r"^(from|import) (torch|isfed\.torch)", re.M)
NEEDS_FLOWER = re.compile(r"^(from|import) (flwr|isfed\.flower)", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block, and the comment before it."""

    language: str
    body: str
    mark: str

    @property
    def commands(self) -> list[str]:
        """The commands of a block of the shell, without comments."""
        lines = self.body.replace("\\\n", " ").splitlines()
        return [line.split("  #")[0].strip() for line in lines if line.strip()[:1] not in ("", "#")]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(m["lang"], m["body"], m["mark"] or "") for m in FENCE.finditer(text)]


def parse(command: str) -> None:
    """Fail if a command of isfed names a command or an option that does not exist."""
    found: Any = typer.main.get_command(app)
    words = shlex.split(command)[1:]
    while getattr(found, "commands", None) and words and not words[0].startswith("-"):
        assert words[0] in found.commands, f"isfed has no command {words[0]!r}"
        found, words = found.commands[words[0]], words[1:]
    known = {
        flag for parameter in found.params for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in {*known, "--help"}, f"{command}: no option {word}"


def read_toml(body: str, path: Path) -> None:
    """An experiment is read by isfed; of other files, and of parts, only the form is checked."""
    found = tomllib.loads(body)
    if "algorithm" in found:
        path.write_text(body, encoding="utf-8")
        read_experiment(path)


def execute(command: str) -> str:
    words = shlex.split(command)
    if words[0] == "isfed":
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output
    assert words[0] == "python", f"{command!r} is not run by the tests: mark it and say why"
    runpy.run_path(str(ROOT / words[1]), run_name="__main__")
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_run_or_say_why_not(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["python"])
    names, printed, missing = {"__name__": "page"}, "", False
    for block in blocks(page):
        if block.mark.startswith("not run:"):
            assert len(block.mark) > len("not run: "), "say why"
            for command in block.commands:
                if command.startswith("isfed "):
                    parse(command)
        elif block.mark.startswith("output:"):
            wanted = " ".join(block.body.split())
            assert wanted in " ".join(printed.split()), f"{page} shows what is not printed"
        elif block.language == "python":
            missing = missing or skipped(block.body)
            if missing:
                continue  # what follows may use what this block defines
            exec(compile(block.body, page, "exec"), names)
        elif block.language == "toml":
            read_toml(block.body, tmp_path / "page.toml")
        elif block.language in ("", "sh", "bash", "console"):
            printed = "".join(execute(command) for command in block.commands)
        else:
            pytest.fail(f"{page}: a block of {block.language} is neither run nor marked")


def skipped(body: str) -> bool:
    """Whether a block needs an extra that is not there."""
    if NEEDS_TORCH.search(body):
        wanted = os.environ.get("ISFED_TEST_TORCH") == "1"
        return not (wanted and importlib.util.find_spec("torch"))
    return bool(NEEDS_FLOWER.search(body)) and importlib.util.find_spec("flwr") is None


@pytest.mark.parametrize("page", [*PAGES, "docs/extend.md"])
def test_commands_stand_in_fenced_blocks(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert re.findall(r"^ {4}(?:isfed|make|pip|ray|python) .*$", text, re.M) == []


@pytest.mark.parametrize("page", [*PAGES, "docs/extend.md"])
def test_scripts_that_the_text_names_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for script in re.findall(r"\b((?:benchmarks|tools|examples)/[\w/]+\.py)", text):
        assert (ROOT / script).exists(), f"{page} names {script}"


@pytest.mark.parametrize("page", [*PAGES, "docs/extend.md"])
def test_commands_that_the_text_names_exist(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for command in re.findall(r"`(isfed [^`\n]+)`", text):
        parse(command.replace("'", ""))
