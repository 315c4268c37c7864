"""Stratified passes: unbiased in every round by enumeration, one of each stratum, importance."""

from itertools import pairwise, permutations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_federations import regression

from isfed import (
    Clock,
    Federated,
    HorvitzThompson,
    LocalSteps,
    Memory,
    Passes,
    StratifiedPasses,
    Uniform,
    simulate,
)
from isfed.federation.compiled_agents import CompiledAgents
from isfed.methods.stratified_passes import sketches
from isfed.sampling.policies import Table
from isfed.simulate.simulate_call import make_run


def make(sampler: Any, how: Any = "uniform"):
    local = LocalSteps(0.05, divide_by_steps=True, full_batch=True)
    return Federated(sampler, local, HorvitzThompson(), client_weights=how)


def agents_of(method, sizes, seed=0):
    problem = regression(sizes=sizes, batch_size=1, local_steps=1)
    return CompiledAgents(problem, method.rules(len(sizes)), seed=seed, repetition=0)


def ranked(order, size):
    """Uniforms whose stable sort is this order."""
    points = np.empty(size)
    points[list(order)] = (np.arange(size) + 0.5) / size
    return points


FOUR, FIVE = (3, 5, 4, 6), (3, 5, 4, 6, 2)
CASES = [
    *product([FOUR], [32, 0], [Uniform(), Memory(floor=0.3)], ["uniform", "size"]),
    (FIVE, 32, Memory(floor=0.3), "size"),
]


@pytest.mark.parametrize(("sizes", "sketch", "policy", "how"), CASES)
def test_the_mean_weight_of_every_round_is_c_k_over_all_plans(sizes, sketch, policy, how):
    """Every order, every offset and every shuffle, each with its probability; to 1e-12."""
    count, active, rounds = len(sizes), 3, 2
    method = make(StratifiedPasses(active, policy, sketch), how)
    agents: Any = agents_of(method, sizes)
    facts = method.facts(agents)
    state = method.sampler.init(facts, agents, np.zeros(3))
    state.sketches[:] = np.random.default_rng(1).standard_normal(state.sketches.shape)
    lengths = np.array([1.0, 30.0, 2.0, 4.0, 0.5])[:count]
    Table.over(state.scores.nodes, count, policy, None).replace(lengths)  # type: ignore[arg-type]
    prob = method.sampler._pass_probabilities([state], facts, active * rounds)[0]
    if policy.learns:
        assert np.ptp(prob / facts.share(np.arange(count))) > 0.5  # else it would test nothing
    mean, shuffles = np.zeros((rounds, count)), list(product(permutations(range(2)), repeat=3))
    orders = list(permutations(range(count)))
    for order in orders:
        ends = np.concatenate([[0.0], np.cumsum(prob[list(order)])]) * active * rounds
        for low, high in pairwise(np.unique(np.concatenate([[0.0, 1.0], (-ends) % 1.0]))):
            if high - low < 1e-12:
                continue
            for shuffle in shuffles:
                points = np.concatenate(
                    [ranked(order, count), [(low + high) / 2], *(ranked(s, 2) for s in shuffle)]
                )
                drawn = SimpleNamespace(uniforms=lambda _, points=points: points)
                cloud: Any = SimpleNamespace(stream=lambda *_, drawn=drawn: drawn)
                state.left[0] = 0
                for i in range(rounds):
                    cohort, _ = method.sampler.draw(state, facts, cloud, np.zeros(3), i)
                    weights = method.estimator.weights(cohort, facts) / cohort.num
                    mean[i, cohort.agents] += (high - low) * weights
    mean /= len(orders) * len(shuffles)
    share = facts.share(np.arange(count))
    np.testing.assert_allclose(mean, np.broadcast_to(share, mean.shape), rtol=1e-11)


def test_every_cohort_has_one_of_each_kind():
    """Twelve agents of four kinds, whose changes point four ways: one of each in every cohort."""
    method = make(StratifiedPasses(4, Uniform()))
    agents = agents_of(method, (3,) * 12)
    facts = method.facts(agents)
    state = method.sampler.init(facts, agents, np.zeros(3))
    kind = np.arange(12) % 4
    ways = np.random.default_rng(0).standard_normal((4, 32))
    noise = np.random.default_rng(1).standard_normal((12, 32))
    state.sketches[:] = ways[kind] + 0.01 * noise
    for i in range(9):
        cohort, state = method.sampler.draw(state, facts, agents, np.zeros(3), i)
        assert sorted(kind[cohort.agents]) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", [Uniform(), Memory(floor=0.3)], ids=["weights", "importance"])
