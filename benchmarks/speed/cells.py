"""Cells side by side: two processes against one, and what a cell costs beyond its work.

    python benchmarks/speed/cells.py [--rounds 6000] [--tries 5]

Two experiments of equal work are run in turn, so that a slow minute of the machine hits both. One
thread for every cell, so that processes are compared with processes.

- speed-up: the same cells with --jobs 1 and with --jobs 2.
- overhead: the cells one after the other through joblib (--jobs 1), with their checkpoints, results
  on disk and all, against the bare `simulate` of the same repetitions in this process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from isfed.simulate.simulate_call import simulate
from isfed.studies import Workers, make_experiment
from isfed.studies.executors import Executor
from isfed.studies.work_cells import CellStore, cells_of


def experiment(rounds: int, repetitions: int):
    """The paper's regression with three algorithms."""
    at = {"step_size": 0.01, "num_active": 6}
    return make_experiment(
        {
            "rounds": rounds,
            "repetitions": repetitions,
            "algorithm": [
                {"kind": "FedAvg", **at},
                {"kind": "ISFedAvg", **at},
                {"kind": "ISFedAvg", "agents": "running", "examples": "running", **at},
            ],
        }
    )


def seconds(given, *, backend: str, jobs: int, block: int) -> float:
    """How long all cells take, from an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        store = CellStore(Path(folder), "benchmark")
        executor = Executor(Workers(backend=backend, jobs=jobs, threads=1), jobs, store)
        groups = {
            name: cells_of(
                name, name, given.repetitions, store, block, source=given.source,
                algorithm=algorithm, rounds=given.rounds, seed=given.seed,
            )
            for name, algorithm in given.algorithms.items()
        }  # fmt: skip
        begun = time.perf_counter()
        executor.run(groups, "all")
        return time.perf_counter() - begun


def bare_seconds(given) -> float:
    """How long the same repetitions take without any cells."""
    problem = given.source.make()
    begun = time.perf_counter()
    for algorithm in given.algorithms.values():
        simulate(
            problem, algorithm, rounds=given.rounds, repetitions=given.repetitions,
            seed=given.seed, threads=1,
        )  # fmt: skip
    return time.perf_counter() - begun


def main() -> None:
    """Print both ratios with their spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6000)
    parser.add_argument("--repetitions", type=int, default=40)
    parser.add_argument("--block", type=int, default=10, help="repetitions of a cell")
    parser.add_argument("--tries", type=int, default=5)
    given = parser.parse_args()
    work = experiment(given.rounds, given.repetitions)
    count = 3 * -(-given.repetitions // given.block)
    short = experiment(10, given.repetitions)  # starts the processes and compiles
    for backend, jobs in (("loky", 1), ("loky", 2)):
        seconds(short, backend=backend, jobs=jobs, block=given.block)
    ratios, overheads = [], []
    for _ in range(given.tries):
        bare = bare_seconds(work)
        seconds(short, backend="loky", jobs=1, block=given.block)
        one = seconds(work, backend="loky", jobs=1, block=given.block)
        seconds(short, backend="loky", jobs=2, block=given.block)  # the second process is there
        two = seconds(work, backend="loky", jobs=2, block=given.block)
        ratios.append(one / two)
        overheads.append(one / bare - 1.0)
        print(
            f"bare {bare:.2f} s, one process {one:.2f} s, two {two:.2f} s: {one / two:.2f} times "
            f"as fast; {count} cells of {bare / count:.2f} s, overhead {100 * overheads[-1]:+.1f}%"
        )
    for name, values, scale, unit in (
        ("two processes over one", ratios, 1.0, "times"),
        ("overhead per cell", overheads, 100.0, "%"),
    ):
        low, high = scale * min(values), scale * max(values)
        middle = scale * statistics.median(values)
        print(f"{name}: median {middle:.2f} {unit}, from {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
