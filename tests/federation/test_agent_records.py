"""Who sends changes out of proportion, is refused again and again, or is slow."""

from types import SimpleNamespace

import numpy as np
import pytest
from stepped import Stepped, SteppedObjects

from isfed import OUTLIERS, PAPER, ISFedAvg, Upload
from isfed.federation.agent_records import AgentRecords
from isfed.federation.guarded import Guarded
from isfed.federation.messages import EVERY, Cohort, Updates, Work
from isfed.federation.safety import Safety


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


def test_a_rogue_that_grows_a_little_every_round_stays_within_ten_medians():
    """One of 20, drawn in half of the rounds, grows by 5%: by 10^6 in the end, were it let."""
    lengths, rng = [], np.random.default_rng(0)

    def answer(place, agent, sent_model, work, round_index):
        length = 1.05**round_index if agent == 0 else rng.uniform(0.7, 1.4)
        return Upload(np.array([length, 0.0]), 1e6 if agent == 0 else 1.0, 0)

    cloud = Stepped(ISFedAvg(step_size=0.1, num_active=5), np.zeros(2), 20, answer)
    shortened = 0
    for _ in range(130):
        shortened += cloud.step().shortened
        lengths.append(cloud.border.records.lengths[0])
    print(f"longest accepted: {max(lengths):.1f} medians")
    assert shortened > 10
    assert 9.0 < max(lengths) <= 10.0 * 1.4  # the largest median there can be
    assert cloud.border.records.lengths[1:].max() <= 1.4


def test_lengths_are_compared_at_one_step_size():
    """A warm-up from 0.001 to 1 in two rounds shortens nobody."""
    records_of = []
    for step in (0.001, 1.0):
        border = Guarded(SimpleNamespace(num_agents=4, num_trained=1), Safety())
        border.first_step = 0.001
        cohort = Cohort(np.arange(4), 4, np.ones(4), np.full(4, 0.25))
        change = step * np.ones((4, 1))
        updates = Updates(EVERY, change, np.ones(4), np.zeros((4, 4)), np.zeros((4, 0)))
        border.judge(cohort, Work(step), updates._replace(place=np.arange(4)))
        records_of.append(border.records.lengths)
    np.testing.assert_allclose(*records_of)


@pytest.mark.parametrize("weighting", ["step", "change"])
@pytest.mark.parametrize("recipe", [PAPER, OUTLIERS], ids=["paper", "outliers"])
def test_no_honest_agent_is_refused(recipe, weighting):
    """With the default ratio, on problems whose agents differ as importance sampling wants."""
    problem = recipe.replace(num_agents=20).make(seed=1)
    algorithm = ISFedAvg(step_size=0.02, num_active=4)
    cloud = SteppedObjects(problem, algorithm, seed=1, weighting=weighting)
    shortened = 0
    for _ in range(150):
        report = cloud.step()
        shortened += report.shortened
        assert report.refused_changes == 0
    assert shortened <= 0.01 * 150 * 4


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
