"""Systematic designs: inclusion probabilities integrated exactly, and by many draws."""

from fractions import Fraction
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed.base.jit import compiled
from isfed.base.random_streams import Stream
from isfed.sampling import score_table as table
from isfed.sampling import table_draws
from isfed.sampling.designs import Deville, HartleyRao, Systematic, inclusion_probabilities
from isfed.sampling.designs.exact_variance import total_variance
from isfed.sampling.designs.systematic import _draw_once

SIZES = [2, 15, 16, 17, 255, 256, 257, 1024, 1025, 4096, 4097, 20000]
FIXED = [Systematic(), HartleyRao(), Deville()]
FOUR_BALLS = np.array([2, 1, 2, 1])  # the paper's example: p = (1/3, 1/6, 1/3, 1/6)
SMALL = [
    ([2, 1, 2, 1], 2),
    ([1, 1, 1, 1], 2),
    ([3, 0, 5, 2, 0, 4, 1], 2),
    ([3, 0, 5, 2, 0, 4, 1], 1),
    ([1, 2, 3, 4, 5, 6, 7], 3),
    ([7, 1, 7, 1, 7, 1, 7, 1], 4),
    ([9, 8, 9, 8, 9, 8, 1], 5),
]


def _table(leaves):
    """A score table with these leaves."""
    nodes = np.empty(table.table_size(len(leaves)))
    nodes[: len(leaves)] = leaves
    table.rebuild(nodes, 0, len(leaves))
    return nodes


@compiled
def _systematic(nodes, count, floor, num, offsets):
    """The units of the ordered systematic draw at each offset, and what it returns."""
    a, b, c = table.scale(nodes, 0, count, floor)
    root = table.root_of(0, count)
    total = a * nodes[root] + b * nodes[root + 1] + c * nodes[root + 2]
    plain = nodes[root + 1] == count
    starts = np.empty(table_draws.MOST_BLOCKS)
    table_draws._block_starts(nodes, 0, count, (a, b, c), starts)
    units = np.full((offsets.size, num), -1)
    certain = np.empty(offsets.size, np.int64)
    for i in range(offsets.size):
        certain[i] = table_draws.systematic_units(
            nodes, 0, count, (a, b, c), total, num, offsets[i : i + 1], units[i], 0, starts, plain
        )
    return units, certain


@compiled
def _deville(nodes, count, num, uniforms):
    """The units of Deville's draw from a table of known scores, and what it returns."""
    root = table.root_of(0, count)
    starts = np.empty(table_draws.MOST_BLOCKS)
    one = (1.0, 0.0, 0.0)
    table_draws._block_starts(nodes, 0, count, one, starts)
    units = np.empty(num, np.int64)
    certain = table_draws.deville_units(
        nodes, 0, count, one, nodes[root], num, uniforms, units, 0, starts, True
    )
    return units, certain


@compiled
def _joint_counts(weights, num, design, draws, state):
    """How often each pair came together in many draws (each unit: the diagonal)."""
    counts = np.zeros((weights.size, weights.size), np.int64)
    for _ in range(draws):
        units = _draw_once(weights, num, design, state)
        for i in units:
            for j in units:
                counts[i, j] += 1
    return counts


def _cells(weights, num):
    """The cells of the offset between which a systematic draw changes: midpoints and widths.

    Whole weights make the break points whole multiples of 1 / total: widths are in that unit and
    exact. Unit j is drawn while offset + l, l = 0..num-1, lies within num times its share.
    """
    total = int(np.sum(weights))
    breaks = np.unique(np.append(num * np.cumsum(weights) % total, [0, total]))
    return (breaks[:-1] + breaks[1:]) / (2 * total), np.diff(breaks)


