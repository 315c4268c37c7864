"""Draws from score tables, compiled: n of N units in O(n log N)."""

from __future__ import annotations

import numpy as np

from isfed.base.jit import compiled, jit_call, jit_inline
from isfed.base.random_streams import below, fill_uniform
from isfed.sampling import score_table as table
from isfed.sampling.score_table import FAN, LIFT, RECORD, SHIFT, TINY, U1, U2, U3, weight_of

# The designs that compiled code knows, by number.
SYSTEMATIC, DEVILLE, HARTLEY_RAO, REPLACEMENT = 0, 1, 2, 3
# With equal probabilities these two need no table: see `draw_equal`.
EQUAL_WITHOUT_TABLE = (HARTLEY_RAO, REPLACEMENT)
MOST_BLOCKS = 64  # up to 1024 leaves a draw scans all the blocks, beyond it descends from the root
SCANNED = 8  # blocks for each draw, up to which all of them are listed first


@jit_inline
def _node_weight(nodes, record, abc):
    """The weight of all the units below a node."""
    a, b, c = abc
    at = np.uint64(record)
    return a * nodes[at] + b * nodes[at + U1] + c * nodes[at + U2]


@jit_inline
def _block_starts(nodes, at, count, abc, starts):
    """The cumulative weight at which every block of leaves begins, where the blocks are few."""
    blocks = (count + FAN - 1) >> SHIFT
    if blocks > MOST_BLOCKS:
        if starts.size >= blocks:
            _descended_starts(nodes, at, count, abc, starts)
        return
    reached = 0.0
    record = np.uint64(at + count)
    for block in range(np.uint64(blocks)):
        starts[block] = reached
        reached += _node_weight(nodes, record, abc)
        record += U3


@jit_inline
def _block_at(nodes, at, count, abc, starts, target):
    """The block of leaves at cumulative weight `target`, and where it begins."""
    blocks = (count + FAN - 1) >> SHIFT
    if blocks > MOST_BLOCKS:
        if starts.size >= blocks:
            return _last_start(starts, blocks, target)
        return descend(nodes, at, count, abc, target, 0.0)
    passed = 0
    for block in range(U1, np.uint64(blocks)):  # to the end: a count runs in SIMD
        passed += starts[block] <= target
    return passed, starts[passed]


@jit_call
def _descended_starts(nodes, at, count, abc, starts):
    """Where `descend` has every block of leaves begin, in one pass over the tree.

    From the right no start exceeds the next: the last that is not above a target is then the block
    to which a descent would lead, also where rounding put two of them in the wrong order.
    """
    level = 1
    while (count - 1) >> (SHIFT * level) > 0:
        level += 1
    offset = table.num_nodes(count) - 1
    parents = 1
    starts[0] = 0.0
    while level > 1:
        level -= 1
        size = ((count - 1) >> (SHIFT * level)) + 1
        offset -= size
        for place in range(parents):  # from the last on: children take the places of parents
            parent = parents - 1 - place
            reached = starts[parent]
            record = at + count + RECORD * (offset + (parent << SHIFT))
            for child in range(parent << SHIFT, min((parent + 1) << SHIFT, size)):
                weight = _node_weight(nodes, record, abc)
                starts[child] = reached if weight > 0.0 else np.inf
                reached += weight if weight > 0.0 else 0.0
                record += RECORD
        parents = size
    for place in range(1, parents):
        block = parents - 1 - place
        starts[block] = min(starts[block], starts[block + 1])


@jit_call
def _last_start(starts, blocks, target):
    """The last block that begins at or before `target`, and where."""
    first, last = 0, blocks - 1
    while first < last:
        middle = (first + last + 1) >> 1
        if starts[middle] <= target:
            first = middle
        else:
            last = middle - 1
    return first, starts[first]


@jit_call
def descend(nodes, at, count, abc, target, low):
    """`_block_at` from the root down; the table begins at cumulative weight `low`."""
    level = 1
    while (count - 1) >> (SHIFT * level) > 0:
        level += 1
    offset = table.num_nodes(count) - 1
    node = 0
    while level > 1:
        level -= 1
        size = ((count - 1) >> (SHIFT * level)) + 1
        offset -= size
        first = node << SHIFT
        record = at + count + RECORD * (offset + first)
        reached = low
        for child in range(first, min(first + FAN, size)):
            weight = _node_weight(nodes, record, abc)
            if weight > 0.0:  # rounding can leave the target beyond the last: then it is the last
                node, low = child, reached
                reached += weight
                if target < reached:
                    break
            record += RECORD
    return node, low


@jit_inline
def _find(nodes, at, count, abc, starts, plain, target):
    """The unit at cumulative weight `target`, and the cumulative weight where it begins.

    `plain` says that every unit was seen and none is set aside, as in most draws.
    """
    block, low = _block_at(nodes, at, count, abc, starts, target)
    unit, low = find_in_block(nodes, at, count, abc, block, low, plain, target)
    if unit == min((block + 1) << SHIFT, count):
        return _last_positive(nodes, at, count, abc, unit)
    return unit, low


