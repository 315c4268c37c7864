"""Losses: value, gradient and per-example gradient norm, with the ridge inside every example.

A loss is one function, `gradient(params, x, y, weight) -> (weighted mean gradient, norms)`; the
generalised linear ones below share the compiled function of `isfed.problems.compiled_losses`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.special import expit, logsumexp, softmax

from isfed.base.argument_checks import check_whole, is_number, shown
from isfed.base.portable_arithmetic import row_squares
from isfed.problems import compiled_losses
from isfed.problems.compiled_losses import CompiledLoss
from isfed.problems.federated_data import FederatedData, frozen

LARGEST = 1e60  # of features, targets and ridge: their fourth powers enter limits and variances


class Loss(Protocol):
    """What an agent needs of a loss: `gradient`, and nothing else.

    A loss may also offer `num_params(num_features)`, which is one per feature otherwise, and
    `check_targets(targets)`, which raises a ValueError for a target without meaning. Risks need
    `values(params, x, y)`, the loss of every example; step-size limits need `curvature(x)`. What
    needs something that a loss lacks says so.
    """

    def gradient(
        self, params: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weighted mean gradient of a batch, and the norm of every example's gradient.

        Args:
            params: (M,) the model.
            x, y: the rows of the batch, (n, ...) and (n,).
            weight: (n,) the factor of every example; the mean is over n, whatever the weights sum
                to.
        """
        ...


def num_params_of(loss: Any, num_features: int) -> int:
    """M: one parameter per feature unless the loss says otherwise."""
    count = getattr(loss, "num_params", None)
    return num_features if count is None else count(num_features)


