"""Passes: how often agents are heard, that a round is unbiased, and that a whole pass is exact."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from small_federations import regression

from isfed import (
    Average,
    Clock,
    DynamicFedAvg,
    FedAvg,
    Federated,
    HorvitzThompson,
    ISFedAvg,
    LocalSteps,
    Memory,
    Passes,
    Uniform,
    simulate,
)
from isfed.federation.compiled_agents import CompiledAgents
from isfed.methods.passes_over_agents import rounded
from isfed.sampling.policies import Table
from isfed.simulate.simulate_call import make_run

SIZES = (3, 5, 4, 6, 3, 4)


def make(policy=None, *, num_active=2, how: Any = "uniform", step_size=0.05):
    sampler = Passes(num_active, policy or Uniform())
    local = LocalSteps(step_size, divide_by_steps=True, full_batch=True)
    return Federated(sampler, local, HorvitzThompson(), client_weights=how)


def agents_of(method, sizes=SIZES, seed=0):
    problem = regression(sizes=sizes, batch_size=1, local_steps=1)
    return CompiledAgents(problem, method.rules(len(sizes)), seed=seed, repetition=0)


def cohorts(method, agents, rounds):
    facts, params = method.facts(agents), np.zeros(3)
    state, found = method.sampler.init(facts, agents, params), []
    for i in range(rounds):
        cohort, state = method.sampler.draw(state, facts, agents, params, i)
        found.append(cohort)
    return found


@pytest.mark.parametrize("num_active", [1, 2, 3, 6])
def test_everybody_is_heard_once_a_pass(num_active):
    method = make(num_active=num_active)
    drawn = cohorts(method, agents_of(method), 2 * 6 // num_active)
    for half in (drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]):
        assert sorted(np.concatenate([c.agents for c in half])) == list(range(6))
    assert [c.agents.tolist() for c in drawn[: len(drawn) // 2]] != [
        c.agents.tolist() for c in drawn[len(drawn) // 2 :]
    ] or num_active == 6


def test_the_sum_of_a_pass_at_one_model_is_the_full_gradient():
    """With equal probabilities and L dividing K nothing is left to chance."""
    method = make(num_active=3)
    agents = agents_of(method)
    facts, params = method.facts(agents), np.array([0.3, -0.2, 0.1])
    state, total = method.start(agents, params), np.zeros(3)
    for i in range(2):
        opened = method.open(state, agents, i)
        updates = agents.train(opened.cohort, opened.sent, opened.work, i)
        total += method.estimator.combine((), opened, updates, facts)[0] / 2
        state = state._replace(sampler=opened.sampler)
    gradient = agents.gradients(np.arange(6), params).mean(axis=0)
    np.testing.assert_allclose(total, -0.05 * gradient, rtol=1e-12)


def test_places_are_the_whole_numbers_around_their_means():
    """Over all offsets, exactly: the mean of every n_k is T L p_k."""
    expected = np.array([0.3, 1.7, 0.5, 2.25, 1.25])
    ends = np.concatenate([[0.0], np.cumsum(expected)])
    breaks = np.unique(np.concatenate([[0.0, 1.0], (-ends) % 1.0]))
    mean = np.zeros(5)
    for low, high in pairwise(breaks):
        copies = rounded(expected[None], np.array([(low + high) / 2]))[0]
        assert copies.sum() == 6
        assert ((copies == np.floor(expected)) | (copies == np.ceil(expected))).all()
        mean += (high - low) * copies
    np.testing.assert_allclose(mean, expected, atol=1e-12)


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("learned", [False, True])
def test_every_round_is_unbiased_over_the_plan_of_its_pass(how, learned):
    """4000 plans, for the second round of a pass; four standard errors."""
    method = make(Memory(floor=0.2) if learned else None, how=how)
    agents = agents_of(method)
    facts, params = method.facts(agents), np.array([0.3, -0.2, 0.1])
    everybody = np.arange(6)
    changes = -0.05 * agents.gradients(everybody, params)
    scores, found = np.array([1.0, 8.0, 2.0, 4.0, 0.5, 3.0]), []
    for plan in range(4000):
        state = method.sampler.init(facts, agents, params)
        if learned:
            Table.over(state.scores.nodes, 6, method.sampler.policy, None).replace(scores)  # type: ignore[arg-type]
        for i in range(2):
            cohort, state = method.sampler.draw(state, facts, agents, params, 2 * plan + i)
        weights = method.estimator.weights(cohort, facts) / cohort.num
        found.append(weights @ changes[cohort.agents])
    found = np.array(found)
    share = np.full(6, 1 / 6) if how == "uniform" else np.array(SIZES) / sum(SIZES)
    stderr = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - share @ changes) < 4 * np.maximum(stderr, 1e-12)).all()


def test_equal_scores_are_heard_equally_often():
    method = make(Memory(floor=0.1))
    agents = agents_of(method)
    state = method.sampler.init(method.facts(agents), agents, np.zeros(3))
    Table.over(state.scores.nodes, 6, method.sampler.policy, None).replace(  # type: ignore[arg-type]
        np.array([1.0, 1.05, 0.95, 1.0, 1.02, 0.98])
    )
    method.sampler.draw(state, method.facts(agents), agents, np.zeros(3), 0)
    np.testing.assert_allclose(state.prob, 1 / 6)
    Table.over(state.scores.nodes, 6, method.sampler.policy, None).replace(  # type: ignore[arg-type]
        np.array([1.0, 50.0, 1.0, 1.0, 1.0, 1.0])
    )
    state.left[0] = 0
    method.sampler.draw(state, method.facts(agents), agents, np.zeros(3), 1)
    np.testing.assert_allclose(state.prob[1], 0.5)  # in every round, and no more


def test_who_was_away_gets_its_place_again(monkeypatch):
    method = make(num_active=3)
    agents = agents_of(method)
    agents.use_clock(Clock(drop=0.5))
    monkeypatch.setattr(agents, "answers", lambda which, _: which != which[0])
    state, info = method.step(method.start(agents, np.zeros(3)), agents, 0)
    away = info.cohort.agents[0]
    _, info = method.step(state, agents, 1)
    assert away in info.cohort.agents
    assert info.cohort.agents.size == 4


@pytest.mark.parametrize("policy", [Uniform(), Memory()], ids=["uniform", "memory"])
def test_passes_settle_lower_than_independent_draws(policy):
    """Agents that pull in different directions: at the same step size, by more than 5 dB."""
    problem = regression(sizes=(4,) * 20, batch_size=4, local_steps=1)
    passes = make(policy, num_active=4, step_size=0.02)
    plain = ISFedAvg(step_size=0.02, num_active=4, agents=policy, full_batch=True)
    levels = [
        simulate(problem, method, rounds=1500, repetitions=4, seed=1).steady().db
        for method in (passes, plain)
    ]
    assert levels[0] < levels[1] - 5.0


def test_a_killed_run_goes_on_in_the_middle_of_a_pass():
    problem = regression(sizes=SIZES, batch_size=1)
    whole, first, second = (make_run(problem, make(Memory()), seed=2) for _ in range(3))
    whole.advance(20)
    first.advance(7)
    saved = {name: np.array(values) for name, values in first.state().items()}
    second.restore(saved)
    second.round_index = 7
    second.advance(13)
    for name, values in whole.state().items():
        assert np.array_equal(values, second.state()[name]), name


def test_who_is_away_for_good_is_asked_again_once(monkeypatch):
    method = make(num_active=3)
    agents = agents_of(method)
    agents.use_clock(Clock(drop=0.5))
    monkeypatch.setattr(agents, "answers", lambda which, _: which != 2)
    state, asked = method.start(agents, np.zeros(3)), 0
    for i in range(8):  # four passes of two rounds
        state, info = method.step(state, agents, i)
        asked += 2 in info.cohort.agents
    assert 4 <= asked <= 8
    assert info.cohort.agents.size <= 4


@pytest.mark.parametrize("by", ["uniform", "size"])
def test_records_ask_for_passes_and_averages(by):
    fields: Any = {"step_size": 0.05, "num_active": 2, "client_weights": by}
    for make_method in (FedAvg, DynamicFedAvg):
        method = make_method(**fields, passes=True, average=True)
        assert isinstance(method.federated.sampler, Passes)
        assert isinstance(method.federated.server, Average)
        assert method.name.endswith(", passes, averaged")
    ours = ISFedAvg(**fields, passes=True, average="pass", costs=[1.0, 2.0, 1.0, 1.0, 1.0, 3.0])
    assert ours.federated.sampler == Passes(2, Memory(), costs=ours.costs)
    assert ours.federated.server == Average(window="pass")
    simulate(regression(sizes=SIZES, batch_size=1), ours, rounds=7)
    with pytest.raises(ValueError, match="no passes"):
        ISFedAvg(step_size=0.05, num_active=2, passes=True, correction="drift")


def test_a_mean_by_size_in_passes_is_that_of_all_agents():
    """At one model, the mean of a pass's steps, over all plans: sum_k c_k g_k; four errors."""
    method = FedAvg(
        step_size=0.05, num_active=2, client_weights="size", passes=True, full_batch=True
    ).federated
    agents = agents_of(method)
    facts, params = method.facts(agents), np.array([0.3, -0.2, 0.1])
    steps = []
    for i in range(1500):
        state = method.start(agents, params)
        opened = method.open(state, agents, i)
        updates = agents.train(opened.cohort, opened.sent, opened.work, i)
        steps.append(method.estimator.combine((), opened, updates, facts)[0])
    steps, share = np.array(steps), np.array(SIZES) / sum(SIZES)
    wanted = -0.05 * share @ agents.gradients(np.arange(6), params)
    stderr = steps.std(axis=0, ddof=1) / np.sqrt(len(steps))
    assert (np.abs(steps.mean(axis=0) - wanted) < 4 * stderr).all()
