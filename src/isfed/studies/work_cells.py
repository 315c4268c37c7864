"""Independent pieces of work: an algorithm on a problem, some of the repetitions.

A cell knows all it needs, so that it can run in this process, in another or on another machine.
While it runs it keeps a checkpoint, and its result once it is done: a finished cell is never run
again. The result of a repetition does not depend on the cell it is in, so neither do the files.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from isfed.base.atomic_files import load_arrays, save_arrays
from isfed.datasets.dataset_files import VARIABLE
from isfed.federation.virtual_clock import Clock
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.sampling.designs import WithReplacement
from isfed.sampling.policies import Oracle
from isfed.simulate.kernel_run import kernel_runs
from isfed.simulate.pilot_runs import with_best_step_size
from isfed.simulate.run_driver import CHUNK_SECONDS, Recording, drive, kept_repetitions
from isfed.simulate.run_history import Costs, DivergenceError, History, Measure
from isfed.simulate.simulate_call import make_run
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.results_folder import StoreError

CHECKPOINT, RESULT, NOTE = ".checkpoint.npz", ".npz", ".note.npz"


@dataclass(frozen=True, eq=False)
class Cell:
    """One piece of work.

    Args:
        name: the name of the algorithm in tables.
        file: names its files; cells of one folder have different ones.
        source: where the problem comes from.
        repetitions: which ones.
        details: whether the telemetry and the probabilities at the end are kept.
        clock: how fast the agents are, if virtual seconds are to be counted.
        costs_every: rounds between two looks at the ledger, in place of what the source measures.
        from_optimum: whether the first model is w^o; else it is zero, or what the loss suggests.
        failed: makes a result of what a method raises; None lets it raise.
    """

    name: str
    file: str
    source: ProblemSource
    algorithm: Any
    rounds: int
    repetitions: range
    seed: int
    engine: Any = "auto"
    details: bool = True
    clock: Clock | None = None
    costs_every: int | None = None
    from_optimum: bool = False
    failed: Callable[[Cell, Exception], Finished] | None = None

    @property
    def work(self) -> int:
        """Rounds, each counted once for every repetition."""
        return self.rounds * len(self.repetitions)


@dataclass(frozen=True, eq=False)
class Finished:
    """What a cell, or all cells of an algorithm together, found.

    Attributes:
        history: without `example_prob`, which is large.
        example_apart: (R, K) |p_n^(k) - p_n^(k),o| of every agent; None where it is not known.
        seconds: the seconds of all cells together.
        diverged: why and when a model left every bound; empty if none did.
    """

    history: History
    example_apart: np.ndarray | None
    seconds: float
    diverged: str = ""


class CellStore:
    """Where cells keep their checkpoints and results: a folder, or nowhere."""

    def __init__(self, folder: Path | None = None, digest: str = "") -> None:
        self.folder = folder
        self.digest = digest
        self.mark = f"{digest} {version('isfed')}"
        # Results of this process: with a folder, those that nobody has asked for.
        self.kept: dict[str, dict[str, np.ndarray]] = {}
        # Which repetitions were begun, by name; None until the folder is read.
        self._spans: dict[str, set[tuple[int, int]]] | None = {} if folder is None else None

    def _path(self, cell: Cell, end: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{cell.file}{end}"

    def ranges(self, stem: str) -> list[range]:
        """The repetitions that cells of that name were begun for."""
        if self._spans is None:  # the folder is read once: it may hold thousands of cells
            self._spans = {}
            for path in self.folder.glob("*.npz") if self.folder else ():
                self._begun(path.name.removesuffix(RESULT).removesuffix(".checkpoint"))
        return [range(*edges) for edges in sorted(self._spans.get(stem, ()))]

    def _begun(self, file: str) -> None:
        match = re.fullmatch(r"(.+)\.(\d+)-(\d+)", file)
        if match and self._spans is not None:
            self._spans.setdefault(match[1], set()).add((int(match[2]), int(match[3])))

    def saver(self, cell: Cell) -> Callable[[dict[str, np.ndarray]], None] | None:
        """What writes the checkpoint of a cell; None on a machine without the folder."""
        if self.folder is None or not self.folder.is_dir():
            return None
        path = self._path(cell, CHECKPOINT)

        def save(arrays: dict[str, np.ndarray]) -> None:
            if arrays["round_index"] < cell.rounds:  # else the result comes at once
                save_arrays(path, {"mark": np.array(self.mark), **arrays})

        return save

    def checkpoint(self, cell: Cell) -> dict[str, np.ndarray] | None:
        """The checkpoint of a cell; None if there is none."""
        if self.folder is None or not self._path(cell, CHECKPOINT).exists():
            return None
        return self._load(self._path(cell, CHECKPOINT))

    def done(self, cell: Cell) -> int:
        """How much of a cell's work is done."""
        if self.has(cell):
            return cell.work
        arrays = self.checkpoint(cell)
        return 0 if arrays is None else int(arrays["round_index"]) * len(cell.repetitions)

    def _load(self, path: Path) -> dict[str, np.ndarray]:
        try:
            arrays = load_arrays(path)
            mark = str(arrays.pop("mark"))
        except (ValueError, OSError, KeyError) as error:
            raise StoreError(
                f"{path} is damaged ({error}); delete it to run this part again from its first "
                "round"
            ) from error
        if mark != self.mark:
            raise StoreError(
                f"{path} belongs to another configuration or version of isfed; --overwrite starts "
                "again"
            )
        return arrays

    def keep(self, cell: Cell, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the result of a cell; its checkpoint is not needed any more."""
        self._begun(cell.file)
        # Copies, laid out as if they were read from the file.
        self.kept[cell.file] = {name: np.array(part, order="A") for name, part in arrays.items()}
        if self.folder is not None:
            save_arrays(self._path(cell, RESULT), arrays)
            self._path(cell, CHECKPOINT).unlink(missing_ok=True)

    def has(self, cell: Cell) -> bool:
        """Whether the result of a cell is there."""
        if self.folder is None:
            return cell.file in self.kept
        return self._path(cell, RESULT).exists()

    def note(self, name: str) -> dict[str, np.ndarray] | None:
        """What `keep_note` kept under that name; None if there is nothing."""
        path = None if self.folder is None else self.folder / f"{_stem(name)}{NOTE}"
        return self._load(path) if path is not None and path.exists() else None

    def keep_note(self, name: str, **arrays: np.ndarray) -> None:
        """Keep a small result that is not of a cell, so that a resume need not find it again."""
        if self.folder is not None:
            marked = {"mark": np.array(self.mark), **arrays}
            save_arrays(self.folder / f"{_stem(name)}{NOTE}", marked)

    def result(self, cell: Cell) -> Finished:
        """The result of a cell that is there."""
        if self.folder is None:
            return _unpacked(self.kept[cell.file])
        kept = self.kept.pop(cell.file, None)
        return _unpacked(self._load(self._path(cell, RESULT)) if kept is None else kept)


def cells_of(
    name: str, file: str, repetitions: int, store: CellStore, block: int | None, **common: Any
) -> list[Cell]:
    """The cells of one algorithm, of at most `block` repetitions each.

    Those that were begun stay as they are, so that a change of `block` costs nothing.
    """
    stem = _stem(file)
    parts: list[range] = []
    at = 0
    for known in (*store.ranges(stem), range(repetitions, repetitions)):
        if at < known.start:
            parts += _cut(at, known.start, block)
        if len(known) and at <= known.start and known.stop <= repetitions:
            parts.append(known)
        at = max(at, known.stop)
    return [
        Cell(name, f"{stem}.{part.start}-{part.stop}", repetitions=part, **common) for part in parts
    ]


def _stem(name: str) -> str:
    """A file name that tells a name from every other, and can be read."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{words[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _cut(begin: int, end: int, block: int | None) -> list[range]:
    """Repetitions in parts of about the same size."""
    count = 1 if block is None else -(-(end - begin) // block)
    edges = [begin + (end - begin) * part // count for part in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(edges)]


def problem_of(source: ProblemSource) -> tuple[Problem, Measure | None]:
    """The problem of a source and its measure; made once in a process for all its cells."""
    return _made(source, os.environ.get(VARIABLE))


@lru_cache(maxsize=4)
def _made(source: ProblemSource, data_dir: str | None) -> tuple[Problem, Measure | None]:
    # The folder counts: where the data are absent, that is to be said.
    problem = source.make()
    return problem, source.measure(problem)


def run_cell(
    cell: Cell,
    store: CellStore,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    chunk_seconds: float | None = None,
) -> dict[str, np.ndarray]:
    """Run a cell from its checkpoint to its end; returns what `CellStore.keep` takes.

    `progress` is told the rounds just done, each counted once for every repetition.
    """
    try:
        result = _run(cell, store, threads, progress, chunk_seconds)
    except Exception as error:
        if cell.failed is None or isinstance(error, StoreError | OSError | MemoryError):
            raise
        result = cell.failed(cell, error)
    return {"mark": np.array(store.mark), **_packed(result, details=cell.details)}


def _run(
    cell: Cell,
    store: CellStore,
    threads: int | None,
    progress: Callable[[int], None] | None,
    chunk_seconds: float | None,
) -> Finished:
    """Run a cell from its checkpoint to its end."""
    problem, measured = problem_of(cell.source)
    measure: Any = measured
    algorithm = with_best_step_size(problem, cell.algorithm, rounds=cell.rounds, threads=threads)
    run = make_run(
        problem, algorithm, repetitions=cell.repetitions, seed=cell.seed, engine=cell.engine,
        threads=threads, clock=cell.clock,
        initial=problem.optimum if cell.from_optimum else None,
    )  # fmt: skip
    if cell.costs_every is not None:
        measure = Costs(problem.num_params, cell.costs_every)
    recording = Recording(run, cell.rounds, measure)
    arrays = store.checkpoint(cell)
    if arrays is not None:
        try:
            recording.resume(run, arrays)
        except (KeyError, ValueError) as error:
            raise StoreError(
                f"the checkpoint of {cell.name} does not fit ({error}); --overwrite starts again"
            ) from error

    def report(rounds: int) -> None:
        if progress is not None:
            progress(rounds * len(cell.repetitions))

    diverged = ""
    try:
        history = drive(
            run, recording, progress=report, save=store.saver(cell), name=cell.name,
            chunk_seconds=CHUNK_SECONDS if chunk_seconds is None else chunk_seconds,
        )  # fmt: skip
    except DivergenceError as error:
        history, diverged = error.history, str(error)
    distance = example_apart(cell.source, history.example_prob) if cell.details else None
    return Finished(history, distance, recording.seconds, diverged)


@lru_cache(maxsize=2)
def optimal_probabilities(source: ProblemSource) -> tuple[np.ndarray, np.ndarray] | None:
    """p_k^o and p_n^o of eq. (48) and (44), (K,) and (rows,); None where w^o is not known."""
    problem, _ = problem_of(source)
    # With replacement, which takes any batch size; nothing is drawn.
    oracle = ISFedAvg(
        step_size=1.0, num_active=1, agents=Oracle(), examples=Oracle(),
        example_design=WithReplacement(),
    )  # fmt: skip
    if not (problem.has_optimum and kernel_runs(problem, oracle)):
        return None
    run = make_run(problem, oracle, engine="kernel", threads=1)
    history = run.history(run.advance(0))
    return history.agent_prob[0], history.example_prob[0]


def example_apart(source: ProblemSource, prob: np.ndarray) -> np.ndarray | None:
    """(R, K) the distance of the probabilities of every agent's examples to the optimal ones."""
    optimal = optimal_probabilities(source)
    if optimal is None or prob.ndim != 2 or prob.shape[1] != optimal[1].size:
        return None
    offsets = problem_of(source)[0].data.offsets
    return np.sqrt(np.add.reduceat((prob - optimal[1]) ** 2, offsets[:-1], axis=1))


DETAILS = ("telemetry", "agent_prob")
ARRAYS = ("msd", "params", "gradients", "uploads", "ledgers", "measured_rounds", *DETAILS)


def _packed(result: Finished, *, details: bool) -> dict[str, np.ndarray]:
    history = result.history
    arrays = {name: getattr(history, name) for name in ARRAYS if details or name not in DETAILS}
    arrays |= {f"measured.{name}": values for name, values in history.measured.items()}
    if result.example_apart is not None:
        arrays["example_apart"] = result.example_apart
    if history.no_msd is not None:
        arrays["no_msd"] = np.array(history.no_msd)
    return arrays | {
        "step_size": np.array(history.step_size),
        "seconds": np.array(result.seconds),
        "diverged": np.array(result.diverged),
    }


def _unpacked(arrays: Mapping[str, np.ndarray]) -> Finished:
    start = "measured."
    known = {name: arrays[name] for name in ARRAYS if name in arrays}
    nothing = np.empty((len(arrays["msd"]), 0))
    known.setdefault("agent_prob", nothing)
    history = History(
        **known,  # type: ignore[arg-type]
        example_prob=nothing,
        measured={k[len(start) :]: v for k, v in arrays.items() if k.startswith(start)},
        step_size=float(arrays["step_size"]),
        no_msd=str(arrays["no_msd"]) if "no_msd" in arrays else None,
    )
    distance = arrays.get("example_apart")
    return Finished(history, distance, float(arrays["seconds"]), str(arrays["diverged"]))


def merged(parts: Sequence[Finished], *, rows: int) -> Finished:
    """The cells of one algorithm as one; `rows` is how many examples the problem has."""
    if len(parts) == 1:
        return parts[0]
    histories = [part.history for part in parts]
    first = histories[0]
    finite = min(history.rounds for history in histories)  # fewer than all if one diverged

    def joined(name: str) -> Any:
        return np.concatenate([getattr(history, name) for history in histories])

    history = History(
        msd=np.concatenate([h.msd[:, :finite] for h in histories]),
        telemetry=np.concatenate([h.telemetry[:, :finite] for h in histories]),
        **{name: joined(name) for name in ("params", "agent_prob", "example_prob", "gradients")},
        **{name: joined(name) for name in ("uploads", "ledgers")},
        measured_rounds=first.measured_rounds,
        measured={
            name: np.concatenate([h.measured[name] for h in histories]) for name in first.measured
        },
        step_size=first.step_size,
        no_msd=first.no_msd,
        kept_rounds=first.kept_rounds,
        kept=joined("kept"),
    )
    distance = None
    if all(part.example_apart is not None for part in parts):
        distance = np.concatenate([part.example_apart for part in parts])  # type: ignore[misc]
        # As many as one cell of all repetitions would have kept.
        distance = distance[: kept_repetitions(history.repetitions, rows)]
    reasons = [part.diverged for part in parts if part.diverged and part.history.rounds == finite]
    seconds = sum(part.seconds for part in parts)
    return Finished(history, distance, seconds, reasons[0] if reasons else "")
