"""How long a comparison will take, from a short trial; and what to reduce if that is too long."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isfed.problems import Problem
from isfed.simulate.simulate_call import make_run
from isfed.studies.comparison import Budget

TRIAL, MOST_TRIAL = 0.2, 2.0  # seconds of work, and of time at most, of each method
LONG = 600.0  # seconds: beyond, it says what to reduce
LEAST_ROUNDS, LEAST_REPETITIONS = 200, 5  # that it advises
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
        ways = [*self._shorter(), *self._fewer_agents(), "fewer rows"]
        return (
            f"{said} To have an answer sooner, use {', or '.join(ways)}; `isfed diagnose` needs no "
            "training at all."
        )

    def _shorter(self) -> list[str]:
        """Fewer rounds and repetitions, if there are many."""
        rounds = min(self.budget.rounds, max(LEAST_ROUNDS, self.budget.rounds // 4))
        repetitions = min(self.budget.repetitions, LEAST_REPETITIONS)
        share = self._share(rounds, repetitions)
        if share > 0.9:
            return []
        about = duration(self.seconds * share)
        return [f"--rounds {rounds} --repetitions {repetitions} (about {about})"]

    def _fewer_agents(self) -> list[str]:
        few = self.budget.num_active // 10
        return [f"--active {few} (agents per round)"] if few else []

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
        run.advance(1)  # what is done once is not counted
        rounds, spent, count = 1, 0.0, 0
        worked = time.process_time()
        # So much work, not so much time: where others work too, a moment says little.
        while time.process_time() - worked < TRIAL and spent < MOST_TRIAL and count < budget.rounds:
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
