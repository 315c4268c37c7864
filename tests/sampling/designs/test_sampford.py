"""Sampford's design: the draw, the joint probabilities, and the limit on rejections."""

from bisect import bisect_right
from itertools import combinations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isfed.base.jit import compiled
from isfed.base.random_streams import Stream
from isfed.sampling.designs import Sampford, inclusion_probabilities
from isfed.sampling.designs.rejective import _draw_sampford

ORACLE = np.array([0.2, 0.7, 0.8, 0.5, 0.4, 0.4])  # ALGORITHMS.md, section 9
CASES = [
    ORACLE,
    np.array([2, 1, 2, 1]) / 3,
    np.array([0.25, 0.75]),
    np.array([0.3, 1.0, 0.7, 0.6, 0.0, 0.4, 1.0]),
    np.array([0.99, 0.5, 0.01, 0.5, 0.9, 0.1]),
    np.array([1.0, 0.0, 1.0]),
]


@compiled
def _joint_counts(first, others, num, draws, state):
    """How often each pair came together in many draws (each unit: the diagonal)."""
    counts = np.zeros((first.size, first.size), np.int64)
    for _ in range(draws):
        units = _draw_sampford(first, others, num, 1_000_000, state)
        for i in units:
            for j in units:
                counts[i, j] += 1
    return counts


def _enumerated(inclusion):
    """Joint probabilities from the definition, over all sets of units that may be drawn.

    One unit comes by inclusion, the others by the odds; a set is kept if all differ, in whatever
    order: its chance is proportional to the sum over which of its units came first.
    """
    num = round(inclusion.sum())
    certain = [int(u) for u in np.flatnonzero(inclusion == 1.0)]
    rest = [int(u) for u in np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0))]
    odds = {u: inclusion[u] / (1 - inclusion[u]) for u in rest}
    joint, total = np.zeros((inclusion.size, inclusion.size)), 0.0
    for drawn in combinations(rest, num - len(certain)):
        chance = sum(inclusion[u] * prod(odds[v] for v in drawn if v != u) for u in drawn)
        chance = chance if drawn else 1.0
        units = [*certain, *drawn]
        joint[np.ix_(units, units)] += chance
        total += chance
    return joint / total


def _literal(inclusion, uniforms):
    """The draw as it is defined, one uniform at a time."""
    certain = np.flatnonzero(inclusion == 1.0)
    rest = np.flatnonzero((inclusion > 0.0) & (inclusion < 1.0))
    chance = inclusion[rest]
    first, others = np.cumsum(chance), np.cumsum(chance / (1 - chance))
    while True:
        drawn: list[int] = []
        while len(drawn) < round(inclusion.sum()) - certain.size:
            ends = others if drawn else first
            unit = bisect_right(ends, next(uniforms) * ends[-1])
            if unit in drawn:
                break
            drawn.append(unit)
        else:
            return sorted([*certain, *rest[drawn]])


def test_joint_probability_of_the_oracle():
    assert Sampford().joint(ORACLE)[0, 1] == pytest.approx(0.1081818182, abs=1e-9)


@pytest.mark.parametrize("inclusion", CASES)
def test_joint_equals_the_enumeration_of_all_sets(inclusion):
    joint = Sampford().joint(inclusion)
    np.testing.assert_allclose(joint, _enumerated(inclusion), atol=1e-12)
    np.testing.assert_array_equal(joint, joint.T)
    np.testing.assert_array_equal(np.diag(joint), inclusion)


@given(
    scores=st.lists(st.sampled_from([0.0, 5.0]) | st.floats(0.1, 10.0), min_size=2, max_size=12),
    data=st.data(),
)
def test_rows_of_joint_sum_to_num_times_inclusion(scores, data):
    scores[0] = 1.0
    num = data.draw(st.integers(1, int(np.count_nonzero(scores))))
    inclusion = inclusion_probabilities(scores, num)
    joint = Sampford().joint(inclusion)
    np.testing.assert_allclose(joint.sum(axis=1), num * inclusion, rtol=1e-9)
    assert np.all(joint <= np.minimum.outer(inclusion, inclusion) + 1e-12)


@pytest.mark.parametrize("inclusion", CASES)
def test_the_draw_is_the_rejective_procedure(inclusion):
    for seed in range(100):
        uniforms = iter(Stream(seed).uniforms(10_000))
        assert Sampford().draw(inclusion, seed).tolist() == _literal(inclusion, uniforms)


@pytest.mark.parametrize("inclusion", [ORACLE, CASES[4]])
def test_units_and_pairs_within_four_standard_errors(inclusion, largest_deviation):
    draws, num = 200_000, round(inclusion.sum())
    first, others = np.cumsum(inclusion), np.cumsum(inclusion / (1 - inclusion))
    counts = _joint_counts(first, others, num, draws, Stream(1).state)
    assert counts.sum() == num * num * draws  # always num distinct units
    assert largest_deviation(counts, _enumerated(inclusion), draws) < 4
    assert largest_deviation(np.diag(counts), inclusion, draws) < 4


@given(seed=st.integers(0, 2**32), num=st.integers(1, 8), dominating=st.integers(0, 2))
def test_always_num_distinct_units_of_positive_probability(seed, num, dominating):
    scores = np.random.default_rng(seed).lognormal(0.0, 0.5, 60)  # wider would reject too often
    scores[:20] = 0.0
    scores[60 - dominating :] = 1e6
    inclusion = inclusion_probabilities(scores, num)
    drawn = Sampford().draw(inclusion, seed)
    assert drawn.size == num
    assert np.all(np.diff(drawn) > 0)
    assert np.all(inclusion[drawn] > 0.0)
    assert np.all(np.isin(np.flatnonzero(inclusion == 1.0), drawn))


def test_too_many_rejections_end_with_an_error_that_says_what_to_use():
    inclusion = np.array([0.99] * 20 + [0.2])
    message = r"^Sampford's design rejected 1000 draws of 20 of 21 units; use Deville\(\) or .*$"
    with pytest.raises(RuntimeError, match=message):
        Sampford(most_tries=1000).draw(inclusion, 0)


@pytest.mark.parametrize(
    ("inclusion", "message"),
    [
        ([0.5, 1.5], r"^inclusion\[1\]=1.5 exceeds 1; use .*$"),
        ([0.5, 0.7], r"^inclusion sums to 1.2, not to a whole number >= 1; incl"),
        ([], r"^inclusion must be a non-empty vector, got shape \(0,\)$"),
        ([-0.5, 0.5], r"^inclusion\[0\]=-0.5 is not a finite number >= 0 \(1 such\)$"),
    ],
)
@pytest.mark.parametrize("call", [lambda pi: Sampford().draw(pi, 0), Sampford().joint])
def test_bad_input_is_named(call, inclusion, message):
    with pytest.raises(ValueError, match=message):
        call(inclusion)
