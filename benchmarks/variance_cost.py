"""What a round with a correction costs against memory alone, in the fused kernel.

    python benchmarks/variance_cost.py [--rounds 2000]

W1 is the paper's regression (two features, 100 agents of 100 examples, six a round); the second
problem has 784 features. Prints microseconds of a round, the better of five, and the ratio.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from isfed import PAPER, FederatedData, ISFedAvg, LeastSquares, Problem
from isfed.simulate.kernel_run import KernelRun

WAYS = {
    "memory alone": {},
    "weights on changes": {"weighting": "change"},
    "difference": {"correction": "difference"},
    "drift": {"correction": "drift"},
}


def wide(features: int = 784) -> Problem:
    """100 agents of 100 examples with many features, five steps of ten examples."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100 * 100, features)) / np.sqrt(features)
    data = FederatedData(x, rng.standard_normal(len(x)), np.arange(101) * 100)
    known = np.zeros(features)  # the msd is not looked at
    return Problem(data, LeastSquares(0.01), 5, 10, name="784 features", optimum=known)


def seconds_per_round(problem: Problem, choices: dict, rounds: int) -> float:
    """The best of five chunks, after one that compiles and fills the caches."""
    algorithm = ISFedAvg(step_size=0.001, num_active=6, **choices)
    initial = np.zeros(problem.num_params)
    run = KernelRun(problem, algorithm, repetitions=1, seed=0, initial=initial, threads=1)
    run.advance(rounds // 10)
    best = np.inf
    for _ in range(5):
        begun = time.perf_counter()
        run.advance(rounds)
        best = min(best, (time.perf_counter() - begun) / rounds)
    return best


def main() -> None:
    """Both problems, all ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    given = parser.parse_args()
    for problem, rounds in ((PAPER.make(seed=0), 10 * given.rounds), (wide(), given.rounds // 4)):
        base = seconds_per_round(problem, {}, rounds)
        for name, choices in WAYS.items():
            found = base if not choices else seconds_per_round(problem, choices, rounds)
            memory = 8 * problem.num_agents * problem.num_params if "correction" in choices else 0
            print(
                f"{problem.name:14s} {name:20s} {1e6 * found:8.1f} us a round, ratio "
                f"{found / base:.2f}, c_k {memory / 1e6:.2f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
