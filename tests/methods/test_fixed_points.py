"""Where methods with full batches come to rest on least squares: the solution of a linear system.

The limit is computed here from the agents' normal equations; the runs must reach it to 1e-8.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from small_federations import after_steps, fixed_point, quadratics, regression

from isfed import FedAvgScheme, FedProx, HierFAVG, LocalGD, RestartedSGD, simulate
from isfed.federation.compiled_agents import CompiledAgents
from isfed.methods import uniform_samplers

STEP = 0.05
UNEQUAL = (1, 4, 2, 3)
GROUPS = [[0, 2], [1, 3]]


def limit_of(problem, algorithm, *, rounds=3000):
    return simulate(problem, algorithm, rounds=rounds, engine="agents").params[0]


def maps(problem, steps, **options):
    counts = np.broadcast_to(steps, problem.num_agents)
    return [
        after_steps(h, b, step_size=STEP, steps=int(n), **options)
        for (h, b), n in zip(quadratics(problem), counts, strict=True)
    ]


def weights_of(problem, how):
    sizes = problem.data.num_examples
    return sizes / sizes.sum() if how == "size" else np.full(sizes.size, 1.0 / sizes.size)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_local_gd(how):
    problem = regression()
    expected = fixed_point(maps(problem, 5), weights_of(problem, how))
    found = limit_of(problem, LocalGD(step_size=STEP, steps=5, client_weights=how))
    np.testing.assert_allclose(found, expected, atol=1e-8)
    if how == "uniform":
        assert np.linalg.norm(found - problem.optimum) > 0.01  # not w^o ...
        one = limit_of(problem, LocalGD(step_size=STEP))
        np.testing.assert_allclose(one, problem.optimum, atol=1e-8)  # ... but for one step


def test_restarted_sgd_with_unequal_steps():
    problem = regression()
    expected = fixed_point(maps(problem, UNEQUAL), weights_of(problem, "uniform"))
    method = RestartedSGD(step_size=STEP, steps=UNEQUAL, full_batch=True)
    found = limit_of(problem, method)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert np.linalg.norm(found - problem.optimum) > 0.01


@pytest.mark.parametrize(("steps", "prox"), [(1, 0.7), (5, 0.7), (5, 3.0)])
def test_fedprox_with_few_local_steps(steps, prox):
    problem = regression()
    expected = fixed_point(maps(problem, steps, prox=prox), weights_of(problem, "uniform"))
    method = FedProx(step_size=STEP, num_active=4, prox=prox, local_steps=steps, full_batch=True)
    np.testing.assert_allclose(limit_of(problem, method), expected, atol=1e-8)


def test_fedprox_with_exact_local_solves():
    """x_k = (H_k + prox I)^-1 (b_k + prox w)."""
    problem = regression()
    prox = 2.0
    solved = []
    for curvature, pull in quadratics(problem):
        inverse = np.linalg.inv(curvature + prox * np.eye(3))
        solved.append((prox * inverse, inverse @ pull))
    expected = fixed_point(solved, weights_of(problem, "uniform"))
    method = FedProx(step_size=STEP, num_active=4, prox=prox, local_steps=600, full_batch=True)
    np.testing.assert_allclose(limit_of(problem, method, rounds=300), expected, atol=1e-8)


def test_hierfavg():
    problem = regression()
    inner = maps(problem, 2)
    edges = []
    for group in GROUPS:
        model = sum(inner[k][0] for k in group) / len(group)
        constant = sum(inner[k][1] for k in group) / len(group)
        total, shift = np.eye(3), np.zeros(3)
        for _ in range(3):  # tau_2
            total, shift = model @ total, model @ shift + constant
        edges.append((total, shift))
    expected = fixed_point(edges, np.full(2, 0.5))
    method = HierFAVG(step_size=STEP, steps=2, edge_rounds=3, edges=GROUPS, full_batch=True)
    found = limit_of(problem, method)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert np.linalg.norm(found - limit_of(problem, LocalGD(step_size=STEP, steps=6))) > 1e-4


@pytest.mark.parametrize("scheme", ["II", "transformed-II", "original"])
def test_the_expectation_of_every_scheme_with_everybody_is_that_of_the_weights(scheme: Any):
    """With L = K nothing is random; scheme I draws with replacement, see the enumeration."""
    problem = regression()
    weights = weights_of(problem, "size")
    steps = [STEP * 4 * c if scheme == "transformed-II" else STEP for c in weights]
    ends = [
        after_steps(h, b, step_size=step, steps=2)
        for (h, b), step in zip(quadratics(problem), steps, strict=True)
    ]
    share = np.full(4, 0.25) if scheme == "transformed-II" else weights
    method = FedAvgScheme(
        step_size=STEP, num_active=4, scheme=scheme, client_weights="size", full_batch=True
    )
    expected = fixed_point(ends, share)
    np.testing.assert_allclose(limit_of(problem, method), expected, atol=1e-8)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_the_expectation_of_scheme_two_has_its_fixed_point(how: Any, monkeypatch):
    """The mean over all pairs of agents of the method's own update, iterated to rest."""
    problem = regression()
    method = FedAvgScheme(
        step_size=STEP, num_active=2, scheme="II", client_weights=how, full_batch=True
    )
    expected = fixed_point(maps(problem, 2), weights_of(problem, how))
    agents = CompiledAgents(problem, method.rules(4), seed=0, repetition=0)
    model = np.zeros(3)
    for _ in range(250):
        updates = []
        for pair in itertools.combinations(range(4), 2):
            monkeypatch.setattr(uniform_samplers, "draw_uniformly", lambda *_, p=pair: np.array(p))
            updates.append(method.round(method.start(agents, model), agents, 0).params)
        model = np.mean(updates, axis=0)
    np.testing.assert_allclose(model, expected, atol=1e-8)
