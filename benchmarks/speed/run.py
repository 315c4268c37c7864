"""Measure speed, all in one run and as ratios; results go to benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import c_reference
import costs
import methods
import peers
import plain_numpy
import reproduce
import rounds
import scale
import sum_tree
import telemetry
import threads
from measure import Report, load, table

RESULTS = Path(__file__).parents[1] / "results"
PARTS: dict[str, Callable[[Report, Path], None]] = {
    "c": c_reference.run,
    "numpy": plain_numpy.run,
    "rounds": rounds.run,
    "threads": threads.run,
    "costs": costs.run,
    "methods": methods.run,
    "scale": scale.run,
    "telemetry": telemetry.run,
    "tree": sum_tree.run,
    "peers": peers.run,
}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter tries")
    parser.add_argument(
        "--reproduce", action="store_true", help="also time `isfed reproduce regression`, minutes"
    )
    options = parser.parse_args()
    parts = {name: PARTS[name] for name in options.only or PARTS}
    if options.reproduce:
        parts["reproduce"] = reproduce.run
    report = Report(quick=options.quick)
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        for part in parts.values():
            part(report, Path(folder))
            save(report, f"{before} before, {load()} after")  # a run that is stopped has its parts
    print(f"{before} before, {load()} after")


def save(report: Report, machine: str) -> None:
    """Write what was measured so far."""
    RESULTS.mkdir(exist_ok=True)
    rows = [asdict(row) for row in report.rows]
    text = json.dumps({"machine": machine, "quick": report.quick, "rows": rows}, indent=1)
    (RESULTS / "bench.json").write_text(text + "\n")
    (RESULTS / "bench.md").write_text(table(report, machine))


if __name__ == "__main__":
    main()
