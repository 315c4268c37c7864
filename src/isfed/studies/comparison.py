"""What importance sampling buys on a problem: FedAvg against ISFedAvg, each at its best step size.

The yardstick is the loss that FedAvg ends with. How many rounds, uploads and gradient evaluations
does each need to get there?
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isfed.base.text_format import plain_number
from isfed.problems import Problem
from isfed.simulate.run_history import stderr_of_mean
from isfed.simulate.simulate_call import make_run
from isfed.studies.results_summary import LevelChange, level_change

FINAL_SHARE = 0.1  # of the records, the last ones, are the final loss
TRIAL, MOST_TRIAL = 0.2, 2.0  # seconds of work, and of time at most, of each method
LONG = 600.0  # seconds: beyond, it says what to reduce
LEAST_ROUNDS, LEAST_REPETITIONS = 200, 5  # that it advises
USUAL_STEPS = 9  # step sizes that are tried, as a rule: seven, and two beyond the edge


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long and how often to run.

    Args:
        num_active: L, the number of agents per round.
        rounds: the number of rounds of every repetition.
        repetitions: independent runs, at least 2.
        tuning_repetitions: independent runs with every step size that is tried.
        records: how often the loss is measured in a run.
        seed: the seed of all random draws.
    """

    num_active: int
    rounds: int = 2000
    repetitions: int = 20
    tuning_repetitions: int = 4
    records: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tuning_repetitions", "records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.repetitions < 2:
            raise ValueError(
                f"repetitions={self.repetitions} must be at least 2 to estimate an error"
            )


def _final(excess: np.ndarray) -> np.ndarray:
    """The mean over the last records, for every repetition."""
    return excess[:, -max(1, round(FINAL_SHARE * excess.shape[1])) :].mean(axis=1)


