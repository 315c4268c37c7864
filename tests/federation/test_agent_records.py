"""Who sends changes out of proportion, is refused again and again, or is slow."""

import numpy as np
import pytest
from stepped import SteppedObjects

from isfed import OUTLIERS, PAPER, ISFedAvg
from isfed.federation.agent_records import AgentRecords


def test_an_agent_drawn_all_the_time_cannot_raise_the_median():
    """One of five, in every round, tries to grow tenfold each time."""
    records, length, accepted = AgentRecords(5), 1.0, 0
    for turn in range(40):
        agents = np.array([0, 1 + turn % 4])
        lengths = np.array([length, 1.0])
        good = ~records.too_long(agents, lengths, ratio=1000.0)
        records.record(agents, lengths, good)
        if good[0]:
            accepted, length = length, 10.0 * length
        assert good[1]
    assert accepted == 1000.0


def test_agents_that_have_nothing_to_learn_do_not_shut_out_the_others():
    records = AgentRecords(6)
    agents = np.arange(6)
    lengths = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 1.5])
    assert not records.too_long(agents, lengths, ratio=10.0).any()


def test_two_lengths_make_no_median():
    assert not AgentRecords(9).too_long(np.array([0, 1]), np.array([1.0, 1e9]), ratio=10.0).any()


@pytest.mark.parametrize("weighting", ["step", "change"])
@pytest.mark.parametrize("recipe", [PAPER, OUTLIERS], ids=["paper", "outliers"])
def test_no_honest_agent_is_refused(recipe, weighting):
    """With the default ratio, on problems whose agents differ as importance sampling wants."""
    problem = recipe.replace(num_agents=20).make(seed=1)
    algorithm = ISFedAvg(step_size=0.02, num_active=4)
    cloud = SteppedObjects(problem, algorithm, seed=1, weighting=weighting)
    for _ in range(150):
        assert cloud.step().refused_changes == 0


def test_refusals_count_in_a_row():
    records, agent = AgentRecords(2), np.array([1])
    for good in (False, False, True, False, False):
        records.record(agent, np.array([1.0]), np.array([good]))
        assert records.exclude(3).size == 0
    records.record(agent, np.array([1.0]), np.array([False]))
    assert records.exclude(3).tolist() == [1]
    assert records.exclude(3).size == 0  # told once
    assert records.refused.tolist() == [0, 5]
    records.readmit(agent)
    assert not records.excluded.any()
    assert records.exclude(3).size == 0


def test_never_is_a_choice():
    records = AgentRecords(1)
    for _ in range(99):
        records.record(np.array([0]), np.array([1.0]), np.array([False]))
    assert records.exclude(0).size == 0


def test_response_times_are_reported():
    records = AgentRecords(3)
    records.clock(np.array([0, 1]), np.array([1.0, 30.0]))
    records.clock(np.array([0, 1]), np.array([3.0, np.nan]))
    assert records.mean_seconds()[:2].tolist() == [2.0, 30.0]
    assert np.isnan(records.mean_seconds()[2])
    assert records.lines()[0].endswith("1: 30.0 (30.0), 0: 2.0 (3.0)")
