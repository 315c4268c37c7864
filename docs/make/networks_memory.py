"""Why are corrected local steps unstable on a network? Old memories, or too long a way?

    python docs/make/networks_memory.py memories [--rounds 100] [--seeds 3] [--step 0.1]
    python docs/make/networks_memory.py descent [--rounds 100] [--seeds 3]

Setting b-shards of the networks study: 100 agents, two digits each, small CNN.

memories: with L agents a round a memory is about 100 / L rounds old. The accuracy after some rounds
at one local step size, for *difference*, which uses memories in the cloud alone, and for *drift*,
which adds them to every local step.

descent: a corrected turn goes nearly the way of one long step along the mean gradient. The accuracy
of gradient descent with one step per round: all agents, 60 examples of each.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, Literal

from isfed import FedAvg, importance, simulate
from isfed.sampling.designs import HartleyRao
from isfed.simulate.run_history import DivergenceError
from isfed.studies.experiment_config import read_study

CORRECTIONS: tuple[Literal["difference", "drift"], ...] = ("difference", "drift")


ACTIVE = (10, 20, 50)
DESCENT = (0.15, 0.275, 0.5, 0.85, 1.5)  # five times the local steps of the study
SOURCE = read_study("networks", setting="b-shards").source


def accuracy(source: Any, problem: Any, algorithm: Any, rounds: int, seed: int) -> str:
    """At the end, in percent."""
    measure = source.measure(problem)
    try:
        history = simulate(problem, algorithm, rounds=rounds, seed=seed, measure=measure)
    except DivergenceError:
        return "diverged"
    return f"{100 * history.measured['accuracy'][0, -1]:.1f}"


def memories(rounds: int, seeds: int, step: float) -> None:
    """The two corrections, by the number of agents per round."""
    problem = SOURCE.make()
    whole = step * float(problem.local_steps[0])
    print(f"local steps of {step:g}, {rounds} rounds, one accuracy (%) per seed")
    print("| agents per round | difference | drift |\n|---|---|---|")
    for active in ACTIVE:
        cells = []
        for correction in CORRECTIONS:
            algorithm = importance(
                step_size=whole, num_active=active, correction=correction,
                agent_design=HartleyRao(),
            )  # fmt: skip
            found = [accuracy(SOURCE, problem, algorithm, rounds, seed) for seed in range(seeds)]
            cells.append(", ".join(found))
        print(f"| {active} | {cells[0]} | {cells[1]} |", flush=True)


def descent(rounds: int, seeds: int) -> None:
    """One step per round along the mean of all agents' gradients."""
    source = replace(SOURCE, local_steps=1, batch_size=60)
    problem = source.make()
    print(f"{rounds} rounds, one accuracy (%) per seed\n| step | gradient descent |\n|---|---|")
    for step in DESCENT:
        algorithm = FedAvg(step_size=step, num_active=problem.num_agents)
        found = [accuracy(source, problem, algorithm, rounds, seed) for seed in range(seeds)]
        print(f"| {step:g} | {', '.join(found)} |", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("memories", "descent"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--step", type=float, default=0.1, help="of a local step")
    given = parser.parse_args()
    if given.what == "memories":
        memories(given.rounds, given.seeds, given.step)
    else:
        descent(given.rounds, given.seeds)


if __name__ == "__main__":
    main()
