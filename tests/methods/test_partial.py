"""Checks named in the specification of FedAvg's schemes, FedProx and FedAsync."""

import numpy as np
import pytest
from small_federations import quadratics, regression

from isfed import Clock, FedAsync, FedAvgScheme, FedProx, simulate
from isfed.federation.agents import PLAIN_LOCAL
from isfed.federation.object_agents import ObjectAgents
from isfed.methods.uniform_samplers import draw_uniformly

SOME = {"step_size": 0.02, "num_active": 2}


def agents_of(algorithm, problem=None):
    problem = regression() if problem is None else problem
    return ObjectAgents(problem, algorithm.rules(problem.num_agents), seed=3, repetition=0)


@pytest.mark.parametrize("scheme", ["I", "II", "transformed-II", "original"])
def test_if_all_models_are_equal_every_scheme_but_two_returns_it(scheme, monkeypatch):
    method = FedAvgScheme(scheme=scheme, client_weights="size", **SOME)
    agents, start = agents_of(method), np.array([1.0, -2.0, 0.5])
    uploads = agents.work
    monkeypatch.setattr(
        agents, "work", lambda *a: (u := uploads(*a))._replace(changes=0.0 * u.changes)
    )
    found = method.round(method.start(agents, start), agents, 0).params
    if scheme != "II":
        np.testing.assert_allclose(found, start, rtol=1e-15)
        return
    sizes = regression().data.num_examples
    active = draw_uniformly(agents, 2, 0)
    np.testing.assert_allclose(found, start * 2.0 * sizes[active].sum() / sizes.sum(), rtol=1e-12)


def test_the_step_size_of_a_scheme_falls():
    problem = regression()
    slow, plain = (
        simulate(problem, FedAvgScheme(decay=d, **SOME), rounds=2, engine="agents").params[0]
        for d in (1.0, 0.0)
    )
    assert np.abs(slow - plain).max() > 1e-6


def test_a_strong_pull_freezes_fedprox():
    problem = regression()
    # step_size * prox = 1: every step goes back to w and adds one plain step
    method = FedProx(prox=1e6, step_size=1e-6, num_active=4, local_steps=50, full_batch=True)
    history = simulate(problem, method, rounds=20)
    assert np.abs(history.params).max() < 1e-4


def test_an_exact_local_solve_is_the_closed_form():
    problem = regression()
    method = FedProx(prox=2.0, step_size=0.05, num_active=4, local_steps=500, full_batch=True)
    agents, start = agents_of(method, problem), np.array([1.0, -2.0, 0.5])
    opened = method.federated.open(method.start(agents, start), agents, 0)
    updates = agents.train(opened.cohort, start, opened.work, 0)
    pieces = quadratics(problem)
    for k, change in zip(opened.cohort.agents, updates.change, strict=True):
        h, b = pieces[k]
        exact = np.linalg.solve(h + 2.0 * np.eye(3), b + 2.0 * start)
        np.testing.assert_allclose(start + change, exact, atol=1e-10)


def test_stragglers_work_less_or_are_dropped_and_are_the_same_for_both():
    problem = regression(local_steps=5)
    common = {"step_size": 0.01, "num_active": 4, "stragglers": 0.5}
    kept, dropped, full = (
        simulate(problem, method, rounds=30, engine="agents").ledger()
        for method in (
            FedProx(**common),
            FedProx(keep_stragglers=False, **common),
            FedProx(step_size=0.01, num_active=4),
        )
    )
    assert (kept.models_up, dropped.models_up, full.models_up) == (120, 60, 120)
    assert dropped.gradients == full.gradients // 2 < kept.gradients < full.gradients


def test_one_step_stays_one_step_for_a_straggler():
    problem = regression(local_steps=1)
    method = FedProx(stragglers=1.0, **SOME)
    assert simulate(problem, method, rounds=5, engine="agents").gradients[0] == 5 * 2 * 2


def test_the_weight_of_an_old_model():
    fall = FedAsync(step_size=0.1, mixing=0.6, power=0.5)
    np.testing.assert_allclose([fall.weight(a) for a in (0, 3)], [0.6, 0.3])
    hinge = FedAsync(step_size=0.1, mixing=0.6, staleness="hinge", power=10.0, delay=4)
    np.testing.assert_allclose([hinge.weight(a) for a in (0, 4, 5)], [0.6, 0.6, 0.6 / 11.0])


@pytest.mark.parametrize("how", [{"max_age": 3}, {"in_flight": 3}])
def test_nothing_is_mixed_in_with_weight_zero(how):
    history = simulate(regression(), FedAsync(step_size=0.1, mixing=0.0, **how), rounds=20)
    assert not history.params.any()


@pytest.mark.parametrize("how", [{"max_age": 3}, {"in_flight": 3}])
def test_the_model_is_a_mean_of_real_old_versions_worked_on(how):
    """Rebuilt from what the agents were really sent, which must be an earlier version."""
    problem = regression(local_steps=2)
    method = FedAsync(step_size=0.05, mixing=0.5, staleness="constant", full_batch=True, **how)
    agents = agents_of(method, problem)
    sent, work = [], agents.work

    def watched(turns, round_index, local=PLAIN_LOCAL):
        sent.append((turns.params.copy(), int(turns.agents[0])))
        return work(turns, round_index, local)

    agents.work = watched
    state = method.start(agents, np.zeros(3))
    versions, ages = [state.params], set()
    parts = quadratics(problem)
    for round_index in range(25):
        state = method.round(state, agents, round_index)
        old, agent = sent[-1]
        matches = [i for i, v in enumerate(versions) if np.array_equal(v, old)]
        assert matches, "an agent worked from a model that never was"
        ages.add(len(versions) - 1 - matches[-1])
        model = old.copy()
        for _ in range(2):
            h, b = parts[agent]
            model = model - 0.05 * (h @ model - b + 0.005 * (model - old))
        np.testing.assert_allclose(state.params, 0.5 * versions[-1] + 0.5 * model, rtol=1e-9)
        versions.append(state.params)
    assert len(ages) > 1
    assert "in_flight" in how or max(ages) <= 3


def test_the_queue_keeps_the_clock():
    problem = regression()
    clock = Clock(rate=(1.0, 10.0))
    method = FedAsync(step_size=0.01, in_flight=3)
    seconds = [
        simulate(problem, method, rounds=n, clock=clock).ledger().seconds for n in (1, 10, 40)
    ]
    assert 0.0 < seconds[0] < seconds[1] < seconds[2]
    one = simulate(problem, FedAsync(step_size=0.01, in_flight=1), rounds=40, clock=clock)
    assert seconds[2] < one.ledger().seconds  # three at work at once


def test_bad_input():
    for message, make in [
        ("max_age=5 is beyond the history=3", lambda: FedAsync(step_size=1, max_age=5, history=3)),
        ("mixing=2", lambda: FedAsync(step_size=1, mixing=2)),
        ("prox=-1", lambda: FedProx(prox=-1, **SOME)),
        ("stragglers=2", lambda: FedProx(stragglers=2, **SOME)),
        ("scheme='III'", lambda: FedAvgScheme(scheme="III", **SOME)),  # type: ignore[arg-type]
        ("num_active=0", lambda: FedProx(step_size=1, num_active=0)),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(ValueError, match="in_flight=9 exceeds num_agents=4"):
        simulate(regression(), FedAsync(step_size=0.1, in_flight=9), rounds=1)
