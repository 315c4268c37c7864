"""Rows and agents that a model has never seen: how well it does on them.

The comparison itself trains on all rows. Beside it, all ways are trained once more, at the same
step sizes, without a fifth of the rows of every agent and without a tenth of the agents. An
experiment on classes does so too, but keeps all agents: its methods may know them by number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isfed.problems import Problem
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import LinearLoss, Logistic, Softmax
from isfed.simulate.run_history import stderr_of_mean
from isfed.studies.problem_sources import ProblemSource
from isfed.studies.work_cells import problem_of

ROW_SHARE, LEAST_ROWS = 0.2, 5  # of an agent's rows, if it has so many
AGENT_SHARE, LEAST_AGENTS = 0.1, 5  # of the agents, if there are so many


class Split(NamedTuple):
    """A problem without what is held out, and the rows (features, targets) that are."""

    training: Problem
    rows: tuple[np.ndarray, np.ndarray]  # of the agents that are trained on
    agents: tuple[np.ndarray, np.ndarray]  # of the others


def split(problem: Problem, seed: int, *, agents: bool = True) -> Split:
    """Hold out rows within agents, and agents; the same ones for the same seed."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0x5EED,)))
    data, count = problem.data, problem.num_agents
    held_agents = np.zeros(count, dtype=bool)
    if agents and count >= LEAST_AGENTS:
        held_agents[rng.permutation(count)[: max(1, round(AGENT_SHARE * count))]] = True
    held = np.zeros(len(data.targets), dtype=bool)
    for agent in np.flatnonzero(~held_agents):
        size = int(data.num_examples[agent])
        if size >= LEAST_ROWS:
            held[data.offsets[agent] + rng.permutation(size)[: int(ROW_SHARE * size)]] = True
    of_others = np.repeat(held_agents, data.num_examples)
    if isinstance(problem.loss, Softmax):  # no class can be learned without a row of it
        kept = np.unique(data.targets[~(held | of_others)])
        held &= np.isin(data.targets, kept)
    kept = ~(held | of_others)
    sizes = np.add.reduceat(kept, data.offsets[:-1], dtype=np.int64)[~held_agents]
    training = Problem(
        FederatedData(
            data.features[kept],
            data.targets[kept],
            np.cumsum([0, *sizes]),
            None if data.weights is None else data.weights[~held_agents],
        ),
        problem.loss,
        local_steps=problem.local_steps[~held_agents],
        batch_size=np.minimum(problem.batch_size[~held_agents], sizes),
        name=f"{problem.name}, some held out",
        optimum=None if agents else "auto",  # nothing is measured, but `Oracle` needs it
    )
    parts = [(data.features[which], data.targets[which]) for which in (held, of_others)]
    return Split(training, *parts)


@dataclass(frozen=True)
class Kept(ProblemSource):
    """A source without what is held out."""

    source: ProblemSource
    seed: int
    agents: bool = True  # whether some of them are held out

    def make(self) -> Problem:
        """The problem that is trained on."""
        return split(problem_of(self.source)[0], self.seed, agents=self.agents).training


def row_errors(loss: LinearLoss, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n,) of every row whether its class is wrong, or its squared error."""
    return _errors_of(loss, x @ params.reshape(loss.compiled.num_rows, -1).T, y)


def _errors_of(loss: LinearLoss, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
    if isinstance(loss, Logistic):
        return ((margins[:, 0] > 0.0) != (y > 0.0)).astype(float)
    if isinstance(loss, Softmax):
        return (margins.argmax(axis=1) != y).astype(float)
    return (margins[:, 0] - y) ** 2


def quality(loss: LinearLoss, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple:
    """The mean loss without the ridge, and the error: the share of wrong classes, or the RMSE."""
    margins = x @ params.reshape(loss.compiled.num_rows, -1).T
    error = float(_errors_of(loss, margins, y).mean())
    classes = isinstance(loss, Logistic | Softmax)
    return float(loss.of_margins(margins, y).mean()), error if classes else math.sqrt(error)


def qualities(problem: Problem, models: np.ndarray, seed: int) -> dict[str, dict[str, float]]:
    """Mean and standard error over the models: on rows trained on, held out, of other agents."""
    parts = split(problem, seed)
    sets = {
        "training": (parts.training.data.features, parts.training.data.targets),
        "rows": parts.rows,
        "agents": parts.agents,
    }
    return qualities_on(problem.loss, sets, models)


def qualities_on(
    loss: LinearLoss, sets: Mapping[str, tuple[np.ndarray, np.ndarray]], models: np.ndarray
) -> dict[str, dict[str, float]]:
    """Mean and standard error over the models, on each set of rows that has any."""
    result = {}
    for name, (x, y) in sets.items():
        if not len(y):
            continue
        each = np.array([quality(loss, model, x, y) for model in models])
        mean, error = each.mean(axis=0), stderr_of_mean(each)
        result[name] = {
            "examples": len(y),
            "loss": float(mean[0]), "loss_stderr": float(error[0]),
            "error": float(mean[1]), "error_stderr": float(error[1]),
            "errors": each[:, 1].tolist(),
        }  # fmt: skip
    return result
