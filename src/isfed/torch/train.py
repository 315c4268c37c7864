"""`train`: a network to its end, with evaluations, callbacks, saved models and a checkpoint."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from isfed.base.argument_checks import check_seed, check_whole, checked
from isfed.base.atomic_files import load_arrays, save_arrays
from isfed.methods.look_ahead_passes import LookAheadPasses
from isfed.methods.method_wrappers import Scheduled, layers
from isfed.problems import Problem
from isfed.simulate.pilot_runs import with_best_step_size
from isfed.simulate.run_driver import Recording, drive
from isfed.simulate.run_history import DivergenceError, History
from isfed.simulate.simulate_call import check_run, make_run
from isfed.torch.evaluation import Evaluate
from isfed.torch.fingerprint import value_fingerprint
from isfed.torch.network import Network, save_model
from isfed.torch.trackers import Point

CHECKPOINT = "checkpoint.npz"
Form = Literal["safetensors", "pt"]
Callback = Callable[[Point], Any]


class ResumeError(ValueError):
    """A folder holds a training that cannot be continued as asked."""


@dataclass(frozen=True, eq=False)
class Training:
    """What a training leaves behind.

    Attributes:
        params: (M,) the last model.
        best_params: (M,) the model of the best evaluation, which may be the first one, before
            round 1; the last model if there are no test rows.
        best_round: its round.
        rounds: (points,) after which rounds it was evaluated.
        loss: (points,) on the test rows.
        accuracy: (points,) likewise.
        stopped: whether the target was reached, or a callback asked to stop, before the last round.
        history: everything else.
        how: whether turns were taken agent by agent or several at once, and why.
    """

    params: np.ndarray
    best_params: np.ndarray
    best_round: int
    rounds: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray
    stopped: bool
    history: History
    how: str = ""

    def __repr__(self) -> str:
        """One line, without the arrays."""
        count, best = self.history.rounds, ""
        if self.rounds.size and not np.isnan(self.loss).all():
            place = int(np.flatnonzero(self.rounds == self.best_round)[0])
            best = f"loss {self.loss[place]:.4g}"
            if not np.isnan(self.accuracy[place]):
                best = f"accuracy {self.accuracy[place]:.1%}"
            best = f", best {best} after round {self.best_round}"
        stopped = ", stopped" if self.stopped else ""
        return f"Training({count} round{'' if count == 1 else 's'}{stopped}{best})"


@dataclass
class _NoEvaluation:
    """The measure of a training without test rows."""

    every: int
    names = ("loss", "accuracy")

    def __call__(self, params: np.ndarray) -> np.ndarray:
        return np.full((len(params), 2), np.nan)


@dataclass(eq=False)
class _Course:
    """What happens at the evaluations of one training."""

    run: Any
    recording: Recording
    callbacks: Sequence[Callback]
    tested: bool  # whether there are test rows
    target: float | None
    folder: Path | None
    form: Form

    def __post_init__(self) -> None:
        self.measured: Any = self.recording.measured
        self.best: tuple[float, int] = (-math.inf, 0)  # the higher the better, and its round
        self.best_params: np.ndarray = self.run.params[0]
        self.at = -1  # the last evaluation that was reported
        self.stopped = False

    def replay(self) -> None:
        """Go through the evaluations before a resume."""
        done = self.run.round_index
        for i in range(int(np.searchsorted(self.measured.rounds, done, side="right"))):
            self._judge(i)
        if self.best[1] == done:  # else it is the checkpoint's
            self.best_params = self.run.params[0]
        if self.folder is not None and not self.run.diverged:
            self.save("best", self.best_params)
            if done == 0 or not self.path("last").exists():
                self.save("last", self.run.params[0])

    def path(self, name: str) -> Path:
        """Where the best or the last model goes."""
        assert self.folder is not None
        return self.folder / f"{name}.{self.form}"

    def save(self, name: str, params: np.ndarray) -> None:
        """Write one of them."""
        save_model(self.run.problem.loss, params, self.path(name))

    def _judge(self, place: int) -> bool:
        """Whether an evaluation is the best so far; notes whether it reaches the target."""
        self.at = place
        loss, accuracy = self.measured.values[0, place].tolist()
        worth = -math.inf if math.isnan(loss) else -loss if math.isnan(accuracy) else accuracy
        better = worth > self.best[0] or not self.tested
        if better:
            self.best = (worth, int(self.measured.rounds[place]))
        self.stopped = self.stopped or (self.target is not None and accuracy >= self.target)
        return better

    def __call__(self) -> bool:
        """After a chunk: whether to stop."""
        done, place, rounds = self.run.round_index, self.at + 1, self.measured.rounds
        if self.run.diverged or place >= rounds.size or rounds[place] != done:
            return self.stopped
        better, params = self._judge(place), self.run.params[0]
        if better:
            self.best_params = params
        if self.folder is not None:
            for name in ("last", "best") if better else ("last",):
                self.save(name, params)
        ledger, size = self.run.agents[0].ledger, self.run.problem.num_params
        megabytes = 1e-6 * (ledger.bytes_up(size) + ledger.bytes_down(size))
        numbers = (*self.measured.values[0, place].tolist(), self.recording.seconds, megabytes)
        point = Point(done, *numbers, better, params)  # pyright: ignore[reportCallIssue]
        answers = [callback(point) for callback in self.callbacks]  # all of them
        asked = any(isinstance(answer, bool | np.bool_) and answer for answer in answers)
        self.stopped = self.stopped or asked
        return self.stopped

    def drive(self, save: Any) -> History:
        """To the end, or to where it is to stop."""
        if self.stopped:  # a training that had stopped before
            return self.run.history(self.recording.block(), self.measured)
        known = self.run.diverged
        try:
            return drive(self.run, self.recording, save=save, stop=self)
        except DivergenceError as error:
            if self.folder is None:
                raise
            if not known:
                self.save("last", self.run.params[0])
            error.args = (f"{error}; the last finite model is in {self.path('last')}",)
            raise


def _fingerprint(course: _Course, algorithm: Any, rounds: int, seed: int) -> str:
    """What a checkpoint must agree with: all that decides the numbers."""
    problem, data, measure = course.run.problem, course.run.problem.data, course.measured.measure
    record = re.sub(r" at 0x[0-9a-f]+", "", repr(algorithm))  # a function's address is no choice
    for layer in layers(algorithm):  # two functions may look alike
        if isinstance(layer, Scheduled):
            record += repr([layer.schedule(i) for i in range(rounds)])
        for server in layers(getattr(layer, "server", None), "server"):
            record += value_fingerprint(getattr(server, "optimizer", None))
    work = (problem.local_steps.tolist(), problem.batch_size.tolist())
    choices = (problem.loss, record, rounds, seed, work, measure.every)
    digest = hashlib.blake2b(repr(choices).encode())
    test = (measure.x, measure.y) if course.tested else ()
    for array in (data.features, data.targets, data.offsets, course.run.params, *test):
        digest.update(repr((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()[:32]


@checked
def train(
    problem: Problem,
    algorithm: Any = None,
    *,
    rounds: int,
    num_active: int | None = None,
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
    backend: Literal["processes", "ray"] = "processes",
    deterministic: bool = False,
) -> Training:
    """Train a network, evaluate it now and then, and keep the best and the last model.

    A run that diverges ends in a `DivergenceError`; the last good model is kept.

    Args:
        problem: its loss is a `Network`.
        algorithm: any `Algorithm`. Unless given, `LookAheadPasses(num_active=...)`, whose local
            step size is found by short trials before the first round.
        rounds: how many, unless the target is reached before.
        num_active: L, the number of agents per round, if no algorithm is given.
        test: features and targets of rows that nobody trains on.
        every: rounds between evaluations; the last round is always among them.
        target: an accuracy at which to stop, in (0, 1].
        seed: the seed of all random draws.
        initial: the first model, (M,), e.g. from `load_model`; the network's own unless given.
        folder: where best.safetensors, last.safetensors and the checkpoint go.
        form: "safetensors", or "pt" for what torch.save writes of a state_dict.
        resume: go on from the checkpoint in the folder, if there is one; the numbers are those of a
            training that was never interrupted.
        callbacks: called with a `Point` at every evaluation; one that returns True ends the
            training. Those with a method `close` are closed at the end.
        clock: how fast the agents are; the ledger then counts virtual seconds.
        threads: processes that share the agents of a round, one unless given; with Ray, its actors,
            one per processor of the cluster unless given.
        backend: where turns are taken: in "processes" of this machine, or by "ray", on the cluster
            that $RAY_ADDRESS names or on this machine.
        deterministic: whether to take turns agent by agent on a CPU. Otherwise the first cohort
            is timed, and small networks train several agents at once: faster, and the same up to
            rounding. A training that is continued keeps the choice.
    """
    check_seed(seed)
    check_whole(every, name="every", least=1)
    network = problem.loss
    if not isinstance(network, Network):
        raise TypeError(
            f"train needs a problem whose loss is a Network, got {type(network).__name__}; use "
            "simulate"
        )
    if target is not None and test is None:
        raise ValueError(f"target={target} needs test=(x, y), rows to measure the accuracy on")
    if target is not None and not 0.0 < target <= 1.0:
        raise ValueError(f"target={target} must be an accuracy, a number in (0, 1]")
    if resume and folder is None:
        raise ValueError("resume=True needs the folder of the training to continue")
    algorithm = _chosen(algorithm, num_active)
    check_run(problem, algorithm, rounds, 1)
    place = None if folder is None else Path(folder)
    if resume and place is not None and (place / CHECKPOINT).exists():
        algorithm = _as_before(algorithm, place / CHECKPOINT)
    algorithm = with_best_step_size(
        problem, algorithm, rounds=rounds, initial=initial, threads=threads
    )
    run: Any = make_run(
        problem, algorithm, seed=seed, initial=initial, engine="agents", clock=clock,
        threads=threads,
    )  # fmt: skip
    agents = run.agents[0]
    agents.compare_speed(fixed=deterministic)
    if backend == "ray":
        agents.use_ray(threads)
    measure: Any = _NoEvaluation(every) if test is None else Evaluate(network, *test, every=every)
    recording = Recording(run, rounds, measure)
    course = _Course(run, recording, callbacks, test is not None, target, place, form)
    measured = course.measured
    if target is not None and math.isnan(measured.values[0, 0, 1]):
        raise ValueError(
            f"target={target} is an accuracy, but the targets of the test rows are not classes; "
            "stop by a callback that returns True"
        )
    save: Any = None  # pyright: ignore[reportAssignmentType, reportRedeclaration]
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        path, mark = place / CHECKPOINT, _fingerprint(course, algorithm, rounds, seed)
        _continue(path, mark, course, resume=resume)

        def save(arrays: dict[str, np.ndarray]) -> None:
            save_arrays(path, {"mark": np.array(mark), "best": course.best_params, **arrays})

    course.replay()
    try:
        history = course.drive(save)
    finally:
        agents.close()
        for callback in callbacks:
            getattr(callback, "close", lambda: None)()
    points = slice(0, course.at + 1)
    return Training(
        params=run.params[0],
        best_params=course.best_params,
        best_round=course.best[1],
        rounds=measured.rounds[points],
        loss=measured.values[0, points, 0],
        accuracy=measured.values[0, points, 1],
        stopped=course.stopped and run.round_index < rounds,
        history=history,
        how=agents.how,
    )


def _chosen(algorithm: Any, num_active: int | None) -> Any:
    """The algorithm given, or the default for so many agents per round."""
    if algorithm is not None:
        if num_active is not None:
            raise ValueError(
                f"num_active={num_active} is for the default method; the algorithm that is given "
                "has its own"
            )
        return algorithm
    if num_active is None:
        raise ValueError("give num_active, the number of agents per round, or an algorithm")
    return LookAheadPasses(num_active=num_active)


def _as_before(algorithm: Any, path: Path) -> Any:
    """The algorithm with the step size that trials found before a training was interrupted."""
    arrays = load_arrays(path)
    if getattr(algorithm, "step_size", None) != "auto" or "step_size" not in arrays:
        return algorithm
    return replace(algorithm, step_size=float(arrays["step_size"]))


def _continue(path: Path, mark: str, course: _Course, *, resume: bool) -> None:
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
    if "run.0.agents.group" not in arrays:  # it was deterministic, or of an earlier version
        course.run.agents[0].compare_speed(fixed=True)
    course.recording.resume(course.run, arrays)
