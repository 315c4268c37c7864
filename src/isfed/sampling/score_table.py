"""Score tables, compiled: the scores of N units, of which m change in O(m log N).

One table of N units is one run of float64 numbers in a flat array, from position `at`:

    N leaves, then for every inner node, lowest level first, root last: (sum, seen, unseen)

A leaf is a score >= 0, or UNSEEN (its score is not known yet), or ASIDE (out of the present draw).
Scores are not probabilities: with mean m = sum / seen of the known scores and floor eps, a unit
weighs `(1 - eps) score + eps m` if it was seen and `m` if not, which is N m times the probability
`(1 - eps) p + eps / N`. A change of one score therefore rescales every unit for free.

A sum is always computed anew from its children, in a fixed order, never corrected by a difference:
after any history of changes the tree equals a rebuilt one bit for bit.
"""

from __future__ import annotations

import numpy as np

from isfed.base.jit import compiled, jit_call, jit_inline

UNSEEN = -1.0
ASIDE = -2.0
SHIFT = 4  # 16 children
FAN = 1 << SHIFT
RECORD = 3  # sum, seen, unseen
# Unsigned indices: a signed one makes Numba look whether it counts from the end, at every access.
U1, U2, U3, U4, U8, U12 = (np.uint64(i) for i in (1, 2, 3, 4, 8, 12))
# Totals below TINY lose digits: they are first scaled by a power of two, which is exact.
TINY, LIFT = 1e-280, 2.0**600


@jit_inline
def num_nodes(count):
    """The number of inner nodes over `count` leaves, at least one."""
    nodes = 0
    while True:
        count = (count + FAN - 1) >> SHIFT
        nodes += count
        if count == 1:
            return nodes


@jit_inline
def table_size(count):
    """How many numbers a table of `count` units takes."""
    return count + RECORD * num_nodes(count)


@jit_inline
def root_of(at, count):
    """Where the root of a table begins."""
    return at + table_size(count) - RECORD


@jit_inline
def _known(score):
    return score if score > 0.0 else 0.0


@jit_inline
def _every_fourth(nodes, at):
    """The sum of the known scores among every fourth of 16 leaves."""
    even = _known(nodes[at]) + _known(nodes[at + U8])
    return even + (_known(nodes[at + U4]) + _known(nodes[at + U12]))


@jit_inline
def _leaf_sum(nodes, first, size):
    """The sum of the known scores among `size` leaves, lane by lane so that it runs in SIMD."""
    at = np.uint64(first)
    if size == FAN:
        even = _every_fourth(nodes, at) + _every_fourth(nodes, at + U2)
        return even + (_every_fourth(nodes, at + U1) + _every_fourth(nodes, at + U3))
    total = 0.0
    for leaf in range(at, at + np.uint64(size)):
        total += _known(nodes[leaf])
    return total


@jit_inline
def _sum_below(nodes, base, parent, size):
    """The sum over a node's children; their level has `size` nodes and begins at `base`."""
    total = 0.0
    for child in range(parent << SHIFT, min((parent + 1) << SHIFT, size)):
        total += nodes[base + RECORD * child]
    return total


@jit_inline
def _refresh_sums(nodes, at, count, units, begin, end):
    """Recompute the sums on the way from `units` to the root; neighbours share their parents."""
    base = at + count
    previous = -1
    for i in range(begin, end):
        parent = units[i] >> SHIFT
        if parent != previous:
            first = parent << SHIFT
            nodes[base + RECORD * parent] = _leaf_sum(nodes, at + first, min(FAN, count - first))
            previous = parent
    size = (count + FAN - 1) >> SHIFT
    shift = 2 * SHIFT
    while size > 1:
        above = base + RECORD * size
        previous = -1
        for i in range(begin, end):
            parent = units[i] >> shift
            if parent != previous:
                nodes[above + RECORD * parent] = _sum_below(nodes, base, parent, size)
                previous = parent
        base = above
        size = (size + FAN - 1) >> SHIFT
        shift += SHIFT


@jit_inline
def _count_leaf(nodes, at, count, unit, seen, unseen):
    """Add to the two counts on the way from `unit` to the root; counts are whole, hence exact."""
    position = at + count
    size = count
    while True:
        unit >>= SHIFT
        size = (size + FAN - 1) >> SHIFT
        nodes[position + RECORD * unit + 1] += seen
        nodes[position + RECORD * unit + 2] += unseen
        if size == 1:
            return
        position += RECORD * size


