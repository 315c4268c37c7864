"""The cloud among absent, wrong and hostile agents, without a network."""

import math

import numpy as np
import pytest

from isfed import PAPER, Current, ISFedAvg, Memory, Oracle, Running, Upload
from isfed.algorithms.in_process import Federation
from isfed.federation.absences import Absences
from isfed.federation.coordinator import Coordinator
from isfed.federation.safety import Safety

ALGORITHM = ISFedAvg(step_size=0.01, num_active=3)
PROBLEM = PAPER.replace(num_agents=8).make(seed=3)


class Apart:
    """A coordinator with agents of its own, stepped by hand."""

    def __init__(self, algorithm=ALGORITHM, seed=5, **safety):
        start = np.zeros(PROBLEM.num_params)
        self.agents = Federation(PROBLEM, algorithm, seed=seed, repetition=0, initial=start).agents
        self.coordinator = Coordinator(
            algorithm, start, num_agents=8, seed=seed, safety=Safety(**safety)
        )

    def step(self, spoil=lambda place, upload: upload):
        coordinator = self.coordinator
        selection = coordinator.select()
        uploads = [
            spoil(
                place,
                self.agents[k].work(coordinator.params, prob, coordinator.round_index),
            )
            for place, (k, prob) in enumerate(zip(*selection[:2], strict=True))
        ]
        return coordinator.close(selection, uploads)


def in_process(algorithm, rounds, seed=5):
    run = Federation(
        PROBLEM, algorithm, seed=seed, repetition=0, initial=np.zeros(PROBLEM.num_params)
    )
    for i in range(rounds):
        run.step(i)
    return run.cloud


@pytest.mark.parametrize("absences", list(Absences))
@pytest.mark.parametrize("policy", [Memory(), Running()])
def test_without_absences_it_is_the_cloud_bit_for_bit(absences, policy):
    algorithm = ISFedAvg(step_size=0.01, num_active=3, agents=policy, examples=policy)
    apart = Apart(algorithm, absences=absences)
    for _ in range(30):
        apart.step()
    cloud = in_process(algorithm, 30)
    assert (apart.coordinator.params == cloud.params).all()
    assert (apart.coordinator.cloud.table.nodes == cloud.table.nodes).all()


def test_drop_leaves_the_share_of_the_missing_at_the_previous_model():
    apart = Apart()
    kept = []

    def spoil(place, upload):
        if place == 1:
            return None
        kept.append(upload.change)
        return upload

    report = apart.step(spoil)
    assert (report.drawn, report.answered) == (3, 2)
    assert apart.coordinator.params == pytest.approx(sum(kept) / 3, rel=1e-15)


def test_adjusted_divides_by_the_response_probability():
    apart = Apart(absences=Absences.ADJUSTED)
    responses = apart.coordinator.responses
    for turn in range(200):  # everybody answers every second time
        responses.record(np.arange(8), np.full(8, turn % 2 == 0))
    changes = []

    def spoil(_, upload):
        changes.append(upload.change)
        return upload

    apart.step(spoil)
    assert apart.coordinator.params == pytest.approx(sum(changes) / 3 * 2.0, rel=1e-12)


@pytest.mark.parametrize("absences", list(Absences))
def test_a_round_without_answers_changes_nothing_and_says_so(absences):
    apart = Apart(absences=absences)
    apart.step()
    before = apart.coordinator.params.copy(), apart.coordinator.cloud.table.nodes.copy()
    report = apart.step(lambda *_: None)
    assert report.answered == 0
    assert "nobody: the model stays as it is" in report.line()
    assert (apart.coordinator.params == before[0]).all()
    assert (apart.coordinator.cloud.table.nodes == before[1]).all()
    assert apart.coordinator.round_index == 2


@pytest.mark.parametrize(
    "change",
    [np.full(2, math.nan), np.array([math.inf, 0.0]), np.zeros(3), np.empty(0), np.full(2, 1e300)],
)
def test_a_model_that_cannot_be_added_is_refused_and_counted(change):
    apart = Apart()
    report = apart.step(lambda p, u: Upload(change, 1.0, 0) if p == 0 else u)
    assert (report.answered, report.refused_changes) == (2, 1)
    assert np.isfinite(apart.coordinator.params).all()
    assert apart.coordinator.standing.refused.sum() == 1


@pytest.mark.parametrize("score", [math.nan, math.inf, -1.0, 1e10])
def test_a_score_that_is_absurd_is_refused_and_its_model_kept(score):
    honest, hostile = Apart(), Apart()
    honest.step()
    report = hostile.step(lambda p, u: Upload(u.change, score, 0) if p == 0 else u)
    assert (report.answered, report.refused_scores) == (3, 1)
    assert (honest.coordinator.params == hostile.coordinator.params).all()
    scores = hostile.coordinator.cloud.table.scores
    assert (scores >= 0.0).sum() == 2  # the two others; his stays unseen


def test_an_agent_that_always_claims_the_most_stays_below_the_cap():
    apart = Apart(ISFedAvg(step_size=0.01, num_active=2), most_inclusion=0.4)
    drawn = limited = 0
    for _ in range(300):
        selection = apart.coordinator.select()
        places = np.flatnonzero(selection.active == 2)
        drawn += places.size
        report = apart.step(lambda p, u, at=places: Upload(u.change, 1e9, 0) if p in at else u)
        limited += report.limited_scores
        assert apart.coordinator.cloud.table.inclusion(2).max() <= 1.0
    assert limited > 0
    error = math.sqrt(300 * 0.4 * 0.6)
    assert drawn <= 300 * 0.4 + 4 * error


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_restored_coordinator_makes_the_same_draws(stop):
    spoil = lambda p, u: None if p == 1 else u  # noqa: E731
    one = Apart(absences=Absences.ADJUSTED)
    for _ in range(stop):
        one.step(spoil)
    state = {name: values.copy() for name, values in one.coordinator.state().items()}
    two = Apart(absences=Absences.ADJUSTED)
    two.agents = one.agents
    two.coordinator.restore(state)
    assert two.coordinator.job == one.coordinator.job
    ahead, again = one.coordinator.select(), two.coordinator.select()
    for left, right in zip(ahead, again, strict=True):
        assert (left == right).all()


def test_a_checkpoint_of_another_job_is_refused():
    other = Coordinator(ALGORITHM, np.zeros(2), num_agents=8, seed=6)
    with pytest.raises(ValueError, match="belongs to another algorithm, seed"):
        Apart().coordinator.restore(other.state())


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (ISFedAvg(step_size=0.1, num_active=9), "num_active=9 exceeds num_agents=8"),
        (ISFedAvg(step_size=0.1, num_active=1, agents=Oracle()), "agents=oracle needs the optimum"),
        (ISFedAvg(step_size=0.1, num_active=1, agents=Current()), "agents=current asks every"),
        (ISFedAvg(step_size=0.1, num_active=1, drift=0.1), r"drift=0\.1 moves the truth"),
    ],
)
def test_what_cannot_run_apart_is_refused(algorithm, message):
    with pytest.raises(ValueError, match=message):
        Coordinator(algorithm, np.zeros(2), num_agents=8)
