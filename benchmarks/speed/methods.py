"""Every method on the paper's regression, one thread: microseconds per round.

Where some are heard, the yardstick is a round of FedAvg as a plain loop in NumPy. Where everybody
works, it is the compiled work of the same round alone: its turns, and the gradients and risks that
the method asks for, called again with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import problems
from measure import Report, by_turns
from plain_numpy import NumpyRun

from isfed import Problem
from isfed.federation import problem_arrays
from isfed.methods import mocha
from isfed.report.systems_report import FAMILIES
from isfed.simulate.simulate_call import make_run
from isfed.studies.experiment_config import read_study

WARM_UP = 20
MOST = 100.0  # microseconds of a round in which some are heard
MOST_RATIO = 3.0  # of a round in which everybody works, over its compiled work
COMPILED = ((problem_arrays, "risks"), (mocha, "dual_round"))
OF_AGENTS = ("_work", "_gradients")
EVERYBODY = (
    *FAMILIES["everybody works"], "synchronous SGD", "decentralised SGD, ring", "elastic averaging",
    "HierFAVG", "agnostic FL", "MOCHA",
)  # fmt: skip


def run(report: Report, _folder: Path) -> None:
    """All methods of `isfed reproduce systems`, on the paper's sizes."""
    problem = problems.regression()
    loop = NumpyRun(problem, step_size=problems.STEP_SIZE, num_active=6)
    for name, algorithm in read_study("systems").algorithms.items():
        measure(report, problem, name, algorithm, loop)


def measure(report: Report, problem: Problem, name: str, algorithm: Any, loop: NumpyRun) -> None:
    """One method beside a loop in NumPy, or beside its compiled work."""
    rounds = make_run(problem, algorithm, engine="agents")
    rounds.advance(WARM_UP)
    if name not in EVERYBODY:
        times = by_turns({name: rounds.advance, "NumPy": loop.advance}, report)
        note = "" if min(times[name]) * 1e6 <= MOST else f"above {MOST:g}"
        report.compare("methods", name, times[name], "a loop in NumPy", times["NumPy"], note=note)
        return
    again = compiled_work(rounds)
    cases: dict[str, Callable[[int], object]] = {"method": rounds.advance, "compiled": again}
    times = by_turns(cases, report)
    ratio = np.median([a / b for a, b in zip(times["method"], times["compiled"], strict=True)])
    note = "" if ratio <= MOST_RATIO else f"above {MOST_RATIO:g}"
    report.compare(
        "methods", name, times["method"], "its compiled work", times["compiled"], note=note
    )


def compiled_work(rounds: Any) -> Callable[[int], None]:
    """A function that does the compiled work of the next round again, that many times."""
    calls: list[tuple[Callable, tuple]] = []

    def noted(function: Callable) -> Callable:
        def call(*given: Any) -> Any:
            calls.append((function, given))
            return function(*given)

        return call

    own = [(agents, name) for agents in rounds.agents for name in OF_AGENTS]
    places = [*COMPILED, *((agents, name) for agents, name in own if hasattr(agents, name))]
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name, function in originals:
        setattr(owner, name, noted(function))
    try:
        rounds.advance(1)
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)

    def again(count: int) -> None:
        for _ in range(count):
            for function, given in calls:
                function(*given)

    return again
