"""The step size "auto" of a run whose number of rounds is known: found by short trials.

No formula knows it: the best step depends on the rounds, and logistic and softmax losses learn
fastest beyond the step size up to which theory promises stability. Trials are cheap.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from isfed.methods import ISFedAvg
from isfed.methods.look_ahead_passes import LookAheadPasses
from isfed.methods.servers import Average, adds_steps
from isfed.problems import Problem
from isfed.problems.losses import LeastSquares, LinearLoss
from isfed.simulate.run_driver import Recording, Run, drive
from isfed.simulate.run_history import DivergenceError
from isfed.simulate.simulate_call import choose_engine, make_run
from isfed.theory.stable_step_size import AUTO, mean_square_limit, stable_step_size

PER_DECADE = 6  # step sizes that are tried, from 1 to 10: 1, 1.5, 2.2, 3.2, 4.6, 6.8
STRIDES = (4, 2, 1)  # the search begins coarse
FURTHEST = 36  # places on either side of where it begins: six decades
REPETITIONS = 4
CLOSE_REPETITIONS = 12  # of the best step size and its neighbours, which four do not tell apart
SEED = 2**62 + 1  # of the trials, so that they say nothing about the run's own draws
SHARE_OF_ROUNDS = 0.9  # the risk counts from here on
LOOKS = 24  # models of those rounds whose risk is looked at
TRIAL_ROUNDS = 20  # of a network: enough to rank its steps, see docs/make/networks_steps.py
FIRST_STEP = 0.1  # of a network; those tried are this times powers of 2
MOST_ROWS = 5000  # on which the model at the end of such a trial is judged
MOST_OF_LIMIT = 0.5  # of the mean-square limit: beyond, a square loss may overflow in a later run


def with_best_step_size(
    problem: Problem,
    algorithm: Any,
    *,
    rounds: int,
    initial: np.ndarray | None = None,
    threads: int | None = None,
) -> Any:
    """The algorithm with a number for step_size="auto": the best for so many rounds, by trials.

    About eight step sizes run for all rounds, four times each, with the same draws, and the best
    of them and its neighbours twelve times; the one with the lowest risk over the last tenth of
    the rounds is taken. For `LookAheadPasses`, the
    default for networks, trials are single and have at most 20 rounds. What else does not run on
    compiled code, or follows a moving target, is left as it is.

    Args:
        problem: what is learned.
        algorithm: what will run.
        rounds: for how many rounds.
        initial: (M,) where it will start; zero unless given.
        threads: cores of the trials, all unless given.
    """
    if getattr(algorithm, "step_size", None) != AUTO:
        return algorithm
    inside, server = getattr(algorithm, "algorithm", None), getattr(algorithm, "server", None)
    if isinstance(inside, ISFedAvg) and isinstance(server, Average) and adds_steps(server):
        shown = replace(inside, average=server.window)
        shown = with_best_step_size(problem, shown, rounds=rounds, initial=initial, threads=threads)
        return replace(algorithm, algorithm=replace(inside, step_size=shown.step_size))
    if isinstance(algorithm, LookAheadPasses):
        return _after_short_trials(problem, algorithm, rounds, initial=initial, threads=threads)
    if not isinstance(algorithm, ISFedAvg):
        return algorithm
    linear = isinstance(problem.loss, LinearLoss)
    if not linear or algorithm.drift > 0.0 or choose_engine(problem, algorithm) == "objects":
        return algorithm
    problem = problem.batched_for(algorithm)
    start = np.zeros(problem.num_params) if initial is None else initial
    most = math.inf
    if isinstance(problem.loss, LeastSquares):
        most = MOST_OF_LIMIT * mean_square_limit(problem, algorithm, start)
    first = stable_step_size(problem, algorithm, initial=start)

    def risk(place: int, repetitions: int = REPETITIONS) -> float:
        step = _step(place)
        if step > most:
            return math.inf
        tried = replace(algorithm, step_size=step)
        run = make_run(
            problem, tried, repetitions=repetitions, seed=SEED, initial=start, threads=threads
        )
        return _late_risk(run, rounds)

    place = _lowest(risk, math.floor(PER_DECADE * math.log10(first)))
    place = _lowest(partial(risk, repetitions=CLOSE_REPETITIONS), place, strides=(1,))
    return replace(algorithm, step_size=_step(place))


def _step(place: int) -> float:
    return float(f"{10.0 ** (place / PER_DECADE):.2g}")


def _after_short_trials(problem: Problem, algorithm: Any, rounds: int, **options: Any) -> Any:
    """The algorithm at the best step size of a few short runs, each twice the one before."""
    every = -(-len(problem.data.targets) // MOST_ROWS)
    x, y = problem.data.features[::every], problem.data.targets[::every]
    weights = problem.data.row_weights()[::every]
    if algorithm.client_weights == "size":
        weights = np.ones(len(y))

    def at(place: int) -> Any:
        return replace(algorithm, step_size=FIRST_STEP * 2.0**place)

    def risk(place: int) -> float:
        run = make_run(problem, at(place), seed=SEED, **options)
        try:
            history = drive(run, Recording(run, min(rounds, TRIAL_ROUNDS)))
        except DivergenceError:
            return math.inf
        value = float(np.average(problem.loss.values(history.params[0], x, y), weights=weights))
        return value if math.isfinite(value) else math.inf

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return at(_lowest(risk, 0, strides=(1,)))


def _lowest(risk: Callable[[int], float], place: int, strides: Sequence[int] = STRIDES) -> int:
    """Where a function of whole numbers is lowest, as far as neighbours tell."""
    known: dict[int, float] = {}

    def at(where: int) -> float:
        if where not in known:
            known[where] = risk(where) if abs(where - place) <= FURTHEST else math.inf
        return known[where]

    best = place
    for stride in strides:
        while True:
            nearby = min((best, best + stride, best - stride), key=at)
            if nearby == best:
                break
            best = nearby
    return best


def _late_risk(run: Run, rounds: int) -> float:
    """The mean risk over the last tenth of the rounds; infinite if the run diverges."""
    late = np.unique(np.linspace(SHARE_OF_ROUNDS * rounds, rounds, LOOKS).astype(np.int64))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            history = drive(run, Recording(run, rounds, keep=late))
    except DivergenceError:
        return math.inf
    models = history.kept.reshape(-1, run.problem.num_params)
    value = float(run.problem.risks(models).mean())
    return value if math.isfinite(value) else math.inf
