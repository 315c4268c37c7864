"""One problem of a leaderboard: levels in dB, targets, gains over the reference, rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isfed.federation.problem_arrays import agent_risks
from isfed.methods.catalogue import CATALOGUE
from isfed.studies.leaderboard_config import BoardProblem, Protocol
from isfed.studies.leaderboard_entries import BoardMethod
from isfed.studies.leaderboard_scores import Difference, Scored, excess_decibels, holm, paired
from isfed.studies.results_summary import algorithm_rows
from isfed.studies.test_measures import ErrorRates
from isfed.studies.work_cells import Finished, problem_of

TUNED, UNTUNED, COMBINED = "tuned", "untuned", "combined"  # the tracks
RAISED = "it raised "  # how the reason of a method that failed begins
BURN_IN = 0.25  # of the rounds: the worst peak counts after them
WORST = 0.1  # of the agents


@dataclass(frozen=True)
class BoardEntry:
    """One method on one problem in one track, with the numbers of its best trial."""

    problem: BoardProblem
    method: BoardMethod
    track: str
    step_size: Any
    knobs: Mapping[str, Any]
    level: float = math.nan  # on the tuning seeds
    tried: tuple[tuple[float, float], ...] = ()  # step size and level of every trial

    @property
    def name(self) -> str:
        """In the files: unlike any other."""
        track = "" if self.track == TUNED else f" ({self.track})"
        return f"{self.problem.name}: {self.method.name}{track}"


class BoardRun(NamedTuple):
    """The runs of an entry that count."""

    entry: BoardEntry
    scored: Scored
    finished: Finished


class Board:
    """One problem of a leaderboard with all runs on it."""

    def __init__(self, protocol: Protocol, problem: BoardProblem, runs: Sequence[BoardRun]) -> None:
        self.protocol, self.problem, self.runs = protocol, problem, runs
        self.start = float(np.sum(problem.problem.optimum**2))  # all models start from zero
        levels = np.concatenate([[self.start], *(run.scored.levels for run in runs)])
        self.worst = float(np.max(levels[np.isfinite(levels)]))

    def track(self, track: str) -> list[BoardRun]:
        """The runs of one track, in the order of the methods."""
        return [run for run in self.runs if run.entry.track == track]

    def find(self, track: str, method: str) -> BoardRun | None:
        """The run of a method, if it ran."""
        return next((run for run in self.track(track) if run.entry.method.name == method), None)

    def db(self, scored: Scored) -> np.ndarray:
        """(R,) levels in dB; a run that diverged has the worst one."""
        return excess_decibels(scored.levels, self.worst)

    @property
    def targets(self) -> dict[str, float]:
        """The distances to reach: where the reference ends when tuned, and half-way in dB."""
        reference = self.find(TUNED, self.protocol.reference)
        level = math.nan if reference is None else reference.entry.level
        end = level if math.isfinite(level) else self.start
        return {"end": end, "half": math.sqrt(self.start * end)}

    def gains(self, track: str) -> dict[str, Difference]:
        """Every method's gain over the reference in dB, corrected for how many there are."""
        reference = self.find(track, self.protocol.reference)
        if reference is None:
            return {}
        base = self.db(reference.scored)
        others = [run for run in self.track(track) if run is not reference]
        return holm({r.entry.method.name: paired(base - self.db(r.scored)) for r in others})

    def facts(self) -> dict[str, Any]:
        """What the summary says of the problem."""
        problem, end = self.problem.problem, self.targets
        level = {f"{key}_db": 10.0 * math.log10(value) for key, value in end.items()}
        return {
            "name": self.problem.name, "tuned": self.problem.tuned,
            "agents": problem.num_agents, "active": self.problem.num_active,
            "params": problem.num_params, "start_db": 10.0 * math.log10(self.start),
            "unit_step": self.problem.unit_step, **(level if self.problem.tuned else {}),
            **({} if self.tested is None else {
                "majority_error": self.tested.majority_error(),
                "chance_error": 1.0 - 1.0 / self.tested.classes.size,
            }),
        }  # fmt: skip

    @property
    def tested(self) -> ErrorRates | None:
        """What measures errors on rows held apart; None where the problem has none."""
        measure = problem_of(self.problem.source)[1]
        return measure if isinstance(measure, ErrorRates) else None

    def rows(self) -> list[dict[str, Any]]:
        """One row for every tuned method: its level, its gain, its costs and what else it is."""
        runs, gains = self.track(TUNED), self.gains(TUNED)
        usual = algorithm_rows(self.problem.source, {e.name: finished for e, _, finished in runs})
        return [
            row | self._row(entry, scored, gains.get(entry.method.name))
            for row, (entry, scored, _) in zip(usual, runs, strict=True)
        ]

    def _row(self, entry: BoardEntry, scored: Scored, gain: Difference | None) -> dict[str, Any]:
        db, method = self.db(scored), entry.method
        known = next((one for one in CATALOGUE if one.name == method.options.get("kind")), None)
        final = {axis: _finite(values[:, -1]) for axis, values in scored.costs.items()}
        reached = {
            target: {axis: _finite_median(v) for axis, v in scored.costs_to(level).items()}
            for target, level in self.targets.items()
        }
        row: dict[str, Any] = {
            "problem": self.problem.name, "method": method.name, "hears": method.hears,
            "told": "" if known is None else known.needs,
            "state": "" if known is None else known.state,
            "unbiased": "" if known is None else known.unbiased,
            "confirmed": True if known is None else bool(known.confirmed),
            "step_size": entry.step_size, "knobs": dict(entry.knobs),
            "level_db": float(db.mean()), "diverged_runs": scored.diverged,
            "runs": scored.levels.size, "reason": scored.reason, "costs": final,
            "to_target": reached, "tried": [list(pair) for pair in entry.tried],
            "gain": None if gain is None else gain._asdict(),
            **self._beside(scored),
        }  # fmt: skip
        if gain is not None:
            row |= {"gain_db": gain.mean, "gain_stderr_db": (gain.high - gain.low) / 3.92}
        return row

    def _beside(self, scored: Scored) -> dict[str, Any]:
        """Excess risk, errors, the agents that fare worst and the worst peak of runs that ended."""
        good = np.isfinite(scored.levels)
        names = () if self.tested is None else self.tested.names
        if not good.any():
            return dict.fromkeys(("excess", "worst_tenth", "agent_spread", "peak_db", *names))
        problem = self.problem.problem
        errors = [] if self.tested is None else self.tested(scored.params[good]).mean(axis=0)
        everybody, least = np.arange(problem.num_agents), problem.risk(problem.optimum)
        risks = np.array([agent_risks(problem, everybody, w) for w in scored.params[good]])
        count = max(1, round(WORST * everybody.size))
        late = scored.msd[good][:, round(BURN_IN * scored.msd.shape[1]) :]
        return {
            "excess": float(np.mean([problem.risk(w) for w in scored.params[good]]) - least),
            "worst_tenth": float(np.sort(risks, axis=1)[:, -count:].mean()),
            "agent_spread": float(risks.std(axis=1).mean()),
            "peak_db": float(10.0 * np.log10(np.maximum(late.max(), 1e-300))),
            **dict(zip(names, map(float, errors), strict=True)),
        }

    def untuned(self) -> list[dict[str, Any]]:
        """Every method as published: its level and its gain over the untuned reference."""
        gains = self.gains(UNTUNED)
        return [
            {
                "problem": self.problem.name, "method": entry.method.name,
                "hears": entry.method.hears, "step_size": finished.history.step_size,
                "level_db": float(self.db(scored).mean()), "diverged_runs": scored.diverged,
                "gain": gains[entry.method.name]._asdict()
                if entry.method.name in gains else None,
            }
            for entry, scored, finished in self.track(UNTUNED)
        ]  # fmt: skip


def _finite(values: np.ndarray) -> float | None:
    good = values[np.isfinite(values)]
    return float(good.mean()) if good.size else None


def _finite_median(values: np.ndarray) -> float | None:
    median = float(np.median(values))
    return median if math.isfinite(median) else None
