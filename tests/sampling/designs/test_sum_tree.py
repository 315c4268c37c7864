"""The sum tree: exact after any history, and the same draws as a scan would give."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed.base.jit import compiled
from isfed.base.random_streams import Stream
from isfed.sampling.designs import (
    Deville,
    HartleyRao,
    Poisson,
    SumTree,
    Systematic,
    inclusion_probabilities,
)
from isfed.sampling.table_draws import draw_from_table

SIZES = [1, 15, 16, 17, 255, 256, 257, 1024, 1025, 4096, 4097, 20000]
DESIGNS = [Systematic(), Deville()]


@compiled
def _counts(nodes, count, num, design, draws, state):
    """How often each unit came in many draws, and how often one was repeated."""
    counts = np.zeros(count, np.int64)
    last = np.full(count, -1)
    repeated = 0
    for draw in range(draws):
        units, _ = draw_from_table(nodes, count, 0.0, num, design, False, state)
        for unit in units:
            repeated += last[unit] == draw
            last[unit] = draw
            counts[unit] += 1
    return counts, repeated


def _bits(tree):
    """The tree, bit for bit."""
    return tree._nodes.view(np.uint64)


def _random_weights(rng, count):
    """Weights over many orders of magnitude, so that some are certain; a fifth is zero."""
    return rng.lognormal(0.0, 8.0, count) * (rng.random(count) < 0.8)


@pytest.mark.parametrize("count", SIZES)
def test_equals_a_rebuild_after_ten_thousand_updates_and_draws(count):
    rng = np.random.default_rng(count)
    weights = _random_weights(rng, count)
    weights[0] = 1.0
    tree = SumTree(weights)
    certain = 0
    for _ in range(200):
        units, fresh = rng.integers(0, count, 50), _random_weights(rng, 50)
        tree.update(units, fresh)
        weights[units] = fresh  # of a unit named twice the last counts, in NumPy as in the tree
        positive = np.count_nonzero(weights)
        if positive:
            num = int(rng.integers(1, min(positive, 100) + 1))
            design = DESIGNS[rng.integers(2)]
            _, inclusion = tree.draw(num, int(rng.integers(2**32)), design=design)
            certain += np.count_nonzero(inclusion == 1.0)
    assert certain > 0  # else nothing was set aside and put back
    np.testing.assert_array_equal(tree.weights, weights)
    np.testing.assert_array_equal(_bits(tree), _bits(SumTree(weights)))
    assert tree.total == pytest.approx(weights.sum(), rel=1e-12)


@pytest.mark.parametrize("design", DESIGNS, ids=str)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_num_distinct_positive_units_with_their_inclusion(design, data, seed, weights_and_num):
    weights, num = data.draw(weights_and_num)
    tree = SumTree(weights)
    before = _bits(tree).copy()
    units, inclusion = tree.draw(num, seed, design=design)
    assert np.unique(units).size == units.size == num
    assert np.all(weights[units] > 0.0)
    expected = inclusion_probabilities(weights, num)
    np.testing.assert_allclose(inclusion, expected[units], rtol=1e-9, atol=1e-12)
    assert inclusion.max() <= 1.0
    np.testing.assert_array_equal(_bits(tree), before)


@pytest.mark.parametrize("design", DESIGNS, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_a_unit_of_weight_zero_is_never_taken(count, design):
    rng = np.random.default_rng(count)
    weights = np.zeros(count)
    weights[rng.choice(count, max(1, count // 50), replace=False)] = rng.lognormal()
    tree = SumTree(weights)
    positive = np.flatnonzero(weights)
    for num in (1, (positive.size + 1) // 2, positive.size):
        for seed in range(20):
            units, _ = tree.draw(num, seed, design=design)
            assert np.all(weights[units] > 0.0)
    assert sorted(units) == positive.tolist()


@pytest.mark.parametrize("count", [20, 300, 1500])
def test_systematic_draw_is_exact_when_units_are_certain_by_turns(count, stream_giving):
    """Integrated over the one offset that matters, the last of the draw, in whole numbers."""
    rng = np.random.default_rng(count)
    weights = rng.integers(0, 4, count)
    steps = rng.choice(count, 3, replace=False)
    # Each hides the next: certain only when the one before is out.
    weights[steps] = [10**9, 10**5 * count, 40 * count]
    num = 3 + 2
    rest = np.delete(weights, steps)
    total = rest.sum()
    breaks = np.unique(np.append(2 * np.cumsum(rest) % total, [0, total]))
    tree, passes = SumTree(weights), _passes(weights, num)
    assert passes > 1
    counts = np.zeros(count, np.int64)
    for low, high in pairwise(breaks):
        stream = stream_giving((low + high) / (2 * total), passes)
        units, _ = tree.draw(num, stream, design=Systematic())
        counts[units] += high - low
    expected = 2 * weights
    expected[steps] = total
    np.testing.assert_array_equal(counts, expected)


def _passes(weights, num):
    """How often the rule caps before nothing is left to cap."""
    rest, passes = weights.astype(float), 0
    while np.any(certain := rest * num >= rest.sum()):
        rest, num, passes = rest[~certain], num - np.count_nonzero(certain), passes + 1
    return passes


@pytest.mark.parametrize("design", DESIGNS, ids=str)
@pytest.mark.parametrize("count", [200, 1100, 5000])
def test_inclusion_within_four_standard_errors(count, design, largest_deviation):
    weights = np.random.default_rng(count).lognormal(0.0, 0.3, count)
    weights[::9] = 0.0
    weights[[5, 150]] = 1e3 * count
    num, draws = 12, 200_000
    tree = SumTree(weights)
    counts, repeated = _counts(tree._nodes, count, num, design.code, draws, Stream(count).state)
    assert repeated == 0
    assert counts.sum() == num * draws
    assert largest_deviation(counts, inclusion_probabilities(weights, num), draws) < 4


def test_a_draw_is_a_function_of_its_stream():
    tree = SumTree(np.arange(1.0, 2000.0))
    first, again, other = tree.draw(20, 1), tree.draw(20, 1), tree.draw(20, 2)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    default = tree.draw(20, 3)
    np.testing.assert_array_equal(default, tree.draw(20, 3, design=Deville()))


@pytest.fixture
def eager_switches():
    """Let the interpreter change threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_share_a_tree_draw_as_one_would(eager_switches):
    weights = np.r_[np.ones(200), [1e6] * 5]  # five certain units: a draw takes them out meanwhile
    alone, shared = SumTree(weights), SumTree(weights)
    expected = [alone.draw(20, seed) for seed in range(2000)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: shared.draw(20, seed), range(2000)))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(_bits(shared), _bits(alone))