def _largest_num(weights, most):
    """The largest draw, up to `most`, in which no unit is certain."""
    return int(np.clip((np.sum(weights) - 1) // np.max(weights), 1, most))


class TestSystematic:
    @pytest.mark.parametrize("count", SIZES)
    def test_inclusion_is_exact_for_any_number_of_units(self, count):
        weights = np.random.default_rng(count).integers(0, 1000, count)
        weights[0] = max(weights[0], 1)
        num = _largest_num(weights, 60)
        offsets, widths = _cells(weights, num)
        units, certain = _systematic(_table(weights), count, 0.0, num, offsets)
        assert not certain.any()
        assert np.all(np.diff(units, axis=1) > 0)  # num distinct units, in order
        inclusion = np.zeros(count, np.int64)
        np.add.at(inclusion, units, widths[:, None])
        np.testing.assert_array_equal(inclusion, num * weights)

    @pytest.mark.parametrize("count", [16, 40, 300, 1024, 1025, 5000])
    def test_an_offset_on_a_break_point_belongs_to_the_unit_that_begins_there(self, count):
        weights = np.zeros(count, np.int64)  # a tie at 0 could lead to the blocks of nothing
        inner = slice(count // 3, count - 1)
        size = weights[inner].size
        num, total = 4, 1 << (4 * count).bit_length()  # powers of two make the points exact
        weights[inner] = np.random.default_rng(count).multinomial(total, np.full(size, 1 / size))
        offsets, widths = _cells(weights, num)
        nodes, begins = _table(weights), (np.cumsum(widths) - widths) / total
        within, certain = _systematic(nodes, count, 0.0, num, offsets)
        assert not certain.any()
        np.testing.assert_array_equal(_systematic(nodes, count, 0.0, num, begins)[0], within)

    @pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
    @pytest.mark.parametrize("count", [40, 300, 2000])
    def test_inclusion_is_exact_with_unseen_units_and_a_floor(self, count, floor):
        rng = np.random.default_rng(count)
        leaves = rng.lognormal(0.0, 0.5, count)
        leaves[rng.random(count) < 0.3] = table.UNSEEN
        mean = leaves[leaves >= 0].mean()
        prob = np.where(leaves >= 0, leaves, mean)
        prob = (1 - floor) * prob / prob.sum() + floor / count
        num = 6
        ends = num * np.cumsum(prob)
        breaks = np.unique(np.concatenate([[0.0], ends[:-1] % 1.0, [1.0]]))
        units, _ = _systematic(_table(leaves), count, floor, num, (breaks[:-1] + breaks[1:]) / 2)
        inclusion = np.zeros(count)
        np.add.at(inclusion, units, np.diff(breaks)[:, None])
        np.testing.assert_allclose(inclusion, num * prob, atol=1e-12)

    @pytest.mark.parametrize("num_certain", [0, 1, 3])
    def test_inclusion_of_the_public_draw_is_exact(self, num_certain, stream_giving):
        # Inclusion in 64ths, so that sums are exact; certain units cost one uniform beforehand.
        parts = np.array([64] * num_certain + [13, 0, 60, 7, 30, 1, 17, 0])
        parts = np.random.default_rng(0).permutation(parts)
        num = parts.sum() // 64
        offsets, widths = _cells(parts[parts < 64], num - num_certain)
        inclusion = np.zeros(parts.size, np.int64)
        for offset, width in zip(offsets, widths, strict=True):
            drawn = Systematic().draw(parts / 64, stream_giving(offset, min(num_certain, 1)))
            assert np.unique(drawn).tolist() == drawn.tolist()
            assert drawn.size == num
            inclusion[drawn] += width
        np.testing.assert_array_equal(inclusion, parts * (num - num_certain))

    @pytest.mark.parametrize(("weights", "num"), SMALL)
    def test_joint_is_that_of_the_draw(self, weights, num):
        offsets, widths = _cells(weights, num)
        units, _ = _systematic(_table(weights), len(weights), 0.0, num, offsets)
        joint = np.zeros((len(weights), len(weights)))
        for drawn, width in zip(units, widths / sum(weights), strict=True):
            joint[np.ix_(drawn, drawn)] += width
        inclusion = num * np.array(weights) / sum(weights)
        np.testing.assert_allclose(Systematic().joint(inclusion), joint, atol=1e-12)

    def test_a_table_of_zeros_is_drawn_uniformly(self):
        offsets, widths = _cells(np.ones(10, int), 3)
        units, _ = _systematic(_table(np.zeros(10)), 10, 0.0, 3, offsets)
        inclusion = np.zeros(10, np.int64)
        np.add.at(inclusion, units, widths[:, None])
        np.testing.assert_array_equal(inclusion, 3)

    def test_certain_units_are_told_whatever_the_offset(self):
        weights = [1, 30, 2, 12, 1, 10, 2]  # the step is 58 / 5: units 1 and 3 reach it
        units, certain = _systematic(_table(weights), 7, 0.0, 5, np.linspace(0, 0.99, 50))
        assert np.all(certain == 2)
        np.testing.assert_array_equal(units[:, :2], np.tile([1, 3], (50, 1)))

    def test_a_single_unit_is_certain(self):
        units, certain = _systematic(_table([5.0]), 1, 0.0, 1, np.array([0.5]))
        assert (units.tolist(), certain.tolist()) == ([[0]], [1])


class TestHartleyRao:
    @pytest.mark.parametrize(
        ("weights", "num"), [([2, 1, 2, 1], 2), ([3, 0, 5, 2, 4, 1], 2), ([1, 2, 3, 4, 5, 6], 3)]
    )
    def test_inclusion_and_joint_are_exact_over_all_orders(self, weights, num):
        weights = np.array(weights)
        joint = np.zeros((weights.size, weights.size), np.int64)
        orders = np.array(list(permutations(range(weights.size))))
        for order in orders:
            offsets, widths = _cells(weights[order], num)
            units, _ = _systematic(_table(weights[order]), order.size, 0.0, num, offsets)
            for drawn, width in zip(order[units], widths, strict=True):
                joint[np.ix_(drawn, drawn)] += width
        np.testing.assert_array_equal(np.diag(joint), len(orders) * num * weights)
        inclusion = num * weights / weights.sum()
        expected = joint / (len(orders) * weights.sum())
        np.testing.assert_allclose(HartleyRao().joint(inclusion), expected, atol=1e-12)

    def test_the_draw_is_systematic_along_a_shuffled_order(self):
        weights, num = np.array([1, 2, 3, 4, 5, 6, 9]), 3
        for seed in range(200):
            uniforms = Stream(seed).uniforms(weights.size + 1)
            order: list[int] = []  # Fisher and Yates, inside out
            for i, u in enumerate(uniforms[:-1]):
                j = int(u * (i + 1))
                order.append(i)
                order[i], order[j] = order[j], order[i]
            units, _ = _systematic(_table(weights[order]), 7, 0.0, num, uniforms[-1:])
            drawn = HartleyRao().draw(num * weights / weights.sum(), seed)
            np.testing.assert_array_equal(drawn, np.array(order)[units[0]])

    def test_joint_of_many_units_is_near_the_exact_variance(self):
        rng = np.random.default_rng(1)
        inclusion = inclusion_probabilities(rng.lognormal(0.0, 0.7, 40), 6)
        values = (inclusion * (1.0 + 0.3 * rng.normal(size=40)))[:, None]
        spread = HartleyRao().joint(inclusion) - np.outer(inclusion, inclusion)
        weighted = values[:, 0] / inclusion
        exact = total_variance(HartleyRao(), inclusion, values)[0]
        assert weighted @ spread @ weighted == pytest.approx(exact, rel=0.02)


def _pivotal(inclusion):
    """The chance of every set under the ordered pivotal method, in exact arithmetic.

    Neighbours duel: if their probabilities sum to less than 1 the winner takes both and goes on;
    otherwise the winner is drawn and the loser goes on with what is left of 1.
    """
    sets = {}

    def duel(unit, champion, a, taken, chance):
        if chance == 0:
            return
        if unit == len(inclusion):
            drawn = frozenset(taken | {champion} if a == 1 else taken)
            sets[drawn] = sets.get(drawn, 0) + chance
            return
        b = inclusion[unit]
        if a + b < 1:
            share = b / (a + b) if a + b else Fraction(0)
            duel(unit + 1, unit, a + b, taken, chance * share)
            duel(unit + 1, champion, a + b, taken, chance * (1 - share))
        else:
            share = (1 - a) / (2 - a - b)
            duel(unit + 1, champion, a + b - 1, taken | {unit}, chance * share)
            duel(unit + 1, unit, a + b - 1, taken | {champion}, chance * (1 - share))

    duel(1, 0, inclusion[0], frozenset(), Fraction(1))
    return sets


def _stratum_breaks(inclusion, stratum, taken):
    """Where the choice in one stratum of Deville's draw changes, given the unit taken before."""
    ends = [sum(inclusion[: unit + 1]) for unit in range(len(inclusion))]
    border = next(unit for unit, end in enumerate(ends) if end > stratum)
    after = ends[border] - stratum
    before = inclusion[border] - after
    chance = Fraction(0) if border == taken else after / (1 - before)
    inner = [end for end in ends if stratum + after < end < stratum + 1]
    spread = [chance + (1 - chance) * (end - stratum - after) / (1 - after) for end in inner]
    return sorted({Fraction(0), chance, *spread, Fraction(1)})


def _deville_sets(weights, num):
    """The chance of every set that the compiled draw gives, stratum by stratum."""
    inclusion = [Fraction(num * w, sum(weights)) for w in weights]
    nodes = _table(weights)
    sets = {}

    def walk(uniforms, taken, chance):
        if len(taken) == num:
            sets[frozenset(taken)] = sets.get(frozenset(taken), 0) + chance
            return
        breaks = _stratum_breaks(inclusion, len(taken), taken[-1] if taken else None)
        for low, high in pairwise(breaks):
            so_far = [*uniforms, float((low + high) / 2)]
            padded = np.array(so_far + [0.5] * (num - len(so_far)))
            units, certain = _deville(nodes, len(weights), num, padded)
            assert certain == 0
            assert units[: len(taken)].tolist() == taken
            walk(so_far, units[: len(so_far)].tolist(), chance * (high - low))

    walk([], [], Fraction(1))
    return sets


class TestDeville:
    @pytest.mark.parametrize(("weights", "num"), SMALL)
    def test_inclusion_is_exact(self, weights, num):
        sets = _deville_sets(weights, num)
        assert sum(sets.values()) == 1
        assert all(len(drawn) == num for drawn in sets)
        inclusion = [
            sum(chance for drawn, chance in sets.items() if unit in drawn)
            for unit in range(len(weights))
        ]
        assert inclusion == [Fraction(num * w, sum(weights)) for w in weights]

    @pytest.mark.parametrize(("weights", "num"), SMALL)
    def test_is_the_ordered_pivotal_method(self, weights, num):
        inclusion = [Fraction(num * w, sum(weights)) for w in weights]
        assert _deville_sets(weights, num) == _pivotal(inclusion)


@pytest.mark.parametrize("design", FIXED, ids=str)
class TestManyDraws:
    DRAWS = 200_000

    @pytest.mark.parametrize(
        ("count", "num", "spread"),
        [(40, 10, 1.5), (300, 6, 0.5)],
        ids=["some certain", "few of many"],
    )
    def test_inclusion_within_four_standard_errors(
        self, design, count, num, spread, largest_deviation
    ):
        scores = np.random.default_rng(count).lognormal(0.0, spread, count)
        scores[::7] = 0.0
        inclusion = inclusion_probabilities(scores, num)
        draws = self.DRAWS
        counts = _joint_counts(inclusion, num, design.code, draws, Stream(num).state)
        units = np.diag(counts)
        assert units.sum() == num * draws
        assert counts.sum() == num * num * draws  # all distinct, else a pair counts twice
        assert largest_deviation(units, inclusion, draws) < 4

    def test_pairs_within_four_standard_errors(self, design, largest_deviation):
        weights, num = [3, 0, 5, 2, 4, 1], 2
        inclusion = np.array([num * w / sum(weights) for w in weights])
        if isinstance(design, Deville):
            joint = np.zeros((6, 6))
            for drawn, chance in _pivotal(
                [Fraction(num * w, sum(weights)) for w in weights]
            ).items():
                joint[np.ix_(list(drawn), list(drawn))] += float(chance)
        else:
            joint = design.joint(inclusion)
        joint[joint < 1e-12] = 0.0
        counts = _joint_counts(inclusion, num, design.code, self.DRAWS, Stream(7).state)
        assert largest_deviation(counts, joint, self.DRAWS) < 4


@pytest.mark.parametrize("design", FIXED, ids=str)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_always_num_distinct_units_of_positive_probability(design, data, seed, weights_and_num):
    weights, num = data.draw(weights_and_num)
    inclusion = inclusion_probabilities(weights, num)
    drawn = design.draw(inclusion, seed)
    assert np.unique(drawn).size == drawn.size == num
    assert np.all(inclusion[drawn] > 0.0)
    assert np.all(np.isin(np.flatnonzero(inclusion == 1.0), drawn))
    if not isinstance(design, HartleyRao):
        assert np.all(np.diff(drawn) > 0)


@pytest.mark.parametrize("design", [Systematic(), HartleyRao()], ids=str)
@pytest.mark.parametrize(("weights", "num"), [([2, 1, 2, 1], 2), ([3, 0, 5, 2, 4, 1], 3)])
def test_rows_of_joint_sum_to_num_times_inclusion(design, weights, num):
    inclusion = inclusion_probabilities(weights, num)
    joint = design.joint(inclusion)
    np.testing.assert_allclose(joint.sum(axis=1), num * inclusion, atol=1e-12)
    np.testing.assert_allclose(np.diag(joint), inclusion, atol=1e-12)
    np.testing.assert_array_equal(joint, joint.T)


class TestFourBalls:
    """The paper's example: the designs give 2/3 and 1/3, a successive choice does not."""

    def test_designs_give_the_prescribed_probabilities(self):
        offsets, widths = _cells(FOUR_BALLS, 2)
        units, _ = _systematic(_table(FOUR_BALLS), 4, 0.0, 2, offsets)
        inclusion = np.zeros(4)
        np.add.at(inclusion, units, widths[:, None] / FOUR_BALLS.sum())
        np.testing.assert_allclose(inclusion, [2 / 3, 1 / 3, 2 / 3, 1 / 3], rtol=1e-15)
        by_enumeration = np.diag(HartleyRao().joint(inclusion))
        np.testing.assert_allclose(by_enumeration, [2 / 3, 1 / 3, 2 / 3, 1 / 3], rtol=1e-12)

    def test_successive_choice_does_not(self):
        prob = [Fraction(int(w), 6) for w in FOUR_BALLS]
        chance = {
            pair: prob[pair[0]]
            * prob[pair[1]]
            * (1 / (1 - prob[pair[0]]) + 1 / (1 - prob[pair[1]]))
            for pair in combinations(range(4), 2)
        }
        inclusion = [sum(c for pair, c in chance.items() if unit in pair) for unit in range(4)]
        assert inclusion == [Fraction(19, 30), Fraction(11, 30), Fraction(19, 30), Fraction(11, 30)]

    def test_successive_choice_is_what_numpy_does(self, largest_deviation):
        rng, draws = np.random.default_rng(0), 10_000
        counts = np.zeros(4)
        for _ in range(draws):
            counts[rng.choice(4, 2, replace=False, p=FOUR_BALLS / 6)] += 1
        assert largest_deviation(counts, np.array([19, 11, 19, 11]) / 30, draws) < 4
        assert largest_deviation(counts, np.array([2, 1, 2, 1]) / 3, draws) > 4


@pytest.mark.parametrize("design", FIXED, ids=str)
@pytest.mark.parametrize(
    ("inclusion", "message"),
    [
        ([0.5, 1.5], r"^inclusion\[1\]=1.5 exceeds 1; use .*$"),
        ([0.5, 0.7], r"^inclusion sums to 1.2, not to a whole number >= 1; incl"),
        ([], r"^inclusion must be a non-empty vector, got shape \(0,\)$"),
        ([0.5, np.nan], r"^inclusion\[1\]=nan is not a finite number >= 0 \(1 such\)$"),
    ],
)
def test_bad_input_is_named(design, inclusion, message):
    with pytest.raises(ValueError, match=message):
        design.draw(inclusion, 0)
