"""Lost uploads, costs and spreads under ISFedAvg, with and without a correction."""

from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from corrected_cases import (
    CORRECTIONS,
    POLICIES,
    copied,
    make,
    reference_of,
    round_with,
    small_problem,
)

from isfed import Clock, Deville, ISFedAvg, LocalPivotal, Memory, Running, Spread, Uniform, simulate
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.response_rates import WINDOW
from isfed.sampling.designs.outcomes import outcomes
from isfed.sampling.designs.spread import Along
from isfed.sampling.policies import ScorePolicy, Table
from isfed.sampling.telemetry import AGENTS_FLOOR
from isfed.simulate.simulate_call import make_run

AWAY = Clock(drop=0.4)
KINDS = {"plain": {}, **CORRECTIONS}


def at_rest(algorithm, problem, kind: Any = ObjectAgents, rounds=8):
    """Agents and a state after some rounds."""
    agents = kind(problem, algorithm.rules(problem.num_agents), seed=0, repetition=0)
    state: Any = algorithm.start(agents, np.zeros(3))
    for i in range(rounds):
        state = algorithm.round(state, agents, i)
    return agents, state


@pytest.mark.parametrize("absences", ["drop", "adjusted"])
@pytest.mark.parametrize("choices", KINDS)
def test_engines_lose_the_same_uploads(choices, absences):
    problem = small_problem()
    algorithm = make(problem, KINDS[choices], absences=absences)
    both = [
        simulate(problem, algorithm, rounds=30, repetitions=2, seed=1, engine=engine, clock=AWAY)
        for engine in ("agents", "objects")
    ]
    assert np.array_equal(both[0].params, both[1].params)
    assert np.array_equal(both[0].agent_prob, both[1].agent_prob)
    nobody_away = simulate(problem, algorithm, rounds=30, repetitions=2, seed=1)
    assert not np.array_equal(nobody_away.params, both[0].params)


