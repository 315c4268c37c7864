"""Agents drawn by their scores, the mean of their changes, and what the scores learn from it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isfed import (
    ByScore,
    Cohort,
    Deville,
    Evidence,
    Facts,
    HartleyRao,
    HorvitzThompson,
    Memory,
    Oracle,
    Poisson,
    Running,
    Sampford,
    Systematic,
    Uniform,
    Updates,
    WithReplacement,
    Work,
)
from isfed.base.random_streams import NO_AGENT, Stream
from isfed.federation.messages import EVERY

FIXED_SIZE = [Systematic(), Deville(), HartleyRao(), Sampford()]
SCORES = np.array([1.0, 2.0, 3.0, 4.0, 30.0])  # of three, the last is certain
FACTS = Facts(5, 2, 2, None, np.ones(5), np.ones(5), np.ones(5))


def agents(key=7) -> Any:
    return SimpleNamespace(
        optimum=None,
        scores_at=lambda *_, **__: SCORES,
        stream=lambda _, i: Stream.at(np.uint64(key), round_index=i, agent=NO_AGENT),
    )


def draws(sampler, rounds=50, key=7):
    state = sampler.init(FACTS, agents(), np.zeros(2))
    return [sampler.draw(state, FACTS, agents(key), np.zeros(2), i)[0] for i in range(rounds)]


@pytest.mark.parametrize("design", FIXED_SIZE, ids=lambda d: type(d).__name__)
def test_a_cohort_is_l_distinct_agents_with_their_probabilities(design):
    inclusion = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
    for cohort in draws(ByScore(3, Oracle(), design)):
        assert len(set(cohort.agents)) == 3
        assert 4 in cohort.agents
        np.testing.assert_allclose(cohort.prob, inclusion[cohort.agents] / 3)
        np.testing.assert_array_equal(cohort.times, [1, 1, 1])


def test_an_agent_drawn_twice_works_once_and_counts_twice():
    cohorts = draws(ByScore(3, Oracle(), WithReplacement()))
    for cohort in cohorts:
        assert len(set(cohort.agents)) == len(cohort.agents)
        assert cohort.times.sum() == 3
        np.testing.assert_allclose(cohort.prob, (SCORES / 40)[cohort.agents])
    assert max(cohort.times.max() for cohort in cohorts) > 1


def test_the_cohort_depends_on_key_and_round_alone():
    sampler = ByScore(3, Oracle())
    chosen = [[tuple(c.agents) for c in draws(sampler, 20, key)] for key in (7, 7, 8)]
    assert chosen[0] == chosen[1]
    assert chosen[0] != chosen[2]
    assert len(set(chosen[0])) > 1


@pytest.mark.parametrize(
    ("times", "rows", "expected"),
    [
        ([1, 1, 1], [[2.0, 0.0], [1.0, 5.0], [-3.0, 1.0]], [0.0, 2.0]),
        ([2, 1], [[3.0, 0.0], [0.0, 6.0]], [2.0, 2.0]),
        ([], [], [0.0, 0.0]),  # a draw of random size is still divided by L
        ([1], [[3.0, 0.0]], [1.0, 0.0]),
        ([1] * 4, [[3.0, 0.0]] * 4, [4.0, 0.0]),
    ],
)
def test_the_step_is_the_mean_over_l_of_the_changes(times, rows, expected):
    """Eq. (9); p_k has been divided by in the agents' steps and does not enter again."""
    count = len(times)
    cohort = Cohort(np.arange(count), 3, np.array(times, float), np.linspace(0.1, 0.3, count))
    changes = np.array(rows, float).reshape(-1, 2)
    updates = Updates(EVERY, changes, np.zeros(count), np.zeros((count, 4)), np.zeros((count, 0)))
    opened: Any = SimpleNamespace(cohort=cohort, work=Work(0.1))
    step, _, _ = HorvitzThompson(on="step").combine((), opened, updates, FACTS)
    np.testing.assert_allclose(step, expected, rtol=1e-15)


def test_a_draw_of_random_size_has_as_many_agents_as_come():
    sizes = {cohort.agents.size for cohort in draws(ByScore(3, Oracle(), Poisson()))}
    assert len(sizes) > 1


@pytest.mark.parametrize("num_active", [0, 6, -1])
def test_more_agents_than_there_are_cannot_be_drawn(num_active):
    with pytest.raises(
        ValueError,
        match=f"num_active={num_active} (must be a whole number >= 1|exceeds num_agents=5)",
    ):
        ByScore(num_active).init(FACTS, agents(), np.zeros(2))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Uniform(), np.full(5, 0.2)),
        (Oracle(), SCORES / 40),
        (Memory(floor=0.0), np.array([1.0, 5.0, 3.0, 15.0, 30.0]) / 54),
        (Running(floor=0.0), np.array([1.0, 1.5, 3.0, 4.5, 30.0]) / 40),
    ],
    ids=["uniform", "oracle", "memory", "running"],
)
def test_what_is_learned_follows_the_policy(policy, expected):
    sampler = ByScore(3, policy)
    state = sampler.init(FACTS, agents(), np.zeros(2))
    if policy.learns:
        sampler.table(state, 5).replace(SCORES)
    cohort = Cohort(np.array([3, 1]), 3, np.ones(2), np.array([0.1, 0.05]))
    scores, none = np.array([15.0, 5.0]), np.zeros((2, 0))
    updates = Updates(EVERY, none, scores, np.zeros((2, 4)), none)
    state = sampler.learn(state, cohort, updates, Evidence(scores, none, None), FACTS, 0)
    np.testing.assert_allclose(sampler.probabilities(state, 5), expected, rtol=1e-14)
