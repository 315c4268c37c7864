"""SCAFFOLD, FedVARP and clustered sampling: their rules, and the corrections that contain them."""

import itertools
from copy import deepcopy

import numpy as np
import pytest
from small_federations import quadratics, regression

from isfed import (
    SCAFFOLD,
    Clock,
    ClusteredSampling,
    Correction,
    FedVARP,
    HartleyRao,
    ISFedAvg,
    Uniform,
    WithReplacement,
    simulate,
)
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import clustered_sampling, uniform_samplers
from isfed.methods.fedvarp import ChangeMemory
from isfed.methods.scaffold import Controls
from isfed.sampling.designs import Deville
from isfed.sampling.designs.outcomes import outcomes
from isfed.simulate.simulate_call import make_run

STEP = 0.03
START = np.array([0.3, -0.2, 0.5])


def corrected(kind):
    """The correction whose uniform case is the rival: beta = 1, and memories that start at zero."""
    return ISFedAvg(
        step_size=STEP,
        num_active=2,
        agents=Uniform(),
        examples=Uniform(),
        agent_design=HartleyRao(),
        example_design=WithReplacement(),
        correction=Correction(kind, gain=1.0, unseen="zero"),
    )


def agents_of(method, problem=None):
    problem = problem or regression()
    return ObjectAgents(problem, method.rules(problem.num_agents), seed=3, repetition=0)


def shares(problem, how):
    sizes = problem.data.num_examples
    return sizes / sizes.sum() if how == "size" else np.full(sizes.size, 1.0 / sizes.size)


@pytest.mark.parametrize(("rival", "kind"), [(SCAFFOLD, "drift"), (FedVARP, "difference")])
def test_the_correction_contains_it_on_the_same_draws(rival, kind):
    problem = regression(local_steps=[1, 2, 3, 5])
    plain = rival(step_size=STEP, num_active=2, divide_by_steps=True)
    expected = simulate(problem, plain, rounds=60, repetitions=2, seed=4)
    for engine in ("kernel", "agents", "objects"):
        found = simulate(problem, corrected(kind), rounds=60, repetitions=2, seed=4, engine=engine)
        np.testing.assert_allclose(found.params, expected.params, rtol=1e-10)
        np.testing.assert_allclose(found.msd, expected.msd, rtol=1e-9)


