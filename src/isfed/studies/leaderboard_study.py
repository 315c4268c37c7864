"""The leaderboard: tune every method on every problem, run it on other seeds, rank and compare."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from isfed.federation.ledger import ENTRIES
from isfed.methods import FedAvg
from isfed.simulate import History
from isfed.simulate.pilot_runs import with_best_step_size
from isfed.simulate.simulate_call import check_run, make_run
from isfed.studies.config_schema import ConfigError
from isfed.studies.executors import Executor
from isfed.studies.leaderboard_config import BoardProblem, Protocol, SearchPoint, make_protocol
from isfed.studies.leaderboard_entries import BoardMethod, explain
from isfed.studies.leaderboard_problem import (
    COMBINED,
    RAISED,
    TUNED,
    UNTUNED,
    BoardEntry,
    BoardRun,
)
from isfed.studies.leaderboard_scores import AXES, FINAL_SHARE, Scored, spent_of
from isfed.studies.leaderboard_summary import summarise_board
from isfed.studies.results_folder import StoreError
from isfed.studies.results_reader import Results
from isfed.studies.study_engine import Outcome, Study, last_part
from isfed.studies.work_cells import Cell, CellStore, Finished, merged, problem_of, run_cell


@dataclass(frozen=True, eq=False)
class Leaderboard(Study):
    """The protocol as a study.

    Args:
        protocol: what its file says.
    """

    protocol: Protocol
    kind: ClassVar[str] = "leaderboard"

    name = property(lambda self: self.protocol.name)
    rounds = property(lambda self: self.protocol.numbers["rounds"])
    repetitions = property(lambda self: self.protocol.numbers["repetitions"])
    seed = property(lambda self: self.protocol.numbers["seed"])
    source = property(lambda self: self.protocol.problems[0].source)
    resolved = property(lambda self: self.protocol.tables)

    def check(self) -> None:
        """Make every problem: data that are absent must not be missed in the middle."""
        for problem in self.protocol.problems:
            try:
                known, _ = problem.problem.has_optimum, problem.unit_step
            except (TypeError, ValueError, AttributeError) as error:
                raise ConfigError(f"problem {problem.name!r}: {error}") from error
            if not known:
                raise ConfigError(
                    f"problem {problem.name!r} has no known minimiser, and the leaderboard ranks "
                    "by the distance to it; use a convex loss"
                )

    def outcome(self, executor: Executor) -> Outcome:
        """Tune, run what counts, run the combinations, and summarise."""
        runs: dict[str, BoardRun] = {}
        absent: list[dict[str, str]] = []
        combined = [method for method, _, _ in self.protocol.combinations() if method is not None]
        # The combinations last: they are the most.
        for tracks, methods in (
            ((UNTUNED, TUNED), self.protocol.methods), ((COMBINED,), combined)
        ):  # fmt: skip
            for problem in self.protocol.problems:
                here = [track for track in tracks if problem.tuned or track == UNTUNED]
                fitting = [m for m in methods if here and self._fits(problem, m, absent)]
                entries: list[BoardEntry] = []
                for track in here:
                    numbers_of = self._untuned if track == UNTUNED else self._tuned
                    entries += numbers_of(executor, problem, fitting, track)
                runs |= self._scored(executor, problem, entries)
        return summarise_board(self.protocol, runs, absent)

    def _common(self, entry: BoardEntry, rounds: int) -> dict[str, Any]:
        problem = entry.problem
        algorithm = entry.method.make(
            step_size=entry.step_size, num_active=problem.num_active, rounds=rounds, **entry.knobs
        )
        return {
            "source": problem.source, "algorithm": algorithm, "rounds": rounds, "engine": "agents",
            "details": False, "clock": problem.clock, "failed": failed,
            "costs_every": max(1, rounds // self.protocol.numbers["looks"]),
        }  # fmt: skip

    def _fits(
        self, problem: BoardProblem, method: BoardMethod, absent: list[dict[str, str]]
    ) -> bool:
        """Whether a method can start on a problem; else `absent` is told why not."""
        try:
            algorithm = method.make(
                step_size=problem.unit_step, num_active=problem.num_active, rounds=self.rounds
            )
            check_run(problem.problem, algorithm, self.rounds, self.repetitions)
            make_run(problem.problem, algorithm, engine="agents", clock=problem.clock)
        except (StoreError, OSError, MemoryError):
            raise
        except Exception as error:
            known = isinstance(error, TypeError | ValueError) and "plugin" not in method.table
            reason = str(error) if known else explain(error)
            absent.append({"problem": problem.name, "method": method.name, "reason": reason})
            return False
        return True

    def _untuned(
        self, executor: Executor, problem: BoardProblem, methods: Sequence[BoardMethod], track: str
    ) -> list[BoardEntry]:
        """Every method as published, at step_size = "auto" or at what that is for FedAvg."""
        steps = {divided: self._automatic(executor, problem, divided) for divided in (False, True)}
        return [
            BoardEntry(problem, m, track, "auto" if m.takes_auto else steps[m.divides], {})
            for m in methods
        ]

    def _automatic(self, executor: Executor, problem: BoardProblem, divided: bool) -> float:
        """What step_size = "auto" is for FedAvg, with or without the division by E_k."""
        title = f"automatic step of {problem.name}{', divided' if divided else ''}"
        note = executor.store.note(title)
        if note is None:
            with executor.reporting(f"{problem.name}: the automatic step size"):
                fedavg = FedAvg(
                    step_size="auto", num_active=problem.num_active, divide_by_steps=divided
                )
                found = with_best_step_size(problem.problem, fedavg, rounds=self.rounds)
            note = {"step": np.array(found.step_size)}
            executor.store.keep_note(title, **note)
        return float(note["step"])

    def _tuned(
        self, executor: Executor, problem: BoardProblem, methods: Sequence[BoardMethod], track: str
    ) -> list[BoardEntry]:
        """Every method with the numbers of its best trial.

        If somebody's best step size is at an end of the range, one more decade is tried there by
        all.
        """
        protocol = self.protocol
        numbers = protocol.numbers if track == TUNED else protocol.factorial
        count = numbers.get("trials", 0)
        trials = protocol.trials(count)
        found = self._try(executor, problem, methods, trials, track)
        best = {_best(levels) for levels in found.values() if math.isfinite(min(levels.values()))}
        for end, trial in {-1: trials[0], 1: trials[-1]}.items() if count > 2 else ():
            if trial in best:
                more = self._try(executor, problem, methods, protocol.wider(count, end), track)
                found = {name: found[name] | more[name] for name in found}
        entries = []
        for method in methods:
            levels = found[method.name]
            pairs = sorted((trial.step, level) for trial, level in levels.items())
            tried = tuple((step * problem.unit_step, level) for step, level in pairs)
            entry = _entry(problem, method, track, trial := _best(levels))
            entries.append(replace(entry, level=levels[trial], tried=tried))
        return entries

    def _try(
        self, executor: Executor, problem: BoardProblem, methods: Sequence[BoardMethod],
        trials: Sequence[SearchPoint], track: str,
    ) -> dict[str, dict[SearchPoint, float]]:  # fmt: skip
        """The level of every trial of every method on the tuning seeds; inf where one diverged."""
        numbers = self.protocol.numbers
        groups, pairs = {}, list(itertools.product(methods, trials))
        for method, trial in pairs:
            entry = _entry(problem, method, track, trial)
            groups[f"{method.name} {trial.number}"] = executor.cells(
                method.name, f"trial {trial.number} of {entry.name}",
                numbers["tuning_repetitions"], len(pairs),
                **self._common(entry, numbers["tuning_rounds"]), seed=numbers["tuning_seed"],
            )  # fmt: skip
        results = executor.run(groups, f"{problem.name}: {track}, trials", warn=False)
        levels: dict[str, dict[SearchPoint, float]] = {method.name: {} for method in methods}
        for (method, trial), result in zip(pairs, results.values(), strict=True):
            levels[method.name][trial] = math.inf
            if not result.diverged and result.history.rounds:
                ends = last_part(result.history.msd, FINAL_SHARE).mean(axis=1)
                levels[method.name][trial] = float(ends.mean())
        return levels

    def _scored(
        self, executor: Executor, problem: BoardProblem, entries: Sequence[BoardEntry]
    ) -> dict[str, BoardRun]:
        """The runs that count, on seeds that nothing was chosen on."""
        groups = {
            entry.name: executor.cells(
                entry.method.name, f"score of {entry.name}", self._repetitions(entry),
                len(entries), **self._common(entry, self.rounds), seed=self.seed,
            )
            for entry in entries
        }  # fmt: skip
        results = executor.run(groups, f"{problem.name}: the runs that count", warn=False)
        runs = {}
        for entry in entries:
            parts = [results[entry.name]]
            if parts[0].diverged:  # one seed must not stop the others: each on its own
                parts = self._apart(executor, entry)
            runs[entry.name] = BoardRun(entry, *score_runs(parts, self.rounds))
        return runs

    def _repetitions(self, entry: BoardEntry) -> int:
        if entry.track == COMBINED:
            return min(self.repetitions, self.protocol.factorial["repetitions"])
        if entry.track == UNTUNED:
            return min(self.repetitions, self.protocol.numbers["untuned_repetitions"])
        return self.repetitions

    def _apart(self, executor: Executor, entry: BoardEntry) -> list[Finished]:
        common = self._common(entry, self.rounds)
        stem = hashlib.sha256(entry.name.encode()).hexdigest()[:12]
        groups = {
            f"seed {rep}": [
                Cell(
                    entry.method.name, f"apart-{stem}-{rep}", repetitions=range(rep, rep + 1),
                    seed=self.seed, **common,
                )
            ]
            for rep in range(self._repetitions(entry))
        }  # fmt: skip
        title = f"{entry.name}: seed by seed, because one diverged"
        return list(executor.run(groups, title, warn=False).values())


def _best(levels: Mapping[SearchPoint, float]) -> SearchPoint:
    """The trial of the lowest level; of equals the smallest step size."""
    return min(levels, key=lambda trial: (levels[trial], trial.step))


def _entry(
    problem: BoardProblem, method: BoardMethod, track: str, trial: SearchPoint
) -> BoardEntry:
    knobs = trial.knobs(method, problem)
    return BoardEntry(problem, method, track, trial.step * problem.unit_step, knobs)


def score_runs(parts: Sequence[Finished], rounds: int) -> tuple[Scored, Finished]:
    """What counts of the runs of a method, and those that ended as one, for the curves."""
    rows = [(part, place) for part in parts for place in range(part.history.repetitions)]
    msd = np.full((len(rows), rounds), np.inf)
    reasons = [part.diverged for part in parts if part.diverged]
    good = [part for part in parts if not part.diverged] or parts
    looks = good[0].history.measured_rounds
    looks = looks if looks.size else np.array([0, rounds])  # it raised before the first look
    costs = {axis: np.full((len(rows), looks.size), np.inf) for axis in AXES[1:]}
    for at, (part, place) in enumerate(rows):
        if not part.diverged:
            msd[at, : part.history.rounds] = part.history.msd[place]
            for axis, values in spent_of(part.history.measured).items():
                costs[axis][at] = values[place]
    backwards = any(
        (np.diff(values, axis=1) < 0.0).any()
        for part in parts
        for values in part.history.measured.values()
    )
    levels = last_part(msd, FINAL_SHARE).mean(axis=1)
    if backwards:
        reasons.append("a cost went down in the middle of a run: the method wrote to the ledger")
        levels = np.full(levels.size, np.inf)
    scored = Scored(
        levels, msd, looks, costs, np.concatenate([part.history.params for part in parts]),
        tuple(_print(part, place) for part, place in rows), reasons[0] if reasons else "",
    )  # fmt: skip
    return scored, merged(good, rows=1)


def _print(part: Finished, place: int) -> str:
    """A checksum of one repetition: its distances, its last model and its ledger."""
    content = hashlib.sha256()
    for values in (part.history.msd, part.history.params, part.history.ledgers):
        content.update(np.ascontiguousarray(values[place]).tobytes())
    return content.hexdigest()[:16]


def failed(cell: Cell, error: Exception) -> Finished:
    """The result of a method that raised: no rounds, and why."""
    count, none = len(cell.repetitions), np.empty((len(cell.repetitions), 0))
    params = np.zeros((count, problem_of(cell.source)[0].num_params))
    ledgers, zero = np.zeros((count, len(ENTRIES))), np.zeros(count, np.int64)
    history = History(none, params, none, none, zero, zero, ledgers=ledgers)
    return Finished(history, None, 0.0, f"{RAISED}{explain(error)}")


def verify(results: Results, count: int, seed: int) -> Iterator[tuple[str, int, bool]]:
    """Run random repetitions of a finished leaderboard again: which, and whether each is the same.

    Args:
        results: of a leaderboard.
        count: how many repetitions.
        seed: of the choice.
    """
    if results.kind != Leaderboard.kind:
        raise ValueError(f"{results.path} holds a study of kind {results.kind!r}, no leaderboard")
    study = Leaderboard(make_protocol(results.config))
    problems = {one.name: one for one in study.protocol.problems}
    methods = {one.name: one for one in study.protocol.methods}
    methods |= {one.name: one for one, _, _ in study.protocol.combinations() if one is not None}
    rows = [
        (name, run, int(rep), mark)
        for name, run in results.summary["runs"].items()
        for rep, mark in enumerate(run["prints"])
    ]
    places = np.random.default_rng(seed).permutation(len(rows))[:count]
    for place in places.tolist():
        name, run, rep, mark = rows[place]
        place = problems[run["problem"]], methods[run["method"]], run["track"]
        entry = BoardEntry(*place, run["step_size"], run["knobs"])
        common = study._common(entry, study.rounds)
        cell = Cell(name, "again", repetitions=range(rep, rep + 1), seed=study.seed, **common)
        store = CellStore()
        store.keep(cell, run_cell(cell, store))
        again, _ = score_runs([store.result(cell)], study.rounds)
        yield name, rep, again.prints[0] == mark
