"""The fenced blocks of a page, and how they are run.

    <!-- not run: why -->       before a block that is not executed
    <!-- output: verdict -->    before a block that shows what the command above it prints
    <!-- file: mine.py -->      before a block that the reader saves under that name

Python blocks of a page share their names, and all blocks of a page share a folder. Commands of
isfed that are not run are still parsed, so that no document names an option that is not there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from isfed.cli.app import app
from isfed.studies import read_experiment

ROOT = Path(__file__).parents[2]
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


def blocks(text: str) -> list[Block]:
    return [Block(m["lang"], m["body"], m["mark"] or "") for m in FENCE.finditer(text)]


def unseen(text: str) -> list[str]:
    """Code that looks like code to a reader and is no block: indented, or fenced another way."""
    rest = FENCE.sub("", text)
    fences = re.findall(r"^\s*(?:```|~~~).*$", rest, re.M)
    return fences + re.findall(r"(?:(?<=\n\n)|\A)(?: {4}|\t)(?![-*\d]).+$", rest, re.M)


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


def run_page(page: str, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page in their order, in the current folder; the names that they define.

    A block that needs an extra which is not there is skipped, and with it those that follow.
    """
    names, printed, missing = {"__name__": "page"}, "", False
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        kind, _, told = block.mark.partition(": ")
        if kind == "not run":
            assert told, f"{page}: say why a block is not run"
            for command in block.commands:
                if command.startswith("isfed "):
                    parse(command)
        elif kind == "output":
            wanted = " ".join(block.body.split())
            assert wanted in " ".join(printed.split()), f"{page} shows what is not printed"
        elif kind == "file":
            (folder / told).write_text(block.body, encoding="utf-8")
        elif block.language == "text":
            continue  # a formula or a drawing: nothing that could be run
        elif block.language == "python":
            missing = missing or skipped(block.body)
            if not missing:
                exec(compile(block.body, page, "exec", dont_inherit=True), names)
        elif block.language == "toml":
            _read_toml(block.body, folder / "page.toml")
        elif block.language in ("", "sh", "bash", "console"):
            printed = "".join(_execute(command) for command in block.commands)
        else:
            raise AssertionError(f"{page}: a block of {block.language} is neither run nor marked")
    return names


def skipped(body: str) -> bool:
    """Whether a block needs an extra that is not there."""
    if NEEDS_TORCH.search(body):
        wanted = os.environ.get("ISFED_TEST_TORCH") == "1"
        return not (wanted and importlib.util.find_spec("torch"))
    return bool(NEEDS_FLOWER.search(body)) and importlib.util.find_spec("flwr") is None


def _read_toml(body: str, path: Path) -> None:
    """An experiment is read by isfed; of other files, and of parts, only the form is checked."""
    found = tomllib.loads(body)
    if "algorithm" in found:
        path.write_text(body, encoding="utf-8")
        read_experiment(path)


def _execute(command: str) -> str:
    words = shlex.split(command)
    if words[0] == "isfed":
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output
    assert words[0] == "python", f"{command!r} is not run by the tests: mark it and say why"
    runpy.run_path(str(ROOT / words[1]), run_name="__main__")
    return ""
