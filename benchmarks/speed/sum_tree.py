"""A sum tree: one round draws 1000 units and changes 1000 weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from measure import Case, Report, by_turns

from isfed import SumTree

SIZES = (10**4, 10**6)
DRAWN = 1000


def tree_case(size: int) -> Case:
    """Rounds of a draw and an update of what was drawn."""
    rng = np.random.default_rng(0)
    tree = SumTree(rng.uniform(0.5, 1.5, size))
    fresh = rng.uniform(0.5, 1.5, DRAWN)

    def advance(rounds: int) -> None:
        for _ in range(rounds):
            units, _inclusion = tree.draw(DRAWN, rng)
            tree.update(units, fresh)

    return advance


def scan_case(size: int) -> Case:
    """The same by cumulative sums over all units, ordered systematic."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 1.5, size)
    fresh = rng.uniform(0.5, 1.5, DRAWN)

    def advance(rounds: int) -> None:
        for _ in range(rounds):
            ends = np.cumsum(weights)
            points = (rng.random() + np.arange(DRAWN)) * (ends[-1] / DRAWN)
            weights[np.searchsorted(ends, points, side="right")] = fresh

    return advance


def run(report: Report, _folder: Path) -> None:
    """The tree at two sizes, and a NumPy scan beside it."""
    cases: dict[str, Case] = {f"tree {size:.0e}": tree_case(size) for size in SIZES}
    cases |= {f"scan {size:.0e}": scan_case(size) for size in SIZES}
    times = by_turns(cases, report)
    small, large = (f"tree {size:.0e}" for size in SIZES)
    report.compare("tree", large, times[large], small, times[small])
    for size in SIZES:
        tree, scan = f"tree {size:.0e}", f"scan {size:.0e}"
        report.compare("tree", tree, times[tree], f"NumPy {scan}", times[scan])
