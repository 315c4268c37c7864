"""A sum tree over weights: fixed-size draws from millions of units while the weights change."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.argument_checks import as_numbers, shown
from isfed.base.interpret_first import InterpretFirst
from isfed.base.random_streams import as_stream
from isfed.sampling import score_table as table
from isfed.sampling.designs.design_protocol import RandomSource
from isfed.sampling.designs.inclusion import check_num, check_scores
from isfed.sampling.designs.systematic import Deville, Systematic

_table_light = InterpretFirst(table.table_of, lambda weights: 5 * weights.size)
_draw_light = InterpretFirst(table.draw_from_table, lambda nodes, count, floor, num, *_: 200 * num)
_update_light = InterpretFirst(
    table.set_scores, lambda nodes, at, count, units, *_: 100 * units.size
)


class SumTree:
    """Weights of N units; draws n of them and changes m weights in O((n + m) log N).

    Threads may share a tree: its draws and updates come one after the other. (A `Stream` that
    threads share is theirs to guard.)

    Args:
        weights: (N,) numbers >= 0.

    Examples:
        >>> tree = SumTree([1.0, 2.0, 3.0, 4.0])
        >>> units, inclusion = tree.draw(2, rng=0)
        >>> tree.update(units, [5.0, 5.0])
        >>> tree.total > 10
        True
    """

    def __init__(self, weights: ArrayLike) -> None:
        values = check_scores(weights, name="weights")
        self._count = values.size
        self._nodes = _table_light(values)
        self._positive = int(np.count_nonzero(values))
        # A draw sets its certain units aside in the tree and puts them back, and compiled code
        # releases the interpreter's lock. A copy of the tree for each draw would cost O(N).
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # a copy in the middle of a draw would lack the units set aside
            state = {name: value for name, value in vars(self).items() if name != "_lock"}
            return {**state, "_nodes": self._nodes.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    @property
    def total(self) -> float:
        """The sum of the weights."""
        with self._lock:
            return float(self._nodes[-table.RECORD])

    @property
    def weights(self) -> np.ndarray:
        """A copy of the weights."""
        with self._lock:
            return self._nodes[: self._count].copy()

    def update(self, units: ArrayLike, weights: ArrayLike) -> None:
        """Change the weights of some units; of a unit named twice the last weight counts."""
        index = np.atleast_1d(as_numbers(units, name="units"))
        values = check_scores(np.atleast_1d(as_numbers(weights, name="weights")), name="weights")
        if index.shape != values.shape:
            raise ValueError(f"{index.size} units but {values.size} weights")
        if not np.issubdtype(index.dtype, np.integer):
            raise ValueError(f"units must be integers, got {index.dtype}")
        outside = (index < 0) | (index >= self._count)
        if outside.any():
            raise ValueError(f"unit {index[outside][0]} is outside 0..{self._count - 1}")
        distinct = np.unique(index).astype(np.int64)
        with self._lock:
            before = self._nodes[distinct]
            _update_light(self._nodes, 0, self._count, index.astype(np.int64), values, index.size)
            if not np.isfinite(self._nodes[-table.RECORD]):
                _update_light(self._nodes, 0, self._count, distinct, before, distinct.size)
                raise ValueError("the sum of the weights overflows; divide them by their maximum")
            after = self._nodes[distinct]
            self._positive += int(np.count_nonzero(after)) - int(np.count_nonzero(before))

    def draw(
        self, num: int, rng: RandomSource, *, design: Systematic | Deville | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`num` distinct units and the inclusion probability of each (Deville by default)."""
        num = check_num(num, self._count)
        design = Deville() if design is None else design
        if not isinstance(design, Systematic | Deville):
            raise ValueError(f"design: a tree draws Systematic() or Deville(), not {shown(design)}")
        state = as_stream(rng).state
        with self._lock:
            if num > self._positive:
                raise ValueError(f"num={num} exceeds the {self._positive} units of positive weight")
            units, prob = _draw_light(self._nodes, self._count, 0.0, num, design.code, False, state)
        return units, np.minimum(prob * num, 1.0)  # rounding