def test_threads_may_update_while_others_draw(eager_switches):
    weights = np.r_[np.ones(200), [1e6] * 5]
    tree = SumTree(weights)

    def change(turn):
        if turn % 2:
            units, inclusion = tree.draw(20, turn)
            return np.unique(units).size == 20 and np.count_nonzero(inclusion == 1.0) == 5
        tree.update([turn % 200, 200 + turn % 5], [1.0 + turn % 3, 1e6 + turn])
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(change, range(2000)))
    np.testing.assert_array_equal(_bits(tree), _bits(SumTree(tree.weights)))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_a_copy_is_a_tree_of_its_own(again):
    tree = SumTree([1.0, 2.0, 3.0])
    other = again(tree)
    other.update(0, 5.0)
    np.testing.assert_array_equal(tree.weights, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(other.draw(2, 0), SumTree([5.0, 2.0, 3.0]).draw(2, 0))


SMALLEST = 5e-324


@pytest.mark.parametrize("design", DESIGNS, ids=str)
@pytest.mark.parametrize(
    ("weights", "num"),
    [
        ([SMALLEST] * 4, 3),
        ([SMALLEST, 2 * SMALLEST, 3 * SMALLEST, 4 * SMALLEST], 2),
        ([1.0, SMALLEST, SMALLEST, SMALLEST, SMALLEST], 4),  # tiny once the certain one is out
        ([1e300, 1e-290, *[3 * SMALLEST] * 7], 5),
        ([*[0.0] * 40, *[7 * SMALLEST] * 40], 33),
    ],
)
def test_inclusion_of_subnormal_weights_is_exact(weights, num, design):
    exact = [float(p) for p in _literal_inclusion([Fraction(w) for w in weights], num)]
    np.testing.assert_allclose(inclusion_probabilities(weights, num), exact, rtol=1e-14)
    tree, counts = SumTree(weights), np.zeros(len(weights))
    for seed in range(2000):
        units, inclusion = tree.draw(num, seed, design=design)
        np.testing.assert_allclose(inclusion, np.array(exact)[units], rtol=1e-14)
        assert np.unique(units).size == num
        counts[units] += 1
    chance = np.array(exact)
    error = np.sqrt(2000 * chance * (1 - chance)) + 1e-9
    assert np.all(np.abs(counts - 2000 * chance) < 4.5 * error)


def _literal_inclusion(weights, num):
    """Cap at 1, rescale, repeat, in exact arithmetic."""
    chance = [Fraction(0)] * len(weights)
    rest, left = [u for u, w in enumerate(weights) if w], num
    while rest:
        total = sum(weights[u] for u in rest)
        certain = [u for u in rest if weights[u] * left >= total]
        if not certain:
            for u in rest:
                chance[u] = weights[u] * left / total
            return chance
        for u in certain:
            chance[u] = Fraction(1)
        rest, left = [u for u in rest if u not in certain], left - len(certain)
    return chance


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-300, 1e300])
@pytest.mark.parametrize("design", DESIGNS, ids=str)
def test_inclusion_does_not_depend_on_the_scale_of_the_weights(scale, design):
    # 1e5 times 1e300 drawn 5e4 times: the product of total and num is beyond float64
    units, inclusion = SumTree(np.full(100_000, scale)).draw(50_000, 0, design=design)
    assert np.unique(units).size == 50_000
    np.testing.assert_allclose(inclusion, 0.5, rtol=1e-12)


