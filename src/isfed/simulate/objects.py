"""The plain engine: a loop over agent and cloud objects, for any loss and any design."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isfed.algorithms import ISFedAvg
from isfed.federation.in_process import Federation
from isfed.problems import Problem
from isfed.sampling.telemetry import COLUMNS
from isfed.simulate.history import DivergenceError, History, Measured
from isfed.simulate.kernel import TOO_FAR, distance
from isfed.theory.stability import explain_divergence, warn_if_growing


def _distance(run: Federation) -> float:
    """|w_i - w^o|^2, eq. (56)."""
    drifting = run.shift is not None
    response = run.problem.drift_response if drifting else np.empty((0, 0))
    shift = run.shift if drifting else np.empty(0)
    return distance(run.problem.optimum, response, run.cloud.params, shift)


def simulate_objects(
    problem: Problem,
    algorithm: ISFedAvg,
    *,
    rounds: int,
    repetitions: int,
    seed: int,
    initial: np.ndarray,
    measured: Measured | None = None,
    progress: Callable[[int], None] | None = None,
) -> History:
    """Run every repetition, one after the other."""
    msd = np.empty((repetitions, rounds))
    watched = np.empty((repetitions, rounds, len(COLUMNS)), np.float32)
    runs = []
    finite = rounds
    for repetition in range(repetitions):
        run = Federation(problem, algorithm, seed=seed, repetition=repetition, initial=initial)
        runs.append(run)
        if measured is not None:
            measured.look(run.cloud.params[None], 0, repetition=repetition)
        for i in range(finite):
            with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported below
                run.step(i)
            msd[repetition, i] = _distance(run)
            watched[repetition, i] = run.watched
            if not msd[repetition, i] < TOO_FAR:
                finite = i
                break
            if measured is not None:
                measured.look(run.cloud.params[None], i + 1, repetition=repetition)
            if progress is not None:
                progress(1)
    for run in runs:
        run.finish()
    history = History(
        msd=msd[:, :finite],
        params=np.array([run.cloud.params for run in runs]),
        agent_prob=np.array([run.cloud.table.probabilities() for run in runs]),
        example_prob=np.array(
            [np.concatenate([a.table.probabilities() for a in run.agents]) for run in runs]
        ),
        gradients=np.array([run.gradients for run in runs]),
        uploads=np.array([run.uploads for run in runs]),
        step_size=float(algorithm.step_size),
        telemetry=watched[:, :finite],
        **({} if measured is None else measured.fields()),
    )
    if finite < rounds:
        raise DivergenceError(finite, history, explain_divergence(problem, algorithm))
    warn_if_growing(problem, algorithm, history.msd)
    return history
