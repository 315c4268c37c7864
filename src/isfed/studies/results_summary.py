"""From what cells found to the numbers that a paper quotes, and to the tables of a folder."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from isfed.federation.ledger import Ledger
from isfed.sampling.telemetry import COLUMNS, MOMENT, UNIFORM
from isfed.simulate.run_history import History, Steady, stderr_of_mean
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.results_folder import HISTORY, MEASURES, REPETITIONS
from isfed.studies.work_cells import Finished, example_apart, optimal_probabilities, problem_of

STEADY_SHARE = 0.25  # of the rounds, the last ones
QUARTER = 0.25
LEAST_DB = 0.1  # less is smaller than what anybody quotes
MOST_UNSURE_DB = 2.0
NO_CHANGE: dict[str, Any] = dict.fromkeys(("settled", "change_db", "change_stderr_db"))
ByAlgorithm = Mapping[str, Finished]  # by algorithm


def tables_of(results: ByAlgorithm) -> dict[str, dict[str, Any]]:
    """The Parquet files of a folder."""
    tables = {HISTORY: history_columns(results), REPETITIONS: repetition_columns(results)}
    if any(result.history.measured for result in results.values()):
        tables[MEASURES] = measure_columns(results)
    return tables


def history_columns(results: ByAlgorithm) -> dict[str, Any]:
    """The msd of every round as columns, all algorithms below one another."""
    names: list[str] = []
    parts: list[dict[str, np.ndarray]] = []
    for name, result in results.items():
        history = result.history
        rounds = history.rounds
        names += [name] * rounds
        msd = history.msd if history.no_msd is None else np.full_like(history.msd, np.nan)
        part = {
            "round": np.arange(1, rounds + 1),
            "msd": msd.mean(axis=0),
            "msd_stderr": stderr_of_mean(msd),
            "msd_q10": np.quantile(msd, 0.1, axis=0),
            "msd_q90": np.quantile(msd, 0.9, axis=0),
        }
        if history.telemetry.size:
            part |= dict(zip(COLUMNS, history.telemetry.mean(axis=0).T, strict=True))
        parts.append(part)
    shared = [key for key in parts[0] if all(key in part for part in parts)]
    columns = {key: np.concatenate([part[key] for part in parts]) for key in shared}
    return {"algorithm": names, **columns}


def measure_columns(results: ByAlgorithm) -> dict[str, Any]:
    """What was measured, as columns: mean and standard error over the repetitions."""
    keys = ("algorithm", "round", "measure", "mean", "stderr")
    columns: dict[str, list] = {key: [] for key in keys}
    for name, result in results.items():
        history = result.history
        for measure, values in history.measured.items():
            seen = np.isfinite(values).all(axis=0)  # a run that diverged was not measured after
            points = int(seen.sum())
            columns["algorithm"] += [name] * points
            columns["measure"] += [measure] * points
            columns["round"] += history.measured_rounds[seen].tolist()
            columns["mean"] += values[:, seen].mean(axis=0).tolist()
            columns["stderr"] += stderr_of_mean(values[:, seen]).tolist()
    # A column of numbers even where none of them is known, as the error of one repetition.
    return columns | {key: np.array(columns[key], np.float64) for key in ("mean", "stderr")}


def repetition_columns(results: ByAlgorithm) -> dict[str, Any]:
    """One row for every repetition: its steady msd, what it cost, its last measurements."""
    names: list[str] = []
    parts: list[dict[str, np.ndarray]] = []
    for name, result in results.items():
        history = result.history
        names += [name] * history.repetitions
        last = max(1, round(STEADY_SHARE * history.rounds))
        known = history.no_msd is None and history.rounds and not result.diverged
        nothing = np.full(history.repetitions, np.nan)
        part = {
            "repetition": np.arange(history.repetitions),
            "steady_msd": history.msd[:, -last:].mean(axis=1) if known else nothing,
            "gradients": history.gradients,
            "uploads": history.uploads,
        }
        finals = {f"final_{measure}": v[:, -1] for measure, v in history.measured.items()}
        parts.append(part | finals)
    columns = {
        key: np.concatenate(
            [part.get(key, np.full(len(part["uploads"]), np.nan)) for part in parts]
        )
        for key in dict.fromkeys(key for part in parts for key in part)  # nan: not measured there
    }
    return {"algorithm": names, **columns}


def algorithm_rows(source: ProblemSource, results: ByAlgorithm) -> list[dict[str, Any]]:
    """What summary.json says of every algorithm; gains are over the first."""
    first = next(iter(results.values()))
    return [_row(name, source, result, _steady(first)) for name, result in results.items()]


def _steady(result: Finished) -> Steady:
    """The steady level; nan where there is none."""
    if result.diverged or result.history.no_msd is not None:
        return Steady(math.nan, math.nan, 0)
    return result.history.steady(share=STEADY_SHARE)


def _row(name: str, source: ProblemSource, result: Finished, reference: Steady) -> dict[str, Any]:
    history = result.history
    steady = _steady(result)
    rounds = max(1, history.rounds)
    change = level_change(history.msd).as_dict() if steady.rounds else NO_CHANGE
    # Only where a clock ran: else no agent takes any time.
    seconds = float(np.mean([Ledger.from_array(row).seconds for row in history.ledgers] or 0.0))
    timed = {"seconds_per_round": seconds / rounds} if seconds > 0.0 else {}
    return {
        "name": name,
        "step_size": history.step_size,
        "msd_db": steady.db,
        "msd_stderr_db": steady.stderr_db,
        "gain_db": reference.db - steady.db,
        "gain_stderr_db": float(np.hypot(reference.stderr_db, steady.stderr_db)),
        **change,
        "agent_distance": _agent_distance(source, history),
        "example_distance": _mean(result.example_apart),
        "gradients_per_round": float(history.gradients.mean() / rounds),
        "uploads_per_round": float(history.uploads.mean() / rounds),
        **timed,
        "telemetry": None if result.diverged else _telemetry(history),
        "final": {} if result.diverged else mean_and_stderr(history),
        "diverged_round": history.rounds if result.diverged else None,
        "diverged": result.diverged or None,
    }


def _mean(values: np.ndarray | None) -> float | None:
    return None if values is None else float(values.mean())


def _agent_distance(source: ProblemSource, history: History) -> float | None:
    """The mean over repetitions of |p_k - p_k^o|."""
    optimal = optimal_probabilities(source)
    if optimal is None or history.agent_prob.shape[1:] != optimal[0].shape:
        return None
    return float(np.linalg.norm(history.agent_prob - optimal[0], axis=1).mean())


def _telemetry(history: History) -> dict[str, Any] | None:
    """How the sampling went over the last rounds, see `isfed.sampling.telemetry`.

    What is not known is None, and `absent` says why.
    """
    last = max(1, round(STEADY_SHARE * history.rounds))
    rows = history.telemetry[:, -last:]
    if not rows.size or np.isnan(rows).all():
        return None
    means = rows.mean(axis=(0, 1), dtype=np.float64)
    summary: dict[str, Any] = dict(zip(COLUMNS[:MOMENT], means[:MOMENT].tolist(), strict=True))
    summary["largest_weight"] = float(history.watched("largest_weight")[:, -last:].max())
    summary["variance_ratio"] = float(means[UNIFORM] / means[MOMENT]) if means[MOMENT] != 0 else 1.0
    absent = [name for name, value in summary.items() if not math.isfinite(value)]
    if absent:
        unknown = int(np.isnan(rows).any(axis=(0, 2)).sum())
        summary |= dict.fromkeys(absent)
        summary["absent"] = (
            f"{', '.join(absent)}: in {unknown} of the last {last} rounds a square of a change "
            f"over the step size ({history.step_size:g}) is no number of float32"
        )
    return summary


def mean_and_stderr(history: History) -> dict[str, dict[str, float]]:
    """The last measurements: mean and standard error over the repetitions."""
    return {
        name: {
            "mean": float(values[:, -1].mean()),
            "stderr": float(stderr_of_mean(values[:, -1:])[0]),
        }
        for name, values in history.measured.items()
    }


def summarise(
    name: str, source: ProblemSource, results: ByAlgorithm, *, rounds: int, repetitions: int
) -> dict[str, Any]:
    """What summary.json says, whatever the study."""
    problem, _ = problem_of(source)
    optimal = optimal_probabilities(source)
    sizes = problem.data.num_examples
    uniform = np.repeat(1.0 / sizes, sizes)[None]
    num_agents = problem.num_agents
    distance = None if optimal is None else float(np.linalg.norm(1.0 / num_agents - optimal[0]))
    return {
        "experiment": name,
        "rounds": rounds,
        "repetitions": repetitions,
        "steady_rounds": max(1, round(STEADY_SHARE * rounds)),
        "no_msd": next(iter(results.values())).history.no_msd,
        "uniform_agent_distance": distance,
        "uniform_example_distance": _mean(example_apart(source, uniform)),
        "algorithms": algorithm_rows(source, results),
        "made_with": made_with(),
    }


def made_with() -> dict[str, Any]:
    """Versions of isfed and of what decides about the numbers."""
    return {
        "isfed": version("isfed"),
        "numpy": np.__version__,
        "numba": version("numba"),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def times_of(results: ByAlgorithm) -> dict[str, Any]:
    """What times.json says: the one file in which two runs of a configuration may differ."""
    return {"cores": os.cpu_count(), "seconds": {name: r.seconds for name, r in results.items()}}


@dataclass(frozen=True)
class LevelChange:
    """How much a level changed from the quarter before to the last quarter, in decibels.

    Its steady level is quoted only if a run had stopped changing: it has not settled if the change
    exceeds two standard errors and 0.1 dB. It has if not, and two standard errors are at most 2 dB;
    else there are too few repetitions to tell.
    """

    change_db: float  # negative: still falling
    stderr_db: float  # nan for a single repetition

    @property
    def settled(self) -> bool | None:
        """None if nobody can tell."""
        if math.isnan(self.change_db) or math.isnan(self.stderr_db):
            return None
        if abs(self.change_db) > max(LEAST_DB, 2.0 * self.stderr_db):
            return False
        return True if 2.0 * self.stderr_db <= MOST_UNSURE_DB else None

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "settled": self.settled, "change_db": self.change_db,
            "change_stderr_db": self.stderr_db,
        }  # fmt: skip


def level_change(values: np.ndarray) -> LevelChange:
    """Whether a positive quantity, (R, T), had stopped changing at the end.

    >>> rounds = np.arange(100)
    >>> falling = level_change(np.exp(-rounds / 50.0) * np.array([[1.0], [3.0]]))
    >>> falling.settled, round(falling.change_db, 2)
    (False, -2.17)
    """
    points = values.shape[1]
    width = max(1, round(QUARTER * points))
    if points < 2 * width:
        return LevelChange(math.nan, math.nan)
    last = values[:, -width:].mean(axis=1)
    before = values[:, -2 * width : -width].mean(axis=1)
    if not (np.isfinite(last + before).all() and (last > 0.0).all() and (before > 0.0).all()):
        return LevelChange(math.nan, math.nan)
    changes = 10.0 * np.log10(last / before)
    return LevelChange(float(changes.mean()), float(stderr_of_mean(changes[:, None])[0]))
