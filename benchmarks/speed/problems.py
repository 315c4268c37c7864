"""The problems that are measured, and the algorithms on them."""

from __future__ import annotations

import numpy as np

from isfed import (
    Deville,
    FedAvg,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    Logistic,
    Problem,
    Regression,
    Uniform,
)
from isfed.sampling.designs import Design

STEP_SIZE = 0.01


def regression() -> Problem:
    """W1: least squares, K=300, N=100, M=2, E=3, B=5."""
    recipe = Regression(name="W1", local_steps=(3, 3), batch_size=(5, 5))
    return recipe.make(seed=0)


def logistic(
    *, name: str, sizes: np.ndarray, num_features: int, batch_size: int, seed: int = 0
) -> Problem:
    """Two classes from a linear model; agents differ in the length of their features."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(num_features)
    length = np.repeat(np.exp(rng.normal(0.0, 0.5, sizes.size)), sizes)
    features = rng.standard_normal((sizes.sum(), num_features))
    features *= length[:, None] / np.sqrt(num_features)
    chance = 1.0 / (1.0 + np.exp(-features @ truth))
    targets = np.where(rng.random(sizes.sum()) < chance, 1.0, -1.0)
    data = FederatedData(features, targets, np.concatenate([[0], np.cumsum(sizes)]))
    return Problem(data=data, loss=Logistic(ridge=1e-3), batch_size=batch_size, name=name)


def ragged() -> Problem:
    """W2: logistic, K=100, N=79..688, M=22, E=B=1."""
    sizes = np.random.default_rng(1).integers(79, 688, size=100, endpoint=True)
    sizes[:2] = 79, 688
    return logistic(name="W2", sizes=sizes, num_features=22, batch_size=1)


def wide() -> Problem:
    """W3: logistic on 784 features, K=100, N about 100, E=1, B=10."""
    sizes = np.random.default_rng(2).integers(80, 120, size=100, endpoint=True)
    return logistic(name="W3", sizes=sizes, num_features=784, batch_size=10)


NUM_ACTIVE = {"W1": 6, "W2": 10, "W3": 10}  # L


def fedavg(problem: Problem) -> ISFedAvg:
    """FedAvg: uniform agents, uniform batches with replacement."""
    return FedAvg(step_size=STEP_SIZE, num_active=NUM_ACTIVE[problem.name])


def uniform(problem: Problem) -> ISFedAvg:
    """ISFedAvg with equal probabilities, without replacement on both sides."""
    return ISFedAvg(
        step_size=STEP_SIZE,
        num_active=NUM_ACTIVE[problem.name],
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=HartleyRao(),
    )


def memory(problem: Problem, design: Design | None = None) -> ISFedAvg:
    """ISFedAvg with memory policies, one design on both sides."""
    design = design or Deville()
    return ISFedAvg(
        step_size=STEP_SIZE,
        num_active=NUM_ACTIVE[problem.name],
        agent_design=design,
        example_design=design,
    )