def test_without_sketches_and_scores_it_is_plain_passes(policy):
    """The first pass of any, and every pass of sketch=0 with equal probabilities."""
    sizes, rounds = (3, 5, 4, 6, 3, 4), 3 if policy.learns else 12
    problem = regression(sizes=sizes, batch_size=1, local_steps=1)
    sampler = StratifiedPasses(2, policy, 0)
    one, two = (
        simulate(problem, make(each), rounds=rounds, seed=3).params
        for each in (sampler, Passes(2, Uniform()))
    )
    np.testing.assert_array_equal(one, two)


def test_with_all_agents_in_every_round_it_is_full_participation():
    method = make(StratifiedPasses(4, Uniform()), "size")
    agents = agents_of(method, (3, 3, 3, 3))
    state = method.start(agents, np.zeros(3))
    for i in range(5):
        state, info = method.step(state, agents, i)
        assert info.cohort.agents.tolist() == [0, 1, 2, 3]
        weights = method.estimator.weights(info.cohort, method.facts(agents))
        np.testing.assert_allclose(weights / 4, 0.25)


def test_it_learns_lengths_and_directions_of_changes():
    method = make(StratifiedPasses(3))
    agents = agents_of(method, (3, 5, 4, 6, 3, 4))
    state, info = method.step(method.start(agents, np.zeros(3)), agents, 0)
    who, change = info.cohort.agents, info.updates.change
    table = Table.over(state.sampler.scores.nodes, 6, method.sampler.policy, None)  # type: ignore[arg-type]
    np.testing.assert_allclose(table.scores[who], np.linalg.norm(change, axis=1))
    assert (np.delete(table.scores, who) == -1.0).all()
    rows = sketches(change, 32)
    np.testing.assert_allclose(state.sampler.sketches[who], rows - rows.mean(axis=0), atol=1e-12)
    assert not np.delete(state.sampler.sketches, who, axis=0).any()


def test_sketches_keep_inner_products_in_the_mean():
    """Over 400 pairs of rows in 500 dimensions; four standard errors."""
    rows = np.random.default_rng(0).standard_normal((400, 2, 500))
    rows[:, 1] += rows[:, 0]
    short = sketches(rows.reshape(800, 500), 32).reshape(400, 2, 32)
    gap = (short[:, 0] * short[:, 1]).sum(axis=1) - (rows[:, 0] * rows[:, 1]).sum(axis=1)
    assert abs(gap.mean()) < 4 * gap.std(ddof=1) / 20
    assert gap.std() < 2.5 * 500 * np.sqrt(2 / 32)


def test_who_was_away_goes_back_into_the_pass(monkeypatch):
    method = make(StratifiedPasses(3))
    agents = agents_of(method, (3, 5, 4, 6, 3, 4))
    agents.use_clock(Clock(drop=0.5))
    monkeypatch.setattr(agents, "answers", lambda which, _: which != which[0])
    state, info = method.step(method.start(agents, np.zeros(3)), agents, 0)
    away = info.cohort.agents[0]
    _, info = method.step(state, agents, 1)
    assert away in info.cohort.agents


def test_a_killed_run_goes_on_in_the_middle_of_a_pass():
    problem = regression(sizes=(3, 5, 4, 6, 3, 4), batch_size=1)
    whole, first, second = (make_run(problem, make(StratifiedPasses(2)), seed=2) for _ in range(3))
    whole.advance(20)
    first.advance(7)
    second.restore({name: np.array(values) for name, values in first.state().items()})
    second.round_index = 7
    second.advance(13)
    for name, values in whole.state().items():
        assert np.array_equal(values, second.state()[name]), name


def test_weights_in_the_step_are_refused():
    """The lengths of the changes would hold the weights."""
    with pytest.raises(ValueError, match="change, which estimator HorvitzThompson does not give"):
        Federated(StratifiedPasses(3), LocalSteps(0.1), HorvitzThompson("step"))
