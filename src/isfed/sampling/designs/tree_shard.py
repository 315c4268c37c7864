"""One place of a sharded tree: blocks of units in a row, and who asks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isfed.base.jit import compiled
from isfed.sampling import score_table as table
from isfed.sampling.score_table import RECORD, SHIFT
from isfed.sampling.table_draws import descend, find_in_block

Calls = Sequence[tuple[Any, str, tuple]]  # of shards: which, what, with which arguments
Found = tuple[np.ndarray, np.ndarray, np.ndarray]  # units, where they begin, their weights


@compiled
def _build(weights, block):
    """The tables of all blocks, one after the other."""
    blocks = (weights.size + block - 1) // block
    stride = table.table_size(block)
    nodes = np.zeros(blocks * stride)
    for i in range(blocks):
        count = min(block, weights.size - i * block)
        for unit in range(count):
            nodes[i * stride + unit] = weights[i * block + unit]
        table.rebuild(nodes, i * stride, count)
    return nodes


@compiled
def _roots(nodes, total, block, which):
    """(n, 3) the root records of some blocks."""
    stride = table.table_size(block)
    out = np.empty((which.size, RECORD))
    for i in range(which.size):
        count = min(block, total - which[i] * block)
        root = table.root_of(which[i] * stride, count)
        for part in range(RECORD):
            out[i, part] = nodes[root + part]
    return out


@compiled
def _find_all(nodes, total, block, which, lows, targets, abc):
    """The unit of each block at each target, where it begins and its weight.

    Where rounding leads beyond the last leaf of a node, the unit is ~(the end of that node).
    """
    stride = table.table_size(block)
    units = np.empty(which.size, np.int64)
    starts, weights = np.empty(which.size), np.empty(which.size)
    for i in range(which.size):
        at = which[i] * stride
        count = min(block, total - which[i] * block)
        node, low = descend(nodes, at, count, abc, targets[i], lows[i])
        unit, starts[i] = find_in_block(nodes, at, count, abc, node, low, False, targets[i])
        beyond = unit == min((node + 1) << SHIFT, count)
        place = which[i] * block + unit
        units[i] = ~place if beyond else place
        weights[i] = 0.0 if beyond else table.weight_of(nodes[at + unit], abc)
    return units, starts, weights


@compiled
def _change(nodes, total, block, units, scores):
    """Set leaves, also to or from ASIDE; `scores` then has what they were."""
    stride = table.table_size(block)
    one = np.empty(1, np.int64)
    for i in range(units.size):
        at = units[i] // block * stride
        count = min(block, total - units[i] // block * block)
        one[0] = units[i] % block
        table.swap_scores(nodes, at, count, one, scores[i : i + 1], 0, 1)


@compiled
def _sum_weights(nodes, block, begin, end, low, abc):
    """`low` plus the weights of the units from `begin` to `end`, one after the other."""
    stride = table.table_size(block)
    for unit in range(begin, end):
        low += table.weight_of(nodes[unit // block * stride + unit % block], abc)
    return low


class Shard:
    """Some neighbouring units of a sharded tree; it may live in another process.

    Args:
        weights: (n,) of its units.
        block: units of a block, a power of 16.
    """

    def __init__(self, weights: np.ndarray, block: int) -> None:
        self._count, self._block = weights.size, block
        self._nodes = _build(np.ascontiguousarray(weights, np.float64), block)

    def roots(self, which: np.ndarray | None = None) -> np.ndarray:
        """(n, 3) the sum, the units seen and those unseen of some blocks, or of all."""
        blocks = -(-self._count // self._block)
        return _roots(
            self._nodes, self._count, self._block, np.arange(blocks) if which is None else which
        )

    def find(self, which: np.ndarray, lows: np.ndarray, targets: np.ndarray, abc: Any) -> Found:
        """The units at some cumulative weights, in blocks that begin at `lows`."""
        return _find_all(self._nodes, self._count, self._block, which, lows, targets, abc)

    def change(self, units: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Set some leaves; what they were, and the roots of their blocks now."""
        before = scores.copy()
        _change(self._nodes, self._count, self._block, units, before)
        return before, self.roots(np.unique(units // self._block))

    def leaves(self) -> np.ndarray:
        """(n,) a copy of all leaves."""
        tables = self._nodes.reshape(-1, table.table_size(self._block))
        return tables[:, : self._block].reshape(-1)[: self._count].copy()

    def sum_weights(self, begin: int, end: int, low: float, abc: Any) -> float:
        """`low` plus the weights of some units, one after the other."""
        return float(_sum_weights(self._nodes, self._block, begin, end, low, abc))


def ask_here(calls: Calls) -> list[Any]:
    """Call shards of this process."""
    return [getattr(shard, name)(*arguments) for shard, name, arguments in calls]


def on_ray() -> dict[str, Any]:
    """Let the shards of a `ShardedTree` be actors of the Ray cluster this process is connected to.

    `ShardedTree(weights, shards=16, **on_ray())`; a question goes to all actors at once.
    """
    import ray  # pyright: ignore[reportMissingImports]

    actor: Any = ray.remote(Shard)

    def ask(calls: Calls) -> list[Any]:
        return ray.get([getattr(shard, name).remote(*given) for shard, name, given in calls])

    return {"start": actor.remote, "ask": ask}
