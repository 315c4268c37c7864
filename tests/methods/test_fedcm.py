"""FedCM: its rounds by the letter, its end, its bias and its messages."""

import itertools
from typing import Any

import numpy as np
import pytest
from small_federations import quadratics, regression

from isfed import Clock, FedAvg, FedCM, simulate
from isfed.federation.object_agents import ObjectAgents
from isfed.methods import uniform_samplers
from isfed.methods.fedcm import DirectionState
from isfed.simulate.simulate_call import make_run

STEP, START = 0.03, np.array([0.3, -0.2, 0.5])
SOME: dict[str, Any] = {"step_size": STEP, "num_active": 2}


def agents_of(method, problem):
    return ObjectAgents(problem, method.rules(problem.num_agents), seed=3, repetition=0)


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("how", ["uniform", "size"])
def test_fedcm_by_the_letter(how, divide):
    problem = regression(local_steps=[1, 2, 3, 4])
    method = FedCM(alpha=0.3, full_batch=True, divide_by_steps=divide, client_weights=how, **SOME)
    agents = agents_of(method, problem)
    sizes, pieces = problem.data.num_examples, quadratics(problem)
    state, w, last = method.start(agents, START), START, np.zeros(3)
    for i in range(12):
        cohort, models = uniform_samplers.draw_uniformly(agents, 2, i), []
        for k in cohort:
            (h, b), x, steps = pieces[k], w.copy(), int(problem.local_steps[k])
            step = STEP / steps if divide else STEP
            for _ in range(steps):
                x = x - step * (0.3 * (h @ x - b) - 0.7 * last / (step * steps))
            models.append(x - w)
        counts = sizes[cohort] if how == "size" else np.ones(2)
        last = counts @ np.array(models) / counts.sum()
        w, state = w + last, method.round(state, agents, i)
        np.testing.assert_allclose(state.params, w, rtol=1e-11, atol=1e-13)


def test_all_of_the_own_gradient_is_fedavg():
    for divide in (False, True):
        options = {"divide_by_steps": divide, **SOME}
        found = simulate(regression(), FedCM(alpha=1.0, **options), rounds=20).params
        expected = simulate(regression(), FedAvg(**options), rounds=20).params
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="alpha"):
        FedCM(alpha=0.0, **SOME)


def test_fedcm_is_biased_by_the_last_move(monkeypatch):
    """Over all pairs: alpha times the full update, and the rest is the last move."""
    method = FedCM(alpha=0.3, local_steps=1, full_batch=True, **SOME)
    agents, last, mean = agents_of(method, regression()), np.array([0.1, 0.2, -0.3]), np.zeros(3)
    for pair in itertools.combinations(range(4), 2):
        monkeypatch.setattr(
            uniform_samplers, "draw_uniformly", lambda *_, p=pair, **__: np.array(p)
        )
        state = method.start(agents, START)._replace(estimator=DirectionState(last))
        mean += (method.round(state, agents, 0).params - START) / 6
    full = np.mean([-STEP * (h @ START - b) for h, b in quadratics(regression())], axis=0)
    np.testing.assert_allclose(mean, 0.3 * full + 0.7 * last, rtol=1e-12)
    assert np.linalg.norm(mean - full) > 0.01 * np.linalg.norm(full)


def test_two_vectors_travel_down_and_one_up():
    method = FedCM(**SOME)
    agents = agents_of(method, regression())
    method.round(method.start(agents, START), agents, 0)
    assert (agents.ledger.models_down, agents.ledger.models_up) == (4, 2)


def test_a_run_with_absences_goes_on_from_its_state():
    problem, algorithm = regression(), FedCM(**SOME)
    whole, first, second = (
        make_run(problem, algorithm, repetitions=1, seed=0, clock=Clock(drop=0.5)) for _ in range(3)
    )
    whole.advance(30)
    first.advance(11)
    second.restore({name: values.copy() for name, values in first.state().items()})
    second.round_index = 11
    second.advance(19)
    assert np.array_equal(whole.params, second.params)
