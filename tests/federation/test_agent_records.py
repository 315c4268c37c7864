"""Who sends changes out of proportion, is refused again and again, or is slow."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from stepped import Stepped, SteppedObjects

from isfed import OUTLIERS, PAPER, ISFedAvg, Upload
from isfed.federation.agent_records import (
    DEVIATIONS,
    FEWEST,
    LARGEST_BUFFER,
    NORMAL,
    RATE,
    AgentRecords,
    trained_lengths,
)
from isfed.federation.guarded import Guarded
from isfed.federation.messages import EVERY, Cohort, Updates, Work
from isfed.federation.safety import Safety

BOUNDS = (1e12, 1000.0, 10.0, 3)


class LiteralRecords:
    """The rules of `AgentRecords.judge`, one after the other and agent by agent."""

    def __init__(self, num_agents):
        self.last, self.spread = {}, 0.0
        self.in_a_row, self.refused = [0] * num_agents, [0] * num_agents

    def known(self, new):
        lengths = [x for x in {**self.last, **new}.values() if 0.0 < x < math.inf]
        return lengths if len(lengths) >= FEWEST else []

    def judge(self, agents, lengths, unweighted, bounds):
        largest, ratio, medians, _ = bounds
        good = [length <= largest for length in lengths]
        new = {k: x for k, x, g in zip(agents, unweighted, good, strict=True) if g}
        if known := self.known(new):
            for i, k in enumerate(agents):
                if good[i] and unweighted[i] > ratio * np.median(known):
                    good[i] = False
                    del new[k]
        limit = math.inf
        if medians < math.inf and (known := self.known(new)):
            middle = np.median(known)
            now = NORMAL * np.median([abs(math.log(x / middle)) for x in known])
            self.spread += RATE * (now - self.spread) if self.spread > 0.0 else now
            limit = middle * max(medians, math.exp(DEVIATIONS * max(now, self.spread)))
        for i, k in enumerate(agents):
            if good[i]:
                self.last[k], self.in_a_row[k] = min(unweighted[i], limit), 0
            else:
                self.in_a_row[k] += 1
                self.refused[k] += 1
        return good, limit


@pytest.mark.parametrize("bounds", [BOUNDS, (50.0, 4.0, 2.0, 1), (1e12, math.inf, math.inf, 0)])
@pytest.mark.parametrize("num_agents", [2, 7, 40])
def test_changes_are_judged_as_the_rules_say(num_agents, bounds):
    rng = np.random.default_rng(num_agents)
    records, literal = AgentRecords(num_agents), LiteralRecords(num_agents)
    for _ in range(60):
        agents = rng.permutation(num_agents)[: rng.integers(0, num_agents + 1)]
        lengths = np.exp(rng.normal(size=agents.size) * rng.choice([0.1, 3.0]))
        lengths[rng.random(agents.size) < 0.1] = rng.choice([0.0, np.nan, 1e3])
        unweighted = lengths * rng.choice([0.5, 1.0], agents.size)
        judged = records.judge(agents, lengths, unweighted, bounds=bounds)
        good, limit = literal.judge(agents.tolist(), lengths, unweighted, bounds)
        assert judged.good.tolist() == good
        assert judged.limit == pytest.approx(limit, rel=1e-12)
        assert judged.refused == good.count(False)
        assert judged.long == (unweighted[judged.good] > judged.limit).sum()
        assert records.in_a_row.tolist() == literal.in_a_row
        assert records.refused.tolist() == literal.refused
        last = [literal.last.get(k, -1.0) for k in range(num_agents)]
        np.testing.assert_allclose(records.lengths, last, rtol=1e-12)
        due = (records.in_a_row >= bounds[3]) & ~records.excluded & (bounds[3] > 0)
        assert judged.due == due.sum() == records.exclude(bounds[3]).size


@pytest.mark.parametrize("steered", [False, True])
@pytest.mark.parametrize("trained", [3, 8, 21])
def test_lengths_are_those_of_the_trained_part(trained, steered):
    rng = np.random.default_rng(trained)
    changes = rng.normal(size=(6, 23))
    steer = rng.normal(size=(6, trained)) if steered else np.empty((0, 0))
    expected = np.linalg.norm(changes[:, :trained] + (steer if steered else 0.0), axis=1)
    for agent, place, value in ((1, 0, np.nan), (2, trained - 1, np.inf), (3, 22, np.nan),
                                (4, 22, -2.0 * LARGEST_BUFFER)):  # fmt: skip
        changes[agent, place], expected[agent] = value, np.nan
    found = trained_lengths(changes, trained, steer)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_an_agent_drawn_all_the_time_cannot_raise_the_median():
    """One of five, in every round, tries to grow tenfold each time."""
    records, length, accepted = AgentRecords(5), 1.0, 0
    for turn in range(40):
        agents = np.array([0, 1 + turn % 4])
        bounds = (1e12, 1000.0, math.inf, 0)
        good = records.judge(agents, np.array([length, 1.0]), bounds=bounds).good
        if good[0]:
            accepted, length = length, 10.0 * length
        assert good[1]
    assert accepted == 1000.0


def test_agents_that_have_nothing_to_learn_do_not_shut_out_the_others():
    lengths = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 1.5])
    assert AgentRecords(6).judge(np.arange(6), lengths, bounds=(1e12, 10.0, 10.0, 3)).good.all()


def test_two_lengths_make_no_median():
    lengths = np.array([1.0, 1e9])
    assert AgentRecords(9).judge(np.arange(2), lengths, bounds=(1e12, 10.0, 10.0, 3)).good.all()


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


def judge_one(records, agent, good):
    return records.judge(agent, np.array([1.0 if good else np.nan]), bounds=BOUNDS)


def test_refusals_count_in_a_row():
    records, agent = AgentRecords(2), np.array([1])
    for good in (False, False, True, False, False):
        assert judge_one(records, agent, good).due == 0
        assert records.exclude(3).size == 0
    assert judge_one(records, agent, good=False).due == 1
    assert records.exclude(3).tolist() == [1]
    assert records.exclude(3).size == 0  # told once
    assert records.refused.tolist() == [0, 5]
    records.readmit(agent)
    assert not records.excluded.any()
    assert records.exclude(3).size == 0


def test_never_is_a_choice():
    records = AgentRecords(1)
    for _ in range(99):
        judge_one(records, np.array([0]), good=False)
    assert records.exclude(0).size == 0


def test_response_times_are_reported():
    records = AgentRecords(3)
    records.clock(np.array([0, 1]), np.array([1.0, 30.0]))
    records.clock(np.array([0, 1]), np.array([3.0, np.nan]))
    assert records.mean_seconds()[:2].tolist() == [2.0, 30.0]
    assert np.isnan(records.mean_seconds()[2])
    assert records.lines()[0].endswith("1: 30.0 (30.0), 0: 2.0 (3.0)")
