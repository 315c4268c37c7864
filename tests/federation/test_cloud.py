"""The cloud: select, aggregate, refresh."""

import numpy as np
import pytest

from isfed import (
    Cloud,
    Deville,
    HartleyRao,
    Memory,
    Oracle,
    Poisson,
    Running,
    Sampford,
    Selection,
    Systematic,
    Uniform,
    WithReplacement,
)

FIXED_SIZE = [Systematic(), Deville(), HartleyRao(), Sampford()]
SCORES = np.array([1.0, 2.0, 3.0, 4.0, 30.0])  # of three, the last is certain


def make_cloud(*, policy=None, design=None, num_active=3):
    cloud = Cloud(np.array([1.0, -1.0]), 5, num_active, policy or Oracle(), design or Deville())
    cloud.table.replace(SCORES)
    cloud.key = np.uint64(7)
    return cloud


def changes(*rows):
    return np.array(rows, dtype=float).reshape(-1, 2)


@pytest.mark.parametrize("design", FIXED_SIZE, ids=lambda d: type(d).__name__)
def test_a_selection_is_l_distinct_agents_with_their_probabilities(design):
    cloud = make_cloud(design=design)
    inclusion = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
    for round_index in range(50):
        selection = cloud.select(round_index)
        assert len(set(selection.active)) == 3
        assert 4 in selection.active
        np.testing.assert_allclose(selection.agent_prob, inclusion[selection.active] / 3)
        np.testing.assert_array_equal(selection.times, [1, 1, 1])


def test_an_agent_drawn_twice_works_once_and_counts_twice():
    cloud = make_cloud(design=WithReplacement())
    seen_twice = False
    for round_index in range(50):
        selection = cloud.select(round_index)
        assert len(set(selection.active)) == len(selection.active)
        assert selection.times.sum() == 3
        np.testing.assert_allclose(selection.agent_prob, (SCORES / 40)[selection.active])
        seen_twice |= selection.times.max() > 1
    assert seen_twice


def test_the_selection_depends_on_key_and_round_alone():
    cloud, same, other = (make_cloud() for _ in range(3))
    other.key = np.uint64(8)
    chosen = [[tuple(c.select(i).active) for i in range(20)] for c in (cloud, same, other)]
    assert chosen[0] == chosen[1]
    assert chosen[0] != chosen[2]
    assert len(set(chosen[0])) > 1


def test_the_new_model_is_the_mean_over_l_of_the_returned_ones():
    """Eq. comb; p_k has been divided by in the agents' steps and does not enter again."""
    cloud = make_cloud()
    selection = Selection(np.array([4, 0, 2]), np.array([0.3, 0.1, 0.2]), np.array([1, 1, 1]))
    models = np.array([[2.0, 0.0], [1.0, 5.0], [-3.0, 1.0]])
    cloud.aggregate(selection, changes(*(models - cloud.params)))
    np.testing.assert_allclose(cloud.params, models.sum(axis=0) / 3, rtol=1e-15)


def test_repeats_enter_the_mean_as_often_as_they_were_drawn():
    cloud = make_cloud(design=WithReplacement())
    selection = Selection(np.array([4, 0]), np.array([0.3, 0.1]), np.array([2, 1]))
    cloud.aggregate(selection, changes([3.0, 0.0], [0.0, 6.0]))
    np.testing.assert_allclose(cloud.params, [1.0 + 2.0, -1.0 + 2.0])


@pytest.mark.parametrize(("chosen", "expected"), [([], 0.0), ([3], 1.0), ([0, 1, 2, 3], 4.0)])
def test_a_draw_of_random_size_is_still_divided_by_l(chosen, expected):
    cloud = make_cloud(design=Poisson())
    count = len(chosen)
    selection = Selection(np.array(chosen, int), np.full(count, 0.2), np.ones(count, int))
    cloud.aggregate(selection, changes(*([[3.0, 0.0]] * count)))
    np.testing.assert_allclose(cloud.params, [1.0 + expected, -1.0])
    cloud.refresh(selection, np.ones(count))


@pytest.mark.parametrize("num_active", [0, 6, -1])
def test_more_agents_than_there_are_cannot_be_drawn(num_active):
    with pytest.raises(
        ValueError,
        match=f"num_active={num_active} (must be a whole number >= 1|exceeds num_agents=5)",
    ):
        make_cloud(num_active=num_active)


def test_the_first_model_is_copied():
    start = np.zeros(2)
    cloud = Cloud(start, 5, 1, Uniform(), Deville())
    cloud.aggregate(Selection(np.array([0]), np.array([0.2]), np.array([1])), changes([1.0, 1.0]))
    np.testing.assert_array_equal(start, np.zeros(2))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Uniform(), SCORES / 40),
        (Oracle(), SCORES / 40),
        (Memory(floor=0.0), np.array([1.0, 5.0, 3.0, 15.0, 30.0]) / 54),
        (Running(floor=0.0), np.array([1.0, 1.5, 3.0, 4.5, 30.0]) / 40),
    ],
    ids=["uniform", "oracle", "memory", "running"],
)
def test_refresh_follows_the_policy(policy, expected):
    cloud = make_cloud(policy=policy)
    selection = Selection(np.array([3, 1]), np.array([0.1, 0.05]), np.array([1, 1]))
    cloud.refresh(selection, np.array([15.0, 5.0]))
    np.testing.assert_allclose(cloud.table.probabilities(), expected, rtol=1e-14)
