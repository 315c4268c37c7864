"""The labelled problems of variance.toml: agents that differ in size, in direction, or in both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import numpy as np

from isfed import FederatedData, Logistic, Problem, Softmax, Synthetic
from isfed.datasets.named_datasets import ijcnn1, mnist_by_writer
from isfed.datasets.partition import dirichlet, one_class
from isfed.studies.problem_sources import DataSet

AGENTS, ROWS, RIDGE = 100, 20_000, 1e-3
Rows = Literal["one digit per agent", "Dirichlet(0.3)", "ijcnn1, one class", "synthetic(1,1)"]
# The step sizes of the study are this one, the double, a half and a quarter of it.
STEPS: dict[Rows, float] = {
    "one digit per agent": 1.0, "Dirichlet(0.3)": 1.0, "ijcnn1, one class": 2.0,
    "synthetic(1,1)": 0.3,
}  # fmt: skip


@cache
def _mnist(pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """20,000 digits pooled to so many pixels a side, with a constant feature."""
    found = mnist_by_writer().train
    chosen = np.random.default_rng(1).permutation(len(found.targets))[:ROWS]
    return pooled(found.features[chosen], pixels), found.targets[chosen]


def pooled(features: np.ndarray, pixels: int) -> np.ndarray:
    """Digits of 28 x 28 as means of blocks, with a constant feature."""
    blocks = features.reshape(-1, pixels, 28 // pixels, pixels, 28 // pixels)
    x = blocks.mean((2, 4)).reshape(len(features), -1)
    return np.hstack([x, np.ones((len(x), 1))])


@cache
def federated(rows: str, pixels: int) -> FederatedData:
    """The rows of a problem, dealt to the agents."""
    if rows == "synthetic(1,1)":  # of FedProx: both models and features differ
        return Synthetic(num_agents=AGENTS, most_examples=1000).make(seed=0).data
    if rows == "ijcnn1, one class":
        found = ijcnn1().train
        chosen = np.random.default_rng(1).permutation(len(found.targets))[:ROWS]
        x, y = found.features[chosen], found.targets[chosen]
        dealt = one_class(y, num_agents=AGENTS, shares={-1.0: 0.5, 1.0: 0.5}, seed=0)
        x = np.hstack([x, np.ones((len(x), 1))])
    else:
        x, y = _mnist(pixels)
        if rows == "one digit per agent":
            dealt = one_class(y, num_agents=AGENTS, seed=0)
        else:
            dealt = dirichlet(y, num_agents=AGENTS, concentration=0.3, least=30, seed=0)
    return FederatedData(np.ascontiguousarray(x[dealt.rows]), y[dealt.rows].copy(), dealt.offsets)


def risk(problem: Problem, params: np.ndarray) -> float:
    """The risk at a model."""
    data = problem.data
    values = problem.loss.values(params, data.features, data.targets)
    return float(np.add.reduceat(values, data.offsets[:-1]) @ (1.0 / data.num_examples)) / len(
        data.num_examples
    )


@dataclass
class ExcessRisk:
    """The risk above the least."""

    problem: Problem
    every: int
    names: tuple[str, ...] = ("excess",)

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """Of every model, (R, 1)."""
        return np.array([[risk(self.problem, model) - self._least] for model in params])

    @cached_property
    def _least(self) -> float:
        return risk(self.problem, self.problem.optimum)


@dataclass(frozen=True, kw_only=True)
class Labelled(DataSet):
    """A problem with labels; with 7 pixels a side the digits are four times as fast."""

    rows: Rows
    local_steps: int = 1
    batch_size: int = 20
    pixels: Literal[7, 14] = 14
    every: int = 10

    def make(self) -> Problem:
        """The problem, with a small ridge."""
        two = self.rows == "ijcnn1, one class"
        loss = Logistic(RIDGE) if two else Softmax(RIDGE, num_classes=10)
        return Problem(
            federated(self.rows, self.pixels), loss, local_steps=self.local_steps,
            batch_size=self.batch_size, name=self.rows,
        )  # fmt: skip

    def measure(self, problem: Problem) -> ExcessRisk:
        """The excess risk."""
        return ExcessRisk(problem, self.every)