@jit_call
def rebuild(nodes, at, count):
    """Compute every inner node from the leaves."""
    base = at + count
    size = (count + FAN - 1) >> SHIFT
    for parent in range(size):
        first = parent << SHIFT
        width = min(FAN, count - first)
        seen = 0.0
        unseen = 0.0
        for leaf in range(at + first, at + first + width):
            seen += nodes[leaf] >= 0.0
            unseen += nodes[leaf] == UNSEEN
        nodes[base + RECORD * parent] = _leaf_sum(nodes, at + first, width)
        nodes[base + RECORD * parent + 1] = seen
        nodes[base + RECORD * parent + 2] = unseen
    rebuild_above(nodes, base, size)


@jit_inline
def rebuild_above(nodes, base, size):
    """Compute the inner nodes above a level of `size` nodes that begins at `base`."""
    while size > 1:
        above = base + RECORD * size
        parents = (size + FAN - 1) >> SHIFT
        for parent in range(parents):
            for part in range(RECORD):
                total = _sum_below(nodes, base + part, parent, size)
                nodes[above + RECORD * parent + part] = total
        base = above
        size = parents


@jit_inline
def fill_table(nodes, at, count, score):
    """Make a table in which every unit has the same score (or is UNSEEN)."""
    for leaf in range(at, at + count):
        nodes[leaf] = score
    rebuild(nodes, at, count)


@jit_inline
def swap_scores(nodes, at, count, units, scores, begin, end):
    """Set the leaves of units[begin:end]; `scores` then has what they were."""
    for i in range(begin, end):
        leaf = at + units[i]
        before, after = nodes[leaf], scores[i]
        if before < 0.0 or after < 0.0:
            seen = int(after >= 0.0) - int(before >= 0.0)
            unseen = int(after == UNSEEN) - int(before == UNSEEN)
            _count_leaf(nodes, at, count, units[i], seen, unseen)
        nodes[leaf], scores[i] = after, before
    _refresh_sums(nodes, at, count, units, begin, end)


@jit_inline
def scale(nodes, at, count, floor):
    """The weight of a unit is `a score + b` if seen and `c` if not: returns (a, b, c)."""
    root = root_of(at, count)
    total, seen = nodes[root], nodes[root + 1]
    if not total > 0.0:
        return 0.0, 1.0, 1.0  # nothing seen, or nothing but zeros: uniform
    lift = LIFT if total < TINY else 1.0
    mean = lift * total / seen
    return lift * (1.0 - floor), floor * mean, mean


@jit_inline
def weight_of(score, abc):
    """The weight of a unit with this leaf."""
    a, b, c = abc
    if score >= 0.0:
        return a * score + b
    return c if score == UNSEEN else 0.0


@jit_inline
def table_weights(nodes, at, count, floor, out):
    """The weight of every unit: its probability, but for a common factor."""
    abc = scale(nodes, at, count, floor)
    for unit in range(count):
        out[unit] = weight_of(nodes[at + unit], abc)


@compiled
def table_probabilities(nodes, at, count, floor, out):
    """The probability of every unit, before any cap: scores normalised and mixed with the floor."""
    table_weights(nodes, at, count, floor, out)
    total = 0.0
    for unit in range(count):
        total += out[unit]
    for unit in range(count):
        out[unit] /= total


@jit_inline
def table_inclusion(nodes, at, count, floor, num, out):
    """The inclusion probability of every unit, by a scan: capped at 1, summing to `num`."""
    table_weights(nodes, at, count, floor, out)
    cap_inclusion(out, count, num)


@jit_inline
def cap_inclusion(weights, count, num):
    """Turn weights[:count] into inclusion probabilities in place: cap at 1, rescale, repeat."""
    certain = 0
    while True:
        total = 0.0
        for unit in range(count):
            if weights[unit] >= 0.0:  # certain units are marked by a negative number meanwhile
                total += weights[unit]
        rest = num - certain
        if not total > 0.0:  # leftover mass goes to the units of weight zero
            for unit in range(count):
                if weights[unit] >= 0.0:
                    weights[unit] = 1.0
            total = float(count - certain)
        elif total < TINY:
            for unit in range(count):
                if weights[unit] >= 0.0:
                    weights[unit] *= LIFT
            total *= LIFT
        step = total / rest if rest > 0 else np.inf
        fresh = 0
        for unit in range(count):
            if weights[unit] >= 0.0 and (weights[unit] >= step or count - certain == rest):
                weights[unit] = -1.0
                fresh += 1
        certain += fresh
        if fresh == 0 or certain == num:
            break
    for unit in range(count):
        if weights[unit] < 0.0:
            weights[unit] = 1.0
        else:
            weights[unit] = weights[unit] / step if certain < num else 0.0


@compiled
def table_of(scores):
    """A table of its own with these scores."""
    nodes = np.empty(table_size(scores.size))
    for unit in range(scores.size):
        nodes[unit] = scores[unit]
    rebuild(nodes, 0, scores.size)
    return nodes
