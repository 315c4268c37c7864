"""What classification experiments measure along the way: errors and losses on rows held apart."""

from __future__ import annotations

from typing import Any

import numpy as np


class TestErrors:
    """Share of wrong rows, and the mean over classes of the share of wrong rows."""

    names: tuple[str, ...] = ("test_error", "balanced_error")

    def __init__(self, x: np.ndarray, y: np.ndarray, *, every: int) -> None:
        self.x, self.y, self.every = x, y, every
        self.classes = np.unique(y)

    def predict(self, params: np.ndarray) -> np.ndarray:
        """The class of every row for every model, (rows, R)."""
        if self.classes.size == 2:  # one score a row; a tie goes to the first class
            return self.classes[(self.x @ params.T > 0.0).astype(int)]
        matrices = params.reshape(len(params), self.classes.size, -1)
        best = [(self.x @ matrix.T).argmax(axis=1) for matrix in matrices]
        return self.classes[np.stack(best, axis=1)]

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """The two errors of every model, (R, 2)."""
        wrong = self.predict(params) != self.y[:, None]
        each = [wrong[self.y == c].mean(axis=0) for c in self.classes]
        return np.stack([wrong.mean(axis=0), np.mean(each, axis=0)], axis=1)

    def majority_error(self) -> float:
        """The error of always naming the most frequent class."""
        return float(1.0 - max((self.y == c).mean() for c in self.classes))


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
