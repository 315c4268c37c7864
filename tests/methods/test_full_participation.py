"""Checks named in the specification of each method in which everybody works."""

from typing import Any

import numpy as np
import pytest
from small_federations import identical_agents, quadratics, regression

from isfed import (
    AdaptiveTau,
    CooperativeSGD,
    DecentralisedSGD,
    ElasticAveraging,
    HierFAVG,
    LocalSGD,
    MomentumSGD,
    RestartedSGD,
    StichSGD,
    simulate,
)
from isfed.federation.object_agents import ObjectAgents
from isfed.methods.adaptive_tau import Slopes, control_value, drift_bound
from isfed.methods.cooperative_sgd import Elastic, Ring

COSTS = (0.013, 0.13, 15.0)


@pytest.mark.parametrize("workers", [2, 4, 9])
def test_the_best_elastic_pull_gives_the_second_eigenvalue(workers):
    sizes = np.sort(np.abs(np.linalg.eigvalsh(Elastic()(workers))))
    np.testing.assert_allclose(sizes[-2], workers / (workers + 2.0), rtol=1e-12)
    for pull in (1.8 / (workers + 2), 2.2 / (workers + 2)):
        others = np.sort(np.abs(np.linalg.eigvalsh(Elastic(pull)(workers))))
        assert others[-2] > sizes[-2]


def test_mixing_matrices_are_checked():
    problem = regression()
    cases: dict[str, Any] = {
        "sums to": np.eye(4) * 0.9,
        "not symmetric": np.array(
            [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.5, 0, 0, 0.5]]
        ),
        "shape": np.eye(3),
        r"entry \(0, 1\) of the mixing matrix is -1, and an eigenvalue has the size 3": np.kron(
            np.eye(2), [[2.0, -1.0], [-1.0, 2.0]]
        ),
        "row 0 of the mixing matrix sums to nan": np.full((4, 4), np.nan),
        "is 'ring'; it must be a matrix of numbers": "ring",
    }
    for message, matrix in cases.items():
        method = CooperativeSGD(step_size=0.01, mixing=lambda _, m=matrix: m)
        with pytest.raises(ValueError, match=message):
            simulate(problem, method, rounds=1)
    for pull in (0.5, 5.0):  # 1 - 5 pull is an eigenvalue
        method = ElasticAveraging(step_size=0.01, pull=pull)
        with pytest.raises(ValueError, match=f"eigenvalue has the size {5 * pull - 1:g}"):
            simulate(problem, method, rounds=1)


def test_decentralised_agents_agree_in_the_long_run():
    """Every agent keeps a model; with a ring they stay near each other and near w^o on average."""
    problem = identical_agents()
    history = simulate(problem, DecentralisedSGD(step_size=0.05, full_batch=True), rounds=400)
    np.testing.assert_allclose(history.params[0], problem.optimum, atol=1e-8)
    assert np.allclose(Ring()(5).sum(axis=0), 1.0)


def test_elastic_averaging_keeps_the_optimum_of_agents_that_agree():
    problem = identical_agents()
    history = simulate(problem, ElasticAveraging(step_size=0.05, full_batch=True), rounds=800)
    np.testing.assert_allclose(history.params[0], problem.optimum, atol=1e-8)


def test_the_drift_bound_vanishes_at_zero_and_one():
    slopes = Slopes(beta=3.0, delta=2.0, rho=1.5)
    np.testing.assert_allclose(drift_bound(np.array([0, 1]), slopes, 0.1), 0.0, atol=1e-15)
    assert (np.diff(drift_bound(np.arange(1, 20), slopes, 0.1)) > 0).all()


def test_agents_that_agree_make_tau_as_large_as_it_may_be():
    method = AdaptiveTau(step_size=0.01)
    slopes = Slopes(beta=3.0, delta=0.0, rho=1.5)
    values = control_value(np.arange(1, 50), slopes, step_size=0.01, phi=0.025, costs=COSTS)
    assert (np.diff(values) < 0).all()
    assert method.choose(slopes, 3, COSTS) == 30
    assert method.choose(slopes, 30, COSTS) == 100


def test_free_averages_make_tau_one():
    method = AdaptiveTau(step_size=0.01)
    assert method.choose(Slopes(3.0, 2.0, 1.5), 10, (0.013, 0.0, 15.0)) == 1


