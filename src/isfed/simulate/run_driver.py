"""The one driver of both engines: any `Run`, in chunks of rounds.

Between chunks come progress, measurements, checkpoints and Ctrl-C.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from isfed.base.atomic_files import restore_array
from isfed.base.progress import working_clock
from isfed.federation.ledger import ENTRIES
from isfed.problems import Problem
from isfed.sampling.telemetry import COLUMNS
from isfed.simulate.run_history import DivergenceError, History, Measure, Measured
from isfed.theory.stable_step_size import explain_divergence, warn_if_growing, with_step_size

CHUNK_SECONDS = 0.2
FIRST_CHUNK = 16
LEAST_BETWEEN = 2.0  # seconds between checkpoints, at least ...
MOST_SHARE = 0.05  # ... and no more than this share of the time goes into them
NO_ROUNDS = np.empty(0, np.int64)
MOST_PROBABILITIES = 20_000_000  # numbers of example probabilities kept in a history


def kept_repetitions(repetitions: int, rows: int) -> int:
    """Of how many repetitions a history keeps the probabilities of all examples."""
    return min(repetitions, max(1, MOST_PROBABILITIES // rows))


class Block(NamedTuple):
    """What some rounds of all repetitions showed.

    Attributes:
        msd: (R, rounds) squared distance to the w^o of the method's objective; from zero where it
            is not known.
        watched: (R, rounds, columns) telemetry.
    """

    msd: np.ndarray
    watched: np.ndarray


class Run:
    """All repetitions of a method between two chunks of rounds: the kernel, or over agents."""

    params: Any  # (R, M) the models as they stand

    def __init__(
        self, problem: Problem, algorithm: Any, repetitions: int | range, initial: np.ndarray
    ) -> None:
        self.problem = problem
        self.objective = problem  # the problem whose w^o the msd is measured from
        self.algorithm: Any = with_step_size(problem, algorithm, initial=initial)
        self.repetitions = repetitions if isinstance(repetitions, range) else range(repetitions)
        self.round_index = 0  # of the next round
        self.diverged = False
        self.whole = True  # false while a chunk runs: then the state must not be saved
        self.trouble = ""  # what the agents say about a model that diverged

    @property
    def current(self) -> np.ndarray:
        """(R, M) the models that agents start from, where others are shown."""
        return self.params

    @property
    def step_size(self) -> float:
        """The step size used; nan for a method without one."""
        return float(getattr(self.algorithm, "step_size", np.nan))

    def compile(self) -> None:
        """Compile what the rounds need, or load it, without running one."""

    def _advance(self, num_rounds: int) -> tuple[Block, int]:
        """Run the next rounds; the second is how many were finite in all repetitions."""
        raise NotImplementedError

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs."""
        raise NotImplementedError

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state; a ValueError or KeyError if it does not fit."""
        raise NotImplementedError

    def ledgers(self) -> np.ndarray:
        """(R, entries) what every repetition has cost so far, see `Ledger`."""
        raise NotImplementedError

    def agent_prob(self, place: int) -> np.ndarray:
        """(K,) p_k of a repetition now; empty for a method without."""
        raise NotImplementedError

    def example_prob(self, place: int) -> np.ndarray:
        """(rows,) p_n of a repetition now."""
        raise NotImplementedError

    def advance(self, num_rounds: int) -> Block:
        """Run the next rounds; fewer than requested if a model diverged."""
        self.whole = False
        block, finite = self._advance(num_rounds)
        self.diverged = finite < num_rounds
        self.round_index += finite
        self.whole = True
        return Block(block.msd[:, :finite], block.watched[:, :finite])

    def history(self, block: Block, measured: Measured | None = None) -> History:
        """What happened, given the msd and telemetry of all rounds and what was measured."""
        ledgers, count = self.ledgers(), len(self.repetitions)
        kept = kept_repetitions(count, len(self.problem.data.targets))
        return History(
            msd=block.msd,
            params=self.params.copy(),
            agent_prob=np.array([self.agent_prob(place) for place in range(count)]),
            example_prob=np.array([self.example_prob(place) for place in range(kept)]),
            gradients=ledgers[:, ENTRIES.index("gradients")].astype(np.int64),
            uploads=ledgers[:, ENTRIES.index("models_up")].astype(np.int64),
            step_size=self.step_size,
            telemetry=block.watched,
            ledgers=ledgers,
            no_msd=self.objective.no_optimum,
            **({} if measured is None else measured.fields()),
        )


class Recording:
    """What a run has shown so far, and the time it took."""

    def __init__(
        self, run: Run, rounds: int, measure: Measure | None = None, keep: np.ndarray = NO_ROUNDS
    ) -> None:
        repetitions = len(run.params)
        self.rounds = rounds
        self.done = 0  # rounds of which everything is recorded
        self.seconds = 0.0
        self.msd = np.full((repetitions, rounds), np.nan)
        self.watched = np.zeros((repetitions, rounds, len(COLUMNS)), np.float32)
        self.measured = None if measure is None else Measured(measure, repetitions, rounds)
        self.keep = keep  # the rounds whose models are kept
        shape = repetitions, keep.size, run.params.shape[1]
        self.kept = np.full(shape, np.nan, run.params.dtype)
        self._look_at(run)

    def _look_at(self, run: Run) -> None:
        """Measure and keep the models as they stand, if this is a round for it."""
        if self.measured is not None:
            self.measured.measure_at(run, run.round_index)
        for place in np.flatnonzero(self.keep == run.round_index):
            self.kept[:, place] = run.params

    def stops(self) -> np.ndarray:
        """The rounds at which a chunk must end, because something is measured or kept there."""
        measured = NO_ROUNDS if self.measured is None else self.measured.rounds
        return np.union1d(measured, self.keep)

    def add(self, block: Block, run: Run) -> None:
        """Record the rounds that a run has just done."""
        end = self.done + block.msd.shape[1]
        self.msd[:, self.done : end] = block.msd
        # A square beyond float32, or over a step size whose square is zero, says nothing.
        finite = np.isfinite(block.watched)
        self.watched[:, self.done : end] = np.where(finite, block.watched, np.nan)
        if end > self.done:  # else the model diverged at once, and the round before was looked at
            self._look_at(run)
        self.done = end

    def block(self) -> Block:
        """All that was recorded."""
        return Block(self.msd[:, : self.done], self.watched[:, : self.done])

    def checkpoint(self, run: Run) -> dict[str, np.ndarray]:
        """Everything from which another process goes on."""
        arrays = {
            "round_index": np.array(run.round_index),
            "diverged": np.array(run.diverged),
            "step_size": np.array(run.step_size),
            "seconds": np.array(self.seconds),
            "msd": self.msd[:, : self.done],
            "telemetry": self.watched[:, : self.done],
            **{f"run.{name}": values for name, values in run.state().items()},
        }
        if self.measured is not None:
            arrays["measured"] = self.measured.values
        return arrays | self.kept_fields()

    def kept_fields(self) -> dict[str, np.ndarray]:
        """What a history has of the models that are kept."""
        return {"kept_rounds": self.keep, "kept": self.kept} if self.keep.size else {}

    def resume(self, run: Run, arrays: dict[str, np.ndarray]) -> None:
        """Go on from a checkpoint with a fresh run; KeyError or ValueError if it does not fit."""
        step_size = float(arrays["step_size"])
        if step_size != run.step_size and not np.isnan([step_size, run.step_size]).all():
            raise ValueError(f"it ran at step_size={step_size}")
        done = int(arrays["round_index"])
        if not 0 <= done <= self.rounds:
            raise ValueError(f"it has run {done} rounds of {self.rounds}")
        restore_array(self.msd[:, :done], "msd", arrays)
        restore_array(self.watched[:, :done], "telemetry", arrays)
        if self.measured is not None:
            restore_array(self.measured.values, "measured", arrays)
        if self.keep.size:
            if not np.array_equal(arrays["kept_rounds"], self.keep):
                raise ValueError(f"it keeps the models of rounds {arrays['kept_rounds'].tolist()}")
            restore_array(self.kept, "kept", arrays)
        start = "run."
        state = {k[len(start) :]: v for k, v in arrays.items() if k.startswith(start)}
        if not arrays["diverged"]:
            _check_finite({"msd": self.msd[:, :done], **state}, run.state())
        run.restore(state)
        run.round_index = self.done = done
        run.diverged = bool(arrays["diverged"])
        self.seconds = float(arrays["seconds"])


def _check_finite(given: dict[str, np.ndarray], fresh: dict[str, np.ndarray]) -> None:
    """Refuse numbers that are not finite where those of a fresh run are."""
    for name, values in given.items():
        known = values.dtype.kind != "f" or np.isfinite(values).all()
        if not known and np.isfinite(fresh.get(name, 0.0)).all():
            raise ValueError(f"{name} holds numbers that are not finite")


@contextlib.contextmanager
def hold_interrupt() -> Iterator[list[int]]:
    """Hold back the first Ctrl-C, which is in the list afterwards. A second breaks through."""
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return

    def hold(signum: int, frame: FrameType | None) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(signum)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, before)


def chunks(
    run: Run, rounds: int, *, seconds: float = CHUNK_SECONDS, stops: np.ndarray = NO_ROUNDS
) -> Iterator[Block]:
    """Run to `rounds` in chunks of about that much work; none goes past one of the `stops`."""
    run.compile()  # Ctrl-C is not held back here: it may take a minute, once
    size = FIRST_CHUNK
    ends = np.append(stops, rounds)  # increasing: no stop is beyond the last round
    while run.round_index < rounds and not run.diverged:
        begin = run.round_index
        before = working_clock()
        place = np.searchsorted(ends, begin, side="right")
        with hold_interrupt() as held:
            block = run.advance(min(size, int(ends[place]) - begin))
        spent = working_clock() - before
        yield block
        if held:  # only now: what was computed is with the caller
            raise KeyboardInterrupt
        size = int(np.clip(size * seconds / max(spent, 1e-9), size / 2, size * 8)) or 1
        size = min(size, rounds)  # with many stops it would grow without end


def drive(
    run: Run,
    recording: Recording,
    *,
    progress: Callable[[int], None] | None = None,
    save: Callable[[dict[str, np.ndarray]], None] | None = None,
    stop: Callable[[], bool] | None = None,
    chunk_seconds: float = CHUNK_SECONDS,
    name: str = "the model",
) -> History:
    """Run to the end of a recording and return what happened.

    A run that diverged ends in a `DivergenceError`, a run that grows in a warning.

    Args:
        run: where it is now.
        recording: what it has shown so far; the run ends with its last round.
        progress: called with the rounds just done, those of all repetitions counted once.
        save: called with a checkpoint now and then, at Ctrl-C and at the end; not for a run that
            is complete already.
        stop: called after every chunk, before it is saved; true ends the run early.
        chunk_seconds: about how long a chunk takes.
        name: what errors and warnings call the model.
    """
    complete = run.round_index == recording.rounds or run.diverged
    stops = recording.stops()
    run.compile()  # before the clock starts
    saved = started = working_clock()
    least = LEAST_BETWEEN
    try:
        for block in chunks(run, recording.rounds, seconds=chunk_seconds, stops=stops):
            now = working_clock()
            recording.seconds, started = recording.seconds + now - started, now
            recording.add(block, run)
            if progress is not None:
                progress(block.msd.shape[1])
            ended = stop is not None and stop()
            if save is not None and now - saved > least:
                save(recording.checkpoint(run))
                saved = working_clock()
                least = max(LEAST_BETWEEN, (saved - now) / MOST_SHARE)
            if ended:
                break
    except KeyboardInterrupt:
        # Only if the chunk is whole and everything about it is recorded.
        if save is not None and run.whole and recording.done == run.round_index:
            save(recording.checkpoint(run))
        raise
    if save is not None and not complete:
        save(recording.checkpoint(run))
    history = run.history(recording.block(), recording.measured)
    history = replace(history, **recording.kept_fields())
    if run.diverged:
        reason = explain_divergence(run.problem, run.algorithm)
        reason = f"{run.trouble}; {reason}" if run.trouble else reason
        raise DivergenceError(run.round_index, history, reason, name=name)
    warn_if_growing(run.problem, run.algorithm, history.msd, name=name)
    return history