@jit_inline
def find_in_block(nodes, at, count, abc, block, low, plain, target):
    """The unit at `target` in a block that begins at `low`; its end if rounding leads beyond."""
    a, b, _ = abc
    first = block << SHIFT
    last = min(first + FAN, count)
    reached = low
    passed = 0
    for unit in range(np.uint64(at + first), np.uint64(at + last)):
        reached += a * nodes[unit] + b if plain else weight_of(nodes[unit], abc)
        before = reached <= target
        passed += before
        low = reached if before else low
    return first + passed, low


@jit_call
def _last_positive(nodes, at, count, abc, end):
    """The last unit of positive weight before `end`, where rounding led beyond it.

    Its beginning is summed from the first unit on, for the blocks before `end` may be empty.
    """
    unit = end - 1
    while unit > 0 and not weight_of(nodes[at + unit], abc) > 0.0:
        unit -= 1
    low = 0.0
    for before in range(unit):
        low += weight_of(nodes[at + before], abc)
    return unit, low


@jit_inline
def systematic_units(nodes, at, count, abc, total, num, uniforms, units, begin, starts, plain):
    """Ordered systematic draw: the units at (u + l) total / num for l = 0..num-1.

    Writes them from units[begin]. Returns 0; or how many certain units it met (weight >= total /
    num), which it then writes instead; or -1 if rounding made a unit come twice.
    """
    step = total / num
    certain = 0
    repeated = False
    previous = -1
    for draw in range(num):
        unit, _ = _find(nodes, at, count, abc, starts, plain, (uniforms[0] + draw) * step)
        if weight_of(nodes[at + unit], abc) >= step:
            if unit != previous:
                units[begin + certain] = unit
                certain += 1
        elif certain == 0:
            units[begin + draw] = unit
            repeated |= unit == previous
        previous = unit
    return -1 if certain == 0 and repeated else certain


@jit_inline
def deville_units(nodes, at, count, abc, total, num, uniforms, units, begin, starts, plain):
    """Deville's systematic draw: one uniform per stratum of length total / num.

    A unit on a border lies with part a in the stratum before and part b in the one after. If it
    was taken, the stratum after draws from its remainder; otherwise it is taken there with
    probability b / (1 - a). Writes and returns as `systematic_units`.
    """
    step = total / num
    certain = 0
    previous = -1
    taken = -1
    for stratum in range(num):
        border, start = _find(nodes, at, count, abc, starts, plain, stratum * step)
        weight = weight_of(nodes[at + border], abc)
        if weight >= step:
            if border != previous:
                units[begin + certain] = border
                certain += 1
            previous = border
            continue
        if certain > 0:
            continue
        edge = stratum * step
        before = max(edge - start, 0.0)  # the part in the stratum before
        after = weight - before  # the part in this one
        share = uniforms[stratum]
        if border != taken:
            chance = after / (step - before)
            if share < chance:
                units[begin + stratum] = border
                taken = border
                continue
            share = (share - chance) / (1.0 - chance)
        target = edge + after + share * (step - after)
        unit, _ = _find(nodes, at, count, abc, starts, plain, target)
        if unit == taken:
            return -1
        units[begin + stratum] = unit
        taken = unit
    return certain


@jit_call
def draw_replacement(nodes, at, count, floor, num, state, uniforms, starts, units, prob):
    """`num` independent draws, each with probability proportional to weight."""
    abc = table.scale(nodes, at, count, floor)
    root = table.root_of(at, count)
    total = _node_weight(nodes, root, abc)
    plain = nodes[root + 1] == count
    _block_starts(nodes, at, count, abc, starts)
    fill_uniform(state, uniforms, num)
    for draw in range(num):
        unit, _ = _find(nodes, at, count, abc, starts, plain, uniforms[draw] * total)
        units[draw] = unit
        prob[draw] = weight_of(nodes[at + unit], abc) / total


