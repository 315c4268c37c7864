"""Score tables, compiled: draw n of N units and change m scores in O((n + m) log N).

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
from isfed.base.random_streams import below, fill_uniform, uniform

UNSEEN = -1.0
ASIDE = -2.0
SHIFT = 4  # 16 children
FAN = 1 << SHIFT
RECORD = 3  # sum, seen, unseen
# The designs that compiled code knows, by number.
SYSTEMATIC, DEVILLE, HARTLEY_RAO, REPLACEMENT = 0, 1, 2, 3
# With equal probabilities these two need no table: see `draw_equal`.
EQUAL_WITHOUT_TABLE = (HARTLEY_RAO, REPLACEMENT)
# Unsigned indices: a signed one makes Numba look whether it counts from the end, at every access.
U1, U2, U3, U4, U5, U6, U7, U8 = (np.uint64(i) for i in range(1, 9))
U9, U10, U11, U12, U13, U14, U15 = (np.uint64(i) for i in range(9, 16))
# Totals below TINY lose digits: they are first scaled by a power of two, which is exact.
TINY, LIFT = 1e-280, 2.0**600
SCANNED = 8  # blocks for each draw, up to which all of them are listed first
MOST_BLOCKS = 64  # up to 1024 leaves a draw scans all the blocks, beyond it descends from the root


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
def _known(score):
    return score if score > 0.0 else 0.0


@jit_inline
def _leaf_sum(nodes, first, size):
    """The sum of the known scores among `size` leaves, lane by lane so that it runs in SIMD."""
    at = np.uint64(first)
    if size == FAN:
        s0 = _known(nodes[at]) + _known(nodes[at + U8])
        s1 = _known(nodes[at + U1]) + _known(nodes[at + U9])
        s2 = _known(nodes[at + U2]) + _known(nodes[at + U10])
        s3 = _known(nodes[at + U3]) + _known(nodes[at + U11])
        s4 = _known(nodes[at + U4]) + _known(nodes[at + U12])
        s5 = _known(nodes[at + U5]) + _known(nodes[at + U13])
        s6 = _known(nodes[at + U6]) + _known(nodes[at + U14])
        s7 = _known(nodes[at + U7]) + _known(nodes[at + U15])
        return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
    total = 0.0
    for leaf in range(at, at + np.uint64(size)):
        total += _known(nodes[leaf])
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
    offset = 0
    shift = 2 * SHIFT
    while size > 1:
        above = offset + size
        previous = -1
        for i in range(begin, end):
            parent = units[i] >> shift
            if parent != previous:
                first = parent << SHIFT
                total = 0.0
                for child in range(first, min(first + FAN, size)):
                    total += nodes[base + RECORD * (offset + child)]
                nodes[base + RECORD * (above + parent)] = total
                previous = parent
        offset = above
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
    offset = 0
    while size > 1:
        above = offset + size
        parents = (size + FAN - 1) >> SHIFT
        for parent in range(parents):
            record = base + RECORD * (above + parent)
            for part in range(RECORD):
                nodes[record + part] = 0.0
            for child in range(parent << SHIFT, min((parent + 1) << SHIFT, size)):
                below_record = base + RECORD * (offset + child)
                for part in range(RECORD):
                    nodes[record + part] += nodes[below_record + part]
        offset = above
        size = parents


@jit_inline
def fill_table(nodes, at, count, score):
    """Make a table in which every unit has the same score (or is UNSEEN)."""
    for leaf in range(at, at + count):
        nodes[leaf] = score
    rebuild(nodes, at, count)


@jit_inline
def set_scores(nodes, at, count, units, scores, num_units):
    """Change the scores of `units[:num_units]`."""
    for i in range(num_units):
        leaf = at + units[i]
        if nodes[leaf] < 0.0:
            _count_leaf(nodes, at, count, units[i], 1.0, -1.0)
        nodes[leaf] = scores[i]
    _refresh_sums(nodes, at, count, units, 0, num_units)


@jit_inline
def scale(nodes, at, count, floor):
    """The weight of a unit is `a score + b` if seen and `c` if not: returns (a, b, c)."""
    root = at + count + RECORD * (num_nodes(count) - 1)
    total, seen = nodes[root], nodes[root + 1]
    if not total > 0.0:
        return 0.0, 1.0, 1.0  # nothing seen, or nothing but zeros: uniform
    lift = LIFT if total < TINY else 1.0
    mean = lift * total / seen
    return lift * (1.0 - floor), floor * mean, mean


@jit_inline
def _weight(score, a, b, c):
    if score >= 0.0:
        return a * score + b
    return c if score == UNSEEN else 0.0


@jit_inline
def _block_starts(nodes, at, count, abc, starts):
    """The cumulative weight at which every block of leaves begins, where the blocks are few."""
    a, b, c = abc
    blocks = (count + FAN - 1) >> SHIFT
    if blocks > MOST_BLOCKS:
        if starts.size >= blocks:
            _descended_starts(nodes, at, count, abc, starts)
        return
    reached = 0.0
    record = np.uint64(at + count)
    for block in range(np.uint64(blocks)):
        starts[block] = reached
        reached += a * nodes[record] + b * nodes[record + U1] + c * nodes[record + U2]
        record += U3


@jit_inline
def _block_at(nodes, at, count, abc, starts, target):
    """The block of leaves at cumulative weight `target`, and where it begins."""
    blocks = (count + FAN - 1) >> SHIFT
    if blocks > MOST_BLOCKS:
        if starts.size >= blocks:
            return _last_start(starts, blocks, target)
        return _descend(nodes, at, count, abc, target, 0.0)
    passed = 0
    for block in range(U1, np.uint64(blocks)):  # to the end: a count runs in SIMD
        passed += starts[block] <= target
    return passed, starts[passed]


@jit_call
def _descended_starts(nodes, at, count, abc, starts):
    """Where `_descend` has every block of leaves begin, in one pass over the tree.

    From the right no start exceeds the next: the last that is not above a target is then the block
    to which a descent would lead, also where rounding put two of them in the wrong order.
    """
    a, b, c = abc
    level = 1
    while (count - 1) >> (SHIFT * level) > 0:
        level += 1
    offset = num_nodes(count) - 1
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
                weight = a * nodes[record] + b * nodes[record + 1] + c * nodes[record + 2]
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
def _descend(nodes, at, count, abc, target, low):
    """`_block_at` from the root down; the table begins at cumulative weight `low`."""
    a, b, c = abc
    level = 1
    while (count - 1) >> (SHIFT * level) > 0:
        level += 1
    offset = num_nodes(count) - 1
    node = 0
    while level > 1:
        level -= 1
        size = ((count - 1) >> (SHIFT * level)) + 1
        offset -= size
        first = node << SHIFT
        record = at + count + RECORD * (offset + first)
        reached = low
        for child in range(first, min(first + FAN, size)):
            weight = a * nodes[record] + b * nodes[record + 1] + c * nodes[record + 2]
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
    a, b, c = abc
    block, low = _block_at(nodes, at, count, abc, starts, target)
    first = block << SHIFT
    last = min(first + FAN, count)
    reached = low
    passed = 0
    if plain:
        for unit in range(np.uint64(at + first), np.uint64(at + last)):
            reached += a * nodes[unit] + b
            before = reached <= target
            passed += before
            low = reached if before else low
    else:
        for unit in range(np.uint64(at + first), np.uint64(at + last)):
            reached += _weight(nodes[unit], a, b, c)
            before = reached <= target
            passed += before
            low = reached if before else low
    if first + passed == last:
        return _last_positive(nodes, at, count, abc, last)
    return first + passed, low


@jit_call
def _last_positive(nodes, at, count, abc, end):
    """The last unit of positive weight before `end`, where rounding led beyond it.

    Its beginning is summed from the first unit on, for the blocks before `end` may be empty.
    """
    a, b, c = abc
    unit = end - 1
    while unit > 0 and not _weight(nodes[at + unit], a, b, c) > 0.0:
        unit -= 1
    low = 0.0
    for before in range(unit):
        low += _weight(nodes[at + before], a, b, c)
    return unit, low


@jit_inline
def systematic_units(nodes, at, count, abc, total, num, offset, units, begin, starts, plain):
    """Ordered systematic draw: the units at (offset + l) total / num for l = 0..num-1.

    Writes them from units[begin]. Returns 0; or how many certain units it met (weight >= total /
    num), which it then writes instead; or -1 if rounding made a unit come twice.
    """
    a, b, c = abc
    step = total / num
    certain = 0
    repeated = False
    previous = -1
    for draw in range(num):
        unit, _ = _find(nodes, at, count, abc, starts, plain, (offset + draw) * step)
        if _weight(nodes[at + unit], a, b, c) >= step:
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
    a, b, c = abc
    step = total / num
    certain = 0
    previous = -1
    taken = -1
    for stratum in range(num):
        border, start = _find(nodes, at, count, abc, starts, plain, stratum * step)
        weight = _weight(nodes[at + border], a, b, c)
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
    a, b, c = scale(nodes, at, count, floor)
    root = at + count + RECORD * (num_nodes(count) - 1)
    total = a * nodes[root] + b * nodes[root + 1] + c * nodes[root + 2]
    plain = nodes[root + 1] == count
    _block_starts(nodes, at, count, (a, b, c), starts)
    fill_uniform(state, uniforms, num)
    for draw in range(num):
        target = uniforms[draw] * total
        unit, _ = _find(nodes, at, count, (a, b, c), starts, plain, target)
        units[draw] = unit
        prob[draw] = _weight(nodes[at + unit], a, b, c) / total


@jit_inline
def draw_fixed(nodes, at, count, floor, num, deville, state, uniforms, starts, units, prob):
    """Draw `num` distinct units; prob[i] is the inclusion probability of units[i] over `num`.

    Certain units (inclusion 1) are found by the draw itself, set aside, and the rest is drawn
    again; then they are put back. Where fewer than `num` weights are positive, the rest of the
    draw is uniform over the units of weight zero.
    """
    a, b, c = scale(nodes, at, count, floor)
    root = at + count + RECORD * (num_nodes(count) - 1)
    aside = 0
    while aside < num:
        rest = num - aside
        present = nodes[root + 1] + nodes[root + 2]
        if present == rest:
            aside = _take_present(nodes, at, count, units, prob, aside)
            break
        total = a * nodes[root] + b * nodes[root + 1] + c * nodes[root + 2]
        if not total > 0.0:
            a, b, c = 0.0, 1.0, 1.0
            total = present
        elif total < TINY:  # the certain units are out, and what is left is tiny
            a = LIFT * a
            b = LIFT * b if nodes[root + 1] > 0.0 else 0.0  # of units that are out it may be large
            c = LIFT * c if nodes[root + 2] > 0.0 else 0.0
            total = a * nodes[root] + b * nodes[root + 1] + c * nodes[root + 2]
        plain = nodes[root + 1] == count
        _block_starts(nodes, at, count, (a, b, c), starts)
        if deville:
            fill_uniform(state, uniforms, rest)
            certain = deville_units(
                nodes, at, count, (a, b, c), total, rest, uniforms, units, aside, starts, plain
            )
        else:
            offset = uniform(state)
            certain = systematic_units(
                nodes, at, count, (a, b, c), total, rest, offset, units, aside, starts, plain
            )
        if certain == 0:
            for i in range(aside, num):  # divided first: num * total may overflow
                prob[i] = _weight(nodes[at + units[i]], a, b, c) / total * (rest / num)
            break
        if certain > 0:
            _set_aside(nodes, at, count, units, prob, aside, aside + certain)
            aside += certain
    if aside > 0:
        _put_back(nodes, at, count, units, prob, aside)
        for i in range(aside):
            prob[i] = 1.0 / num


@jit_call
def _take_present(nodes, at, count, units, kept, aside):
    """Every unit that is left is certain."""
    for unit in range(count):
        if nodes[at + unit] != ASIDE:
            units[aside] = unit
            kept[aside] = nodes[at + unit]
            aside += 1
    return aside


@jit_call
def _set_aside(nodes, at, count, units, kept, begin, end):
    """Take units[begin:end] out of the tree; their scores wait in `kept`."""
    for i in range(begin, end):
        kept[i] = nodes[at + units[i]]
        unseen = 1.0 if kept[i] == UNSEEN else 0.0
        _count_leaf(nodes, at, count, units[i], unseen - 1.0, -unseen)
        nodes[at + units[i]] = ASIDE
    _refresh_sums(nodes, at, count, units, begin, end)


@jit_call
def _put_back(nodes, at, count, units, kept, end):
    """Undo every `_set_aside` of a draw."""
    for i in range(end):
        if nodes[at + units[i]] == ASIDE:
            unseen = 1.0 if kept[i] == UNSEEN else 0.0
            _count_leaf(nodes, at, count, units[i], 1.0 - unseen, unseen)
            nodes[at + units[i]] = kept[i]
    _refresh_sums(nodes, at, count, units, 0, end)


@jit_inline
def table_weights(nodes, at, count, floor, out):
    """The weight of every unit: its probability, but for a common factor."""
    a, b, c = scale(nodes, at, count, floor)
    for unit in range(count):
        out[unit] = _weight(nodes[at + unit], a, b, c)


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
    rebuild(copy, 0, count)
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
        np.empty(table_size(count) if shuffled else 0),
    )
    units, prob = np.empty(num, np.int64), np.empty(num)
    if equal:
        draw_equal(count, num, design, state, scratch, units, prob)
    else:
        draw_scored(nodes, 0, count, floor, num, design, state, scratch, units, prob)
    return units, prob


@compiled
def table_of(scores):
    """A table of its own with these scores."""
    nodes = np.empty(table_size(scores.size))
    for unit in range(scores.size):
        nodes[unit] = scores[unit]
    rebuild(nodes, 0, scores.size)
    return nodes
