"""Scores that the cloud refuses, clips and caps, and the noise of an agent."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isfed import Deville, Memory, Running, Uniform
from isfed.federation.safety import (
    ScoreRange,
    check_most_inclusion,
    limit_inclusion,
    revealed_score,
)
from isfed.sampling.policies import Table


def test_what_is_revealed_is_accepted():
    scores, rng = ScoreRange(1e-3, 1e3), np.random.default_rng(0)
    for score in (0.0, 1e-9, 1.0, 1e9):
        for noise in (0.0, 5.0):
            assert scores.low <= revealed_score(score, scores, noise=noise, rng=rng) <= scores.high


def test_noise_has_the_stated_privacy():
    """The frequency of any outcome differs by at most e^epsilon between the two extreme scores."""
    scores, rng, noise = ScoreRange(0.1, 10.0), np.random.default_rng(1), 4.0
    told = {
        score: np.array([revealed_score(score, scores, noise=noise, rng=rng) for _ in range(40000)])
        for score in (0.1, 10.0)
    }
    edges = np.array([0.0, 0.1000001, 0.3, 1.0, 3.0, 9.999999, 11.0])
    counts = {score: np.histogram(values, edges)[0] for score, values in told.items()}
    ratio = np.log(counts[0.1] / counts[10.0])
    error = np.sqrt(1 / counts[0.1] + 1 / counts[10.0])  # of the logarithm of a ratio of counts
    assert (np.abs(ratio) <= scores.epsilon(noise) + 4 * error).all()
    assert np.abs(ratio).max() > 0.5 * scores.epsilon(noise)  # the bound is not idle


def test_noise_needs_a_range_above_zero():
    with pytest.raises(ValueError, match="begins above 0"):
        revealed_score(1.0, ScoreRange(), noise=1.0, rng=np.random.default_rng())


def literal_limit(table, num_active, most):
    """The scores with all above the cap made equal, found by trying every number of them."""
    lift = 2.0**600  # a share of a subnormal number would be rounded to a whole number of them
    scores = np.where(table.scores >= 0.0, lift * table.scores, table.scores)
    seen = np.sort(scores[scores >= 0.0])
    floor = table.policy.floor
    if most >= 1.0 or not seen.size:
        return table.scores.copy()
    share = (most / num_active - floor / table.count) / (1.0 - floor) * table.count / seen.size
    if seen[-1] <= share * seen.sum() * (1.0 + 1e-12):
        return table.scores.copy()
    for equal in range(1, seen.size + 1):
        below, room = seen[: seen.size - equal], 1.0 - equal * share
        full = room <= 0.0 or not below.size
        limit = seen[-equal] if full else share * below.sum() / room
        if full or limit >= below[-1]:
            break
    return np.where(scores >= 0.0, np.minimum(scores, limit) / lift, scores)


SMALLEST = 5e-324
SCORES = st.one_of(st.just(-1.0), st.floats(0.0, 1e9), st.integers(0, 9).map(SMALLEST.__mul__))


@settings(deadline=None, max_examples=200)
@given(
    scores=st.lists(SCORES, min_size=4, max_size=40),
    share=st.floats(0.0, 1.0),
    num_active=st.integers(1, 4),
    floor=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_nobody_exceeds_the_cap(scores, share, num_active, floor):
    values = np.array(scores)
    table = Table(values.size, Memory(floor=floor), Deville())
    table.refresh(np.flatnonzero(values >= 0.0), values[values >= 0.0])
    most = num_active / values.size + share * (1.0 - num_active / values.size)
    expected = literal_limit(table, num_active, most)
    lowered = limit_inclusion(table, num_active, most)
    np.testing.assert_allclose(table.scores, expected, rtol=1e-9, atol=SMALLEST)
    assert table.inclusion(num_active).max() <= max(most * (1 + 1e-9), num_active / values.size)
    kept = table.scores == values
    assert lowered == (~kept).sum()
    assert (table.scores <= values).all()


def test_one_agent_alone_cannot_exceed_the_cap():
    table = Table(100, Memory(), Deville())
    table.replace(np.ones(100))
    table.refresh(np.array([7]), np.array([1e9]))
    assert table.inclusion(5)[7] == 1.0
    assert limit_inclusion(table, 5, 0.3) == 1
    assert table.inclusion(5)[7] == pytest.approx(0.3)


@pytest.mark.parametrize("policy", [Uniform(), Running(), Memory()])
def test_nothing_is_touched_within_the_cap(policy):
    table = Table(50, policy, Deville())
    before = table.nodes.copy()
    assert limit_inclusion(table, 5, 0.5) == 0
    assert (table.nodes == before).all()


def test_a_cap_below_the_uniform_probability_is_refused():
    with pytest.raises(ValueError, match=r"most_inclusion=0\.1 must be between .* = 0\.5 and 1"):
        check_most_inclusion(0.1, num_agents=4, num_active=2)
