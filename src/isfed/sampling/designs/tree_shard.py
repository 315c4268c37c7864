"""One place of a sharded tree: blocks of units in a row, and who asks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isfed.base.jit import compiled
from isfed.sampling import score_table as table
from isfed.sampling.score_table import ASIDE, FAN, RECORD, SHIFT

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
        root = which[i] * stride + count + RECORD * (table.num_nodes(count) - 1)
        for part in range(RECORD):
            out[i, part] = nodes[root + part]
    return out


@compiled
def _find_all(nodes, total, block, which, lows, targets, abc):
    """The unit of each block at each target, where it begins and its weight.

    Where rounding leads beyond the last leaf of a node, the unit is ~(the end of that node).
    """
    a, b, c = abc
    stride = table.table_size(block)
    units = np.empty(which.size, np.int64)
    starts, weights = np.empty(which.size), np.empty(which.size)
    for i in range(which.size):
        at = which[i] * stride
        count = min(block, total - which[i] * block)
        node, low = table._descend(nodes, at, count, abc, targets[i], lows[i])
        first = node << SHIFT
        last = min(first + FAN, count)
        reached, passed = low, 0
        for unit in range(first, last):
            reached += table._weight(nodes[at + unit], a, b, c)
            if reached <= targets[i]:
                passed += 1
                low = reached
        beyond = first + passed == last
        place = which[i] * block + first + passed
        units[i] = ~place if beyond else place
        starts[i] = low
        weights[i] = 0.0 if beyond else table._weight(nodes[at + first + passed], a, b, c)
    return units, starts, weights


@compiled
def _change(nodes, total, block, units, scores):
    """Set leaves, also to or from ASIDE; returns what they were."""
    stride = table.table_size(block)
    before, one, kept = np.empty(units.size), np.empty(1, np.int64), np.empty(1)
    for i in range(units.size):
        at = units[i] // block * stride
        count = min(block, total - units[i] // block * block)
        one[0] = units[i] % block
        before[i] = nodes[at + one[0]]
        kept[0] = scores[i]
        if scores[i] == ASIDE:
            table._set_aside(nodes, at, count, one, kept, 0, 1)
        elif before[i] == ASIDE:
            table._put_back(nodes, at, count, one, kept, 1)
        else:
            table.set_scores(nodes, at, count, one, kept, 1)
    return before


@compiled
def _sum_weights(nodes, block, begin, end, low, abc):
    """`low` plus the weights of the units from `begin` to `end`, one after the other."""
    a, b, c = abc
    stride = table.table_size(block)
    for unit in range(begin, end):
        low += table._weight(nodes[unit // block * stride + unit % block], a, b, c)
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
        before = _change(self._nodes, self._count, self._block, units, scores)
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
