"""Agents of different cost: importance over sqrt(cost), plain importance, FedCS with a deadline.

    python docs/make/priced_agents.py [--repetitions 8]

The regression presets on the virtual clock, where the slowest agent computes a hundred times as
slowly as the fastest. The cost of an agent is what a turn of it takes, in seconds. Printed is the
msd in dB, with its standard error, when the agents have worked a given sum of seconds (what is paid
for), and when a given time has passed (a round lasts as long as its slowest turn); every method at
the best of five step sizes, found with other seeds.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from isfed import OUTLIERS, PAPER, Clock, FedCS, ISFedAvg, Memory, Problem, Uniform
from isfed.simulate.simulate_call import make_run

CLOCK = Clock(rate=(1.0, 100.0), latency=0.0)
ACTIVE, CHUNK, PAID, PASSED = 6, 5, 4000.0, 2000.0
STEPS = (0.08, 0.04, 0.02, 0.01, 0.005)
NAMES = ("uniform", "importance", "importance, costs", "FedCS, deadline 2 s")


def seconds_of_turns(problem: Problem, agents: Any) -> np.ndarray:
    """(K,) what a turn of every agent takes."""
    examples = problem.local_steps * problem.batch_size
    return agents.times(np.arange(problem.num_agents), examples, None).total


def make(name: str, step: float, problem: Problem, seed: int) -> Any:
    """A method by name."""
    uniform = ISFedAvg(step_size=step, num_active=ACTIVE, agents=Uniform(), examples=Uniform())
    if name == "uniform":
        return uniform
    if name.startswith("FedCS"):  # it does not divide by E_k
        mean = step / float(problem.local_steps.mean())
        return FedCS(deadline=2.0, num_active=2 * ACTIVE, step_size=mean)
    costs: Any = ()
    if name.endswith("costs"):
        probe: Any = make_run(problem, uniform, seed=seed, clock=CLOCK)
        costs = seconds_of_turns(problem, probe.agents[0])
    return ISFedAvg(
        step_size=step, num_active=ACTIVE, agents=Memory(), examples=Uniform(), costs=costs
    )


def msd_at(problem: Problem, algorithm: Any, seed: int) -> tuple[float, float]:
    """The msd when the agents have worked `PAID`, and when `PASSED` has passed."""
    run: Any = make_run(problem, algorithm, seed=seed, clock=CLOCK)
    agents = run.agents[0]
    cost, work, spent = seconds_of_turns(problem, agents), agents.work, [0.0]
    found = [math.nan, math.nan]

    def counted(turns: Any, *rest: Any) -> Any:
        spent[0] += float(cost[turns.agents].sum())
        return work(turns, *rest)

    agents.work = counted
    while math.isnan(sum(found)) and not run.diverged:
        msd = run.advance(CHUNK).msd
        for place, done in enumerate((spent[0] >= PAID, agents.ledger.seconds >= PASSED)):
            if done and math.isnan(found[place]) and msd.size:
                found[place] = float(msd.mean())
    return (math.inf, math.inf) if run.diverged else (found[0], found[1])


def decibels(values: np.ndarray) -> str:
    """Mean and standard error."""
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(len(values))
    return f"{10 * math.log10(mean):6.1f} ± {10 / math.log(10) * error / mean:.1f}"


def main() -> None:
    """Both presets, all methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=8)
    given = parser.parse_args()
    for preset in (PAPER, OUTLIERS):
        problem = preset.make(seed=0)
        print(f"{preset.name}: msd in dB, {PAID:g} s paid | {PASSED:g} s passed", flush=True)
        for name in NAMES:

            def run(step: float, seeds: range, name: str = name, problem: Problem = problem):
                rows = [msd_at(problem, make(name, step, problem, s), s) for s in seeds]
                return np.array(rows)

            tried = {step: run(step, range(1000, 1003)).mean(axis=0) for step in STEPS}
            best = [min(STEPS, key=lambda step, i=i: tried[step][i]) for i in range(2)]
            found = [run(best[i], range(given.repetitions))[:, i] for i in range(2)]
            print(
                f"  {name:22s} {decibels(found[0])} (step {best[0]:g}) | {decibels(found[1])} "
                f"(step {best[1]:g})",
                flush=True,
            )


if __name__ == "__main__":
    main()
