"""CPU seconds of `isfed compare` and `isfed diagnose` against those of an older revision.

    python benchmarks/speed/analyst.py 442eca5 [--tries 5] [--rows 1000000]

Both revisions run by turns, each with a cache of its own that a run before has filled. The table of
`compare` has 1 200 rows; with --rows, `diagnose` reads one of so many rows and 20 features instead.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from measure import load
from startup import cpu_seconds, write_table

ROOT = Path(__file__).parents[2]
AGENTS, FEATURES = 200, 20


def write_large(path: Path, rows: int) -> None:
    """A regression of 200 agents, of which every twentieth is noisy, as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    x, agent = rng.standard_normal((rows, FEATURES)), rng.integers(0, AGENTS, rows)
    noise = np.where(agent % 20 == 0, 4.0, 1.0) * rng.standard_normal(rows)
    columns = {f"x{j}": x[:, j] for j in range(FEATURES)}
    names = np.char.add("site", agent.astype(str))
    pq.write_table(pa.table({**columns, "site": names, "y": x.sum(axis=1) + noise}), path)


def seconds(tree: Path, command: list[str], folder: Path) -> float:
    """What one run takes with the package of that tree; a run may compile the modules only once."""
    arguments = [*command, "--agent", "site", "--target", "y", "--overwrite"]
    return cpu_seconds(
        [sys.executable, "-m", "isfed", *arguments, "--out", str(folder / "out")],
        PYTHONPATH=str(tree / "src"), NUMBA_CACHE_DIR=str(folder / "cache"),
        PYTHONPYCACHEPREFIX=str(folder / "modules"), PYTHONDONTWRITEBYTECODE="",
    )  # fmt: skip


def main() -> None:
    """Print the ratio of the revisions, with its spread."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", help="the older state")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--rows", type=int, help="measure `diagnose` on so many rows")
    options = parser.parse_args()
    before = load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = ["git", "archive", options.revision, "src"]
        content = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            files.extractall(folder / "old", filter="data")
        table = folder / "table.parquet" if options.rows else folder / "table.csv"
        write_large(table, options.rows) if options.rows else write_table(table)
        command = ["diagnose" if options.rows else "compare", str(table)]
        trees = [folder / "old", ROOT]
        for number, tree in enumerate(trees):
            (folder / str(number)).mkdir()
            seconds(tree, command, folder / str(number))
        tries = [
            [seconds(tree, command, folder / str(n)) for n, tree in enumerate(trees)]
            for _ in range(options.tries)
        ]
    for title, column in zip((options.revision, "now"), zip(*tries, strict=True), strict=True):
        print(f"isfed {command[0]}, {title}: {median(column):.2f} s of CPU "
              f"({min(column):.2f}-{max(column):.2f})")  # fmt: skip
    ratios = [now / old for old, now in tries]
    print(f"ratio {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}, {len(ratios)} tries)")
    print(f"{before} before, {load()} after")


if __name__ == "__main__":
    main()