def scaffold_round(problem, cohort, before, weights):
    """A round of SCAFFOLD with lists and loops, local steps by hand from full batches.

    `before` is the model, v, and every v_k; `weights` are the c_k.
    """
    w, v, own = before
    models, after = [], own.copy()
    for k in cohort:
        (h, b), x = quadratics(problem)[k], w.copy()
        for _ in range(int(problem.local_steps[k])):
            x = x - STEP * (h @ x - b + v - own[k])
        models.append(x)
        after[k] = own[k] - v + (w - x) / (STEP * problem.local_steps[k])
    share = [weights[k] / sum(weights[j] for j in cohort) for k in cohort]
    w = sum(s * x for s, x in zip(share, models, strict=True))
    return w, sum(c * one for c, one in zip(weights, after, strict=True)), after


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_scaffold_by_the_letter(how):
    problem = regression(local_steps=[1, 2, 3, 4])
    method = SCAFFOLD(step_size=STEP, num_active=2, full_batch=True, client_weights=how)
    agents = agents_of(method, problem)
    weights = shares(problem, how)
    state, literal = method.start(agents, START), (START, np.zeros(3), np.zeros((4, 3)))
    for i in range(12):
        state = method.round(state, agents, i)
        literal = scaffold_round(
            problem, uniform_samplers.draw_uniformly(agents, 2, i), literal, weights
        )
        for found, expected in zip((state.params, *state.estimator), literal, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("num", [1, 2, 3, 4, 5])
def test_scaffold_over_all_cohorts_and_answers(how, num, monkeypatch):
    """K = 5: every cohort and every answer, from any variates whose weighted mean is v."""
    problem = regression(sizes=(4, 9, 3, 6, 5), local_steps=[1, 2, 3, 4, 2])
    method = SCAFFOLD(step_size=STEP, num_active=num, full_batch=True, client_weights=how)
    agents = agents_of(method, problem)
    agents.use_clock(Clock(drop=0.5))
    weights, own = shares(problem, how), np.random.default_rng(0).standard_normal((5, 3))
    before = (START, weights @ own, own)
    for pair in itertools.combinations(range(5), num):
        monkeypatch.setattr(
            uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
        )
        for here in itertools.product((True, False), repeat=num):
            monkeypatch.setattr(agents, "answers", lambda *_, h=here: np.array(h))
            state = method.start(agents, START)._replace(estimator=Controls(before[1], own.copy()))
            state = method.round(state, agents, 0)
            cohort = [k for k, there in zip(pair, here, strict=True) if there]
            expected = scaffold_round(problem, cohort, before, weights) if cohort else before
            for found, one in zip((state.params, *state.estimator), expected, strict=True):
                np.testing.assert_allclose(found, one, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_scaffold_settles_at_the_optimum_and_charges_two_vectors(how):
    problem = regression(local_steps=[1, 2, 3, 4])
    history = simulate(
        problem,
        SCAFFOLD(step_size=0.02, num_active=2, full_batch=True, client_weights=how),
        rounds=4000,
    )
    pieces = zip(shares(problem, how), quadratics(problem), strict=True)
    normal = np.sum([c * np.column_stack([h, b]) for c, (h, b) in pieces], axis=0)
    optimum = np.linalg.solve(normal[:, :3], normal[:, 3])
    np.testing.assert_allclose(history.params[0], optimum, atol=1e-9)
    method = SCAFFOLD(step_size=STEP, num_active=2)
    agents = agents_of(method)
    method.round(method.start(agents, START), agents, 0)
    assert (agents.ledger.models_down, agents.ledger.models_up) == (4, 4)


def test_fedvarp_with_everybody_is_fedavg_and_without_memory_too():
    problem = regression()
    everybody = simulate(problem, FedVARP(step_size=STEP, num_active=4), rounds=20).params
    method = FedVARP(step_size=STEP, num_active=4)
    agents, state = agents_of(method, problem), method.start(agents_of(method), np.zeros(3))
    agents = ObjectAgents(problem, method.rules(4), seed=0, repetition=0)
    for i in range(20):
        state = method.round(state._replace(estimator=ChangeMemory(np.zeros((4, 3)))), agents, i)
    np.testing.assert_allclose(state.params, everybody[0], rtol=1e-12)


def test_fedvarp_is_unbiased_whatever_it_remembers(monkeypatch):
    for how in ("uniform", "size"):
        method = FedVARP(
            step_size=STEP, num_active=2, local_steps=1, full_batch=True, client_weights=how
        )
        agents = agents_of(method)
        memory = np.random.default_rng(0).standard_normal((4, 3))
        weights = agents.facts(how).share()
        found = []
        for pair in itertools.combinations(range(4), 2):
            monkeypatch.setattr(
                uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
            )
            state = method.start(agents, START)
            state = state._replace(estimator=ChangeMemory(memory.copy()))
            found.append(method.round(state, agents, 0).params)
        gradients = np.array([h @ START - b for h, b in quadratics(regression())])
        np.testing.assert_allclose(
            np.mean(found, axis=0), START - STEP * weights @ gradients, atol=1e-13
        )


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize("by", ["size", "similarity"])
def test_clustered_sampling_is_unbiased(by, how, monkeypatch):
    """Over every combination of one agent from each group, after some rounds."""
    method = ClusteredSampling(
        step_size=STEP, num_active=2, by=by, local_steps=1, full_batch=True, client_weights=how
    )
    agents = agents_of(method)
    state = method.start(agents, START)
    for i in range(5):
        state = method.round(state, agents, i)
    weights = agents.facts(how).share()
    facts = agents.facts(how)
    groups = method.federated.sampler.groups(state.sampler, facts, np.linspace(0.9, 0.1, 4))
    mean = np.zeros(3)
    for drawn in itertools.product(range(4), repeat=2):
        chance = groups[0, drawn[0]] * groups[1, drawn[1]]
        counted = np.unique(drawn, return_counts=True)
        monkeypatch.setattr(clustered_sampling, "draw_one_of_each", lambda *_, f=counted: f)
        if chance > 0.0:
            mean += chance * method.round(deepcopy(state), agents, 99).params
    gradients = np.array([h @ state.params - b for h, b in quadratics(regression())])
    np.testing.assert_allclose(mean, state.params - STEP * weights @ gradients, atol=1e-12)


@pytest.mark.parametrize("linkage_input", ["condensed", "rows"])
def test_the_groups_keep_every_weight_in_every_round(linkage_input):
    """sum_l r_l(k) = L c_k and sum_k r_l(k) = 1, for ragged weights and weights above 1/L."""
    rng = np.random.default_rng(1)
    for num, count in ((1, 5), (3, 10), (5, 20), (7, 7), (4, 30)):
        for weights in (np.full(count, 1.0), rng.lognormal(0.0, 1.5, count)):
            weights = weights / weights.sum()
            changes = rng.standard_normal((count, 6)) * (rng.random((count, 1)) < 0.8)
            found = clustered_sampling.clusters(changes, weights, num, linkage_input)
            order = rng.permutation(count)
            for groups in (
                clustered_sampling.groups_of_clusters(found, weights, num, order),
                clustered_sampling.groups_by_size(weights, num),
            ):
                assert (groups >= 0.0).all()
                np.testing.assert_allclose(groups.sum(axis=0), num * weights, atol=1e-12)
                np.testing.assert_allclose(groups.sum(axis=1), 1.0, atol=1e-12)


def test_groups_by_size_are_blocks_if_all_weigh_the_same():
    groups = clustered_sampling.groups_by_size(np.full(6, 1 / 6), 3)
    assert np.array_equal(groups > 0.0, np.repeat(np.eye(3, dtype=bool), 2, axis=1))
    one = clustered_sampling.groups_by_size(np.array([0.2, 0.5, 0.3]), 1)
    np.testing.assert_allclose(one, [[0.2, 0.5, 0.3]])


def test_groups_by_size_are_the_strata_of_devilles_draw():
    """The same strata and inclusion probabilities; without borders inside agents the same draw."""
    rng = np.random.default_rng(2)
    for num, count in ((2, 4), (3, 7), (4, 9)):
        weights = np.sort(rng.uniform(0.5, 1.5, count))[::-1]
        weights = weights / weights.sum()
        groups = clustered_sampling.groups_by_size(weights, num)
        for drawn, _ in outcomes(Deville(), num * weights):  # one of each group, in order
            units = sorted(drawn)
            assert all(groups[place, unit] > 0.0 for place, unit in enumerate(units))
    blocks = clustered_sampling.groups_by_size(np.full(6, 1 / 6), 3)
    chances = {tuple(sorted(drawn)): p for drawn, p in outcomes(Deville(), np.full(6, 0.5))}
    assert len(chances) == 8
    for units, chance in chances.items():
        expected = np.prod([blocks[place, unit] for place, unit in enumerate(units)])
        assert abs(chance - expected) < 1e-12


def test_agents_that_point_the_same_way_share_a_group():
    """Two directions and two draws: one agent of each direction, every time."""
    changes = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.1, 3.0]])
    found = clustered_sampling.clusters(changes, np.full(4, 0.25), 2, "condensed")
    groups = clustered_sampling.groups_of_clusters(found, np.full(4, 0.25), 2, np.arange(4))
    for point in np.random.default_rng(0).random((20, 2)):
        drawn, _ = clustered_sampling.draw_one_of_each(groups, point)
        assert {int(k) % 2 for k in drawn} == {0, 1}


@pytest.mark.parametrize("method", [SCAFFOLD, FedVARP, ClusteredSampling])
def test_a_run_with_absences_goes_on_from_its_state(method):
    problem, algorithm = regression(), method(step_size=STEP, num_active=2)
    whole, first, second = (
        make_run(problem, algorithm, repetitions=1, seed=0, clock=Clock(drop=0.5)) for _ in range(3)
    )
    whole.advance(30)
    first.advance(11)
    second.restore({name: values.copy() for name, values in first.state().items()})
    second.round_index = 11
    second.advance(19)
    assert np.array_equal(whole.params, second.params)
