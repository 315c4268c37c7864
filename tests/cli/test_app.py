"""The command line as a whole: help, version, the list of designs."""

from __future__ import annotations

import isfed
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


def test_designs_lists_every_design(run):
    code, text = run("designs")
    assert code == 0
    assert text.count("inclusion probabilities") >= len(ALL_DESIGNS) - 1
