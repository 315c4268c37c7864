"""Ways to learn on a problem, each at its best step size: what they buy, how certain that is.

The yardstick is FedAvg: its error on rows that it has not seen, and the loss that it ends with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import special

from isfed.base.text_format import plain_number
from isfed.problems import Problem
from isfed.simulate.run_history import stderr_of_mean
from isfed.simulate.simulate_call import make_run
from isfed.studies.study_engine import last_part
from isfed.theory.tuned_ways import BASE, in_words, recommended

FINAL_SHARE = 0.1  # of the records, the last ones, are the final loss
LEAST_GAIN = 0.5  # dB: less is not worth a change
CONFIDENCE = 0.95  # of all intervals of a comparison together
ALIKE_ERROR = 0.01  # of FedAvg's RMSE, or of all rows: nearer errors are alike in practice
TRIAL, MOST_TRIAL = 0.02, 1.0  # seconds of work, and of time at most, of each method
FIRST_TRIAL = 16  # rounds
LONG = 600.0  # seconds: beyond, it says what to reduce
LEAST_ROUNDS, LEAST_REPETITIONS = 200, 5  # that it advises
TAIL_LOOKS = 8  # at models of the last tenth of the rounds, where a step size is tried
USUAL_RUNS = 28  # that find the step sizes of a way and of its average, as a rule


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long and how often to run.

    Args:
        num_active: L, the number of agents per round.
        rounds: the number of rounds of every repetition.
        repetitions: independent runs, at least 2.
        tuning_repetitions: independent runs with step sizes that are close to the best: half as
            many with the others.
        records: how often the loss is measured in a run.
        seed: the seed of all random draws.
    """

    num_active: int
    rounds: int = 2000
    repetitions: int = 12
    tuning_repetitions: int = 4
    records: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tuning_repetitions", "records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.repetitions < 2:
            raise ValueError(
                f"repetitions={self.repetitions} must be at least 2 to estimate an error"
            )


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
        """The final excess loss of every repetition: the mean over the last records."""
        return last_part(self.excess, FINAL_SHARE).mean(axis=1)

    def first_at(self, level: float) -> int | None:
        """The first measured round at which the mean loss is at most `level`."""
        reached = np.flatnonzero(self.excess.mean(axis=0) <= level)
        return int(self.rounds[reached[0]]) if reached.size else None


def gain_interval(one: np.ndarray, other: np.ndarray, level: float) -> tuple[float, float, float]:
    """How far `other` is below `one` in dB, on average over pairs, and the interval of a t test.

    0 is inside exactly if the test finds no difference. Losses of single runs vary by factors, not
    by sums: their logarithms are nearly normal.

    >>> gain, low, high = gain_interval(np.array([2.0, 4.1, 6.0]), np.array([1.0, 2.0, 3.0]), 0.95)
    >>> 2.8 < low < 3.01 < gain < 3.1 < high < 3.3
    True
    """
    each = 10.0 * np.log10(one / other)
    reach = special.stdtrit(each.size - 1, 0.5 + 0.5 * level) * stderr_of_mean(each[:, None])[0]
    mean = float(each.mean())
    return mean, mean - float(reach), mean + float(reach)


