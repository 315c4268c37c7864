"""What a round with a correction costs against memory alone, in the fused kernel.

    python benchmarks/speed/variance_cost.py [--rounds 4000]

W1 is the paper's regression (two features, 300 agents of 100 examples, six a round); the second
problem has 784 features. All ways take turns, chunk by chunk. Prints microseconds of CPU of a round
(the fastest chunk), and the ratio to memory alone: the median and the quartiles over chunks.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from isfed import PAPER, FederatedData, ISFedAvg, LeastSquares, Problem
from isfed.simulate.kernel_run import KernelRun

CHUNKS = 20
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


def make_run(problem: Problem, choices: dict, rounds: int) -> KernelRun:
    """A run that is compiled and has filled the caches."""
    algorithm = ISFedAvg(step_size=0.001, num_active=6, **choices)
    initial = np.zeros(problem.num_params)
    run = KernelRun(problem, algorithm, repetitions=1, seed=0, initial=initial, threads=1)
    run.advance(rounds // 10)
    return run


def seconds_per_round(problem: Problem, rounds: int) -> dict[str, np.ndarray]:
    """(CHUNKS,) of every way; the ways take turns, so that other jobs slow down all of them."""
    runs = {name: make_run(problem, choices, rounds) for name, choices in WAYS.items()}
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(CHUNKS):
        for name, run in runs.items():
            begun = time.process_time()
            run.advance(rounds // CHUNKS)
            found[name].append((time.process_time() - begun) / (rounds // CHUNKS))
    return {name: np.array(seconds) for name, seconds in found.items()}


def main() -> None:
    """Both problems, all ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4000)
    given = parser.parse_args()
    for problem, rounds in ((PAPER.make(seed=0), 10 * given.rounds), (wide(), given.rounds // 2)):
        found = seconds_per_round(problem, rounds)
        base = found["memory alone"]
        for name, seconds in found.items():
            remembers = "correction" in WAYS[name]
            memory = 8 * problem.num_agents * problem.num_params if remembers else 0
            low, middle, high = np.quantile(seconds / base, (0.25, 0.5, 0.75))
            print(
                f"{problem.name:14s} {name:20s} {1e6 * seconds.min():8.1f} us a round, ratio "
                f"{middle:.2f} ({low:.2f} to {high:.2f}), of the fastest "
                f"{seconds.min() / base.min():.2f}; c_k {memory / 1e6:.2f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
