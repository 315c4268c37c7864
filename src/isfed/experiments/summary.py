"""From histories to the numbers that a paper quotes."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from isfed.experiments.config import Experiment
from isfed.problems import Problem
from isfed.sampling.telemetry import COLUMNS, MOMENT, UNIFORM
from isfed.simulate.history import History, stderr_of_mean

if TYPE_CHECKING:
    from isfed.experiments.runner import Finished

STEADY_SHARE = 0.25  # of the rounds, the last ones


def history_columns(results: dict[str, Finished]) -> dict[str, Any]:
    """The msd of every round as columns, all algorithms below one another."""
    names, rounds, means, stderrs, lows, highs, watched = [], [], [], [], [], [], []
    for name, result in results.items():
        msd = result.history.msd
        names.extend([name] * msd.shape[1])
        rounds.append(np.arange(1, msd.shape[1] + 1))
        means.append(result.history.mean)
        stderrs.append(result.history.stderr)
        lows.append(np.quantile(msd, 0.1, axis=0))
        highs.append(np.quantile(msd, 0.9, axis=0))
        watched.append(result.history.telemetry.mean(axis=0))
    return {
        "algorithm": names,
        "round": np.concatenate(rounds),
        "msd": np.concatenate(means),
        "msd_stderr": np.concatenate(stderrs),
        "msd_q10": np.concatenate(lows),
        "msd_q90": np.concatenate(highs),
        **dict(zip(COLUMNS, np.concatenate(watched).T, strict=True)),
    }


def measure_columns(results: dict[str, Finished]) -> dict[str, Any]:
    """What was measured, as columns: mean and standard error over the repetitions."""
    columns: dict[str, list] = {
        "algorithm": [],
        "round": [],
        "measure": [],
        "mean": [],
        "stderr": [],
    }
    for name, result in results.items():
        for measure, values in result.history.measured.items():
            points = values.shape[1]
            columns["algorithm"] += [name] * points
            columns["measure"] += [measure] * points
            columns["round"] += result.history.measured_rounds.tolist()
            columns["mean"] += values.mean(axis=0).tolist()
            columns["stderr"] += stderr_of_mean(values).tolist()
    return columns


def _telemetry(history: History) -> dict[str, float]:
    """How the sampling went over the last rounds, see `isfed.sampling.telemetry`."""
    last = max(1, round(STEADY_SHARE * history.rounds))
    means = history.telemetry[:, -last:].mean(axis=(0, 1), dtype=np.float64)
    found = dict(zip(COLUMNS[:MOMENT], means[:MOMENT].tolist(), strict=True))
    found["largest_weight"] = float(history.watched("largest_weight")[:, -last:].max())
    found["variance_ratio"] = float(means[UNIFORM] / means[MOMENT]) if means[MOMENT] > 0 else 1.0
    return found


def _final(history: History) -> dict[str, dict[str, float]]:
    """The last measurements: mean and standard error over the repetitions."""
    return {
        name: {
            "mean": float(values[:, -1].mean()),
            "stderr": float(stderr_of_mean(values[:, -1:])[0]),
        }
        for name, values in history.measured.items()
    }


def _example_distance(prob: np.ndarray, optimal: np.ndarray, offsets: np.ndarray) -> float:
    """1/K sum_k |p_n^(k) - p_n^(k),o|, the mean over repetitions."""
    square = np.add.reduceat((prob - optimal) ** 2, offsets[:-1], axis=1)
    return float(np.sqrt(square).mean())


def summarise(
    experiment: Experiment, problem: Problem, results: dict[str, Finished], optimal: History
) -> dict[str, Any]:
    """Everything that the table prints, and what it was computed with."""
    offsets = problem.data.offsets
    num_agents = problem.num_agents
    agent_optimal, example_optimal = optimal.agent_prob[0], optimal.example_prob[0]
    sizes = problem.data.num_examples
    uniform = np.repeat(1.0 / sizes, sizes)[None]
    reference = next(iter(results.values())).history.steady(share=STEADY_SHARE)
    rows = []
    for name, result in results.items():
        history = result.history
        steady = history.steady(share=STEADY_SHARE)
        distances = np.linalg.norm(history.agent_prob - agent_optimal, axis=1)
        rows.append(
            {
                "name": name,
                "step_size": history.step_size,
                "msd_db": steady.db,
                "msd_stderr_db": steady.stderr_db,
                "gain_db": reference.db - steady.db,
                "gain_stderr_db": float(np.hypot(reference.stderr_db, steady.stderr_db)),
                "agent_distance": float(distances.mean()),
                "example_distance": _example_distance(
                    history.example_prob, example_optimal, offsets
                ),
                "gradients_per_round": float(history.gradients.mean() / history.rounds),
                "uploads_per_round": float(history.uploads.mean() / history.rounds),
                "telemetry": _telemetry(history),
                "final": _final(history),
                "seconds": result.seconds,
                "rounds_per_second": history.msd.size / max(result.seconds, 1e-9),
            }
        )
    return {
        "experiment": experiment.name,
        "digest": experiment.digest,
        "rounds": experiment.rounds,
        "repetitions": experiment.repetitions,
        "steady_rounds": reference.rounds,
        "uniform_agent_distance": float(np.linalg.norm(1.0 / num_agents - agent_optimal)),
        "uniform_example_distance": _example_distance(uniform, example_optimal, offsets),
        "algorithms": rows,
        "made_with": {
            "isfed": version("isfed"),
            "numpy": np.__version__,
            "numba": version("numba"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
    }
