"""Means and standard deviations of all agents' features, from sums alone: no row moves.

Agents report twice, sums and then squared deviations from the mean of all: the difference of two
large sums would lose every digit of a feature such as a time stamp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isfed.problems.federated_data import FederatedData


@dataclass(frozen=True, eq=False)
class Scaling:
    """x -> (x - mean) / scale, feature by feature.

    Args:
        mean: (M,) what is subtracted.
        scale: (M,) what is divided by.
    """

    mean: np.ndarray
    scale: np.ndarray

    def apply(self, features: np.ndarray) -> np.ndarray:
        """The standardised features; also for examples that the scaling was not made from."""
        return (features - self.mean) / self.scale


def agent_sums(features: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What every agent reports first: (K, M) counts and sums of its values, NaN left out."""
    known = ~np.isnan(features)
    counts = np.add.reduceat(known, offsets[:-1], axis=0, dtype=np.int64)
    sums = np.add.reduceat(np.where(known, features, 0.0), offsets[:-1], axis=0)
    return counts, sums


def agent_squares(features: np.ndarray, offsets: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """What every agent reports second: (K, M) sums of the squared deviations from the mean."""
    deviation = features - mean
    return np.add.reduceat(np.where(np.isnan(deviation), 0.0, deviation**2), offsets[:-1], axis=0)


def federated_mean(features: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The mean of every feature over all rows that have it; 0 where none has."""
    counts, sums = agent_sums(features, offsets)
    return sums.sum(axis=0) / np.maximum(counts.sum(axis=0), 1)


def federated_scaling(features: np.ndarray, offsets: np.ndarray) -> Scaling:
    """Mean and standard deviation over all rows; a constant feature keeps the scale 1."""
    mean = federated_mean(features, offsets)
    counts, _ = agent_sums(features, offsets)
    squares = agent_squares(features, offsets, mean).sum(axis=0)
    scale = np.sqrt(squares / np.maximum(counts.sum(axis=0), 1))
    # A constant deviates from its own rounded mean by rounding alone: that is no spread.
    constant = scale <= 1e-12 * np.abs(mean)
    return Scaling(mean, np.where(constant, 1.0, scale))


def standardise(data: FederatedData) -> tuple[FederatedData, Scaling]:
    """Scale features to mean 0 and standard deviation 1; returns the data and the scaling.

    Args:
        data: The examples of all agents. Mean and deviation are computed from the agents' sums.

    >>> data, scaling = standardise(FederatedData.from_agents([([[1.0]], [0.0]), ([[3.0]], [0.0])]))
    >>> data.features.ravel().tolist(), scaling.mean.tolist()
    ([-1.0, 1.0], [2.0])
    """
    scaling = federated_scaling(data.features, data.offsets)
    scaled = scaling.apply(data.features)
    return FederatedData(scaled, data.targets, data.offsets, data.weights), scaling
