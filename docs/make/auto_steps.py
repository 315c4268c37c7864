"""Is step_size="auto" near the best fixed step? Presets and bundled tables, every way to learn.

    python docs/make/auto_steps.py [--rounds N] [--only NAME]

Prints the excess risk over the last tenth of the rounds at the automatic step, and the lowest of
nine fixed steps from an eighth to eight times it (32 runs each, of other seeds than the trials).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn import datasets

from isfed import (
    EQUAL,
    OUTLIERS,
    PAPER,
    DivergenceError,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Problem,
    Softmax,
    Synthetic,
    Uniform,
    simulate,
)
from isfed.datasets.encoder import federated_scaling
from isfed.datasets.partition import by_column
from isfed.simulate.pilot_runs import with_best_step_size

RUNS = 32
FACTORS = (1.0, 1 / 8, 1 / 4, 1 / 2, 2**-0.5, 2**0.5, 2.0, 4.0, 8.0)


def table(x: np.ndarray, y: np.ndarray, agents: np.ndarray, loss: Any, steps: int = 1) -> Problem:
    """A problem of a table, standardised, with a constant feature and batches of eight."""
    found = by_column(agents)
    rows = x[found.rows]
    rows = federated_scaling(rows, found.offsets).apply(rows)
    features = np.column_stack([rows, np.ones(len(rows))])
    data = FederatedData(features, np.asarray(y, dtype=float)[found.rows], found.offsets)
    return Problem(data, loss, steps, np.minimum(8, data.num_examples))


def long_rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """29 agents, 9 normal features, 7.5% positives, and 0.1% of the rows 35 times as long."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2900, 9))
    margin = 0.7 * x @ rng.standard_normal(9) + rng.logistic(size=len(x))
    y = np.where(margin > np.quantile(margin, 1.0 - 0.075), 1.0, -1.0)
    x[rng.permutation(len(x))[: len(x) // 1000]] *= 35.0
    return x, y, rng.integers(0, 29, len(x))


def sorted_by(column: np.ndarray, count: int = 20) -> np.ndarray:
    """Agents that hold neighbouring values of a column."""
    return np.argsort(np.argsort(column, kind="stable"), kind="stable") * count // column.size


def problems() -> Iterator[tuple[str, Problem, int]]:
    """Name, problem and agents per round."""
    for preset in (PAPER, EQUAL, OUTLIERS):
        yield preset.name, preset.make(), 6
    yield "synthetic", Synthetic(most_examples=500, num_features=20).make(), 3
    x, y, agents = long_rows()
    yield "long rows", table(x, y, agents, Logistic(1e-3)), 2
    load: Any = datasets
    x, y = load.load_breast_cancer(return_X_y=True)
    yield "cancer", table(x, 2.0 * y - 1.0, sorted_by(x[:, 0]), Logistic(1e-3)), 2
    x, y = load.load_diabetes(return_X_y=True)
    yield "diabetes", table(x, (y - y.mean()) / y.std(), sorted_by(x[:, 2]), LeastSquares(1e-3)), 2
    x, y = load.load_iris(return_X_y=True)
    yield "iris", table(x, y, np.arange(150) % 15, Softmax(ridge=1e-3, num_classes=3)), 2
    x, y = load.load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    mostly = np.where(rng.random(y.size) < 0.7, y, rng.integers(0, 10, y.size))
    agents = 4 * mostly + rng.integers(0, 4, y.size)
    yield "digits", table(x, y, agents, Softmax(ridge=1e-3, num_classes=10), steps=3), 4


def ways(num_active: int) -> dict[str, ISFedAvg]:
    """Every way to learn."""
    common: dict[str, Any] = {"step_size": "auto", "num_active": num_active}
    even = {"agents": Uniform(), "examples": Uniform(), "agent_design": HartleyRao()}
    return {
        "FedAvg": ISFedAvg(**common, **even),
        "importance": ISFedAvg(**common),
        "difference": ISFedAvg(**common, examples=Uniform(), correction="difference"),
        "drift": ISFedAvg(**common, examples=Uniform(), correction="drift"),
        "FedAvg averaged": ISFedAvg(**common, **even, average=True),
        "importance averaged": ISFedAvg(**common, average=True),
    }


@dataclass(frozen=True)
class Excess:
    """P(w) - P(w^o) at the models of a run."""

    problem: Problem
    every: int
    names: ClassVar[tuple[str, ...]] = ("excess",)

    def __call__(self, params: np.ndarray) -> np.ndarray:
        least = self.problem.risk(self.problem.optimum)
        return np.array([[self.problem.risk(model) - least] for model in params])


def excess(problem: Problem, algorithm: Any, rounds: int) -> float:
    """Over the last tenth of the rounds; infinite where the run diverges."""
    measure: Any = Excess(problem, max(1, rounds // 40))
    try:
        found = simulate(
            problem, algorithm, rounds=rounds, repetitions=RUNS, seed=5, measure=measure
        )
    except DivergenceError:
        return np.inf
    return float(found.measured["excess"][:, found.measured_rounds >= 0.9 * rounds].mean())


def main() -> None:
    """Print one line for every problem and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| problem | way | automatic step | loss at it | lowest loss | at times the step | ratio |"
    )
    print("|---|---|---:|---:|---:|---:|---:|")
    worst = 0.0
    for name, problem, num_active in problems():
        for way, given in ways(num_active).items() if options.only in ("", name) else ():
            auto = with_best_step_size(problem, given, rounds=options.rounds)
            step = float(auto.step_size)
            found = {
                factor: excess(problem, replace(auto, step_size=factor * step), options.rounds)
                for factor in FACTORS
            }
            best = min(found, key=found.__getitem__)
            ratio = found[1.0] / found[best]
            worst = max(worst, ratio)
            print(
                f"| {name} | {way} | {step:.2g} | {found[1.0]:.3g} | {found[best]:.3g} "
                f"| {best:.2g} | {ratio:.2f} |",
                flush=True,
            )
    print(f"the automatic step's error is at most {worst:.2f} times that of the best fixed step")


if __name__ == "__main__":
    main()
