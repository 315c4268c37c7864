"""What importance sampling buys on a problem: FedAvg against ISFedAvg, each at its best step size.

The yardstick is the loss that FedAvg ends with. How many rounds, uploads and gradient evaluations
does each need to get there?
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from isfed.algorithms import FedAvg, ISFedAvg
from isfed.datasets import FederatedTable
from isfed.experiments.runner import Progress
from isfed.experiments.steps import NoStepError
from isfed.problems import Problem
from isfed.simulate import DivergenceError, History, simulate
from isfed.simulate.history import stderr_of_mean
from isfed.simulate.run import check_run

FINAL_SHARE = 0.1  # of the records, the last ones, are the final loss
FIRST_POWERS = range(-6, 1)  # of 2, times one over the mean curvature: the first step sizes
TUNING_SEED = 1_000_003  # added to the seed: the step size is not chosen on the runs that count


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long and how often to run."""

    num_active: int  # L
    rounds: int = 2000
    repetitions: int = 20
    tuning_repetitions: int = 4
    records: int = 100  # the loss is measured this often in a run
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("tuning_repetitions", "records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.repetitions < 2:
            raise ValueError(f"repetitions={self.repetitions} must be at least 2 to have an error")


def _final(excess: np.ndarray) -> np.ndarray:
    """The mean over the last records, for every repetition."""
    return excess[:, -max(1, round(FINAL_SHARE * excess.shape[1])) :].mean(axis=1)


@dataclass(frozen=True, eq=False)
class Curve:
    """One algorithm at its best step size: the excess loss P(w_i) - P(w^o) along its run."""

    name: str
    step_size: float
    tried: dict[float, float]  # final excess loss of every step size tried; inf where it diverged
    rounds: np.ndarray  # (T,) when the loss was measured
    excess: np.ndarray  # (R, T)
    gradients: float  # a round, on average
    uploads: float

    @property
    def final(self) -> np.ndarray:
        """The final excess loss of every repetition."""
        return _final(self.excess)

    def first_at(self, level: float) -> int | None:
        """The first measured round at which the mean loss is at most `level`."""
        reached = np.flatnonzero(self.excess.mean(axis=0) <= level)
        return int(self.rounds[reached[0]]) if reached.size else None


@dataclass(frozen=True, eq=False)
class Comparison:
    """FedAvg, ISFedAvg, and what lies between them."""

    fedavg: Curve
    isfedavg: Curve
    optimum_risk: float  # P(w^o): nobody can end lower

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
            rounds = curve.first_at(self.level)
            rows.append(
                {
                    "name": curve.name,
                    "step_size": curve.step_size,
                    "final_excess": float(curve.final.mean()),
                    "final_stderr": float(stderr_of_mean(curve.final[:, None])[0]),
                    "rounds": rounds,
                    "uploads": None if rounds is None else rounds * curve.uploads,
                    "gradients": None if rounds is None else rounds * curve.gradients,
                }
            )
        return rows

    def verdict(self) -> str:
        """What importance sampling buys, in a sentence."""
        gain, error = self.difference
        before, after = self.rows()
        if self.buys:
            return (
                f"Importance sampling reaches FedAvg's final loss after {after['rounds']} rounds "
                f"instead of {before['rounds']} ({after['uploads']:.0f} uploads instead of "
                f"{before['uploads']:.0f}, {after['gradients']:.0f} gradients instead of "
                f"{before['gradients']:.0f}), and ends {gain:.2g} ± {error:.1g} lower."
            )
        if gain > 2.0 * error:
            return (
                f"Importance sampling ends {gain:.2g} ± {error:.1g} lower than FedAvg, but gets to "
                f"FedAvg's final loss no sooner: after {after['rounds']} rounds, FedAvg after "
                f"{before['rounds']}."
            )
        if gain < -2.0 * error:
            return (
                f"Importance sampling buys nothing here: it ends {-gain:.2g} ± {error:.1g} above "
                "FedAvg. Keep FedAvg."
            )
        return (
            "Importance sampling buys nothing here that can be told from chance: the final losses "
            f"differ by {gain:.2g} ± {error:.1g} after {self.fedavg.rounds[-1]} rounds. Keep "
            "FedAvg, or look again with more --rounds."
        )


def problem_of(table: FederatedTable, *, ridge: float = 1e-3, batch_size: int = 8) -> Problem:
    """The problem of a table: the loss that fits its target, batches no larger than an agent."""
    sizes = np.minimum(batch_size, table.data.num_examples)
    return Problem(data=table.data, loss=table.loss(ridge=ridge), batch_size=sizes, name="table")


def compare(
    problem: Problem,
    budget: Budget,
    *,
    challenger: ISFedAvg | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """FedAvg against `challenger` (ISFedAvg with memory), each at its own best step size."""
    fedavg: ISFedAvg = FedAvg(step_size=1.0, num_active=budget.num_active)
    isfedavg = challenger or ISFedAvg(step_size=1.0, num_active=budget.num_active)
    check_run(problem, fedavg, budget.rounds, budget.repetitions)
    least = problem.risk(problem.optimum)
    curves = []
    for algorithm in (fedavg, isfedavg):
        tried = _tune(problem, algorithm, budget, least, progress)
        best = min(tried, key=lambda step: tried[step])
        if not np.isfinite(tried[best]):
            raise NoStepError(
                f"{algorithm.name} diverged at every step size from {min(tried):.2g} to "
                f"{max(tried):.2g}; are the features standardised?"
            )
        if progress is not None:
            name = f"{algorithm.name}, step {best:.3g}"
            progress.begin(name, budget.rounds, 0, repetitions=budget.repetitions)
        chosen = replace(algorithm, step_size=best)
        curves.append(_curve(problem, chosen, budget, least, tried, progress))
    return Comparison(curves[0], curves[1], least)


def _tune(
    problem: Problem,
    algorithm: ISFedAvg,
    budget: Budget,
    least: float,
    progress: Progress | None,
) -> dict[float, float]:
    """The final excess loss over a grid of factors of 2, wide enough to have the best inside it."""
    curvature = problem.data.row_weights() @ problem.loss.curvature(problem.data.features)
    tuning = replace(
        budget, repetitions=max(2, budget.tuning_repetitions), seed=budget.seed + TUNING_SEED
    )
    tried: dict[float, float] = {}

    def run(power: int) -> float:
        step = float(2.0**power / curvature)
        try:
            history = _run(problem, replace(algorithm, step_size=step), tuning, least, None)
            tried[step] = float(_final(history.measured["excess"]).mean())
        except DivergenceError:
            tried[step] = np.inf
        if progress is not None:
            progress.advance(tuning.rounds)
        return tried[step]

    def announce(powers: int) -> None:
        if progress is not None:
            name = f"{algorithm.name}, step sizes"
            progress.begin(name, powers * tuning.rounds, 0, repetitions=tuning.repetitions)

    announce(len(FIRST_POWERS))
    levels = {power: run(power) for power in FIRST_POWERS}
    for edge, move in ((min(levels), -1), (max(levels), 1)):
        power = edge
        while min(levels, key=lambda p: levels[p]) == power and abs(power - edge) < 10:
            power += move
            announce(1)
            levels[power] = run(power)
    return tried


def _curve(
    problem: Problem,
    algorithm: ISFedAvg,
    budget: Budget,
    least: float,
    tried: dict[float, float],
    progress: Progress | None,
) -> Curve:
    try:
        history = _run(problem, algorithm, budget, least, progress)
    except DivergenceError:
        # Rare, because it did not diverge while tuning: the next smaller step is the best then.
        too_large = float(algorithm.step_size)
        tried = {**tried, too_large: np.inf}
        smaller = [step for step in tried if step < too_large]
        if not smaller:
            raise
        next_one = replace(algorithm, step_size=max(smaller))
        return _curve(problem, next_one, budget, least, tried, progress)
    return Curve(
        name=algorithm.name,
        step_size=float(algorithm.step_size),
        tried=tried,
        rounds=history.measured_rounds,
        excess=history.measured["excess"],
        gradients=float(history.gradients.mean() / budget.rounds),
        uploads=float(history.uploads.mean() / budget.rounds),
    )


@dataclass
class _Excess:
    """P(w_i) - P(w^o), measured along a run."""

    problem: Problem
    least: float
    every: int
    names: tuple[str, ...] = ("excess",)

    def __call__(self, params: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # on the way to divergence
            return np.array([[self.problem.risk(model) - self.least] for model in params])


def _run(
    problem: Problem,
    algorithm: ISFedAvg,
    budget: Budget,
    least: float,
    progress: Progress | None,
) -> History:
    measure = _Excess(problem, least, max(1, budget.rounds // budget.records))

    def done(rounds: int) -> None:  # of all repetitions together
        if progress is not None:
            progress.advance(rounds // budget.repetitions)

    return simulate(
        problem,
        algorithm,
        rounds=budget.rounds,
        repetitions=budget.repetitions,
        seed=budget.seed,
        threads=budget.threads,
        measure=measure,
        progress=done,
    )
