"""The command line as a user meets it: called in an empty folder."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from isfed.cli.app import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call the command line in an empty folder; returns (exit code, output)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(words))
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.output

    return call
