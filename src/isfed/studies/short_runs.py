"""What every way to learn would end with: computed where that is exact, else from short runs.

For least squares with fixed probabilities the formulas of `tuned_ways` are exact. Where the loss
bends, or scores are learned on the way, a few dozen runs find the step size and the loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isfed.base.gram_matrix import TALL
from isfed.problems import Problem
from isfed.problems.losses import LeastSquares
from isfed.studies.executors import Executor, Workers
from isfed.studies.paired_step_search import PairedSearch
from isfed.studies.problem_sources import Given
from isfed.studies.work_cells import CellStore
from isfed.theory.noise_path import TunedWay
from isfed.theory.probabilities import TheoryError
from isfed.theory.tuned_ways import AVERAGED, BASE, predict_ways, ways_to_learn

RUNS = 32  # at the best step size, from which the loss is read
TRIALS = 4  # with step sizes around it; half as many with the first, twice with the nearest
SEED = 2_000_003  # of these runs, so that they say nothing about the draws of a comparison


def ways_by_short_runs(problem: Problem, *, num_active: int, rounds: int) -> dict[str, TunedWay]:
    """As `predict_ways`, but with short runs of the ways that formulas know only roughly.

    Rows that would make the runs long, more than 2^21 numbers of them, leave it to the formulas.

    Args:
        problem: what is learned, with one of the built-in losses.
        num_active: L, agents per round.
        rounds: the rounds of a run.
    """
    found = predict_ways(problem, num_active=num_active, rounds=rounds)
    if problem.data.features.size > TALL or problem.data.weights is not None:
        return found
    steps = int(problem.local_steps.max())
    exact = isinstance(problem.loss, LeastSquares)
    computed, workers = found[BASE], Workers()
    with workers.opened() as jobs:
        executor = Executor(workers, jobs, CellStore(), None)
        for name, way in ways_to_learn(num_active, local_steps=steps).items():
            if exact and way.agents.equal and way.examples.equal:
                continue
            shown = [name, name + AVERAGED]
            search = PairedSearch(
                executor, name, replace(way, average=True), shown, source=Given(problem),
                rounds=rounds, seed=SEED, runs=TRIALS,
                guesses=[float(f"{found[n].step_size:.3g}") for n in shown],
            )  # fmt: skip
            for one, (step, finals) in search.measured(RUNS).items():
                found[one] = _measured(found[one], step, finals)
    ratios = found[BASE].excess / computed.excess, found[BASE].typical / computed.typical
    for name, way in found.items():
        if name.startswith("FedAvg, 2"):  # formulas, which say how far below FedAvg that is
            found[name] = replace(
                way, excess=way.excess * ratios[0], typical=way.typical * ratios[1]
            )
    return found


def _measured(way: TunedWay, step: float, finals: np.ndarray) -> TunedWay:
    """A way with what its runs ended with."""
    with np.errstate(divide="ignore", invalid="ignore"):
        typical = float(np.exp(np.log(finals).mean()))
    if not np.isfinite(typical):
        raise TheoryError(f"runs of {way.name} end at the lowest loss, or diverge")
    return replace(way, step_size=step, excess=float(finals.mean()), typical=typical)
