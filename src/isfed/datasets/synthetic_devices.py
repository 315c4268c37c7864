"""Synthetic(alpha, beta) of FedProx: every agent has a model and a cloud of points of its own."""

from __future__ import annotations

import numpy as np

from isfed.datasets.partition import Partition, by_column


def synthetic_devices(
    alpha: float = 1.0, beta: float = 1.0, *, num_agents: int = 30, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, Partition]:
    """Rows of 60 numbers, their classes 0 to 9, and who has which.

    Li et al. 2018 (arXiv 1812.06127), section 5.1: `alpha` is how much the agents' models differ,
    `beta` how much their points do. Sizes are 50 and a log-normal number.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(4.0, 2.0, num_agents).astype(np.int64) + 50
    scale = np.arange(1, 61) ** -0.6  # the root of a variance j^-1.2
    features, targets, owners = [], [], []
    for agent, size in enumerate(sizes):
        model_mean, point_mean = rng.normal(0.0, alpha), rng.normal(0.0, beta)
        weights, bias = rng.normal(model_mean, 1.0, (60, 10)), rng.normal(model_mean, 1.0, 10)
        x = rng.normal(point_mean, 1.0, 60) + scale * rng.standard_normal((size, 60))
        features.append(x.astype(np.float32))
        targets.append((x @ weights + bias).argmax(axis=1))
        owners.append(np.full(size, agent))
    return np.concatenate(features), np.concatenate(targets), by_column(np.concatenate(owners))