def test_the_control_by_the_letter():
    slopes, step, phi, (c, b, budget) = Slopes(3.0, 2.0, 1.5), 0.01, 0.025, COSTS
    for tau in (1, 4, 9):
        h = 2.0 / 3.0 * ((step * 3.0 + 1.0) ** tau - 1.0) - step * 2.0 * tau
        total = (budget - c - b) * tau / (c * tau + b)
        root = np.sqrt(1.0 + 4.0 * total**2 * phi * 1.5 * step * max(0.0, h) / tau)
        expected = (1.0 + root) / (2.0 * total * step * phi) + 1.5 * max(0.0, h)
        found = control_value(tau, slopes, step_size=step, phi=phi, costs=COSTS)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_budget_ends_the_work_and_the_best_model_stays():
    problem = regression()
    method = AdaptiveTau(step_size=0.05, budget=3.0, full_batch=True)
    short, long = (simulate(problem, method, rounds=n, engine="agents") for n in (60, 90))
    np.testing.assert_array_equal(short.params, long.params)
    assert short.ledger().gradients == long.ledger().gradients
    assert problem.risk(short.params[0]) < problem.risk(np.zeros(3))


def algorithm_2(problem, weights, *, budget, rounds, step=0.05, phi=0.025):
    """Algorithm 2 of Wang et al. with full batches and fixed costs: all models and tau, and w^f."""
    (c, b), pieces, best = COSTS[:2], quadratics(problem), (np.inf, np.zeros(3))

    def risk(k, w):
        x, y = problem.data.agent(k)
        return np.mean((y - x @ w) ** 2) + 0.01 * w @ w

    def gradient(k, w):
        return pieces[k][0] @ w - pieces[k][1]

    def bound(tau, beta, delta, rho):  # G(tau)
        h = max(0.0, delta / beta * ((step * beta + 1) ** tau - 1) - step * delta * tau)
        total = (budget - c - b) * tau / (c * tau + b)
        root = np.sqrt(1 + 4 * total**2 * phi * rho * step * h / tau)
        return (1 + root) / (2 * total * step * phi) + rho * h

    def noted(w):
        value = sum(a * risk(k, w) for k, a in enumerate(weights))
        return (value, w) if value < best[0] else best

    agents, w, tau, spent, last = range(len(weights)), np.zeros(3), 1, 0.0, None
    found, stop = [], False
    for _ in range(rounds):
        models, sent = [], w
        for k in agents:
            x = sent.copy()
            for _ in range(tau):
                x = x - step * gradient(k, x)
            models.append(x)
        w = np.sum([a * x for a, x in zip(weights, models, strict=True)], axis=0)
        found.append((tau, w))
        best = noted(sent)  # F(w(t0)) comes with the models
        if stop:
            return found, noted(w)[1]
        spent += c * tau + b
        if last is not None:  # estimates at w(t0), the model that was sent
            far = [np.linalg.norm(last[k] - sent) for k in agents]
            slopes = [np.linalg.norm(gradient(k, last[k]) - gradient(k, sent)) for k in agents]
            jumps = [abs(risk(k, last[k]) - risk(k, sent)) for k in agents]
            whole = sum(a * gradient(k, sent) for k, a in enumerate(weights))
            beta = sum(weights[k] * slopes[k] / far[k] for k in agents)
            rho = sum(weights[k] * jumps[k] / far[k] for k in agents)
            delta = sum(weights[k] * np.linalg.norm(gradient(k, sent) - whole) for k in agents)
            tau = min(range(1, min(10 * tau, 100) + 1), key=lambda t: bound(t, beta, delta, rho))
        if spent + c * (tau + 1) + 2 * b >= budget:
            tau, stop = max(1, int((budget - spent - 2 * b - c) / c)), True
        last = models
    return found, w


@pytest.mark.parametrize("how", ["uniform", "size"])
@pytest.mark.parametrize(("sizes", "budget"), [((4, 9, 3, 6), 15.0), ((4, 9, 3, 6, 5), 3.0)])
def test_adaptive_tau_is_algorithm_2(how, sizes, budget):
    problem = regression(sizes=sizes)
    weights = np.array(sizes) / sum(sizes) if how == "size" else np.full(len(sizes), 1 / len(sizes))
    method = AdaptiveTau(
        step_size=0.05, budget=budget, local_cost=(COSTS[0], 0.0), average_cost=(COSTS[1], 0.0),
        full_batch=True, client_weights=how,
    )  # fmt: skip
    agents = ObjectAgents(problem, method.rules(len(sizes)), seed=0, repetition=0)
    state = method.start(agents, np.zeros(3))
    rounds, shown = algorithm_2(problem, weights, budget=budget, rounds=40)
    for i, (tau, model) in enumerate(rounds):
        spent = float(state.spent)
        state = method.round(state, agents, i)
        assert round((float(state.spent) - spent - COSTS[1]) / COSTS[0]) == tau
        np.testing.assert_allclose(state.params, model, rtol=1e-10, atol=1e-13)
    taus = [tau for tau, _ in rounds]
    assert taus[:2] == [1, 1]
    assert taus[2] > 1
    np.testing.assert_allclose(method.model(state), shown, rtol=1e-10, atol=1e-13)
    assert bool(state.done) == (len(rounds) < 40)


