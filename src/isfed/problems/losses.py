"""Losses: value, gradient and per-example gradient norm, with the ridge inside every example.

A loss is one function, `gradient(params, x, y, weight) -> (weighted mean gradient, norms)`. For a
generalised linear loss the gradient of one example is `slope x + 2 ridge params`, so its norm has
a closed form and the matrix of per-example gradients is never built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from isfed.compiled import compiled, inlined

# The losses that compiled code knows, by number.
LEAST_SQUARES, LOGISTIC = 0, 1


class Loss(Protocol):
    """What an agent needs of a loss; a neural network only has to supply this."""

    def gradient(
        self, params: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weighted mean gradient of a batch, and the norm of every example's gradient."""
        ...

    def num_params(self, num_features: int) -> int:
        """The length of `params` for examples of that many features."""
        ...

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise a ValueError that names the first target the loss has no meaning for."""
        ...


@inlined
def _dot(values, row, params, size):
    """The inner product of one row with `params`, in eight lanes of a fixed order."""
    whole = size & ~7
    if whole == 0:
        total = 0.0
        for j in range(size):
            total += values[row, j] * params[j]
        return total
    s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(0, whole, 8):
        s0 += values[row, j] * params[j]
        s1 += values[row, j + 1] * params[j + 1]
        s2 += values[row, j + 2] * params[j + 2]
        s3 += values[row, j + 3] * params[j + 3]
        s4 += values[row, j + 4] * params[j + 4]
        s5 += values[row, j + 5] * params[j + 5]
        s6 += values[row, j + 6] * params[j + 6]
        s7 += values[row, j + 7] * params[j + 7]
    total = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
    for j in range(whole, size):
        total += values[row, j] * params[j]
    return total


@inlined
def _square(values, row, size):
    """The squared length of one row, in the same lanes."""
    whole = size & ~7
    s0, s1, s2, s3, s4, s5, s6, s7 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(0, whole, 8):
        s0 += values[row, j] * values[row, j]
        s1 += values[row, j + 1] * values[row, j + 1]
        s2 += values[row, j + 2] * values[row, j + 2]
        s3 += values[row, j + 3] * values[row, j + 3]
        s4 += values[row, j + 4] * values[row, j + 4]
        s5 += values[row, j + 5] * values[row, j + 5]
        s6 += values[row, j + 6] * values[row, j + 6]
        s7 += values[row, j + 7] * values[row, j + 7]
    total = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
    for j in range(whole, size):
        total += values[row, j] * values[row, j]
    return total


@inlined
def _slope(kind, margin, target):
    """The derivative of an example's loss in its margin x . params."""
    if kind == LEAST_SQUARES:
        return -2.0 * (target - margin)
    return -target / (1.0 + math.exp(target * margin))  # logistic


@inlined
def moved_target(features, targets, row, shift):
    """The target of one example when the true model has moved by `shift` (empty: it has not)."""
    target = targets[row]
    for j in range(shift.size):
        target += features[row, j] * shift[j]
    return target


@inlined
def batch_gradient(loss, params, examples, first, units, weight, num, scored, out):
    """Weighted mean gradient of the examples `first + units[:num]`, into out = (gradient, norms).

    `examples` is (features, targets, shift). The norms are left alone unless `scored`.
    """
    kind, ridge = loss
    features, targets, shift = examples
    gradient, norms = out
    size = params.size
    pull = 2.0 * ridge
    length = 0.0
    for j in range(size):
        gradient[j] = 0.0
        length += params[j] * params[j]
    total = 0.0
    for i in range(num):
        row = np.uint64(first + units[i])  # unsigned: see `designs.table`
        margin = _dot(features, row, params, size)
        slope = _slope(kind, margin, moved_target(features, targets, row, shift))
        factor = weight[i] * slope
        for j in range(size):
            gradient[j] += factor * features[row, j]
        total += weight[i]
        if scored:  # |slope x + pull params|^2
            square = slope * slope * _square(features, row, size)
            square += pull * (2.0 * slope * margin + pull * length)
            norms[i] = math.sqrt(max(square, 0.0))
    for j in range(size):
        gradient[j] = (gradient[j] + total * pull * params[j]) / num


@compiled
def _gradient(loss, params, features, targets, weight):
    num = targets.size
    out = (np.empty(params.size), np.empty(num))
    examples = (features, targets, np.empty(0))
    batch_gradient(loss, params, examples, 0, np.arange(num), weight, num, True, out)
    return out


def _check_ridge(ridge: float) -> None:
    if not (math.isfinite(ridge) and ridge >= 0.0):
        raise ValueError(f"ridge={ridge} must be a finite number >= 0")


@dataclass(frozen=True)
class LeastSquares:
    """(y - x . params)^2 + ridge |params|^2, as in the paper's regression.

    >>> loss = LeastSquares(ridge=0.0)
    >>> loss.gradient(np.zeros(2), np.eye(2), np.array([1.0, 2.0]), np.ones(2))[0]
    array([-1., -2.])
    """

    ridge: float = 0.0
    kind: ClassVar[int] = LEAST_SQUARES

    def __post_init__(self) -> None:
        _check_ridge(self.ridge)

    @property
    def compiled(self) -> tuple[int, float]:
        """The loss as compiled code takes it."""
        return (self.kind, float(self.ridge))

    def gradient(self, params, x, y, weight):
        """The weighted mean gradient of a batch, and the norm of every example's gradient."""
        return _gradient(self.compiled, params, x, y, weight)

    def values(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of every example."""
        return (y - x @ params) ** 2 + self.ridge * (params @ params)

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """The Lipschitz constant of every example's gradient (delta of Assumption 1)."""
        return 2.0 * np.einsum("ij,ij->i", x, x) + 2.0 * self.ridge

    def num_params(self, num_features: int) -> int:
        """One parameter per feature."""
        return num_features

    def check_targets(self, targets: np.ndarray) -> None:
        """Every finite number is a target."""


@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(-y x . params)) + ridge |params|^2 for y in {-1, +1}."""

    ridge: float = 0.0
    kind: ClassVar[int] = LOGISTIC

    def __post_init__(self) -> None:
        _check_ridge(self.ridge)

    @property
    def compiled(self) -> tuple[int, float]:
        """The loss as compiled code takes it."""
        return (self.kind, float(self.ridge))

    def gradient(self, params, x, y, weight):
        """The weighted mean gradient of a batch, and the norm of every example's gradient."""
        return _gradient(self.compiled, params, x, y, weight)

    def values(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of every example."""
        return np.logaddexp(0.0, -y * (x @ params)) + self.ridge * (params @ params)

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """The Lipschitz constant of every example's gradient (delta of Assumption 1)."""
        return 0.25 * np.einsum("ij,ij->i", x, x) + 2.0 * self.ridge

    def num_params(self, num_features: int) -> int:
        """One parameter per feature."""
        return num_features

    def check_targets(self, targets: np.ndarray) -> None:
        """Targets are -1 or +1."""
        bad = np.flatnonzero(np.abs(targets) != 1.0)
        if bad.size:
            raise ValueError(
                f"targets[{bad[0]}]={targets[bad[0]]} but logistic loss needs -1 or +1 "
                f"({bad.size} such)"
            )