@dataclass(frozen=True)
class LinearLoss:
    """What the generalised linear losses share: a ridge and the compiled gradient.

    Args:
        ridge: rho, the weight of the squared length of the model in every example's loss.
    """

    ridge: float = 0.0
    kind: ClassVar[int]
    bend: ClassVar[float]  # the largest second derivative in the margin

    def __post_init__(self) -> None:
        if not (is_number(self.ridge) and 0.0 <= self.ridge <= LARGEST):
            raise ValueError(
                f"ridge={shown(self.ridge)} must be a finite number >= 0, at most {LARGEST:g}"
            )

    @cached_property
    def compiled(self) -> CompiledLoss:
        """The loss as compiled code takes it."""
        knee, rows = getattr(self, "knee", math.inf), getattr(self, "num_classes", 1)
        return CompiledLoss(self.kind, float(self.ridge), float(knee), int(rows))

    def gradient(self, params, x, y, weight):
        return compiled_losses.gradient_of(self.compiled, params, x, y, weight)

    def values(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of every example."""
        matrix = params.reshape(self.compiled.num_rows, -1)
        return self.of_margins(x @ matrix.T, y) + self.ridge * (params @ params)

    def of_margins(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of every example without the ridge, from its margins, (N, rows of params)."""
        raise NotImplementedError

    def slopes(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The derivatives of `of_margins`, (N, rows of params)."""
        raise NotImplementedError

    def bends(self, margins: np.ndarray, y: np.ndarray, change: np.ndarray) -> np.ndarray:
        """The second derivatives of `of_margins` times a change of the margins."""
        raise NotImplementedError

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """The Lipschitz constant of every example's gradient (delta of Assumption 1)."""
        return self.bend * row_squares(x) + 2.0 * self.ridge

    def prepare(self, data: FederatedData) -> FederatedData:
        """The data as a matrix of float64 with one float64 target per row, or a ValueError."""
        name = type(self).__name__
        if data.features.ndim != 2:
            raise ValueError(
                f"{name} needs features that are a matrix, got shape {data.features.shape}; "
                "reshape every example to one row of numbers"
            )
        if data.targets.ndim != 1:
            raise ValueError(
                f"{name} needs one target per example, got targets of shape {data.targets.shape}"
            )
        for what, values in (("features", data.features), ("targets", data.targets)):
            if max(float(values.max()), -float(values.min())) > LARGEST:
                raise ValueError(
                    f"{what} beyond {LARGEST:g} cannot be squared; standardise them, or choose "
                    "other units"
                )
        if data.features.dtype == data.targets.dtype == np.float64:
            return data
        features, targets = (frozen(a, np.float64) for a in (data.features, data.targets))
        return FederatedData(features, targets, data.offsets, data.weights)

    def num_params(self, num_features: int) -> int:
        return self.compiled.num_rows * num_features

    def check_targets(self, targets: np.ndarray) -> None:
        """Every finite number is a target, unless a loss says otherwise."""


@dataclass(frozen=True)
class LeastSquares(LinearLoss):
    """The squared error (y - x . params)^2 + ridge |params|^2, as in the paper's regression.

    Examples:
        >>> loss = LeastSquares(ridge=0.0)
        >>> loss.gradient(np.zeros(2), np.eye(2), np.array([1.0, 2.0]), np.ones(2))[0]
        array([-1., -2.])
    """

    kind: ClassVar[int] = compiled_losses.LEAST_SQUARES
    bend: ClassVar[float] = 2.0

    def of_margins(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (y - margins[:, 0]) ** 2

    def slopes(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -2.0 * (y[:, None] - margins)

    def bends(self, margins: np.ndarray, y: np.ndarray, change: np.ndarray) -> np.ndarray:
        return 2.0 * change


@dataclass(frozen=True)
class Huber(LinearLoss):
    """Least squares up to a residual of `knee`, linear beyond: outliers pull with bounded force.

    With r = y - x . params: r^2 if |r| <= knee, else knee (2 |r| - knee); plus ridge |params|^2.

    Args:
        knee: where the loss becomes linear, in units of the target.

    Examples:
        >>> Huber(knee=1.0).values(np.zeros(1), np.ones((2, 1)), np.array([0.5, 10.0]))
        array([ 0.25, 19.  ])
    """

    knee: float = 1.0
    kind: ClassVar[int] = compiled_losses.HUBER
    bend: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.knee) and 0.0 < self.knee <= LARGEST):
            raise ValueError(
                f"knee={shown(self.knee)} must be a finite number > 0, at most {LARGEST:g}"
            )

    def of_margins(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        residual = np.abs(y - margins[:, 0])
        linear = self.knee * (2.0 * residual - self.knee)
        return np.where(residual <= self.knee, residual**2, linear)

    def slopes(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -2.0 * np.clip(y[:, None] - margins, -self.knee, self.knee)

    def bends(self, margins: np.ndarray, y: np.ndarray, change: np.ndarray) -> np.ndarray:
        return np.where(np.abs(y[:, None] - margins) <= self.knee, 2.0 * change, 0.0)


@dataclass(frozen=True)
class Logistic(LinearLoss):
    """The logistic loss log(1 + exp(-y x . params)) + ridge |params|^2 for y in {-1, +1}."""

    kind: ClassVar[int] = compiled_losses.LOGISTIC
    bend: ClassVar[float] = 0.25

    def of_margins(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, -y * margins[:, 0])

    def slopes(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -y[:, None] * expit(-y[:, None] * margins)

    def bends(self, margins: np.ndarray, y: np.ndarray, change: np.ndarray) -> np.ndarray:
        return expit(margins) * expit(-margins) * change

    def check_targets(self, targets: np.ndarray) -> None:
        _check_each(targets, np.abs(targets) != 1.0, "logistic loss needs -1 or +1")


@dataclass(frozen=True, kw_only=True)
class Softmax(LinearLoss):
    """The softmax loss log(sum_c exp(x . w_c)) - x . w_y + ridge |params|^2, for several classes.

    The targets y are 0 to num_classes - 1. `params` is the matrix of all w_c, (classes x features),
    flattened row after row.

    Args:
        num_classes: how many classes there are.

    Examples:
        >>> loss = Softmax(num_classes=2)
        >>> gradient, norms = loss.gradient(np.zeros(2), np.ones((1, 1)), np.ones(1), np.ones(1))
        >>> gradient.tolist(), norms.round(4).tolist()
        ([0.5, -0.5], [0.7071])
    """

    num_classes: int
    kind: ClassVar[int] = compiled_losses.SOFTMAX
    bend: ClassVar[float] = 0.5  # of diag(p) - p p^T, reached by two classes of probability 1/2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.num_classes, name="num_classes", least=2)

    def of_margins(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        return logsumexp(margins, axis=1) - margins[np.arange(len(y)), y.astype(np.int64)]

    def slopes(self, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
        slopes = softmax(margins, axis=1)
        slopes[np.arange(len(y)), y.astype(np.int64)] -= 1.0
        return slopes

    def bends(self, margins: np.ndarray, y: np.ndarray, change: np.ndarray) -> np.ndarray:
        share = softmax(margins, axis=1)
        moved = share * change
        return moved - share * moved.sum(axis=1, keepdims=True)

    def check_targets(self, targets: np.ndarray) -> None:
        """Targets of all agents together are the whole numbers below `num_classes`, each at least
        once: a class that never occurs in training cannot be learned."""
        known = (targets >= 0) & (targets < self.num_classes) & (targets == np.floor(targets))
        expected = f"softmax loss needs a class, 0 to {self.num_classes - 1}"
        _check_each(targets, ~known, expected)
        counts = np.bincount(targets.astype(np.int64), minlength=self.num_classes)
        absent = np.flatnonzero(counts == 0)
        if absent.size:
            raise ValueError(
                f"class {absent[0]} of num_classes={self.num_classes} never occurs in the targets "
                f"({absent.size} such); leave it out and number the others 0, 1, ..."
            )


def _check_each(targets: np.ndarray, bad: np.ndarray, expected: str) -> None:
    """Raise a ValueError for the first bad target."""
    places = np.flatnonzero(bad)
    if places.size:
        raise ValueError(
            f"targets[{places[0]}]={targets[places[0]]} but {expected} ({places.size} such)"
        )
