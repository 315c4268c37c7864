"""A sum tree in shards: the draws of one `SumTree`, bit for bit, from weights in several places.

The tree has 16 children at every node, so a block of 16^m neighbouring units is a subtree of its
own. A shard keeps some blocks in a row, and the coordinator the few levels above them. A draw asks
each shard twice, for many places at once: first which units lie on the borders of the strata, then
which units lie at the places that follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isfed.base.argument_checks import check_whole, shown
from isfed.base.jit import compiled
from isfed.base.random_streams import Stream, as_stream
from isfed.sampling.designs.design_protocol import RandomSource
from isfed.sampling.designs.inclusion import check_scores
from isfed.sampling.designs.sum_tree import SumTree, check_changes, check_draw
from isfed.sampling.designs.systematic import Deville, Systematic
from isfed.sampling.designs.tree_shard import Calls, Found, Shard, ask_here
from isfed.sampling.score_table import (
    ASIDE,
    FAN,
    LIFT,
    RECORD,
    SHIFT,
    TINY,
    num_nodes,
    rebuild_above,
)
from isfed.sampling.table_draws import MOST_BLOCKS, descend

SMALL = FAN * MOST_BLOCKS  # units up to which a single tree scans its blocks


def _top_of(roots: np.ndarray) -> np.ndarray:
    """The levels above the blocks as one array of records, root last."""
    top = np.empty((num_nodes(FAN * len(roots)), RECORD))
    top[: len(roots)] = roots
    rebuild_above(top.reshape(-1), 0, len(roots))
    return top


@compiled
def _blocks_at(top, count, targets, abc):
    """The block at every cumulative weight and where it begins.

    Each block is below a node of `top` as 16 leaves are below one of a table.
    """
    blocks, lows = np.empty(targets.size, np.int64), np.empty(targets.size)
    for i in range(targets.size):
        blocks[i], lows[i] = descend(top, -FAN * count, FAN * count, abc, targets[i], 0.0)
    return blocks, lows


@compiled
def _places(borders, starts, weights, step, uniforms, known):
    """Deville's places in every stratum: the target, or nan where the border unit is taken.

    Whether the border was taken in the stratum before is `known`, or -1 where it is to be read off
    where the border begins; the second result says what was used.
    """
    targets, used = np.full(borders.size, np.nan), np.zeros(borders.size, np.int64)
    for stratum in range(borders.size):
        edge = stratum * step
        before = max(edge - starts[stratum], 0.0)
        after = weights[stratum] - before
        share = uniforms[stratum]
        taken = False
        if not used[stratum]:
            chance = after / (step - before)
            taken = share < chance
            if not taken:
                share = (share - chance) / (1.0 - chance)
        if not taken:
            targets[stratum] = edge + after + share * (step - after)
        if stratum + 1 < borders.size:
            same = borders[stratum] == borders[stratum + 1]
            used[stratum + 1] = same if taken else targets[stratum] >= starts[stratum + 1]
            if known[stratum + 1] >= 0:
                used[stratum + 1] = known[stratum + 1]
    return targets, used


class ShardedTree:
    """Weights of N units in shards; every draw is that of one `SumTree` for the same uniforms.

    Args:
        weights: (N,) numbers >= 0.
        shards: how many.
        block: units of a block, a power of 16; the coordinator keeps three numbers for each.
        start: makes a shard from its weights and the size of a block; `Shard` unless given.
        ask: calls shards, all at once if it can; in this process unless given.

    Examples:
        >>> tree = ShardedTree(range(1, 5001), shards=4, block=256)
        >>> units, inclusion = tree.draw(3, rng=0)
        >>> one = SumTree(range(1, 5001)).draw(3, rng=0)
        >>> units.tolist() == one[0].tolist(), inclusion.tolist() == one[1].tolist()
        (True, True)
    """

    def __init__(
        self,
        weights: ArrayLike,
        *,
        shards: int = 1,
        block: int = 4096,
        start: Callable[[np.ndarray, int], Any] = Shard,
        ask: Callable[[Calls], list[Any]] = ask_here,
    ) -> None:
        values = check_scores(weights, name="weights")
        check_whole(shards, name="shards", least=1)
        if block not in [FAN << SHIFT * power for power in range(7)]:
            raise ValueError(f"block={shown(block)} must be a power of {FAN}, e.g. 4096")
        self._count, self._block, self._ask = values.size, block, ask
        self._positive = int(np.count_nonzero(values))
        # A small tree is scanned, not descended, and its sums are rounded otherwise.
        self._single = SumTree(values) if values.size <= SMALL else None
        blocks = -(-values.size // block)
        # The first block of every shard, and one past the last.
        parts = min(shards, blocks)
        self._edges = np.arange(parts + 1) * blocks // parts
        self._shards = []
        if self._single is None:
            cuts = np.minimum(self._edges * block, values.size)
            self._shards = [start(values[a:b], block) for a, b in pairwise(cuts)]
            self._top = _top_of(np.concatenate(self._ask([(s, "roots", ()) for s in self._shards])))

    def __len__(self) -> int:
        return self._count

    @property
    def num_shards(self) -> int:
        """In how many places the weights are."""
        return max(1, len(self._shards))

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return self._single.total if self._single is not None else float(self._top[-1, 0])

    def _by_shard(self, blocks: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The shards that have some of these blocks, and which of the places are theirs."""
        owner = np.searchsorted(self._edges, blocks, side="right") - 1
        return [(int(s), np.flatnonzero(owner == s)) for s in np.unique(owner)]

    def _change(self, units: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Set leaves, and the levels above; returns what they were."""
        before = np.empty(units.size)
        parts = self._by_shard(units // self._block)
        first = self._edges * self._block
        calls = [(self._shards[s], "change", (units[at] - first[s], scores[at])) for s, at in parts]
        roots = self._top[: self._edges[-1]]
        for (_, at), (was, records) in zip(parts, self._ask(calls), strict=True):
            before[at] = was
            roots[np.unique(units[at] // self._block)] = records
        self._top = _top_of(roots.copy())
        return before

    def update(self, units: ArrayLike, weights: ArrayLike) -> None:
        """Change the weights of some units; of a unit named twice the last weight counts."""
        if self._single is not None:
            self._single.update(units, weights)
            return
        index, values = check_changes(units, weights, self._count)
        distinct, last = np.unique(index[::-1], return_index=True)
        fresh = values[::-1][last]
        before = self._change(distinct, fresh)
        if not np.isfinite(self._top[-1, 0]):
            self._change(distinct, before)
            raise ValueError("the sum of the weights overflows; divide them by their maximum")
        self._positive += int(np.count_nonzero(fresh)) - int(np.count_nonzero(before))

    def draw(
        self, num: int, rng: RandomSource, *, design: Systematic | Deville | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`num` distinct units and the inclusion probability of each (Deville by default)."""
        if self._single is not None:
            return self._single.draw(num, rng, design=design)
        code = check_draw(num, self._count, self._positive, design)
        units, prob = self._draw(num, as_stream(rng), deville=code == Deville.code)
        return units, np.minimum(prob * num, 1.0)  # rounding

    def _draw(self, num: int, stream: Stream, *, deville: bool) -> tuple[np.ndarray, np.ndarray]:
        """`draw_fixed` of a score table, over shards."""
        total, seen = self._top[-1, 0], self._top[-1, 1]
        lift = LIFT if total < TINY else 1.0
        abc = (lift, 0.0, lift * total / seen)  # every unit was seen, and there is no floor
        units, prob = np.empty(num, np.int64), np.empty(num)
        aside, kept = 0, np.empty(0)
        while aside < num:
            rest = num - aside
            if self._top[-1, 1] == rest:
                present = np.concatenate(self._ask([(s, "leaves", ()) for s in self._shards]))
                units[aside:] = np.flatnonzero(present != ASIDE)
                prob[aside:] = 1.0 / num
                break
            total = abc[0] * self._top[-1, 0]
            if total < TINY:
                abc = (LIFT * abc[0], 0.0, 0.0)
                total = abc[0] * self._top[-1, 0]
            draw = self._deville if deville else self._systematic
            chosen, weights, certain = draw(abc, total, rest, stream)
            if certain:
                kept = np.append(kept, self._change(chosen, np.full(chosen.size, ASIDE)))
                units[aside : aside + chosen.size], aside = chosen, aside + chosen.size
            elif chosen.size:  # else rounding made a unit come twice: once more
                units[aside:] = chosen
                prob[aside:] = weights / total * (rest / num)
                break
        if kept.size:
            self._change(units[: kept.size], kept)
            prob[: kept.size] = 1.0 / num
        return units, prob

    def _find(self, targets: np.ndarray, abc: Any) -> Found:
        """The units at some cumulative weights; one question to each shard."""
        blocks, lows = _blocks_at(self._top.reshape(-1), int(self._edges[-1]), targets, abc)
        units = np.empty(targets.size, np.int64)
        starts, weights = np.empty(targets.size), np.empty(targets.size)
        parts = self._by_shard(blocks)
        calls = [
            (self._shards[s], "find", (blocks[at] - self._edges[s], lows[at], targets[at], abc))
            for s, at in parts
        ]
        for (s, at), found in zip(parts, self._ask(calls), strict=True):
            first = self._edges[s] * self._block
            units[at] = np.where(found[0] < 0, found[0] - first, found[0] + first)
            starts[at], weights[at] = found[1], found[2]
        for place in np.flatnonzero(units < 0):
            end = ~int(units[place])
            units[place], starts[place], weights[place] = self._last_positive(end, abc)
        return units, starts, weights

    def _last_positive(self, end: int, abc: Any) -> tuple[int, float, float]:
        """The last unit of positive weight before `end`, where rounding led beyond it."""
        leaves = np.concatenate(self._ask([(s, "leaves", ()) for s in self._shards]))
        positive = np.flatnonzero(leaves[:end] * abc[0] > 0.0)
        unit, low = int(positive[-1]) if positive.size else 0, 0.0
        for place, shard in enumerate(self._shards):
            first, last = self._edges[place] * self._block, self._edges[place + 1] * self._block
            if first < unit:
                part = (shard, "sum_weights", (0, int(min(last, unit) - first), low, abc))
                low = self._ask([part])[0]
        return unit, low, float(leaves[unit] * abc[0])

    def _systematic(self, abc: Any, total: float, num: int, stream: Stream):
        """Ordered systematic: the units and weights, and whether they are the certain ones."""
        step = total / num
        units, _, weights = self._find((float(stream.uniforms(1)[0]) + np.arange(num)) * step, abc)
        again = np.append(False, units[1:] == units[:-1])
        certain = (weights >= step) & ~again
        if certain.any():
            return units[certain], weights[certain], True
        if again.any():
            return units[:0], weights[:0], False
        return units, weights, False

    def _deville(self, abc: Any, total: float, num: int, stream: Stream):
        """Deville's systematic: border units first, then the places that follow from them."""
        step, uniforms = total / num, stream.uniforms(num)
        found = self._find(np.arange(num) * step, abc)
        borders, starts, widths = found
        large = widths >= step
        strata = int(np.argmax(large)) if large.any() else num  # those before the first certain
        borders, starts, widths = borders[:strata], starts[:strata], widths[:strata]
        known = np.full(strata, -1)
        while True:
            targets, used = _places(borders, starts, widths, step, uniforms, known)
            units, weights = borders.copy(), widths.copy()
            drawn = np.flatnonzero(~np.isnan(targets))
            units[drawn], _, weights[drawn] = self._find(targets[drawn], abc)
            taken = np.append(0, units[:-1] == borders[1:])[:strata]
            wrong = np.flatnonzero(taken != used)
            if not wrong.size:
                break
            known[wrong[0]] = taken[wrong[0]]  # rounding led across the border
        if (units[1:] == units[:-1]).any():
            return units[:0], weights[:0], False
        if large.any():
            first = large & np.append(True, found[0][1:] != found[0][:-1])
            return found[0][first], found[2][first], True
        return units, weights, False
