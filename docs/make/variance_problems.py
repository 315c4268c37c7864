"""The problems of the variance study: agents that differ in size, in direction, or in both."""

from __future__ import annotations

from functools import cache

import numpy as np

from isfed import OUTLIERS, PAPER, FederatedData, Logistic, Problem, Softmax, Synthetic
from isfed.datasets.named_datasets import ijcnn1, mnist_by_writer
from isfed.datasets.partition import dirichlet, one_class

AGENTS, ROWS, RIDGE = 100, 20_000, 1e-3
PIXELS = 14  # a side of a digit; `--pixels 7` is four times as fast


def _federated(x: np.ndarray, y: np.ndarray, rows: np.ndarray, offsets: np.ndarray):
    return FederatedData(np.ascontiguousarray(x[rows]), y[rows].copy(), offsets)


@cache
def _mnist() -> tuple[np.ndarray, np.ndarray]:
    """20,000 digits pooled to PIXELS x PIXELS, with a constant feature."""
    found = mnist_by_writer().train
    chosen = np.random.default_rng(1).permutation(len(found.targets))[:ROWS]
    blocks = found.features[chosen].reshape(-1, PIXELS, 28 // PIXELS, PIXELS, 28 // PIXELS)
    x = blocks.mean((2, 4)).reshape(len(chosen), -1)
    return np.hstack([x, np.ones((len(x), 1))]), found.targets[chosen]


@cache
def _digit() -> FederatedData:
    x, y = _mnist()
    found = one_class(y, num_agents=AGENTS, seed=0)
    return _federated(x, y, found.rows, found.offsets)


@cache
def _dirichlet() -> FederatedData:
    """Every class is shared among the agents by Dirichlet(0.3); at least 30 rows for each."""
    x, y = _mnist()
    found = dirichlet(y, num_agents=AGENTS, concentration=0.3, least=30, seed=0)
    return _federated(x, y, found.rows, found.offsets)


@cache
def _ijcnn1() -> FederatedData:
    found = ijcnn1().train
    chosen = np.random.default_rng(1).permutation(len(found.targets))[:ROWS]
    x, y = found.features[chosen], found.targets[chosen]
    deal = one_class(y, num_agents=AGENTS, shares={-1.0: 0.5, 1.0: 0.5}, seed=0)
    return _federated(np.hstack([x, np.ones((len(x), 1))]), y, deal.rows, deal.offsets)


@cache
def _synthetic() -> FederatedData:
    """synthetic(1, 1) of FedProx, where both models and features differ, with 100 agents."""
    return Synthetic(num_agents=AGENTS, most_examples=1000).make(seed=0).data


LABELLED = {
    "one digit per agent": (_digit, lambda: Softmax(RIDGE, num_classes=10), 1.0),
    "Dirichlet(0.3)": (_dirichlet, lambda: Softmax(RIDGE, num_classes=10), 1.0),
    "ijcnn1, one class": (_ijcnn1, lambda: Logistic(RIDGE), 2.0),
    "synthetic(1,1)": (_synthetic, lambda: Softmax(RIDGE, num_classes=10), 0.3),
}
PRESETS = {"regression": PAPER, "outliers": OUTLIERS}


@cache
def make_problem(name: str, steps: int) -> Problem:
    """A problem by name; `steps` are the local steps E of the labelled ones, with batches of 20."""
    if name in PRESETS:
        return PRESETS[name].make(seed=0)
    data, loss, _ = LABELLED[name]
    return Problem(data(), loss(), local_steps=steps, batch_size=20, name=name)


def largest_step(name: str) -> float:
    """Of the four step sizes that are tried, each half as long as the one before."""
    return 0.01 if name in PRESETS else 2.0 * LABELLED[name][2]