@jit_inline
def draw_fixed(nodes, at, count, floor, num, deville, state, uniforms, starts, units, prob):
    """Draw `num` distinct units; prob[i] is the inclusion probability of units[i] over `num`.

    Certain units (inclusion 1) are found by the draw itself, set aside, and the rest is drawn
    again; then they are put back. Where fewer than `num` weights are positive, the rest of the
    draw is uniform over the units of weight zero.
    """
    abc = table.scale(nodes, at, count, floor)
    root = table.root_of(at, count)
    aside = 0
    while aside < num:
        rest = num - aside
        present = nodes[root + 1] + nodes[root + 2]
        if present == rest:
            aside = _take_present(nodes, at, count, units, prob, aside)
            break
        total = _node_weight(nodes, root, abc)
        if not total > 0.0:
            abc = 0.0, 1.0, 1.0
            total = present
        elif total < TINY:  # the certain units are out, and what is left is tiny
            a, b, c = abc  # of units that are out, b and c may be large
            abc = (
                LIFT * a,
                LIFT * b if nodes[root + 1] > 0.0 else 0.0,
                LIFT * c if nodes[root + 2] > 0.0 else 0.0,
            )
            total = _node_weight(nodes, root, abc)
        plain = nodes[root + 1] == count
        _block_starts(nodes, at, count, abc, starts)
        fill_uniform(state, uniforms, rest if deville else 1)
        draw = (nodes, at, count, abc, total, rest, uniforms, units, aside, starts, plain)
        certain = deville_units(*draw) if deville else systematic_units(*draw)
        if certain == 0:
            for i in range(aside, num):  # divided first: num * total may overflow
                prob[i] = weight_of(nodes[at + units[i]], abc) / total * (rest / num)
            break
        if certain > 0:
            for i in range(aside, aside + certain):
                prob[i] = table.ASIDE
            _set_aside(nodes, at, count, units, prob, aside, aside + certain)  # scores wait in prob
            aside += certain
    if aside > 0:
        _set_aside(nodes, at, count, units, prob, 0, aside)
        for i in range(aside):
            prob[i] = 1.0 / num


@jit_call
def _set_aside(nodes, at, count, units, kept, begin, end):
    """Take units[begin:end] out of the tree, or put them back; a call, for it is rarely needed."""
    table.swap_scores(nodes, at, count, units, kept, begin, end)


@jit_call
def _take_present(nodes, at, count, units, kept, aside):
    """Every unit that is left is certain."""
    for unit in range(count):
        if nodes[at + unit] != table.ASIDE:
            units[aside] = unit
            kept[aside] = nodes[at + unit]
            aside += 1
    return aside


@jit_inline
def shuffle(order, count, state):
    """Fill order[:count] with a random permutation."""
    for i in range(count):
        j = below(state, i + 1)
        order[i] = order[j]
        order[j] = i


@jit_call
def draw_hartley_rao(nodes, at, count, floor, num, state, scratch, units, prob):
    """Systematic along a fresh random order: the same draw from a shuffled copy of the table."""
    uniforms, starts, order, copy = scratch
    shuffle(order, count, state)
    for i in range(count):
        copy[i] = nodes[at + order[i]]
    table.rebuild(copy, 0, count)
    draw_fixed(copy, 0, count, floor, num, False, state, uniforms, starts, units, prob)
    for i in range(num):
        units[i] = order[units[i]]
    for i in range(count):
        order[i] = i  # `draw_equal` expects the identity


@jit_inline
def draw_scored(nodes, at, count, floor, num, design, state, scratch, units, prob):
    """Draw from a table by the design of that code; prob[i] is what the weights divide by."""
    uniforms, starts, _, _ = scratch
    if design == HARTLEY_RAO:
        draw_hartley_rao(nodes, at, count, floor, num, state, scratch, units, prob)
    elif design == REPLACEMENT:
        draw_replacement(nodes, at, count, floor, num, state, uniforms, starts, units, prob)
    else:
        deville = design == DEVILLE
        draw_fixed(nodes, at, count, floor, num, deville, state, uniforms, starts, units, prob)


@jit_inline
def draw_equal(count, num, design, state, scratch, units, prob):
    """Draw with equal probabilities and no table: with replacement, or any set equally likely.

    The latter is what Hartley-Rao becomes when all probabilities are equal.
    """
    order = scratch[2]  # 0..count-1
    for i in range(num):
        if design == REPLACEMENT:
            units[i] = below(state, count)
        else:  # Fisher and Yates, stopped after `num`
            j = i + below(state, count - i)
            units[i] = order[j]
            order[j] = order[i]
    if design != REPLACEMENT:
        for i in range(num):  # every place that was written holds a drawn unit: as it was
            order[units[i]] = units[i]
    for i in range(num):
        prob[i] = 1.0 / count


@compiled
def draw_from_table(nodes, count, floor, num, design, equal, state):
    """Draw from one table; `equal`: by `draw_equal`, which needs none. Returns (units, prob)."""
    shuffled = design == HARTLEY_RAO and not equal
    blocks = (count + FAN - 1) >> SHIFT
    # Many draws from a small table find their blocks faster in a list of all; the same ones.
    listed = MOST_BLOCKS < blocks <= SCANNED * num
    scratch = (
        np.empty(num),
        np.empty(blocks if listed else MOST_BLOCKS),
        np.arange(count if shuffled or equal else 0),
        np.empty(table.table_size(count) if shuffled else 0),
    )
    units, prob = np.empty(num, np.int64), np.empty(num)
    if equal:
        draw_equal(count, num, design, state, scratch, units, prob)
    else:
        draw_scored(nodes, 0, count, floor, num, design, state, scratch, units, prob)
    return units, prob
