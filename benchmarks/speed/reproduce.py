"""How long `isfed reproduce regression` takes with default settings, once compiled.

The CPU time says what it would take on idle cores, whatever else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from measure import Report, Row

COMMAND = [sys.executable, "-m", "isfed", "reproduce", "regression"]
SHORT = ["--rounds", "100", "--repetitions", "2", "--no-heterogeneity"]


def _seconds(out: Path, *options: str) -> tuple[float, float]:
    """On the wall, and of the processors."""
    before, used = time.perf_counter(), os.times()
    subprocess.run([*COMMAND, "--out", str(out), *options], check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - used.children_user - used.children_system
    return time.perf_counter() - before, cpu


def run(report: Report, folder: Path) -> None:
    """A short run first, which compiles or finds everything compiled; then the real one."""
    first, _ = _seconds(folder / "first", *SHORT)
    options = SHORT if report.quick else []
    whole, cpu = _seconds(folder / "whole", *options)
    note = (
        f"{whole:.1f} s on the wall, {cpu:.1f} s of CPU time; a short run before it, which may "
        f"compile, {first:.1f} s on the wall"
    )
    name = "isfed reproduce regression" + (" (shortened)" if report.quick else "")
    report.add(Row("command", name, note=note))
