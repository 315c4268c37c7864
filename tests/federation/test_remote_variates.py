"""A correction whose agents are apart from the cloud: what each side keeps, and when it moves."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from corrected_cases import CORRECTIONS, POLICIES, make, small_problem
from stepped import SteppedObjects

from isfed import ISFedAvg, Memory, Upload
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.federation.remote_variates import AgentVariate, VariateMessage, corrected_turn
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Privacy, Safety
from isfed.federation.variate_updates import make_rule
from isfed.methods.federated import Opened
from isfed.methods.object_federation import Federation
from isfed.methods.over_network import over_network

REMEMBERING = {
    name: choices
    for name, choices in CORRECTIONS.items()
    if "correction" in choices and choices.get("weighting") != "step"
}
ANYONE = Safety(most_inclusion=1.0, largest_ratio=np.inf)  # as in a simulation


class Apart(SteppedObjects):
    """A job and agents that each keep their own memory, stepped by hand."""

    def __init__(self, problem, algorithm, safety=ANYONE):
        super().__init__(problem, algorithm, safety=safety, weighting="change")
        rule, size = make_rule(algorithm.memory, algorithm.agents), problem.num_params
        self.own = [AgentVariate(rule, size) for _ in self.agents]

    def answer(self, place, agent, sent, work, round_index):
        """What the agent sends, if it is there and nothing is lost."""
        return self.spoil(agent, lambda: self.turn(place, agent, sent, work, round_index))

    def turn(self, place, agent, sent, work, round_index):
        own, worker = self.own[agent], self.agents[agent]
        terms = work.control.to_agent(place, work.control.centre)
        return corrected_turn(worker, own, terms, sent, round_index)

    def step(self, spoil=lambda agent, work: work()):
        """One round; `spoil` may leave out a turn, or lose what it gave."""
        return super().step(spoil)

    @property
    def kept(self):
        """What the cloud keeps of the control variates."""
        return getattr(self.job.state.estimator, "inner", self.job.state.estimator)

    @property
    def centre(self):
        return self.kept.centre

    def memories(self):
        """(K, M) every c_k once all agents know what was accepted."""
        found, estimator = [], getattr(self.method.estimator, "inner", self.method.estimator)
        everybody = np.arange(len(self.own))
        cohort = Cohort(everybody, everybody.size, np.ones(everybody.size))
        told = estimator.ask(self.kept, cohort, self.border.facts(), Work(0.1)).control
        for agent, own in enumerate(self.own):
            known = copy.deepcopy(own)
            known.commit(told.to_agent(agent, told.centre))
            found.append(known.base.copy())
        return np.array(found)


@pytest.mark.parametrize("policies", ["uniform", "memory", "second moment", "running"])
@pytest.mark.parametrize("choices", REMEMBERING)
def test_agrees_with_the_run_in_one_process(choices, policies):
    problem = small_problem()
    algorithm = make(problem, REMEMBERING[choices], POLICIES[policies])
    apart = Apart(problem, algorithm)
    whole = Federation(problem, algorithm, seed=5, repetition=0, initial=np.zeros(3))
    for i in range(40):
        apart.step()
        whole.step(i)
    np.testing.assert_allclose(apart.params, whole.params, rtol=1e-10)
    nodes = apart.table.nodes
    np.testing.assert_allclose(nodes, whole.table.nodes, rtol=1e-9)
    np.testing.assert_allclose(apart.memories(), whole.state.estimator.own, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(apart.centre, whole.state.estimator.centre, rtol=1e-9)


@pytest.mark.parametrize("choices", REMEMBERING)
def test_c_stays_the_mean_of_the_c_k_whatever_is_lost(choices):
    """20% are away, 20% of what is sent is lost or refused; agents and the cloud are killed."""
    problem = small_problem()
    algorithm = make(problem, REMEMBERING[choices])
    safety = Safety(most_inclusion=1.0, largest_change=1e3, most_refusals=0)
    apart = Apart(problem, algorithm, safety=safety)
    rng, counts = np.random.default_rng(0), np.zeros(5, int)

    def spoil(agent, work):
        what = rng.choice(5, p=[0.5, 0.2, 0.15, 0.05, 0.1])
        counts[what] += 1
        before = copy.deepcopy(apart.own[agent]) if what == 4 else None
        if what == 1:
            return None  # away
        upload = work()
        if what == 2:
            return None  # it has worked, and the upload is lost
        if what == 3:
            upload.change[:] = np.nan  # refused
        if before is not None:  # the agent was killed before it could write its files, or send
            apart.own[agent] = before
            return None
        return upload

    for i in range(300):
        if i % 50 == 7:  # the cloud is killed before it has written the round, and repeats it
            saved = {name: np.array(v) for name, v in apart.job.checkpoint().items()}
            asleep = copy.deepcopy(apart.own)
            apart.step(spoil)
            apart.job.restore(saved)
            apart.own = asleep  # an agent asked for a turn again begins before that turn
        apart.step(spoil)
        if i % 20 == 0 or i == 299:
            own = apart.memories()
            np.testing.assert_allclose(own.mean(axis=0), apart.centre, rtol=0, atol=1e-12)
    assert np.abs(apart.memories()).max() > 1e-3
    assert (counts > 0.03 * counts.sum()).all()


@pytest.mark.parametrize(
    ("choices", "rounds"),
    [("drift", 10_000), ("difference", 1000), ("fixed gain, from zero", 1000)],
)
def test_c_stays_the_mean_for_ten_thousand_rounds(choices, rounds):
    """Both sides alone, on quadratics: 30% of the turns are not taken, 20% of the uploads lost."""
    algorithm = ISFedAvg(step_size=0.05, num_active=3, **REMEMBERING[choices])
    rng, num_agents = np.random.default_rng(1), 6
    estimator = over_network(algorithm, num_agents=num_agents).estimator
    facts = Facts(num_agents, 3, 3, None, None, None, None)
    cloud = estimator.init(facts, np.zeros(3))
    own = [AgentVariate(estimator.rule, 3) for _ in range(num_agents)]
    targets, w, lost = rng.standard_normal((num_agents, 3)), np.zeros(3), 0
    for i in range(rounds):
        drawn = rng.choice(num_agents, 3, replace=False)
        cohort = Cohort(drawn, 3, np.ones(3), np.full(3, 1 / 2))  # of weights 1/3
        work = estimator.ask(cloud, cohort, facts, Work(0.05, divide=True))
        heard, uploads = [], []
        for place, k in enumerate(drawn):
            if rng.random() < 0.3:
                continue
            own[k].commit(work.control.to_agent(place, work.control.centre))
            steering = own[k].correction()
            gradient = w - targets[k] + 0.3 * rng.standard_normal(3)
            change = -0.05 * (gradient if steering is None else gradient + steering)
            upload = own[k].take(Upload(own[k].shown(change, 0.05), 1.0, 1), 0.05, 0.5, i)
            if rng.random() < 0.2:
                lost += 1
                continue
            heard.append(place)
            uploads.append(upload)
        updates = Updates(
            np.array(heard, np.int64), np.array([u.change for u in uploads]).reshape(-1, 3),
            np.array([u.score for u in uploads]), np.empty(0), np.empty(0), complete=True,
            agreement=np.array([u.agreement for u in uploads]),
        )  # fmt: skip
        step, cloud, _ = estimator.combine(cloud, Opened(cohort, w, work, (), i), updates, facts)
        w = w + step
    everybody = Cohort(np.arange(num_agents), num_agents, np.ones(num_agents))
    told = estimator.ask(cloud, everybody, facts, work).control
    for k in range(num_agents):
        own[k].commit(told.to_agent(k, told.centre))
    found = np.array([memory.base for memory in own])
    assert lost > rounds / 4
    assert np.abs(found).max() > 0.1
    np.testing.assert_allclose(found.mean(axis=0), cloud.centre, rtol=0, atol=1e-12)


def test_an_agent_asked_in_a_round_that_was_lost_and_not_again_forgets_that_turn():
    problem = small_problem()
    apart = Apart(problem, make(problem, {"correction": "drift"}))
    for _ in range(6):
        apart.step()
    saved = {name: np.array(v) for name, v in apart.job.checkpoint().items()}
    apart.step()
    apart.job.restore(saved)
    apart.step(lambda agent, work: None)  # now everybody is away
    np.testing.assert_allclose(apart.memories().mean(axis=0), apart.centre, rtol=0, atol=1e-13)


@pytest.mark.parametrize("absences", Absences)
def test_a_round_without_answers_follows_c_only_if_absences_are_adjusted(absences):
    problem = small_problem()
    safety = replace(ANYONE, absences=absences)
    apart = Apart(problem, make(problem, {"correction": "drift"}), safety=safety)
    for _ in range(5):
        apart.step()
    before, centre = apart.params, apart.centre.copy()
    apart.step(lambda agent, work: None)
    part = 1.0 if absences is Absences.ADJUSTED else 0.0
    np.testing.assert_allclose(apart.params, before - part * 0.02 * centre)
    np.testing.assert_array_equal(apart.centre, centre)


def test_a_memory_that_does_not_fit_is_refused():
    rule = make_rule(ISFedAvg(step_size=1, num_active=1, correction="drift").memory, Memory())
    own = AgentVariate(rule, 3)
    with pytest.raises(ValueError, match=r"begin a new job.*round 4"):
        own.commit(VariateMessage(rule, np.zeros(3), 4, 0.5))
    with pytest.raises(ValueError, match=r"\(4,\), and the model \(3,\).*begin a new one"):
        own.restore(AgentVariate(rule, 4).state())


def test_a_step_size_that_changes_without_notice_is_refused():
    problem = small_problem()
    apart = Apart(problem, make(problem, {"correction": "drift"}, num_active=5))
    apart.step()
    saved = apart.job.checkpoint()
    other = Apart(problem, make(problem, {"correction": "drift"}, num_active=5, step_size=0.04))
    with pytest.raises(ValueError, match="give the same ones to continue"):
        other.job.restore(saved)
    apart.agents = other.agents  # an order with another step size
    with pytest.raises(ValueError, match=r"changed from 0.02 to 0.04 without notice.*new job"):
        apart.step()


def test_a_lie_about_the_agreement_moves_the_gain_no_further_than_the_truth_could():
    problem = small_problem()
    apart = Apart(problem, make(problem, {"correction": "drift"}))
    for lie in (np.nan, np.inf, -1e300):
        for _ in range(10):
            apart.step(lambda agent, work: replace(work(), agreement=lie))  # noqa: B023
        assert np.isfinite(apart.kept.pool).all()
        assert np.isfinite(apart.params).all()
    np.testing.assert_allclose(apart.memories().mean(axis=0), apart.centre, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("choices", "options", "message"),
    [
        ({"correction": "drift"}, {"weighting": "step"}, "weighting='change'"),
        (
            {"correction": "drift"},
            {"weighting": "change", "agent_weights": [1, 2, 3, 4, 5]},
            "leave agent_weights out",
        ),
        (
            {"correction": "drift"},
            {"weighting": "change", "safety": Safety(privacy=Privacy(clip=1.0, noise=1.0))},
            "privacy",
        ),
    ],
)
def test_what_does_not_fit_a_network_is_refused(choices, options, message):
    algorithm = ISFedAvg(step_size=0.1, num_active=2, **choices)
    with pytest.raises(ValueError, match=message):
        over_network(algorithm, num_agents=5, **options)
