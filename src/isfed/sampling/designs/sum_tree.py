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
from isfed.sampling import table_draws
from isfed.sampling.designs.design_protocol import RandomSource
from isfed.sampling.designs.inclusion import check_num, check_scores
from isfed.sampling.designs.systematic import Deville, Systematic

_table_light = InterpretFirst(table.table_of, lambda weights: 5 * weights.size)
_draw_light = InterpretFirst(
    table_draws.draw_from_table, lambda nodes, count, floor, num, *_: 200 * num
)
_update_light = InterpretFirst(
    table.swap_scores, lambda nodes, at, count, units, *_: 100 * units.size
)


def check_changes(
    units: ArrayLike, weights: ArrayLike, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Units of a tree of `count` and their new weights, or an error that says what is wrong."""
    index = np.atleast_1d(as_numbers(units, name="units"))
    values = check_scores(np.atleast_1d(as_numbers(weights, name="weights")), name="weights")
    if index.shape != values.shape:
        raise ValueError(f"{index.size} units but {values.size} weights")
    if not np.issubdtype(index.dtype, np.integer):
        raise ValueError(f"units must be integers, got {index.dtype}")
    outside = (index < 0) | (index >= count)
    if outside.any():
        raise ValueError(f"unit {index[outside][0]} is outside 0..{count - 1}")
    return index.astype(np.int64), values


def check_draw(num: int, count: int, positive: int, design: Any) -> int:
    """The code of a draw's design, Deville's unless given, or an error that says what is wrong."""
    check_num(num, count)
    design = Deville() if design is None else design
    if not isinstance(design, Systematic | Deville):
        raise ValueError(f"design: a tree draws Systematic() or Deville(), not {shown(design)}")
    if num > positive:
        raise ValueError(f"num={num} exceeds the {positive} units of positive weight")
    return design.code


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
        index, values = check_changes(units, weights, self._count)
        distinct = np.unique(index)
        with self._lock:
            before = self._nodes[distinct]
            _update_light(self._nodes, 0, self._count, index, values, 0, index.size)
            if not np.isfinite(self._nodes[-table.RECORD]):
                _update_light(self._nodes, 0, self._count, distinct, before, 0, distinct.size)
                raise ValueError("the sum of the weights overflows; divide them by their maximum")
            after = self._nodes[distinct]
            self._positive += int(np.count_nonzero(after)) - int(np.count_nonzero(before))

    def draw(
        self, num: int, rng: RandomSource, *, design: Systematic | Deville | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`num` distinct units and the inclusion probability of each (Deville by default)."""
        state = as_stream(rng).state
        with self._lock:
            code = check_draw(num, self._count, self._positive, design)
            units, prob = _draw_light(self._nodes, self._count, 0.0, int(num), code, False, state)
        return units, np.minimum(prob * num, 1.0)  # rounding
