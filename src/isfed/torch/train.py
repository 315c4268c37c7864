"""`train`: a network to its end, with evaluations, callbacks, saved models and a checkpoint."""

# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from isfed.base.argument_types import checked
from isfed.base.atomic_files import load_arrays, save_arrays
from isfed.base.value_checks import check_seed, check_whole
from isfed.federation.agents import Ledger
from isfed.methods.wrappers import Scheduled, layers
from isfed.problems import Problem
from isfed.simulate.run_driver import Recording, drive
from isfed.simulate.run_history import DivergenceError, History
from isfed.simulate.simulate_call import check_run, make_run
from isfed.torch.evaluation import Evaluate, Evaluation
from isfed.torch.fingerprint import shown
from isfed.torch.model_files import save_model
from isfed.torch.network import Network
from isfed.torch.trackers import Point

CHECKPOINT = "checkpoint.npz"
Form = Literal["safetensors", "pt"]
Callback = Callable[[Point], Any]


class ResumeError(ValueError):
    """A folder holds a training that cannot be continued as asked."""


@dataclass(frozen=True, eq=False)
class Training:
    """What a training leaves behind.

    params: (M,) the last model.
    best_params: (M,) the model of the best evaluation, which may be the first one, before round 1;
        the last model if there are no test rows.
    best_round: its round.
    rounds: (points,) after which rounds it was evaluated.
    loss, accuracy: (points,) what the evaluations found.
    stopped: whether the target was reached, or a callback asked to stop, before the last round.
    history: everything else.
    """

    params: np.ndarray
    best_params: np.ndarray
    best_round: int
    rounds: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    stopped: bool
    history: History

    def __repr__(self) -> str:
        """In one line; the arrays are for those who ask for them."""
        count = self.history.rounds
        found = f"Training({count} round{'' if count == 1 else 's'}"
        found += ", stopped" if self.stopped else ""
        if self.rounds.size and not np.isnan(self.loss).all():
            place = int(np.flatnonzero(self.rounds == self.best_round)[0])
            best = f"loss {self.loss[place]:.4g}"
            if not np.isnan(self.accuracy[place]):
                best = f"accuracy {self.accuracy[place]:.1%}"
            found += f", best {best} after round {self.best_round}"
        return f"{found})"


class _Nothing:
    """The measure of a training without test rows."""

    names = ("loss", "accuracy")

    def __init__(self, every: int) -> None:
        self.every = every

    def __call__(self, params: np.ndarray) -> np.ndarray:
        return np.full((len(params), 2), np.nan)


