"""Ends at which a rival must be another method, where no test of its own file has them."""

import itertools
from copy import deepcopy
from typing import Any

import numpy as np
from small_federations import identical_agents, quadratics, regression

from isfed import (
    OSMD,
    SCAFFOLD,
    Average,
    FedAdam,
    FedAvg,
    Federated,
    FedVARP,
    HorvitzThompson,
    KVib,
    LocalGD,
    LocalSteps,
    Served,
    simulate,
)
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import uniform_samplers
from isfed.methods.change_norms import capped_inclusion
from isfed.methods.estimators import Extrapolated
from isfed.methods.fedvarp import ChangeMemory
from isfed.methods.optimal_sampling import approximate_inclusion
from isfed.methods.scaffold import Controls
from isfed.methods.uniform_samplers import UniformCohort

STEP, START = 0.03, np.array([0.3, -0.2, 0.5])
SOME: dict[str, Any] = {"step_size": STEP, "num_active": 2}
ALL = {**SOME, "num_active": 4}


def run(method, problem=None, rounds=15):
    return simulate(problem or regression(), method, rounds=rounds, seed=2).params[0]


def agents_of(method):
    return ObjectAgents(regression(), method.rules(4), seed=3, repetition=0)


def test_kvib_that_draws_all_is_full_participation():
    np.testing.assert_allclose(run(KVib(**ALL)), run(FedAvg(**ALL)), rtol=1e-12)


def test_osmd_with_one_agent_is_sgd():
    one, options = regression(sizes=(7,)), {**SOME, "num_active": 1}
    np.testing.assert_allclose(run(OSMD(**options), one), run(FedAvg(**options), one), rtol=1e-12)


def test_four_loops_of_aocs_are_ocs_and_equal_lengths_a_coin_for_each():
    rng = np.random.default_rng(7)
    for _ in range(200):
        lengths = rng.lognormal(0.0, 1.5, 50)
        found = approximate_inclusion(lengths, 10, 4)[0]
        np.testing.assert_allclose(found, capped_inclusion(lengths, 10), atol=1e-12)
    for found in (capped_inclusion(np.ones(8), 3), approximate_inclusion(np.ones(8), 3, 4)[0]):
        np.testing.assert_allclose(found, 3 / 8, rtol=1e-12)


def forgetful(method, state):
    """A run of 12 rounds whose estimator is put back to `state` before every round."""
    agents = agents_of(method)
    found = method.start(agents, START)
    for i in range(12):
        found = method.round(found._replace(estimator=deepcopy(state)), agents, i)
    return found.params


def test_without_memory_fedvarp_and_scaffold_are_fedavg():
    plain = FedAvg(**SOME)
    agents = agents_of(plain)
    state = plain.start(agents, START)
    for i in range(12):
        state = plain.round(state, agents, i)
    nothing = np.zeros((4, 3))
    for method, kept in (
        (FedVARP(**SOME), ChangeMemory(nothing)),
        (SCAFFOLD(**SOME), Controls(np.zeros(3), nothing)),
    ):
        np.testing.assert_allclose(forgetful(method, kept), state.params, rtol=1e-11)


def test_scaffold_with_all_agents_and_exact_gradients_is_gradient_descent():
    method = SCAFFOLD(local_steps=1, full_batch=True, **ALL)
    np.testing.assert_allclose(run(method), run(LocalGD(step_size=STEP)), rtol=1e-12)


def test_one_step_of_scaffold_is_unbiased_whatever_the_variates(monkeypatch):
    method = SCAFFOLD(local_steps=1, full_batch=True, **SOME)
    agents, mean = agents_of(method), np.zeros(3)
    own = np.random.default_rng(0).standard_normal((4, 3))
    for pair in itertools.combinations(range(4), 2):
        monkeypatch.setattr(
            uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
        )
        state = method.start(agents, START)
        state = state._replace(estimator=Controls(own.mean(axis=0), own.copy()))
        mean += (method.round(state, agents, 0).params - START) / 6
    full = np.mean([-STEP * (h @ START - b) for h, b in quadratics(regression())], axis=0)
    np.testing.assert_allclose(mean, full, atol=1e-12)


def test_fedadam_without_memory_and_with_a_large_tau_is_plain():
    server = FedAdam(step_size=1e9, beta_1=0.0, beta_2=0.0, tau=1e9)
    found = run(Served(FedAvg(**SOME), server))
    np.testing.assert_allclose(found, run(FedAvg(**SOME)), rtol=1e-6)


def test_an_average_over_one_round_is_the_model():
    found = run(Served(FedAvg(**ALL), Average(window="pass")))
    np.testing.assert_allclose(found, run(FedAvg(**ALL)), rtol=1e-12)


def test_changes_that_agree_are_not_extrapolated():
    method = Federated(
        UniformCohort(2), LocalSteps(STEP, full_batch=True), Extrapolated(HorvitzThompson())
    )
    plain = Federated(UniformCohort(2), LocalSteps(STEP, full_batch=True), HorvitzThompson())
    found, expected = (run(one, identical_agents()) for one in (method, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_osmd_without_a_rate_keeps_its_probabilities():
    method = OSMD(rate=0.0, alpha=0.1, as_coded=True, **SOME)
    agents = agents_of(method)
    state = method.start(agents, START)
    for i in range(6):
        state = method.round(state, agents, i)
    np.testing.assert_allclose(state.sampler.prob, 0.25, rtol=1e-12)
