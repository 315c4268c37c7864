"""Federated data: one flat block of examples and one offset per agent, ragged and never padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.base.argument_checks import as_numbers, check_whole, shown


def frozen(array: np.ndarray, dtype: Any) -> np.ndarray:
    """A read-only copy; an array that is read-only already is taken as it is."""
    if array.dtype == dtype and array.flags.c_contiguous and not array.flags.writeable:
        return array
    copy = np.array(array, dtype=dtype, order="C")
    copy.flags.writeable = False
    return copy


def _numbers(value: Any, *, name: str) -> np.ndarray:
    """A frozen array of numbers or truth values, in the type that it has."""
    array = as_numbers(value, name=name)
    # A byte order or a width that other libraries do not know becomes the machine's own.
    native = array.dtype.newbyteorder("=")
    return frozen(array, np.float64 if native.itemsize > 8 else native)


def _weights(given: Any, num_agents: int) -> np.ndarray:
    """How much every agent counts, with mean 1."""
    weights = as_numbers(given, name="weights", objects=True).astype(np.float64)
    if weights.shape != (num_agents,) or not (np.isfinite(weights).all() and weights.min() > 0.0):
        raise ValueError(
            f"weights must be {num_agents} positive numbers, one per agent, got {weights}"
        )
    return frozen(weights / weights.mean(), np.float64)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """The examples of all agents; agent k owns the rows offsets[k] to offsets[k + 1].

    A row may have any shape and type: a vector of floats, an image, the numbers of words. A loss
    says what it takes when a `Problem` is made of both.

    Args:
        features: (sum of N_k, ...), one row per example; linear losses need (sum of N_k, M).
        targets: (sum of N_k, ...), most often one number per example.
        offsets: (K + 1,), from 0 to the number of rows.
        weights: (K,), how much every agent counts in the risk, in any unit; all the same unless
            given.

    Examples:
        >>> data = FederatedData.from_agents([([[1.0], [2.0]], [0.0, 1.0]), ([[3.0]], [1.0])])
        >>> data.num_agents, data.num_examples.tolist()
        (2, [2, 1])
    """

    features: np.ndarray
    targets: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        features = _numbers(self.features, name="features")
        targets = _numbers(self.targets, name="targets")
        given = as_numbers(self.offsets, name="offsets")
        if not np.issubdtype(given.dtype, np.integer):
            raise ValueError(f"offsets={shown(self.offsets)} must be whole numbers")
        offsets = frozen(given, np.int64)
        if features.ndim < 1 or 0 in features.shape[1:]:
            raise ValueError(f"features must have one row per example, got shape {features.shape}")
        if targets.shape[:1] != (len(features),):
            raise ValueError(f"{len(features)} rows of features but targets of {targets.shape}")
        if offsets.ndim != 1 or offsets.size < 2 or offsets[0] != 0 or offsets[-1] != len(features):
            raise ValueError(f"offsets must lead from 0 to {len(features)}, the number of rows")
        empty = np.flatnonzero(np.diff(offsets) < 1)
        if empty.size:
            raise ValueError(f"agent {empty[0]} has no examples ({empty.size} such)")
        for name, array in (("features", features), ("targets", targets)):
            if array.dtype.kind != "f":
                continue
            # A sum is finite only if every entry is, and needs no second array of that size.
            with np.errstate(over="ignore", invalid="ignore"):
                finite = np.isfinite(array.sum()) or np.isfinite(array).all()
            if not finite:
                where = np.argwhere(~np.isfinite(array))[0]
                raise ValueError(f"{name}{where.tolist()} is {array[tuple(where)]}, not finite")
        vars(self).update(features=features, targets=targets, offsets=offsets)
        if self.weights is not None:
            vars(self)["weights"] = _weights(self.weights, offsets.size - 1)

    @classmethod
    def from_agents(cls, agents: Sequence[tuple]) -> FederatedData:
        """From one (features, targets) pair per agent."""
        if not isinstance(agents, Sequence) or isinstance(agents, str):
            raise TypeError(f"agents={shown(agents)} must be a list of (features, targets)")
        if not agents:
            raise ValueError("agents is empty: there must be at least one agent")
        for agent, pair in enumerate(agents):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise TypeError(f"agents[{agent}]={shown(pair)} must be (features, targets)")
        blocks = [as_numbers(x, name=f"features of agent {k}") for k, (x, _) in enumerate(agents)]
        labels = [as_numbers(y, name=f"targets of agent {k}") for k, (_, y) in enumerate(agents)]
        for agent, (x, y) in enumerate(zip(blocks, labels, strict=True)):
            if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
                raise ValueError(f"agent {agent}: features {x.shape} and targets {y.shape}")
            for name, row, first in (("features", x, blocks[0]), ("targets", y, labels[0])):
                if row.shape[1:] != first.shape[1:]:
                    raise ValueError(
                        f"agent {agent} has {name} of shape {row.shape[1:]} per example, agent 0 "
                        f"has {first.shape[1:]}"
                    )
        offsets = np.cumsum([0, *(len(x) for x in blocks)])
        return cls(np.concatenate(blocks), np.concatenate(labels), offsets)

    @property
    def num_agents(self) -> int:
        """K."""
        return self.offsets.size - 1

    @property
    def num_features(self) -> int:
        """The numbers in a row; M, for the losses with one parameter per feature."""
        return math.prod(self.features.shape[1:])

    @property
    def num_examples(self) -> np.ndarray:
        """N_k of every agent."""
        return np.diff(self.offsets)

    def agent(self, agent: int) -> tuple[np.ndarray, np.ndarray]:
        """Views of one agent's features and targets."""
        if check_whole(agent, name="agent", least=0) >= self.num_agents:
            raise ValueError(f"agent={agent} must be below num_agents={self.num_agents}")
        rows = slice(self.offsets[agent], self.offsets[agent + 1])
        return self.features[rows], self.targets[rows]

    @property
    def agent_weights(self) -> np.ndarray:
        """How much every agent counts in the risk, (K,), with mean 1."""
        return np.ones(self.num_agents) if self.weights is None else self.weights

    def row_weights(self) -> np.ndarray:
        """1 / (K N_k) for every row: the weight of an example in the risk of eq. (1).

        Times the weight of its agent, where agents have weights.
        """
        sizes = self.num_examples
        return np.repeat(self.agent_weights / (self.num_agents * sizes), sizes)