def test_length_total_and_weights():
    tree = SumTree([1, 2, 3])
    assert len(tree) == 3
    assert tree.total == 6.0
    tree.weights[0] = 100.0  # a copy
    np.testing.assert_array_equal(tree.weights, [1.0, 2.0, 3.0])
    tree.update(1, 5)
    tree.update([0, 2, 0], [7, 0, 4])
    np.testing.assert_array_equal(tree.weights, [4.0, 5.0, 0.0])
    assert tree.total == 9.0


def test_the_number_of_positive_weights_follows_updates():
    tree = SumTree([1.0, 0.0, 3.0, 0.0])
    tree.update([1, 1, 0, 0], [2.0, 0.0, 0.0, 5.0])  # in the end neither has changed its kind
    assert sorted(tree.draw(2, 0)[0]) == [0, 2]
    tree.update([3, 0], [1.0, 0.0])
    assert sorted(tree.draw(2, 0)[0]) == [2, 3]
    tree.update([2, 3], [0.0, 0.0])
    with pytest.raises(ValueError, match=r"^num=1 exceeds the 0 units of positive weight$"):
        tree.draw(1, 0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], r"^weights must be a non-empty vector, got shape \(0,\)$"),
        ([1.0, -1.0], r"^weights\[1\]=-1.0 is not a finite number >= 0 \(1 such\)$"),
        ([np.nan, 1.0], r"^weights\[0\]=nan is not a finite number >= 0 \(1 such\)$"),
        ([1e308, 1e308], r"^the sum of weights overflows; divide them by their maximum$"),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        SumTree(weights)


@pytest.mark.parametrize(
    ("units", "weights", "message"),
    [
        ([3], [1.0], r"^unit 3 is outside 0\.\.2$"),
        ([0, -1], [1.0, 1.0], r"^unit -1 is outside 0\.\.2$"),
        ([0, 1], [1.0], r"^2 units but 1 weights$"),
        ([0.0], [1.0], r"^units must be integers, got float64$"),
        ([True], [1.0], r"^units must be integers, got bool$"),
        ([0], [np.inf], r"^weights\[0\]=inf is not a finite number >= 0 \(1 such\)$"),
        ([0], [-1.0], r"^weights\[0\]=-1.0 is not a finite number >= 0 \(1 such\)$"),
        ([0], [1e308], r"^the sum of the weights overflows; divide them by their maximum$"),
    ],
)
def test_a_bad_update_is_named_and_changes_nothing(units, weights, message):
    tree = SumTree([1.0, 0.0, 1e308])
    before = _bits(tree).copy()
    with pytest.raises(ValueError, match=message):
        tree.update(units, weights)
    np.testing.assert_array_equal(_bits(tree), before)


@pytest.mark.parametrize(
    ("num", "design", "message"),
    [
        (0, None, r"^num=0 must be between 1 and the number of units, 3$"),
        (4, None, r"^num=4 must be between 1 and the number of units, 3$"),
        (1.5, None, r"^num=1.5 must be a whole number$"),
        (3, None, r"^num=3 exceeds the 2 units of positive weight$"),
        (
            1,
            HartleyRao(),
            r"^design: a tree draws Systematic\(\) or Deville\(\), not HartleyRao\(\)$",
        ),
        (1, Poisson(), r"^design: a tree draws Systematic\(\) or Deville\(\), not Poisson\(\)$"),
    ],
)
def test_a_bad_draw_is_named(num, design, message):
    with pytest.raises(ValueError, match=message):
        SumTree([1.0, 0.0, 2.0]).draw(num, 0, design=design)
