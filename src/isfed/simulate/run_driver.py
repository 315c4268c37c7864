"""The one driver: any run, in chunks; between chunks progress, measurements, checkpoint, Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType

import numpy as np

from isfed.base.atomic_files import restore_array
from isfed.base.progress import working_clock
from isfed.sampling.telemetry import COLUMNS
from isfed.simulate.run_base import Block, Run
from isfed.simulate.run_history import DivergenceError, History, Measure, Measured
from isfed.theory.stable_step_size import explain_divergence, warn_if_growing

CHUNK_SECONDS = 0.2
FIRST_CHUNK = 16
LEAST_BETWEEN = 2.0  # seconds between checkpoints, at least ...
MOST_SHARE = 0.05  # ... and no more than this share of the time goes into them
NO_ROUNDS = np.empty(0, np.int64)


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
        """Bring a fresh run and this record to a checkpoint; KeyError or ValueError if it is of
        another run."""
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


@dataclass
class HeldInterrupt:
    """Whether a Ctrl-C came and waits."""

    asked: bool = False


@contextlib.contextmanager
def hold_interrupt() -> Iterator[HeldInterrupt]:
    """Hold back the first Ctrl-C: the caller looks at `asked` later. A second breaks through."""
    held = HeldInterrupt()
    if threading.current_thread() is not threading.main_thread():
        yield held
        return

    def hold(signum: int, frame: FrameType | None) -> None:
        if held.asked:
            raise KeyboardInterrupt
        held.asked = True

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
        if held.asked:  # only now: what was computed is with the caller
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

    `progress` is told the rounds just done (of all repetitions together, each counted once).
    `save` is given a checkpoint now and then, at Ctrl-C, and at the end; a run that is complete
    already is not saved again. `stop` is asked after every chunk, before it is saved, whether the
    run is to end early. A run that diverged ends in a `DivergenceError`, a run that grows in a
    warning; `name` is what both call it.
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