@dataclass(frozen=True, eq=False)
class Comparison:
    """What a comparison found, every way at its own best step size.

    Attributes:
        curves: the loss of every way along its run, by name, the simplest first.
        optimum_risk: P(w^o), the lowest possible loss.
        model_bytes: the size of one model when it is sent.
        held_out: the error of every way on rows it has not seen, one for every run; empty if none.
        number: whether that error is an RMSE, else a share of wrong classes.
        each_row: the mean error of every such row by way, whether it is wrong or its squared error.
    """

    curves: Mapping[str, Curve]
    optimum_risk: float
    model_bytes: int = 0
    held_out: Mapping[str, np.ndarray] | None = None
    number: bool = True
    each_row: Mapping[str, np.ndarray] | None = None

    @property
    def fedavg(self) -> Curve:
        """FedAvg's last model."""
        return self.curves[BASE]

    @property
    def level(self) -> float:
        """FedAvg's final excess loss, which all are to reach."""
        return float(self.fedavg.final.mean())

    def gain_db(self, name: str) -> tuple[float, float, float]:
        """How far a way ends below FedAvg in dB, and the interval of a paired t test.

        The intervals of all ways hold together with 95% (Bonferroni).
        """
        if name == BASE:
            return 0.0, 0.0, 0.0
        one, other = self.fedavg.final, self.curves[name].final
        if not (np.isfinite(one + other).all() and min(one.min(), other.min()) > 0.0):
            return math.nan, math.nan, math.nan  # as low as rounding lets it be
        each = 1.0 - (1.0 - CONFIDENCE) / max(1, len(self.curves) - 1)
        return gain_interval(one, other, each)

    @property
    def winner(self) -> str:
        """The simplest of the best of those that are surely better than FedAvg, else FedAvg."""
        gains = {name: self.gain_db(name) for name in self.curves}
        left = {name: 10.0 ** (-gain / 10.0) for name, (gain, low, _) in gains.items() if low > 0.0}
        best = recommended(left) if left else BASE
        return best if gains[best][0] >= LEAST_GAIN else BASE

    @property
    def buys(self) -> bool:
        """Whether some way is surely better than FedAvg."""
        return self.winner != BASE

    def rows(self) -> list[dict[str, Any]]:
        """For a table: what each needs to reach FedAvg's final loss; None where it does not."""
        rows, scale = [], abs(self.optimum_risk)
        for name, curve in self.curves.items():
            rounds = curve.first_at(self.level)
            known = [value if math.isfinite(value) else None for value in self.gain_db(name)]
            rows.append(
                {
                    "name": curve.name,
                    "step_size": curve.step_size,
                    "final_excess": float(curve.final.mean()),
                    "final_stderr": float(stderr_of_mean(curve.final[:, None])[0]),
                    "final_relative": float(curve.final.mean()) / scale if scale > 0.0 else None,
                    "gain_db": known[0], "gain_low_db": known[1], "gain_high_db": known[2],
                    "rounds": rounds,
                    "uploads": None if rounds is None else rounds * curve.uploads,
                    "gradients": None if rounds is None else rounds * curve.gradients,
                }
            )  # fmt: skip
        return rows

    def verdict(self) -> str:
        """The practical effect, then how certain it is."""
        return " ".join([*self._unseen(), *self._sooner(), self._certain()])

    def _error(self, value: float) -> str:
        return f"RMSE {plain_number(value, 3)}" if self.number else f"{100.0 * value:.3g}% wrong"

    def _unseen(self) -> list[str]:
        """What differs on rows that were not trained on, in the user's units."""
        if not self.held_out or BASE not in self.held_out:
            return []
        means, apart = self._means(), self.apart
        base, start = means[BASE], "On rows they have not seen,"
        if apart:
            best = self.winner if self.winner in apart else min(apart, key=lambda n: means[n])
            word = "better" if means[best] < base else "worse"
            return [f"{start} {best} predicts {word}: {self._error(means[best])}, FedAvg "
                    f"{self._error(base)}."]  # fmt: skip
        if max(abs(value - base) for value in means.values()) > self._near(base):
            few, many = (self._error(most(means.values())) for most in (min, max))
            return [
                f"{start} the ways cannot be told apart: {few} to {many} (no more than chance on "
                f"{len((self.each_row or {})[BASE]):,} rows)."
            ]
        limit = "1% of it" if self.number else "1 percentage point"
        return [f"{start} all ways predict alike: {self._error(base)} (no practical difference: "
                f"none is further than {limit} from FedAvg's)."]  # fmt: skip

    def _means(self) -> dict[str, float]:
        return {name: float(errors.mean()) for name, errors in (self.held_out or {}).items()}

    def _near(self, base: float) -> float:
        return ALIKE_ERROR * (base if self.number else 1.0)

    @property
    def apart(self) -> set[str]:
        """The ways whose errors on rows not seen differ from FedAvg's: enough, and surely."""
        means, rows = self._means(), self.each_row or {}
        base = means.get(BASE, math.nan)
        found = {name for name, value in means.items() if abs(value - base) > self._near(base)}
        return {name for name in found if name not in rows or self._surely(rows[name], rows[BASE])}

    def _surely(self, one: np.ndarray, other: np.ndarray) -> bool:
        """A paired t test over rows; all ways together are wrong in 5% of cases (Bonferroni)."""
        apart = one - other
        each = (1.0 - CONFIDENCE) / max(1, len(self.curves) - 1)
        reach = special.stdtrit(apart.size - 1, 1.0 - 0.5 * each)
        return abs(apart.mean()) > reach * stderr_of_mean(apart[:, None])[0]

    def _sooner(self) -> list[str]:
        """What the best way saves."""
        rows = {row["name"]: row for row in self.rows()}
        before, after = rows[BASE]["uploads"], rows[self.winner]["uploads"]
        if not self.buys or not before or after is None:
            return []
        share, saved = after / before, before - after
        words = f"{100.0 * share:.0f}% of the uploads" if share < 0.95 else "as many uploads"
        bytes_ = f", {size_words(saved * self.model_bytes)} less" if saved > 0.0 else ""
        return [
            f"With {in_words(self.winner)} you reach FedAvg's final loss with {words} "
            f"({after:,.0f} instead of {before:,.0f}{bytes_})."
        ]

    def _certain(self) -> str:
        runs = f"{self.fedavg.final.size} paired runs"
        if self.buys:
            gain, low, high = self.gain_db(self.winner)
            share = 100.0 * (1.0 - 10.0 ** (-gain / 10.0))
            return (
                f"How certain: in {runs} its loss above the lowest possible ends {share:.0f}% "
                f"below FedAvg's, {gain:.1f} dB (95% interval of a paired t test: "
                f"{low:.1f} to {high:.1f} dB)."
            )
        gains = {name: self.gain_db(name) for name in self.curves if name != BASE}
        gains = {name: found for name, found in gains.items() if found[0] == found[0]}
        if not gains:
            return f"Keep FedAvg: in {runs} its loss is as low as rounding lets it be."
        best = max(gains, key=lambda name: gains[name][0])
        gain, low, high = gains[best]
        if low > 0.0:
            return f"Keep FedAvg: {best} ends lower, but by {gain:.1f} dB only, in {runs}."
        return (
            f"Keep FedAvg: in {runs} nothing ends lower that can be told from chance ({best}: "
            f"{low:.1f} to {high:.1f} dB, 95% interval of a paired t test)."
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
        seconds: about how long it takes here.
        rates: seconds per round of a repetition by the stages that it is in: those whose names
            begin so.
    """

    seconds: float
    budget: Budget
    rates: Mapping[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """In words, with advice if it is long."""
        said = f"This will take about {duration(self.seconds)}."
        if self.seconds <= LONG:
            return said
        now, options = self.budget, ["fewer rows"]
        if few := now.num_active // 10:
            options.insert(0, f"--active {few} (agents per round)")
        rounds = min(now.rounds, max(LEAST_ROUNDS, now.rounds // 4))
        repetitions = min(now.repetitions, LEAST_REPETITIONS)
        less = sum(work_of(replace(now, rounds=rounds, repetitions=repetitions)))
        share = less / max(1, sum(work_of(now)))
        if share <= 0.9:
            about = duration(self.seconds * share)
            options.insert(0, f"--rounds {rounds} --repetitions {repetitions} (about {about})")
        return (
            f"{said} To have an answer sooner, use {', or '.join(options)}; `isfed diagnose` "
            "needs no training at all."
        )


def work_of(budget: Budget) -> tuple[int, int]:
    """Rounds of a way and its average: in which hardly anything is measured, and of those kept."""
    tuning = max(2, budget.tuning_repetitions)
    search = USUAL_RUNS * tuning // 4 + 2 * tuning  # step sizes, and without what is held out
    return budget.rounds * search, budget.rounds * 2 * budget.repetitions


def forecast(problem: Problem, algorithms: list[Any], budget: Budget, *, threads=None) -> Forecast:
    """Run every method for a moment, and evaluate the risk once."""
    few, every = max(1, budget.tuning_repetitions // 2), max(1, budget.rounds // budget.records)
    rates, seconds = {}, 0.0
    models = np.tile(problem.optimum, (budget.repetitions, 1))
    problem.risks(models[:1])  # the first time it looks for the libraries that have threads
    began = time.perf_counter()
    problem.risks(models)
    look = (time.perf_counter() - began) / len(models)
    for algorithm in algorithms:
        name, (search, kept) = algorithm.name, work_of(budget)
        common = problem, replace(algorithm, step_size=1e-12), budget.seed, threads
        tried, once = _rate(*common, repetitions=few, most=budget.rounds)
        tried += (once + 2 * look * TAIL_LOOKS) / budget.rounds  # of the model and its average
        own, _ = _rate(*common, repetitions=budget.repetitions, most=every)
        own += look / every
        rates |= {f"{name}, step sizes": tried, name: own}
        seconds += search * tried + kept * own
    return Forecast(seconds, budget, rates)


def _rate(
    problem: Problem, algorithm: Any, seed: int, threads: int | None, *, repetitions: int, most: int
) -> tuple[float, float]:
    """Seconds per round of one repetition, of so many at once with at most so many rounds.

    The second is what a run takes however short it is, for one of its repetitions.
    """
    run = make_run(problem, algorithm, repetitions=range(1), seed=seed, threads=threads)
    run.compile()
    began = time.perf_counter()
    run = make_run(problem, algorithm, repetitions=range(repetitions), seed=seed, threads=threads)
    run.history(run.advance(1))
    once = time.perf_counter() - began
    size, rounds, spent = min(FIRST_TRIAL, most), 0, 0.0
    worked = time.process_time()
    # So much work, not so much time: where others work too, a moment says little.
    while time.process_time() - worked < TRIAL and spent < MOST_TRIAL:
        if size < most:  # then only the last part counts, which is the longest
            rounds, spent = 0, 0.0
        size = min(2 * size, most)
        began = time.perf_counter()
        run.advance(size)
        rounds, spent = rounds + size, spent + time.perf_counter() - began
    return spent / (rounds * repetitions), once / repetitions


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(4), duration(200), duration(8000)
    ('4 seconds', '3 minutes', '2.2 hours')
    """
    if seconds < 90.0:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400.0 else f"{seconds / 3600:.1f} hours"