def test_the_slopes_of_quadratics_are_within_their_curvatures():
    problem = regression()
    from isfed.federation.object_agents import ObjectAgents

    method = AdaptiveTau(step_size=0.02, steps=3, full_batch=True)
    agents = ObjectAgents(problem, method.rules(4), seed=0, repetition=0)
    state = method.round(method.start(agents, np.zeros(3)), agents, 0)
    everybody = np.arange(4)
    losses = agents.losses(everybody, state.params)
    found = method.estimate(state, agents, np.full(4, 0.25), losses)
    largest = max(
        np.linalg.eigvalsh(2 * x.T @ x / len(y) + 0.02 * np.eye(3))[-1]
        for x, y in (problem.data.agent(k) for k in range(4))
    )
    assert 0.0 < found.beta <= largest
    gradients = agents.gradients(everybody, state.params)
    spread = np.linalg.norm(gradients - gradients.mean(axis=0), axis=1).mean()
    np.testing.assert_allclose(found.delta, spread, rtol=1e-12)


def test_unequal_steps_keep_the_optimum_only_if_the_agents_agree():
    method = RestartedSGD(step_size=0.05, steps=(1, 4, 2, 3), full_batch=True)
    same = identical_agents()
    history = simulate(same, method, rounds=600)
    np.testing.assert_allclose(history.params[0], same.optimum, atol=1e-8)


def test_the_share_of_a_step_in_stichs_mean_is_that_of_public_code():
    """epfml/sparsifiedSGD, by the same author, has it as a closed form of t and the shift a."""
    shift = 70.5
    method = StichSGD(strong=2.0, shift=shift, steps=1, full_batch=True)
    problem = regression()
    agents = ObjectAgents(problem, method.rules(4), seed=0, repetition=0)
    state = method.start(agents, np.ones(3))
    for t in range(12):
        before = state
        state = method.round(state, agents, t)
        share = 6 * (t + shift) ** 2 / ((1 + t) * (6 * shift**2 + t + 6 * shift * t + 2 * t**2))
        expected = before.mean * (1.0 - share) + before.params * share
        np.testing.assert_allclose(state.mean, expected, rtol=1e-12)
        assert method.step_at(t) == pytest.approx(4.0 / (2.0 * (t + shift)))


def test_what_crosses_is_counted():
    problem = regression()
    plain = simulate(problem, LocalSGD(step_size=0.01, steps=3), rounds=5).ledger()
    assert (plain.models_up, plain.models_down) == (20, 20)
    momentum = simulate(problem, MomentumSGD(step_size=0.01, steps=3), rounds=5).ledger()
    assert momentum.models_up == 40  # the momentum too
    kept = simulate(problem, MomentumSGD(step_size=0.01, buffer="keep"), rounds=5).ledger()
    assert kept.models_up == 20
    stich = StichSGD(strong=1.0, shift=400.0, steps=3)
    assert simulate(problem, stich, rounds=5).ledger().models_up == 20
    edges = HierFAVG(step_size=0.01, edge_rounds=2, edges=2)
    assert simulate(problem, edges, rounds=5).ledger().models_up == 5 * (2 * 4 + 2)


@pytest.mark.parametrize("buffer", ["average", "reset", "keep"])
def test_what_becomes_of_the_momentum(buffer):
    problem = regression()
    from isfed.federation.object_agents import ObjectAgents

    method = MomentumSGD(step_size=0.01, steps=2, buffer=buffer, full_batch=True)
    agents = ObjectAgents(problem, method.rules(4), seed=0, repetition=0)
    velocity = method.round(method.start(agents, np.zeros(3)), agents, 0).estimator.velocity
    spread = np.ptp(velocity, axis=0).max()
    assert {"average": spread == 0.0, "keep": spread > 0.0, "reset": not velocity.any()}[buffer]
    assert buffer == "reset" or velocity.any()


def test_bad_input():
    problem = regression()
    cases = [
        ("agent 3 belongs to 0 edges", HierFAVG(step_size=0.1, edges=[[0, 1], [2]])),
        ("agent 1 belongs to 2 edges", HierFAVG(step_size=0.1, edges=[[0, 1], [1, 2, 3]])),
        ("edges=5 exceeds num_agents=4", HierFAVG(step_size=0.1, edges=5)),
        ("steps has 2 numbers", RestartedSGD(step_size=0.1, steps=(1, 2))),
    ]
    for message, method in cases:
        with pytest.raises(ValueError, match=message):
            simulate(problem, method, rounds=1)
    for message, make in [
        ("step_size=0", lambda: LocalSGD(step_size=0)),
        ("steps=0", lambda: LocalSGD(step_size=0.1, steps=0)),
        ("momentum=1", lambda: MomentumSGD(step_size=0.1, momentum=1)),
        ("client_weights='both'", lambda: LocalSGD(step_size=0.1, client_weights="both")),  # type: ignore[arg-type]
        ("shift=3", lambda: StichSGD(strong=1.0, shift=3, steps=3)),
        ("budget=0", lambda: AdaptiveTau(step_size=0.1, budget=0)),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
