"""What classification experiments measure along the way: errors and losses on rows held apart."""

from __future__ import annotations

from typing import Any

import numpy as np


class ErrorRates:
    """Share of wrong rows, and the mean over classes of the share of wrong rows."""

    names: tuple[str, ...] = ("test_error", "balanced_error")

    def __init__(self, x: np.ndarray, y: np.ndarray, *, every: int) -> None:
        order = np.argsort(y, kind="stable")  # class after class: the rows of one are a slice
        self.x, self.every = x[order], every
        self.classes, self.counts = np.unique(y, return_counts=True)

    def _places(self, x: np.ndarray, params: np.ndarray) -> np.ndarray:
        """The place in `classes` that every model gives to every row, (rows, R)."""
        if self.classes.size == 2:  # one score a row; a tie goes to the first class
            return x @ params.T > 0.0
        scores = x @ params.reshape(len(params) * self.classes.size, -1).T
        return scores.reshape(len(x), len(params), -1).argmax(axis=2)

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """The two errors of every model, (R, 2)."""
        ends = np.cumsum(self.counts)
        wrong = np.array(
            [
                np.count_nonzero(self._places(self.x[end - count : end], params) != c, axis=0)
                for c, (end, count) in enumerate(zip(ends, self.counts, strict=True))
            ]
        )
        balanced = (wrong / self.counts[:, None]).mean(axis=0)
        return np.stack([wrong.sum(axis=0) / self.counts.sum(), balanced], axis=1)

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows, features and targets."""
        return self.x, np.repeat(self.classes, self.counts)

    def majority_error(self) -> float:
        """The error of always naming the most frequent class."""
        return float(1.0 - self.counts.max() / self.counts.sum())


class HeldOutLoss:
    """The mean loss on rows held apart, each row with a weight of its own."""

    names: tuple[str, ...] = ("loss",)

    def __init__(
        self, loss: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray, *, every: int
    ) -> None:
        self.loss, self.x, self.y, self.every = loss, x, y, every
        self.weight = weight / weight.sum()

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """The loss of every model, (R, 1)."""
        values = [self.weight @ self.loss.values(w, self.x, self.y) for w in params]
        return np.array(values)[:, None]


class LossAndAccuracy:
    """Mean loss and share of right rows of softmax regression, on rows held apart."""

    names: tuple[str, ...] = ("loss", "accuracy")

    def __init__(self, loss: Any, x: np.ndarray, y: np.ndarray, *, every: int) -> None:
        self.loss, self.x, self.y, self.every = loss, x, y, every

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """The two of every model, (R, 2)."""
        values = np.empty((len(params), 2))
        for row, model in zip(values, params, strict=True):
            scores = self.x @ model.reshape(self.loss.num_classes, -1).T
            row[0] = self.loss.values(model, self.x, self.y).mean()
            row[1] = (scores.argmax(axis=1) == self.y).mean()
        return values