def _fingerprint(run: Any, algorithm: Any, rounds: int, seed: int, measure: Any) -> str:
    """What a checkpoint must agree with: all that decides the numbers."""
    problem = run.problem
    record = re.sub(r" at 0x[0-9a-f]+", "", repr(algorithm))  # a function's address is no choice
    for layer in layers(algorithm):  # two functions may look alike
        if isinstance(layer, Scheduled):
            record += repr([layer.schedule(i) for i in range(rounds)])
        for server in layers(getattr(layer, "server", None), "server"):
            record += shown(getattr(server, "optimizer", None))
    work = (problem.local_steps.tolist(), problem.batch_size.tolist())
    choices = (problem.loss, record, rounds, seed, work, measure.every)
    digest = hashlib.blake2b(repr(choices).encode())
    data = problem.data
    test = () if isinstance(measure, _Nothing) else (measure.x, measure.y)
    for array in (data.features, data.targets, data.offsets, run.params, *test):
        digest.update(repr((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()[:32]


class _Course:
    """What happens at the evaluations of one training."""

    def __init__(
        self, network: Network, run: Any, recording: Recording, callbacks: Sequence[Callback]
    ) -> None:
        self.network, self.run, self.recording = network, run, recording
        self.callbacks = callbacks
        self.judged = True  # whether there are test rows
        self.folder: Path | None = None
        self.form: Form = "safetensors"
        self.target: float | None = None
        self.best: tuple[float, int] = (-math.inf, 0)  # the higher the better
        self.best_params: np.ndarray = run.params[0]
        self.at = -1  # the last point that was told
        self.stopped = False

    @property
    def found(self) -> list[Evaluation]:
        measured = self.recording.measured
        assert measured is not None
        return [Evaluation(*row) for row in measured.values[0].tolist()]

    def _worth(self, found: Evaluation) -> float:
        if math.isnan(found.loss):
            return -math.inf
        return -found.loss if math.isnan(found.accuracy) else found.accuracy

    def replay(self) -> None:
        """What the evaluations before a resume were."""
        measured = self.recording.measured
        assert measured is not None
        for i, done in enumerate(measured.rounds.tolist()):
            if done <= self.run.round_index:
                self._judge(i, done)
                self.at = i
        if self.best[1] == self.run.round_index:  # else it is the checkpoint's
            self.best_params = self.run.params[0]
        if self.folder is not None and not self.run.diverged:
            self.save("best", self.best_params)
            if self.run.round_index == 0 or not self.path("last").exists():
                self.save("last", self.run.params[0])

    def path(self, name: str) -> Path:
        """Where the best or the last model goes."""
        assert self.folder is not None
        return self.folder / f"{name}.{self.form}"

    def save(self, name: str, params: np.ndarray) -> None:
        """Write one of them."""
        save_model(self.network, params, self.path(name))

    def _judge(self, place: int, done: int) -> bool:
        found = self.found[place]
        worth = self._worth(found)
        better = worth > self.best[0] or not self.judged
        if better:
            self.best = (worth, done)
        if self.target is not None and found.accuracy >= self.target:
            self.stopped = True
        return better

    def __call__(self) -> bool:
        """After a chunk: whether to stop."""
        measured = self.recording.measured
        assert measured is not None
        done, place = self.run.round_index, self.at + 1
        if self.run.diverged or place >= measured.rounds.size or measured.rounds[place] != done:
            return self.stopped
        self.at = place
        better, params = self._judge(place, done), self.run.params[0]
        if better:
            self.best_params = params
        if self.folder is not None:
            self.save("last", params)
            if better:
                self.save("best", params)
        point = Point(
            done, *self.found[place], self.recording.seconds, _megabytes(self.run), better, params
        )
        told = [callback(point) for callback in self.callbacks]  # all of them
        asked = [isinstance(said, bool | np.bool_) and bool(said) for said in told]
        self.stopped = self.stopped or any(asked)
        return self.stopped


def _megabytes(run: Any) -> float:
    ledger: Ledger = run.agents[0].ledger
    size = run.problem.num_params
    return 1e-6 * (ledger.bytes_up(size) + ledger.bytes_down(size))


@checked
def train(
    problem: Problem,
    algorithm: Any,
    *,
    rounds: int,
    test: tuple[Any, Any] | None = None,
    every: int = 10,
    target: float | None = None,
    seed: int = 0,
    initial: np.ndarray | None = None,
    folder: str | Path | None = None,
    form: Form = "safetensors",
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    clock: Any = None,
    threads: int | None = None,
) -> Training:
    """Train a network, evaluate it now and then, and keep the best and the last model.

    problem: its loss is a `Network`.
    algorithm: any `Algorithm`.
    rounds: how many, unless the target is reached before.
    test: features and targets of rows that nobody trains on.
    every: rounds between evaluations; the last round is always among them.
    target: an accuracy at which to stop, in (0, 1].
    seed: the seed of all random draws.
    initial: the first model, (M,), e.g. from `load_model`; the network's own unless given.
    folder: where best.safetensors, last.safetensors and the checkpoint go.
    form: "safetensors", or "pt" for what torch.save writes of a state_dict.
    resume: go on from the checkpoint in the folder, if there is one; the numbers are those of a
        training that was never interrupted.
    callbacks: called with a `Point` at every evaluation; one that returns True ends the training.
        Those with a method `close` are closed at the end.
    clock: how fast the agents are; the ledger then counts virtual seconds.
    threads: processes that share the agents of a round; one unless given.

    A run that diverges ends in a `DivergenceError`; the last good model is kept.
    """
    check_seed(seed)
    check_whole(every, name="every", least=1)
    network = problem.loss
    if not isinstance(network, Network):
        raise TypeError(
            f"train needs a problem whose loss is a Network, got {type(network).__name__}; use "
            "simulate"
        )
    if form not in ("safetensors", "pt"):
        raise ValueError(f"form={form!r} must be 'safetensors' or 'pt'")
    if target is not None and test is None:
        raise ValueError(f"target={target} needs test=(x, y), rows to measure the accuracy on")
    if target is not None and not 0.0 < target <= 1.0:
        raise ValueError(f"target={target} must be an accuracy, a number in (0, 1]")
    if resume and folder is None:
        raise ValueError("resume=True needs the folder of the training to continue")
    check_run(problem, algorithm, rounds, 1)
    run = make_run(
        problem, algorithm, seed=seed, initial=initial, engine="agents", clock=clock,
        threads=threads,
    )  # fmt: skip
    measure: Any = _Nothing(every) if test is None else Evaluate(network, *test, every=every)
    recording = Recording(run, rounds, measure)
    _check_target(target, recording)
    course = _Course(network, run, recording, callbacks)
    course.target, course.form, course.judged = target, form, test is not None
    save = None
    if folder is not None:
        course.folder = Path(folder)
        course.folder.mkdir(parents=True, exist_ok=True)
        path = course.folder / CHECKPOINT
        mark = _fingerprint(run, algorithm, rounds, seed, measure)
        save = _saver(path, mark, course)
        _begin(path, mark, course, resume=resume)
    course.replay()
    try:
        history = _drive(run, recording, course, save)
    finally:
        for callback in callbacks:
            close = getattr(callback, "close", None)
            if close is not None:
                close()
    points = slice(0, course.at + 1)
    measured = recording.measured
    assert measured is not None
    return Training(
        params=run.params[0],
        best_params=course.best_params,
        best_round=course.best[1],
        rounds=measured.rounds[points],
        loss=measured.values[0, points, 0],
        accuracy=measured.values[0, points, 1],
        stopped=course.stopped and run.round_index < rounds,
        history=history,
    )


def _check_target(target: float | None, recording: Recording) -> None:
    """Raise a ValueError for a target that no evaluation can reach."""
    if target is None:
        return
    assert recording.measured is not None
    if math.isnan(recording.measured.values[0, 0, 1]):
        raise ValueError(
            f"target={target} is an accuracy, but the targets of the test rows are not classes; "
            "stop by a callback that returns True"
        )


def _drive(run: Any, recording: Recording, course: _Course, save: Any) -> History:
    """To the end, or to where it is to stop."""
    if course.stopped:  # a training that had stopped before
        return run.history(recording.block(), recording.measured)
    known = run.diverged
    try:
        return drive(run, recording, save=save, stop=course)
    except DivergenceError as error:
        if course.folder is None:
            raise
        if not known:
            course.save("last", run.params[0])
        error.args = (f"{error}; the last finite model is in {course.path('last')}",)
        raise


def _saver(path: Path, mark: str, course: _Course) -> Callable[[dict[str, np.ndarray]], None]:
    def save(arrays: dict[str, np.ndarray]) -> None:
        save_arrays(path, {"mark": np.array(mark), "best": course.best_params, **arrays})

    return save


def _begin(path: Path, mark: str, course: _Course, *, resume: bool) -> None:
    """Go on from a checkpoint, if there is one."""
    if not path.exists():
        return
    if not resume:
        raise ResumeError(
            f"{path.parent} holds a training already; resume=True continues it, another folder "
            "begins anew"
        )
    arrays = load_arrays(path)
    if str(arrays.pop("mark", "")) != mark:
        raise ResumeError(
            f"{path} belongs to another network, algorithm, data, seed, number of rounds, test "
            "rows or `every`; give the same ones to continue it, or another folder to begin anew"
        )
    course.best_params = arrays.pop("best")
    course.recording.resume(course.run, arrays)