@dataclass(frozen=True, eq=False)
class Curve:
    """One algorithm at its best step size: the excess loss P(w_i) - P(w^o) along its run."""

    name: str
    step_size: float
    tried: Mapping[float, float]  # final loss of every step size tried; inf where it diverged
    rounds: np.ndarray  # (T,) when the loss was measured
    excess: np.ndarray  # (R, T)
    gradients: float  # a round, on average
    uploads: float

    @property
    def final(self) -> np.ndarray:
        """The final excess loss of every repetition."""
        return _final(self.excess)

    @property
    def change(self) -> LevelChange:
        """Whether the excess loss had stopped changing."""
        return level_change(self.excess)

    def first_at(self, level: float) -> int | None:
        """The first measured round at which the mean loss is at most `level`."""
        reached = np.flatnonzero(self.excess.mean(axis=0) <= level)
        return int(self.rounds[reached[0]]) if reached.size else None


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a comparison of FedAvg with ISFedAvg found, each at its own best step size.

    Attributes:
        fedavg, isfedavg: the loss of either along its run, at its best step size.
        optimum_risk: P(w^o), the lowest possible loss.
        model_bytes: the size of one model when it is sent.
    """

    fedavg: Curve
    isfedavg: Curve
    optimum_risk: float
    model_bytes: int = 0

    @property
    def level(self) -> float:
        """FedAvg's final excess loss, which both are to reach."""
        return float(self.fedavg.final.mean())

    @property
    def difference(self) -> tuple[float, float]:
        """FedAvg's final loss less ISFedAvg's, and its standard error over the repetitions."""
        one, other = self.fedavg.final, self.isfedavg.final
        error = np.hypot(*(stderr_of_mean(part[:, None])[0] for part in (one, other)))
        return float(one.mean() - other.mean()), float(error)

    @property
    def gain_db(self) -> tuple[float, float]:
        """How far ISFedAvg's final excess loss is below FedAvg's, in dB, and its standard error."""
        means = [float(curve.final.mean()) for curve in (self.fedavg, self.isfedavg)]
        if min(means) <= 0.0:
            return float("nan"), float("nan")
        errors = [
            float(stderr_of_mean(curve.final[:, None])[0]) / mean
            for curve, mean in zip((self.fedavg, self.isfedavg), means, strict=True)
        ]
        per_share = 10.0 / np.log(10.0)  # dB, to first order
        return 10.0 * float(np.log10(means[0] / means[1])), per_share * math.hypot(*errors)

    @property
    def buys(self) -> bool:
        """Whether ISFedAvg ends lower by more than two standard errors, and gets there sooner."""
        gain, error = self.difference
        mine, theirs = self.isfedavg.first_at(self.level), self.fedavg.first_at(self.level)
        sooner = mine is not None and theirs is not None and mine < theirs
        return gain > 2.0 * error and sooner

    def rows(self) -> list[dict[str, float | str | None]]:
        """For a table: what each needs to reach FedAvg's final loss; None where it does not."""
        rows = []
        for curve in (self.fedavg, self.isfedavg):
            rounds, scale = curve.first_at(self.level), abs(self.optimum_risk)
            rows.append(
                {
                    "name": curve.name,
                    "step_size": curve.step_size,
                    "final_excess": float(curve.final.mean()),
                    "final_stderr": float(stderr_of_mean(curve.final[:, None])[0]),
                    "final_relative": float(curve.final.mean()) / scale if scale > 0.0 else None,
                    "rounds": rounds,
                    "uploads": None if rounds is None else rounds * curve.uploads,
                    "gradients": None if rounds is None else rounds * curve.gradients,
                }
            )
        return rows

    def relative(self) -> str:
        """The gain in dB and as a share, with its confidence."""
        gain, error = self.gain_db
        if not np.isfinite(gain):
            return ""
        share = 100.0 * (1.0 - 10.0 ** (-gain / 10.0))
        return (
            f" The loss above the optimum is {share:.0f}% lower, or {gain:.1f} dB "
            f"(95% confidence: {gain - 2 * error:.1f} to {gain + 2 * error:.1f} dB)."
        )

    def savings(self) -> str:
        """The uploads and bytes that reaching FedAvg's final loss takes less."""
        before, after = (row["uploads"] for row in self.rows())
        if not (isinstance(before, float) and isinstance(after, float) and self.model_bytes):
            return ""
        saved = before - after
        return f" It saves {saved:,.0f} uploads, {size_words(saved * self.model_bytes)}."

    def verdict(self) -> str:
        """What importance sampling buys, in a sentence or three."""
        said = self._verdict()
        return said + (self.relative() + self.savings() if self.buys else "")

    def _verdict(self) -> str:
        gain, error = self.difference
        about = f"{plain_number(abs(gain), 2)} ± {plain_number(error, 1)}"
        before, after = self.rows()
        if self.buys:
            return (
                f"Importance sampling reaches FedAvg's final loss after {after['rounds']} rounds "
                f"instead of {before['rounds']} ({after['uploads']:.0f} uploads instead of "
                f"{before['uploads']:.0f}, {after['gradients']:.0f} gradients instead of "
                f"{before['gradients']:.0f}), and ends {about} lower."
            )
        if gain > 2.0 * error:
            return (
                f"Importance sampling ends {about} lower than FedAvg, but gets to "
                f"FedAvg's final loss no sooner: after {after['rounds']} rounds, FedAvg after "
                f"{before['rounds']}."
            )
        if gain < -2.0 * error:
            return (
                f"Importance sampling buys nothing here: it ends {about} above FedAvg. Keep FedAvg."
            )
        return (
            "Importance sampling buys nothing here that can be told from chance: the final losses "
            f"differ by {about} after {self.fedavg.rounds[-1]} rounds. Keep "
            "FedAvg, or look again with more --rounds."
        )


def size_words(count: float) -> str:
    """A number of bytes in words.

    >>> size_words(1234567)
    '1.2 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000.0 or unit == "GB":
            break
        count /= 1000.0
    return f"{count:.3g} {unit}" if count >= 10 or unit == "bytes" else f"{count:.1f} {unit}"


@dataclass(frozen=True)
class Forecast:
    """What a comparison will cost.

    Attributes:
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
        options = [*self._shorter(), *self._fewer_agents(), "fewer rows"]
        return (
            f"{said} To have an answer sooner, use {', or '.join(options)}; `isfed diagnose` "
            "needs no training at all."
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
