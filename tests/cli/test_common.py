"""The options that commands share, written once."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from isfed.cli.command_helpers import RunOptions, with_options


def test_a_record_of_options_becomes_options_of_the_command():
    taken = []

    @with_options
    def command(
        file: Annotated[Path, typer.Argument()], options: RunOptions, more: int = 3
    ) -> None:
        taken.append((file, options, more))

    assert "options" not in inspect.signature(command).parameters
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["x.toml", "--rounds", "7", "--resume", "--more", "4"])
    assert result.exit_code == 0, result.output
    assert taken == [(Path("x.toml"), RunOptions(rounds=7, resume=True), 4)]
    assert taken[0][1].given == {"rounds": 7}


@pytest.mark.parametrize(
    "command", [["run"], *(["reproduce", w] for w in ("regression", "classification", "writers"))]
)
def test_every_command_that_trains_has_them_all(run, command):
    code, text = run(*command, "--help")
    assert code == 0
    for option in inspect.signature(RunOptions).parameters:
        assert f"--{option}" in text
