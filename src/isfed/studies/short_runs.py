"""What every way to learn would end with: computed for least squares, else from a few runs.

The formulas of `tuned_ways` hold where the curvature is the same everywhere. Where the loss bends,
a few runs find the step size and the loss of each way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isfed.problems import Problem
from isfed.problems.losses import LeastSquares
from isfed.simulate.run_history import stderr_of_mean
from isfed.studies.comparison import Curve
from isfed.studies.executors import Executor, Workers
from isfed.studies.paired_step_search import PairedSearch
from isfed.studies.problem_sources import Given
from isfed.studies.work_cells import CellStore
from isfed.theory.budget_levels import TunedWay
from isfed.theory.probabilities import TheoryError
from isfed.theory.tuned_ways import AVERAGED, BASE, predict_ways, ways_to_learn

MOST_NUMBERS = 2**18  # of a table whose loss is measured again and again
HOW = "from a few runs"
RUNS = 16  # at the best step size, from which the loss is read
TRIALS = 2  # with step sizes around it; half as many with the first, twice with the nearest
SEED = 2_000_003  # of these runs, so that they say nothing about the draws of a comparison


def ways_by_short_runs(problem: Problem, *, num_active: int, rounds: int) -> dict[str, TunedWay]:
    """As `predict_ways`, but from a few runs of each way where the loss bends.

    Tables with more than 2^18 numbers, whose loss takes long to measure, are left to the formulas.

    Args:
        problem: what is learned, with one of the built-in losses.
        num_active: L, agents per round.
        rounds: the rounds of a run.
    """
    found = predict_ways(problem, num_active=num_active, rounds=rounds)
    bends = not isinstance(problem.loss, LeastSquares)
    if not bends or problem.data.features.size > MOST_NUMBERS or problem.data.weights is not None:
        return found
    steps = int(problem.local_steps.max())
    computed, workers, curves = found[BASE], Workers(), {}
    with workers.opened() as jobs:
        executor = Executor(workers, jobs, CellStore(), None)
        for name, way in ways_to_learn(num_active, local_steps=steps).items():
            shown = [name, name + AVERAGED]
            search = PairedSearch(
                executor, name, replace(way, average=True), shown, source=Given(problem),
                rounds=rounds, seed=SEED, runs=TRIALS,
                guesses=[float(f"{found[n].step_size:.3g}") for n in shown],
            )  # fmt: skip
            curves |= search.measured(RUNS)
    for name, curve in curves.items():
        found[name] = _measured(found[name], curve, curves[BASE])
    ratios = found[BASE].excess / computed.excess, found[BASE].typical / computed.typical
    for name, way in found.items():
        if name.startswith("FedAvg, 2"):  # formulas, which say how far below FedAvg that is
            found[name] = replace(
                way, excess=way.excess * ratios[0], typical=way.typical * ratios[1], how=HOW
            )
    return found


def _measured(way: TunedWay, curve: Curve, base: Curve) -> TunedWay:
    """A way with what its runs ended with, beside those of FedAvg from the same chance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        typical = float(np.exp(np.log(curve.final).mean()))
        gains = 10.0 * np.log10(base.final / curve.final)
    if not np.isfinite(typical):
        raise TheoryError(f"runs of {way.name} end at the lowest loss, or diverge")
    return replace(
        way, step_size=curve.step_size, excess=float(curve.final.mean()), typical=typical,
        reaches=curve.first_at(float(base.final.mean())), how=HOW,
        stderr_db=float(stderr_of_mean(gains[:, None])[0]),
    )  # fmt: skip
