"""Claims of docs/appendix/variance.md about step sizes and scores, measured by runs.

    python docs/make/corrected_steps.py weighting [--rounds N]   # 1/(K p_k) on the step or change
    python docs/make/corrected_steps.py memory [--rounds N]      # the limit for corrections
    python docs/make/corrected_steps.py scores [--rounds N]      # what learned scores cost

Runs start at w^o. A step size counts as stable if the msd stays within ten times what it is to
first order: the msd at a small step size, times the ratio of the steps. `weighting` finds the
largest stable step by bisection, and compares msd and peaks at a quarter of the smaller limit.
`memory` runs the corrections at multiples of the limit that `step_size="auto"` keeps to. `scores`
compares equal probabilities and those by scores under a correction, for agents that are alike.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from stable_steps import PROBLEMS, make

from isfed import (
    OUTLIERS,
    PAPER,
    DivergenceError,
    FederatedData,
    ISFedAvg,
    LeastSquares,
    Memory,
    Problem,
    Uniform,
    simulate,
)
from isfed.theory.stable_step_size import memory_limit, stable_step_size

REPETITIONS, SMALL, HALVINGS = 8, 1 / 32, 5
SHARES = (0.5, 1.0, 2.0, 4.0, 8.0)
KINDS: dict[str, dict[str, Any]] = {
    "difference": {"correction": "difference"},
    "drift": {"correction": "drift"},
    "drift, uniform": {"correction": "drift", "agents": Uniform(), "examples": Uniform()},
}


def problems() -> dict[str, Problem]:
    """The paper's two presets, and logistic and softmax problems."""
    found = {"regression": PAPER.make(seed=0), "outliers": OUTLIERS.make(seed=0)}
    for name in ("logistic", "clear classes", "skewed agents", "three classes"):
        found[f"{name}, E=5"] = make(**{**PROBLEMS[name], "local_steps": 5})
    return found


def runs(problem: Problem, algorithm: ISFedAvg, rounds: int) -> np.ndarray:
    """(R, rounds) msd from w^o on; infinite where it diverged."""
    try:
        history = simulate(
            problem, algorithm, rounds=rounds, repetitions=REPETITIONS, initial=problem.optimum
        )
    except DivergenceError:
        return np.full((REPETITIONS, rounds), math.inf)
    return history.msd


def settled(msd: np.ndarray) -> np.ndarray:
    """(R,) the mean over the last half of every repetition."""
    return msd[:, msd.shape[1] // 2 :].mean(axis=1)


def excess(problem: Problem, algorithm: ISFedAvg, step: float, small: float, rounds: int) -> float:
    """The msd over its first order; `small` is the msd of a step of length 1, to first order."""
    msd = settled(runs(problem, replace(algorithm, step_size=step), rounds)).mean()
    return float(msd / (step * small))


def first_order(problem: Problem, algorithm: ISFedAvg, step: float, rounds: int) -> float:
    """The msd per length of the step, where steps are small."""
    slow = int(rounds * 4)  # small steps take longer to settle
    msd = settled(runs(problem, replace(algorithm, step_size=step), slow)).mean()
    return float(msd / step)


def largest_stable(problem: Problem, algorithm: ISFedAvg, start: float, rounds: int) -> float:
    """By doubling from a step that is stable, then by bisection on a logarithmic scale."""
    small = first_order(problem, algorithm, SMALL * start, rounds)

    def stable(step: float) -> bool:
        return excess(problem, algorithm, step, small, rounds) < 10.0

    low = start
    while not stable(low):
        low /= 2.0
    high = 2.0 * low
    while stable(high) and high < 1e4 * start:
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def in_db(msd: np.ndarray) -> str:
    """Mean and standard error over repetitions, in dB."""
    mean, error = msd.mean(), msd.std(ddof=1) / math.sqrt(msd.size)
    return f"{10 * math.log10(mean):.1f} ± {10 / math.log(10) * error / mean:.1f}"


def weighting(rounds: int) -> None:
    """Where 1/(K p_k) goes: stability, msd and peaks."""
    print("| problem | largest stable step: step | change | msd: step | change "
          "| highest peak over the mean: step | change |")  # fmt: skip
    print("|---" * 7 + "|")
    for name, problem in problems().items():
        ways = {}
        for where in ("step", "change"):
            base = ISFedAvg(step_size=1.0, num_active=6, weighting=where)
            start = stable_step_size(problem, base)
            ways[where] = base, largest_stable(problem, base, start, rounds)
        step = 0.25 * min(limit for _, limit in ways.values())
        found = {w: runs(problem, replace(a, step_size=step), rounds) for w, (a, _) in ways.items()}
        halves = {where: msd[:, rounds // 2 :] for where, msd in found.items()}
        peaks = [(msd.max(axis=1) / msd.mean(axis=1)).mean() for msd in halves.values()]
        cells = [f"{limit:.3g}" for _, limit in ways.values()]
        cells += [in_db(settled(msd)) for msd in found.values()]
        cells += [f"{peak:.1f}" for peak in peaks]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def memory(rounds: int) -> None:
    """Corrections at multiples of the limit of step_size="auto"."""
    print("| problem | correction | limit | auto | " + " | ".join(f"{s:g}" for s in SHARES) + " |")
    print("|---" * (4 + len(SHARES)) + "|")
    for name, problem in problems().items():
        limit = memory_limit(problem)
        for kind, choices in KINDS.items():
            algorithm = ISFedAvg(step_size=1.0, num_active=6, **choices)
            auto = stable_step_size(problem, algorithm)
            small = first_order(problem, algorithm, SMALL * limit, rounds)
            cells = [
                f"{excess(problem, algorithm, share * limit, small, rounds):.2f}"
                for share in SHARES
            ]
            print(f"| {name} | {kind} | {limit:.3g} | {auto:.3g} | " + " | ".join(cells) + " |",
                  flush=True)  # fmt: skip


def alike(batch_size: int) -> Problem:
    """100 agents with a regression from the same law."""
    rng = np.random.default_rng(0)
    x, truth = rng.standard_normal((100 * 100, 5)), rng.standard_normal(5)
    y = x @ truth + 0.5 * rng.standard_normal(len(x))
    return Problem(FederatedData(x, y, np.arange(101) * 100), LeastSquares(1e-3), 2, batch_size)


def scores(rounds: int) -> None:
    """What scores cost where they cannot help."""
    print("| batch size | L | msd: equal | by scores |\n|---|---|---|---|")
    for batch_size, num_active in ((5, 2), (5, 10), (20, 2), (20, 10)):
        problem = alike(batch_size)
        algorithm = ISFedAvg(
            step_size=0.02, num_active=num_active, correction="drift", examples=Uniform()
        )
        found = [
            settled(runs(problem, replace(algorithm, agents=policy), 2 * rounds))
            for policy in (Uniform(), Memory())
        ]
        print(
            f"| {batch_size} | {num_active} | {in_db(found[0])} | {in_db(found[1])} |", flush=True
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("weighting", "memory", "scores"))
    parser.add_argument("--rounds", type=int, default=1500)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    {"weighting": weighting, "memory": memory, "scores": scores}[given.what](given.rounds)


if __name__ == "__main__":
    main()
