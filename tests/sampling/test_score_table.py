"""Score tables: weights of seen and unseen units, the draws made from them, and equal draws."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed.base.jit import compiled
from isfed.base.random_streams import Stream
from isfed.sampling import score_table as table
from isfed.sampling import table_draws
from isfed.sampling.designs import inclusion_probabilities
from isfed.sampling.score_table import ASIDE, UNSEEN

SIZES = [1, 15, 16, 17, 255, 256, 257, 1024, 1025, 4096, 4097, 20000]
FIXED = [table_draws.SYSTEMATIC, table_draws.DEVILLE, table_draws.HARTLEY_RAO]
MARGIN = 7  # numbers before and after a table, which belong to its neighbours
DRAWS = 200_000


def _table(leaves):
    """A table with these leaves between two margins of NaN."""
    nodes = np.full(table.table_size(len(leaves)) + 2 * MARGIN, np.nan)
    nodes[MARGIN : MARGIN + len(leaves)] = leaves
    table.rebuild(nodes, MARGIN, len(leaves))
    return nodes


def _leaves(count, *, seed, unseen=0.3, zero=0.2):
    """Log-normal scores of which some are not known and some are zero."""
    rng = np.random.default_rng(seed)
    leaves = rng.lognormal(0.0, 2.0, count)
    leaves[rng.random(count) < zero] = 0.0
    leaves[rng.random(count) < unseen] = UNSEEN
    return leaves


def _filled(leaves):
    """The scores as the rule counts them: an unseen unit has the mean of the seen ones."""
    seen = leaves[leaves >= 0]
    if not seen.any():
        return np.ones(leaves.size)
    return np.where(leaves >= 0, leaves, seen.mean())


def _probabilities(leaves, floor):
    """The literal rule: (1 - floor) p + floor / N."""
    scores = _filled(leaves)
    return (1 - floor) * scores / scores.sum() + floor / leaves.size


def _same_bits(first, second):
    return np.array_equal(first.view(np.uint64), second.view(np.uint64))


@compiled
def _weights(nodes, at, count, floor, out):
    table.table_weights(nodes, at, count, floor, out)


@compiled
def _inclusion(nodes, at, count, floor, num, out):
    table.table_inclusion(nodes, at, count, floor, num, out)


@compiled
def _set_scores(nodes, at, count, units, scores):
    table.swap_scores(nodes, at, count, units, scores, 0, units.size)


@compiled
def _draw_into(nodes, at, count, floor, num, design, state, scratch, units, prob):
    table_draws.draw_scored(nodes, at, count, floor, num, design, state, scratch, units, prob)


@compiled
def _counts(nodes, at, count, floor, num, design, draws, state, scratch):
    """How often each unit came in many draws, and how often one was repeated."""
    units, prob = np.empty(num, np.int64), np.empty(num)
    counts = np.zeros(count, np.int64)
    last = np.full(count, -1)
    repeated = 0
    for draw in range(draws):
        _draw_into(nodes, at, count, floor, num, design, state, scratch, units, prob)
        for unit in units:
            repeated += last[unit] == draw
            last[unit] = draw
            counts[unit] += 1
    return counts, repeated


@compiled
def _draw_equal(count, num, design, state, scratch, units, prob):
    table_draws.draw_equal(count, num, design, state, scratch, units, prob)


@compiled
def _pair_counts(count, draws, design, state, scratch):
    """How often each ordered pair came in many draws of two with equal probabilities."""
    units, prob = np.empty(2, np.int64), np.empty(2)
    counts = np.zeros((count, count), np.int64)
    for _ in range(draws):
        _draw_equal(count, 2, design, state, scratch, units, prob)
        counts[units[0], units[1]] += 1
    return counts


@compiled
def _shuffles(orders, state):
    for order in orders:
        table_draws.shuffle(order, order.size, state)


def _scratch(count, num):
    """What a draw needs beside its table."""
    copy = np.empty(table.table_size(count))
    return np.empty(num), np.empty(table_draws.MOST_BLOCKS), np.arange(count), copy


def _draw(nodes, count, floor, num, design, stream):
    """One draw: units and the probabilities that weights divide by."""
    units, prob = np.empty(num, np.int64), np.empty(num)
    scratch = _scratch(count, num)
    _draw_into(nodes, MARGIN, count, floor, num, design, stream.state, scratch, units, prob)
    np.testing.assert_array_equal(scratch[2], np.arange(count))  # the next draw needs the identity
    return units, prob


class TestWeights:
    @pytest.mark.parametrize("floor", [0.0, 0.05, 1.0])
    @pytest.mark.parametrize("count", SIZES)
    def test_equal_the_literal_rule(self, count, floor):
        leaves = _leaves(count, seed=count)
        expected, out = _probabilities(leaves, floor), np.empty(count)
        _weights(_table(leaves), MARGIN, count, floor, out)
        np.testing.assert_allclose(out / out.sum(), expected, rtol=1e-12)
        table.table_probabilities(_table(leaves), MARGIN, count, floor, out)
        np.testing.assert_allclose(out, expected, rtol=1e-12)
        num = max(1, int(np.count_nonzero(expected)) // 10)
        _inclusion(_table(leaves), MARGIN, count, floor, num, out)
        np.testing.assert_allclose(out, inclusion_probabilities(expected, num), rtol=1e-12)

    @pytest.mark.parametrize("leaf", [0.0, UNSEEN])
    def test_nothing_known_or_all_zero_is_uniform(self, leaf):
        out = np.empty(20)
        for leaves in (np.full(20, leaf), np.r_[np.zeros(10), np.full(10, leaf)]):
            table.table_probabilities(_table(leaves), MARGIN, 20, 0.1, out)
            np.testing.assert_allclose(out, 1 / 20, rtol=1e-15)

    def test_leftover_inclusion_is_uniform_over_the_zeros(self):
        out = np.empty(5)
        _inclusion(_table([5.0, 0.0, 0.0, 0.0, 3.0]), MARGIN, 5, 0.0, 4, out)
        np.testing.assert_allclose(out, [1, 2 / 3, 2 / 3, 2 / 3, 1], rtol=1e-15)


class TestTree:
    @pytest.mark.parametrize("count", SIZES)
    def test_inner_nodes_hold_the_sum_and_the_two_counts(self, count):
        leaves = _leaves(count, seed=count)
        root = _table(leaves)[-MARGIN - table.RECORD : -MARGIN]
        seen = leaves >= 0
        np.testing.assert_allclose(
            root, [leaves[seen].sum(), seen.sum(), (~seen).sum()], rtol=1e-12
        )

    @pytest.mark.parametrize("count", SIZES)
    def test_equals_a_rebuild_when_unseen_units_become_seen(self, count):
        rng = np.random.default_rng(count)
        nodes = _table(np.full(count, UNSEEN))
        for _ in range(40):
            units = rng.integers(0, count, 250)
            scores = rng.lognormal(0.0, 5.0, 250) * (rng.random(250) < 0.8)
            _set_scores(nodes, MARGIN, count, units, scores)
        assert _same_bits(nodes, _table(nodes[MARGIN : MARGIN + count]))


class TestDraws:
    @given(data=st.data(), design=st.sampled_from(FIXED), seed=st.integers(0, 2**32))
    def test_num_distinct_units_with_the_probabilities_of_the_rule(self, data, design, seed):
        count = data.draw(st.sampled_from(SIZES[:-1]))
        num = data.draw(st.integers(1, count))
        floor = data.draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
        share = st.sampled_from([0.0, 0.3, 1.0])
        leaves = _leaves(count, seed=seed, unseen=data.draw(share), zero=data.draw(share))
        nodes = _table(leaves)
        before = nodes.copy()
        units, prob = _draw(nodes, count, floor, num, design, Stream(seed))
        assert np.unique(units).size == num
        expected = np.empty(count)
        _inclusion(_table(leaves), MARGIN, count, floor, num, expected)
        np.testing.assert_allclose(num * prob, expected[units], rtol=1e-9, atol=1e-12)
        assert np.all(expected[units] > 0.0)
        assert _same_bits(nodes, before)  # what was set aside is back, neighbours are untouched

    @pytest.mark.parametrize("design", FIXED)
    def test_inclusion_within_four_standard_errors(self, design, largest_deviation):
        count, num, floor = 40, 15, 0.1
        leaves = _leaves(count, seed=1)
        chance = inclusion_probabilities(_probabilities(leaves, floor), num)
        assert np.count_nonzero(chance == 1.0) > 1
        scratch = _scratch(count, num)
        counts, repeated = _counts(
            _table(leaves), MARGIN, count, floor, num, design, DRAWS, Stream(2).state, scratch
        )
        assert repeated == 0
        assert largest_deviation(counts, chance, DRAWS) < 4

    def test_replacement_within_four_standard_errors(self, largest_deviation):
        count, num, floor = 40, 5, 0.0
        leaves = _leaves(count, seed=3)
        scratch, state = _scratch(count, num), Stream(3).state
        nodes = _table(leaves)
        counts, _ = _counts(
            nodes, MARGIN, count, floor, num, table_draws.REPLACEMENT, DRAWS, state, scratch
        )
        assert largest_deviation(counts, _probabilities(leaves, floor), num * DRAWS) < 4
        units, prob = _draw(nodes, count, floor, num, table_draws.REPLACEMENT, Stream(3))
        np.testing.assert_allclose(prob, _probabilities(leaves, floor)[units], rtol=1e-12)

    def test_leftover_is_drawn_uniformly_from_the_zeros(self, stream_giving):
        nodes = _table([5.0, 0.0, 0.0, 0.0, 3.0])
        counts = np.zeros(5)
        for third in range(3):  # break points of 2 of 3 equal units: thirds
            stream = stream_giving((third + 0.5) / 3, 1)  # the first uniform met the certain units
            units, prob = _draw(nodes, 5, 0.0, 4, table_draws.SYSTEMATIC, stream)
            np.testing.assert_allclose(prob, np.where(np.isin(units, [0, 4]), 1, 2 / 3) / 4)
            counts[units] += 1
        np.testing.assert_array_equal(counts, [3, 2, 2, 2, 3])

    @pytest.mark.parametrize("design", FIXED)
    def test_as_many_as_there_are_takes_all_even_zeros(self, design):
        leaves = np.array([5.0, 0.0, UNSEEN, 0.0, 3.0])
        units, prob = _draw(_table(leaves), 5, 0.0, 5, design, Stream(0))
        assert sorted(units) == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(prob, 1 / 5)

    def test_no_leaf_stays_aside(self):
        nodes = _table([100.0, 1.0, 50.0, 1.0, 1.0])
        _draw(nodes, 5, 0.0, 3, table_draws.DEVILLE, Stream(0))
        assert not np.any(nodes == ASIDE)


class TestEqualDraws:
    def test_every_ordered_pair_equally_often(self, largest_deviation):
        scratch = _scratch(5, 2)
        counts = _pair_counts(5, DRAWS, table_draws.HARTLEY_RAO, Stream(4).state, scratch)
        chance = np.where(np.eye(5, dtype=bool), 0.0, 1 / 20)
        assert largest_deviation(counts, chance, DRAWS) < 4
        np.testing.assert_array_equal(scratch[2], np.arange(5))

    def test_with_replacement_a_unit_may_repeat(self, largest_deviation):
        scratch = _scratch(5, 2)
        counts = _pair_counts(5, DRAWS, table_draws.REPLACEMENT, Stream(5).state, scratch)
        assert largest_deviation(counts, np.full((5, 5), 1 / 25), DRAWS) < 4

    @given(count=st.integers(1, 200), data=st.data(), seed=st.integers(0, 2**32))
    def test_distinct_and_the_identity_is_put_back(self, count, data, seed):
        num = data.draw(st.integers(1, count))
        scratch = _scratch(count, num)
        units, prob = np.empty(num, np.int64), np.empty(num)
        _draw_equal(count, num, table_draws.HARTLEY_RAO, Stream(seed).state, scratch, units, prob)
        assert np.unique(units).size == num
        assert units.min() >= 0
        assert units.max() < count
        np.testing.assert_array_equal(prob, 1 / count)
        np.testing.assert_array_equal(scratch[2], np.arange(count))

    def test_every_set_of_three_equally_often(self, largest_deviation):
        scratch = _scratch(6, 3)
        units, prob, state = np.empty(3, np.int64), np.empty(3), Stream(6).state
        sets: dict[tuple[int, ...], int] = {s: i for i, s in enumerate(combinations(range(6), 3))}
        counts, draws = np.zeros(len(sets)), 20_000
        for _ in range(draws):
            _draw_equal(6, 3, table_draws.HARTLEY_RAO, state, scratch, units, prob)
            counts[sets[tuple(sorted(units.tolist()))]] += 1
        assert largest_deviation(counts, np.full(20, 1 / 20), draws) < 4

    def test_every_order_equally_often(self, largest_deviation):
        orders = np.empty((DRAWS, 4), np.int64)
        _shuffles(orders, Stream(7).state)
        place = 4 ** np.arange(4)
        found, counts = np.unique(orders @ place, return_counts=True)
        assert set(found) == {int(np.dot(order, place)) for order in permutations(range(4))}
        assert largest_deviation(counts, np.full(24, 1 / 24), DRAWS) < 4