@pytest.mark.parametrize("choices", [name for name in CORRECTIONS if name != "change"])
def test_the_mean_of_the_memories_stays_exact_through_absences(choices):
    """Over 10^4 rounds with "drift", over fewer with the others; 40% of the uploads are lost."""
    problem = small_problem()
    for absences in ("drop", "adjusted"):
        algorithm = make(problem, CORRECTIONS[choices], absences=absences)
        run = make_run(problem, algorithm, engine="agents", clock=AWAY)
        run.advance(10_000 if (choices, absences) == ("drift", "drop") else 1000)
        kept = reference_of(run.states[0])  # type: ignore[attr-defined]
        assert np.isfinite(kept.own).all()
        assert np.abs(kept.own).max() > 1e-3
        np.testing.assert_allclose(kept.centre, kept.own.mean(axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("choices", [name for name in CORRECTIONS if name != "change"])
def test_a_turn_that_is_lost_moves_no_memory(choices, monkeypatch):
    problem = small_problem()
    algorithm = make(problem, CORRECTIONS[choices])
    agents, state = at_rest(algorithm, problem)
    agents.use_clock(AWAY)
    monkeypatch.setattr(agents, "answers", lambda which, _: np.arange(which.size) > 0)
    before = copied(state)
    after = round_with(algorithm, state, agents, np.array([3, 1]))
    one, other = reference_of(after), reference_of(before)
    assert np.flatnonzero((one.own != other.own).any(axis=1)).tolist() == [1]
    assert np.array_equal(one.book[3], other.book[3])
    monkeypatch.setattr(agents, "answers", lambda which, _: np.zeros(which.size, bool))
    state, before = copied(after), copied(after)
    after = round_with(algorithm, state, agents, np.array([3, 1]))
    assert np.array_equal(reference_of(after).own, reference_of(before).own)
    assert np.array_equal(after.params, before.params)


@pytest.mark.parametrize("absences", ["drop", "adjusted"])
@pytest.mark.parametrize("choices", KINDS)
@pytest.mark.parametrize("rarest", [0.25, 0.1])
def test_the_mean_round_over_all_absences(rarest, choices, absences, monkeypatch):
    """a c + 1/K sum_k a_k (grad P_k - c_k), a_k = r_k when dropped and 1 when adjusted.

    a is the share of the turns that are taken, sum_k p_k r_k, or 1. Adjusted, an agent that answers
    less than once in five turns counts a_k = 5 r_k, as in a federation.
    """
    problem = small_problem(full=True, steps=1)
    algorithm = make(problem, KINDS[choices], absences=absences, design=Deville())
    agents, state = at_rest(algorithm, problem)
    agents.use_clock(AWAY)
    rates = np.array([0.5, rarest, 1.0, 0.8, 0.5])
    if absences == "adjusted":  # a history in which the estimate of 1 / r_k is just right
        responses = state.estimator.responses
        responses[:, 0], responses[:, 1] = 500, WINDOW
        responses[:, 2:] = (500 - WINDOW / rates).astype(int)[:, None]
    table = Table.over(state.sampler.nodes, 5, algorithm.agents, algorithm.agent_design)
    mean = np.zeros(3)
    for units, chance in outcomes(Deville(), table.inclusion(2)):
        drawn = np.array(units)
        for here in product((False, True), repeat=2):
            share = np.where(here, rates[drawn], 1.0 - rates[drawn]).prod()
            if share > 0.0:
                monkeypatch.setattr(agents, "answers", lambda *_, h=here: np.array(h))
                after = round_with(algorithm, copied(state), agents, drawn)
                mean += chance * share * after.params
    gradients = agents.gradients(np.arange(5), state.params)
    own, centre = np.zeros((5, 3)), np.zeros(3)
    kept = reference_of(state)
    if kept is not None:
        seen = kept.book[:, 0] > 0
        own = np.where(seen[:, None], kept.own, kept.centre)
        own = kept.own if choices == "fixed gain, from zero" else own
        centre = kept.centre
    weights = rates if absences == "drop" else np.minimum(1.0, 5.0 * rates)
    part = table.inclusion(2) @ rates / 2 if absences == "drop" else 1.0
    expected = part * centre + weights @ (gradients - own) / 5
    np.testing.assert_allclose(mean, state.params - 0.02 * expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("policies", ["uniform", "memory", "running"])
@pytest.mark.parametrize("choices", KINDS)
def test_a_spread_is_unbiased_along_whatever_order_it_has(choices, policies, monkeypatch):
    """Given the past, over every set of agents that can be drawn along the order."""
    problem = small_problem(full=True, steps=1)
    algorithm = make(problem, KINDS[choices], POLICIES[policies], design=Spread(every=4))
    agents, state = at_rest(algorithm, problem)
    order = state.sampler.order
    assert sorted(order) == list(range(5))
    assert order.tolist() != list(range(5))
    policy = algorithm.agents
    if not policy.equal:  # the share of uniform probability that the cloud has chosen
        policy = replace(cast(ScorePolicy, policy), floor=float(state.sampler.share[0]))
    chances = Table.over(state.sampler.nodes, 5, policy, Deville()).inclusion(2)[order]
    mean = np.zeros(3)
    for units, chance in outcomes(Deville(), chances):
        drawn = order[list(units)]
        monkeypatch.setattr(Along, "draw", lambda *_, drawn=drawn: drawn)
        mean += chance * algorithm.round(copied(state), agents, 99).params
    gradient = agents.gradients(np.arange(5), state.params).mean(axis=0)
    np.testing.assert_allclose(mean, state.params - 0.02 * gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("choices", ["plain", "drift"])
def test_a_spread_reports_the_probabilities_that_its_rounds_use(choices, share):
    """`agent_prob` and the telemetry know the share of uniform probability that was found."""
    problem = small_problem()
    algorithm = make(problem, KINDS[choices], design=Spread(every=4), num_active=1)
    agents, state = at_rest(algorithm, problem)
    state.sampler.share[0] = share
    scores = Table.over(state.sampler.nodes, 5, Memory(floor=0.0), Deville()).probabilities()
    expected = (1.0 - share) * scores + share / 5
    np.testing.assert_allclose(algorithm.agent_prob(state, 5), expected, rtol=1e-12)
    method = algorithm.federated
    for i in range(8, 11):  # the order is renewed after the round 11
        before = state.sampler.nodes.copy()
        state, info = cast(Any, method).step(state, agents, i)
        agent, prob = int(info.cohort.agents[0]), float(info.cohort.prob[0])
        row: Any = method.telemetry(method.facts(agents), info)
        assert row[AGENTS_FLOOR] == float(prob <= 2.0 * share / 5)
        table = Table.over(before, 5, Memory(floor=share), Deville())
        assert prob == pytest.approx(table.probabilities()[agent], rel=1e-12)


def test_drift_finds_the_optimum_although_agents_are_away():
    """Dropped uploads bias the plain method, and leave the fixed point of "drift" where it is."""
    problem = small_problem(full=True, steps=[1, 2, 3, 4, 5])
    corrected = make(problem, {"correction": "drift"}, (Uniform(), Uniform()), step_size=0.05)
    history = simulate(problem, corrected, rounds=6000, clock=AWAY, engine="agents")
    assert history.msd[0, -1] < 1e-18


@pytest.mark.parametrize("kind", [CompiledAgents, ObjectAgents])
@pytest.mark.parametrize(
    "choices",
    [
        {"correction": "drift", "absences": "adjusted"},
        {"correction": "difference", "agent_design": Spread(every=5)},
        {"agent_design": Spread(LocalPivotal(), sketch=2, every=3), "absences": "adjusted"},
    ],
    ids=["drift", "spread", "pivotal"],
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(choices, kind):
    problem = small_problem()
    engine = "agents" if kind is CompiledAgents else "objects"
    algorithm = ISFedAvg(step_size=0.02, num_active=2, **choices)
    whole, first, second = (
        make_run(problem, algorithm, seed=2, clock=AWAY, engine=engine) for _ in range(3)
    )
    whole.advance(40)
    first.advance(13)
    saved = {name: np.array(values) for name, values in first.state().items()}
    first.advance(2)  # the cloud is killed after these, before it has written them down
    second.restore(saved)
    second.round_index = 13
    second.advance(27)
    for name, values in whole.state().items():
        assert np.array_equal(values, second.state()[name]), name


@pytest.mark.parametrize(
    ("engine", "name"), [("agents", "0.cloud.estimator.own"), ("kernel", "own")]
)
def test_a_memory_of_another_shape_is_refused(engine, name):
    problem = small_problem()
    run = make_run(problem, make(problem, {"correction": "drift"}), engine=engine)
    assert name in run.state()
    saved = {**run.state(), name: np.zeros((6, 3))}
    with pytest.raises(ValueError, match=r"own is float64 of shape \(6, 3\), expected"):
        run.restore(saved)


@pytest.mark.parametrize("choices", ["plain", "drift"])
@pytest.mark.parametrize("policy", [Memory(), Running()], ids=["memory", "running"])
def test_equal_costs_change_nothing(choices, policy):
    problem = small_problem()
    plain = make(problem, KINDS[choices], (policy, Uniform()))
    priced = make(problem, KINDS[choices], (policy, Uniform()), costs=[4.0] * 5)
    found = [simulate(problem, a, rounds=25, engine="agents").params for a in (plain, priced)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_costs_divide_the_scores_by_their_root():
    problem = small_problem(full=True, steps=1)
    costs = np.array([1.0, 4.0, 9.0, 1.0, 2.0])
    shared = {"num_active": 5, "step_size": 1e-9}  # everybody is heard, and nothing moves
    found = []
    for options in ({}, {"costs": costs}):
        algorithm = make(problem, {}, (Memory(floor=0.0), Uniform()), **shared, **options)
        _, state = at_rest(algorithm, problem, rounds=3)
        found.append(algorithm.agent_prob(state, 5))
    expected = found[0] / np.sqrt(costs)
    np.testing.assert_allclose(found[1], expected / expected.sum(), rtol=1e-6)


@pytest.mark.parametrize("choices", ["plain", "drift"])
def test_agents_not_heard_yet_count_as_the_mean_whatever_they_cost(choices):
    problem, policy = small_problem(), Memory()
    costs = np.array([1.0, 4.0, 9.0, 1.0, 2.0])
    algorithm = make(problem, KINDS[choices], (policy, Uniform()), num_active=1, costs=costs)
    agents, state = at_rest(algorithm, problem, rounds=0)
    np.testing.assert_allclose(algorithm.agent_prob(state, 5), 0.2, rtol=1e-12)
    for i in range(2):
        state = algorithm.round(state, agents, i)
    scores = np.array(state.sampler.nodes[:5])
    seen = scores >= 0.0
    assert 0 < seen.sum() < 5
    prob = scores / np.sqrt(costs)
    prob[~seen] = prob[seen].mean()
    expected = (1.0 - policy.floor) * prob / prob.sum() + policy.floor / 5
    np.testing.assert_allclose(algorithm.agent_prob(state, 5), expected, rtol=1e-12)


@pytest.mark.parametrize("choices", ["plain", "drift"])
def test_a_spread_with_costs_pays_no_more_than_uniform(choices, monkeypatch):
    """Less than half of it, in the rounds after the order was renewed twice."""
    problem = small_problem(num_agents=20)
    costs = np.geomspace(1.0, 1e4, 20)[np.random.default_rng(0).permutation(20)]
    algorithm = make(
        problem, KINDS[choices], (Memory(), Uniform()), design=Spread(every=10), costs=costs,
        num_active=4,
    )  # fmt: skip
    agents, state = at_rest(algorithm, problem, CompiledAgents, rounds=20)
    work, paid = agents.work, []
    monkeypatch.setattr(
        agents, "work", lambda turns, *rest: paid.append(costs[turns.agents]) or work(turns, *rest)
    )
    for i in range(20, 120):
        state = algorithm.round(state, agents, i)
    assert np.sum(paid) / 100 < 0.5 * 4 * costs.mean()


def test_the_root_of_the_cost_is_the_best_price():
    """Variance times expected cost of one draw, sum s^2/p times sum p cost, is least there."""
    rng = np.random.default_rng(0)
    scores, costs = rng.lognormal(size=20), rng.lognormal(size=20)

    def product_of(prob):
        prob = prob / prob.sum()
        return (scores**2 / prob).sum() * (prob * costs).sum()

    best = product_of(scores / np.sqrt(costs))
    for prob in (scores, scores / costs, np.ones(20), *rng.lognormal(size=(50, 20))):
        assert product_of(prob) >= best


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"costs": [1.0, 0.0]}, r"costs\[1\]=0.0 must be a positive number"),
        ({"costs": [-1.0]}, "must be a positive number: a turn that costs nothing"),
        ({"costs": [np.nan]}, r"costs\[0\]=nan must be a positive number$"),
        ({"costs": ["1"]}, r"costs\[0\]='1' must be a positive number$"),
        ({"costs": [np.inf]}, r"costs\[0\]=inf .*: an agent that is never drawn would bias"),
        ({"costs": [1.0, 2.0], "agents": Uniform()}, "use agents=Memory"),
        ({"absences": "ignore"}, "must be 'drop' or 'adjusted'"),
        ({"example_design": Spread()}, "use it for agent_design"),
    ],
)
def test_what_does_not_fit_is_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        ISFedAvg(step_size=0.1, num_active=2, **choices)


def test_what_does_not_fit_the_problem_is_refused():
    problem = small_problem()
    with pytest.raises(ValueError, match="costs has 3 numbers for num_agents=5"):
        simulate(problem, make(problem, {}, costs=[1.0, 2.0, 3.0]), rounds=1)
    with pytest.raises(ValueError, match="num_active=9 exceeds num_agents=5; use at most 5"):
        simulate(problem, make(problem, {}, design=Spread(), num_active=9), rounds=1)
