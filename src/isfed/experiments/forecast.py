"""How long a comparison will take, from a short trial; and what to reduce if that is too long."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isfed.experiments.comparison import Budget
from isfed.problems import Problem
from isfed.simulate.run import make_run

TRIAL = 0.2  # seconds, of each method
LONG = 600.0  # seconds: beyond, it says what to reduce
USUAL_STEPS = 9  # step sizes that are tried, as a rule: seven, and two beyond the edge


@dataclass(frozen=True)
class Forecast:
    """What a comparison will cost.

    work: rounds, each counted once for every repetition.
    seconds: about how long that takes here.
    """

    work: int
    seconds: float
    budget: Budget

    def line(self) -> str:
        """In words, with advice if it is long."""
        said = f"This will take about {duration(self.seconds)}."
        if self.seconds <= LONG:
            return said
        fewer = self.budget.repetitions > 5
        rounds = max(200, self.budget.rounds // 4)
        repetitions = 5 if fewer else self.budget.repetitions
        return (
            f"{said} To have an answer sooner, use --rounds {rounds} --repetitions {repetitions} "
            f"(about {duration(self.seconds * self._share(rounds, repetitions))}), fewer --active "
            "agents per round, or fewer rows; `isfed diagnose` needs no training at all."
        )

    def _share(self, rounds: int, repetitions: int) -> float:
        budget = replace(self.budget, rounds=rounds, repetitions=repetitions)
        return work_of(budget) / max(1, work_of(self.budget))


def work_of(budget: Budget) -> int:
    """Rounds of both methods: the step sizes, the runs that count, the held-out ones."""
    tuning = max(2, budget.tuning_repetitions)
    return 2 * budget.rounds * (USUAL_STEPS * tuning + budget.repetitions + tuning)


def forecast(problem: Problem, algorithms: list[Any], budget: Budget, *, threads=None) -> Forecast:
    """Run every method for a moment, and evaluate the risk once."""
    tuning = max(2, budget.tuning_repetitions)
    seconds = 0.0
    each = work_of(budget) / len(algorithms)
    for algorithm in algorithms:
        tiny = replace(algorithm, step_size=1e-12)
        run = make_run(problem, tiny, repetitions=range(tuning), seed=budget.seed, threads=threads)
        run.compile()
        rounds, spent, count = 1, 0.0, 0
        while spent < TRIAL and count < budget.rounds:
            began = time.perf_counter()
            run.advance(rounds)
            spent += time.perf_counter() - began
            count += rounds
            rounds *= 2
        seconds += each * spent / (count * tuning)
    began = time.perf_counter()
    problem.risk(np.zeros(problem.num_params))
    looks = 2 * budget.records * (USUAL_STEPS * tuning + budget.repetitions)
    return Forecast(work_of(budget), seconds + looks * (time.perf_counter() - began), budget)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(4), duration(200), duration(8000)
    ('4 seconds', '3 minutes', '2.2 hours')
    """
    if seconds < 90.0:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400.0 else f"{seconds / 3600:.1f} hours"
