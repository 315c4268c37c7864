"""CPU seconds until something happens: imports, `isfed --help`, and the first `isfed compare`.

    python benchmarks/speed/startup.py [--tries 5] [--cold 1]

Every try is a process of its own, children included. The cold start has an empty cache of compiled
code; what compiling takes is the difference to the next start, which finds it filled.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from measure import load

AGENTS, ROWS, FEATURES = 40, 1200, 4
LIMITS = {"import isfed": 0.4, "isfed --help": 0.6, "compiling": 35.0}
IMPORTS = ("import isfed", "from isfed import simulate")


def cpu_seconds(command: list[str], **environment: str) -> float:
    """What a process and its children take of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr or done.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_table(path: Path) -> None:
    """A small regression: an agent, four features, a target."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES))
    y = x.sum(axis=1) + rng.standard_normal(ROWS)
    lines = ["site," + ",".join(f"x{j}" for j in range(FEATURES)) + ",y"]
    for i in range(ROWS):
        numbers = ",".join(f"{value:.6f}" for value in (*x[i], y[i]))
        lines.append(f"site{i % AGENTS},{numbers}")
    path.write_text("\n".join(lines) + "\n")


def compare(folder: Path, number: int, cache: Path) -> float:
    """`isfed compare` with a cache of compiled code, as short as it can be."""
    return cpu_seconds(
        [sys.executable, "-m", "isfed", "compare", str(folder / "table.csv"), "--agent", "site",
         "--target", "y", "--rounds", "100", "--repetitions", "2", "--threads", "1",
         "--out", str(folder / f"out{number}")],
        NUMBA_CACHE_DIR=str(cache),
    )  # fmt: skip


def show(name: str, seconds: list[float]) -> None:
    """One line: the median and its spread."""
    limit = f", wanted: at most {LIMITS[name]}" if name in LIMITS else ""
    spread = f"({min(seconds):.2f}-{max(seconds):.2f}, {len(seconds)} tries)"
    print(f"{name:36} {median(seconds):6.2f} s {spread}{limit}", flush=True)


def main() -> None:
    """Print a line for every start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=5, help="of the imports and of --help")
    parser.add_argument("--cold", type=int, default=1, help="starts with an empty cache")
    options = parser.parse_args()
    before = load()
    for code in IMPORTS:
        cpu_seconds([sys.executable, "-c", code])  # the files are in memory from here on
        command = [sys.executable, "-c", code]
        show(code, [cpu_seconds(command) for _ in range(options.tries)])
    command = [sys.executable, "-m", "isfed", "--help"]
    show("isfed --help", [cpu_seconds(command) for _ in range(options.tries)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder / "table.csv")
        cold, warm = [], []
        for number in range(options.cold):
            cache = folder / f"cache{number}"
            cold.append(compare(folder, 2 * number, cache))
            warm.append(compare(folder, 2 * number + 1, cache))
        show("isfed compare, empty cache", cold)
        show("isfed compare, compiled before", warm)
        show("compiling", [c - w for c, w in zip(cold, warm, strict=True)])
    print(f"CPU seconds; {before} before, {load()} after")


if __name__ == "__main__":
    main()
