"""Are corrected local steps unstable because memories are old? The more agents, the younger.

    python benchmarks/networks_memory.py [--rounds 100] [--seeds 3]

Setting b-shards of the networks study: 100 agents, two digits each, small CNN. With L agents a
round a memory is about 100 / L rounds old. Prints the accuracy after some rounds at one local step
size, for *difference*, which uses memories in the cloud alone, and for *drift*, which adds them to
every local step.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from typing import Literal

import numpy as np

from isfed import importance, simulate
from isfed.experiments.networks import SETTINGS
from isfed.sampling.designs import HartleyRao
from isfed.simulate.history import DivergenceError

CORRECTIONS: tuple[Literal["difference", "drift"], ...] = ("difference", "drift")


def accuracy(
    correction: Literal["difference", "drift"], active: int, step: float, rounds: int, seed: int
) -> float:
    """At the end; nan for a run that diverged."""
    source = SETTINGS["b-shards"].source
    problem = source.make()
    algorithm = importance(
        step_size=step * float(problem.local_steps[0]), num_active=active, correction=correction,
        agent_design=HartleyRao(),
    )  # fmt: skip
    try:
        history = simulate(
            problem, algorithm, rounds=rounds, seed=seed, measure=source.measure(problem)
        )
    except DivergenceError:
        return np.nan
    return float(history.measured["accuracy"][0, -1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--step", type=float, default=0.1, help="of a local step")
    given = parser.parse_args()
    print(f"local steps of {given.step:g}, {given.rounds} rounds, one accuracy (%) per seed")
    print("| agents per round | difference | drift |\n|---|---|---|")
    for active in (10, 20, 50):
        cells = []
        for correction in CORRECTIONS:
            found = [
                accuracy(correction, active, given.step, given.rounds, seed)
                for seed in range(given.seeds)
            ]
            cells.append(", ".join(f"{100 * a:.1f}" if a == a else "diverged" for a in found))
        print(f"| {active} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
