"""How far the forecasts of `isfed compare` are from the time that it takes.

    python benchmarks/speed/forecasts.py

Prints, for tables of different sizes and lengths of runs, the seconds that were forecast and taken,
and the seconds said to be left against those that were, after a quarter, a half and three quarters.
"""

from __future__ import annotations

import argparse
import io

import numpy as np
from measure import load
from rich.console import Console

from isfed import EQUAL, FederatedData, LeastSquares, Logistic, Problem
from isfed.base.progress import working_clock
from isfed.report.progress_bar import RunProgress
from isfed.studies.comparison import Budget, forecast
from isfed.studies.comparison_run import ComparisonStudy, compare
from isfed.studies.executors import Executor, Workers
from isfed.studies.problem_sources import Given
from isfed.studies.work_cells import CellStore

SHARES = (0.25, 0.5, 0.75)


class Noted(RunProgress):
    """Keeps what it would have said, and when."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.notes: list[tuple[float, float]] = []  # seconds since the start, seconds left

    def advance(self, work: int) -> None:
        super().advance(work)
        left = self._left()
        if left is not None:
            self.notes.append((working_clock() - self.started, left))


def table(rows: int, features: int, agents: int, classes: bool) -> Problem:
    """A made-up table."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features))
    y = x.sum(axis=1) + rng.standard_normal(rows)
    offsets = np.linspace(0, rows, agents + 1).astype(int)
    loss = Logistic(1e-3) if classes else LeastSquares(1e-3)
    return Problem(FederatedData(x, np.sign(y) if classes else y, offsets), loss, batch_size=8)


def main() -> None:
    """One line for every case."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    cases = {
        "1 200 x 4": (table(1200, 4, 40, False), Budget(num_active=4)),
        "1 200 x 4, 500 rounds": (table(1200, 4, 40, False), Budget(num_active=4, rounds=500)),
        "20 000 x 20, classes": (table(20_000, 20, 100, True), Budget(num_active=10, rounds=500)),
        "equal": (EQUAL.make(), Budget(num_active=6, rounds=500)),
    }
    before = load()
    for name, (problem, budget) in cases.items():
        compare(problem, Budget(num_active=2, rounds=20, repetitions=2))  # compiles
        study, workers = ComparisonStudy(name, Given(problem), budget), Workers()
        _ = study.predicted  # as the command does, before it says how long it will take
        expected, progress = forecast(problem, list(study.ways.values()), budget), Noted()
        progress.expect(expected.seconds, expected.rates)
        begin = working_clock()
        with workers.opened() as jobs:
            study.compared(Executor(workers, jobs, CellStore(), progress))
        taken = working_clock() - begin
        offset = begin - progress.started
        said = []
        for share in SHARES:
            at = offset + share * taken
            _, left = min(progress.notes, key=lambda note: abs(note[0] - at))
            said.append(f"{left / ((1.0 - share) * taken):.2f}")
        print(f"{name:24} forecast {expected.seconds:6.1f} s, taken {taken:6.1f} s, ratio "
              f"{expected.seconds / taken:.2f}; left, said over true: {', '.join(said)}",
              flush=True)  # fmt: skip
    print(f"{before} before, {load()} after")


if __name__ == "__main__":
    main()
