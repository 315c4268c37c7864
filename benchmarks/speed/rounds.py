"""A round of FedAvg over compiled agents, where every further method starts from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import problems
from measure import Report, by_turns
from plain_numpy import NumpyRun

from isfed.simulate.simulate_call import Engine, make_run

CHECKED_ROUNDS = 200
ENGINES: tuple[Engine, ...] = ("kernel", "agents", "objects")


def run(report: Report, _folder: Path) -> None:
    """W1, one thread: the fused kernel, compiled agents, objects, and a plain loop in NumPy."""
    problem = problems.regression()
    algorithm = problems.fedavg(problem)
    runs = {engine: make_run(problem, algorithm, engine=engine, threads=1) for engine in ENGINES}
    msd = {engine: runs[engine].advance(CHECKED_ROUNDS).msd for engine in ENGINES}
    equal = all(np.array_equal(msd[engine], msd["kernel"]) for engine in ENGINES)
    if not equal:
        raise SystemExit("the engines differ: compare their msd before their speed")
    plain = NumpyRun(problem, step_size=float(algorithm.step_size), num_active=algorithm.num_active)
    cases = {engine: runs[engine].advance for engine in ENGINES}
    times = by_turns({**cases, "NumPy": plain.advance}, report)
    note = f"bit-equal to the kernel over {CHECKED_ROUNDS} rounds"
    for name in ("kernel", "objects", "NumPy"):
        report.compare("rounds", "W1 FedAvg: agents", times["agents"], name, times[name], note=note)
