"""tools/silence.py: it shows what a command writes, and ends with its code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "silence.py"


def test_the_words_and_the_code_of_the_command_are_kept():
    code = "import os, sys; os.environ.get('NUMBA_CACHE_DIR', '') and print('cold'); sys.exit(3)"
    ended = subprocess.run(
        [sys.executable, str(TOOL), "--cold", "--", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    first, last = ended.stdout.splitlines()
    assert " s] cold" in first
    assert last.startswith("first words after ")


def test_a_silent_command_is_silent_for_as_long_as_it_runs():
    ended = subprocess.run(
        [sys.executable, str(TOOL), "--", sys.executable, "-c", "pass"],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    words = ended.stdout.split()
    assert words[3] == words[7] == words[9]  # first words, longest silence, in all
