"""`simulate`: rounds x repetitions in chunks; between chunks progress, checkpoint, Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

import numpy as np

from isfed.algorithms import ISFedAvg
from isfed.problems import Problem
from isfed.sampling.telemetry import COLUMNS, uniform_rows
from isfed.simulate.history import DivergenceError, History, Measure, Measured
from isfed.simulate.interrupts import hold_interrupt
from isfed.simulate.kernel import Plan, State, Task, run_rounds
from isfed.simulate.objects import simulate_objects
from isfed.simulate.setup import (
    agent_probabilities,
    example_probabilities,
    kernel_runs,
    make_keys,
    make_plan,
    make_state,
    make_task,
)
from isfed.theory.stability import explain_divergence, warn_if_growing, with_step_size

CHUNK_SECONDS = 0.2
FIRST_CHUNK = 16
PARTS_PER_THREAD = 4  # so that a thread that was held up does not keep the others waiting


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_run(problem: Problem, algorithm: ISFedAvg, rounds: int, repetitions: int) -> None:
    """Raise a ValueError for what cannot be run."""
    if algorithm.num_active > problem.num_agents:
        raise ValueError(
            f"num_active={algorithm.num_active} exceeds num_agents={problem.num_agents}"
        )
    for name, value in (("rounds", rounds), ("repetitions", repetitions)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name}={value} must be a whole number >= 1")


def check_initial(problem: Problem, initial: np.ndarray | None) -> np.ndarray:
    """w_0: zero unless given."""
    if initial is None:
        return np.zeros(problem.num_params)
    params = np.array(initial, dtype=np.float64)
    if params.shape != (problem.num_params,) or not np.isfinite(params).all():
        raise ValueError(
            f"initial must be {problem.num_params} finite numbers, got shape {params.shape}"
        )
    return params


def simulate(
    problem: Problem,
    algorithm: ISFedAvg,
    *,
    rounds: int,
    repetitions: int = 1,
    seed: int = 0,
    initial: np.ndarray | None = None,
    engine: Literal["auto", "kernel", "objects"] = "auto",
    threads: int | None = None,
    measure: Measure | None = None,
    progress: Callable[[int], None] | None = None,
) -> History:
    """Run an algorithm on a problem and return what happened.

    `measure` is evaluated every so many rounds, see `Measure`. `progress` is called with the number
    of rounds (times repetitions) just done. The engines give the same numbers: `kernel` is fast,
    `objects` also runs losses and designs of your own.

    >>> from isfed import PAPER, FedAvg
    >>> history = simulate(PAPER.make(), FedAvg(step_size=0.01, num_active=6), rounds=20)
    >>> history.msd.shape
    (1, 20)
    """
    check_run(problem, algorithm, rounds, repetitions)
    if engine not in ("auto", "kernel", "objects"):
        raise ValueError(f"engine={engine!r} must be 'auto', 'kernel' or 'objects'")
    params = check_initial(problem, initial)
    algorithm = with_step_size(problem, algorithm, initial=params)
    measured = None if measure is None else Measured(measure, repetitions, rounds)
    runs = kernel_runs(problem, algorithm)
    if engine == "kernel" and not runs:
        raise ValueError("the kernel does not know this loss or design; use engine='objects'")
    if engine == "objects" or not runs:
        return simulate_objects(
            problem,
            algorithm,
            rounds=rounds,
            repetitions=repetitions,
            seed=seed,
            initial=params,
            measured=measured,
            progress=progress,
        )
    run = KernelRun(
        problem, algorithm, repetitions=repetitions, seed=seed, initial=params, threads=threads
    )
    msd = np.empty((repetitions, rounds))
    watched = np.empty((repetitions, rounds, len(COLUMNS)), np.float32)
    if measured is not None:
        measured.look(run.state.params, 0)
    for begin, block in run.chunks(rounds, every=None if measure is None else measure.every):
        msd[:, begin : begin + block.shape[1]] = block
        watched[:, begin : begin + block.shape[1]] = run.watched
        if measured is not None:
            measured.look(run.state.params, run.round_index)
        if progress is not None:
            progress(block.size)
    done = run.round_index
    history = run.history(msd[:, :done], watched[:, :done], measured)
    if run.diverged:
        raise DivergenceError(run.round_index, history, explain_divergence(problem, algorithm))
    warn_if_growing(problem, algorithm, history.msd)
    return history


def _to_next(begin: int, every: int | None, size: int) -> int:
    """How many rounds until the next multiple of `every`."""
    return size if every is None else every - begin % every


class KernelRun:
    """The kernel's state between chunks."""

    def __init__(
        self,
        problem: Problem,
        algorithm: ISFedAvg,
        *,
        repetitions: int,
        seed: int,
        initial: np.ndarray,
        threads: int | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads} must be at least 1")
        self.threads = threads or num_cores()
        self.problem = problem
        self.algorithm = algorithm = with_step_size(problem, algorithm, initial=initial)
        self.task: Task = make_task(problem, drift=algorithm.drift > 0.0)
        self.plan: Plan = make_plan(algorithm)
        self.state: State = make_state(problem, algorithm, self.task, repetitions, initial)
        self.keys = make_keys(seed, range(repetitions))
        self.round_index = 0
        self.diverged = False
        self.watched = self._watch(0)  # telemetry of the last chunk, (R, rounds, columns)
        self.whole = True  # false while a chunk runs: then the state must not be saved

    def compile(self) -> None:
        """Compile the kernel, or load it from the cache, without running a round."""
        nothing = np.empty((len(self.state.params), 0))
        self._run(nothing, self._watch(0), np.zeros(len(nothing), np.int64), 0, 0)

    def _watch(self, rounds: int) -> np.ndarray:
        """Room for the telemetry of so many rounds, filled in as if all chances were equal."""
        return uniform_rows((len(self.state.params), rounds), self.plan.num_active)

    def _run(self, msd, watched, done: np.ndarray, begin: int, end: int) -> None:
        run_rounds(
            self.task, self.plan, self.state, self.keys, self.round_index, msd, watched, done,
            begin, end,
        )  # fmt: skip

    def advance(self, num_rounds: int) -> np.ndarray:
        """Run the next rounds; returns their msd, fewer than asked for if the model diverged."""
        repetitions = len(self.state.params)
        msd = np.empty((repetitions, num_rounds))
        watched = self._watch(num_rounds)
        done = np.zeros(repetitions, np.int64)
        parts = min(repetitions, self.threads * PARTS_PER_THREAD if self.threads > 1 else 1)
        edges = np.linspace(0, repetitions, parts + 1).astype(int).tolist()
        self.whole = False
        if parts == 1:
            self._run(msd, watched, done, 0, repetitions)
        else:  # compiled code releases the interpreter's lock
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(partial(self._run, msd, watched, done), edges[:-1], edges[1:]))
        finite = int(done.min())
        self.diverged = finite < num_rounds
        self.round_index += finite
        self.watched = watched[:, :finite]
        self.whole = True
        return msd[:, :finite]

    def chunks(self, rounds: int, *, seconds: float = CHUNK_SECONDS, every: int | None = None):
        """Yield (first round, msd) of chunks of about that much work, until `rounds`.

        No chunk goes past a multiple of `every`.
        """
        self.compile()  # Ctrl-C is not held back here: it may take a minute, once
        size = FIRST_CHUNK
        while self.round_index < rounds and not self.diverged:
            begin = self.round_index
            before = time.perf_counter()
            with hold_interrupt() as held:
                block = self.advance(min(size, rounds - begin, _to_next(begin, every, size)))
            spent = time.perf_counter() - before
            yield begin, block
            if held.asked:  # only now: what was computed is with the caller
                raise KeyboardInterrupt
            size = int(np.clip(size * seconds / max(spent, 1e-9), size / 2, size * 8)) or 1

    def history(
        self, msd: np.ndarray, telemetry: np.ndarray, measured: Measured | None = None
    ) -> History:
        """What happened, given the msd and telemetry of all rounds and what was measured."""
        return History(
            msd=msd,
            params=self.state.params.copy(),
            agent_prob=agent_probabilities(self.problem, self.algorithm, self.state),
            example_prob=example_probabilities(self.problem, self.algorithm, self.task, self.state),
            gradients=self.state.counts[:, 0].copy(),
            uploads=self.state.counts[:, 1].copy(),
            step_size=self.plan.step_size,
            telemetry=telemetry,
            **({} if measured is None else measured.fields()),
        )
