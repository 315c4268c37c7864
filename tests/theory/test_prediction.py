"""Predicted errors against finite differences, closed forms and runs."""

from dataclasses import replace

import numpy as np
import pytest

from isfed import (
    EQUAL,
    OUTLIERS,
    PAPER,
    FedAvg,
    FederatedData,
    Huber,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Problem,
    Softmax,
    Uniform,
    simulate,
)
from isfed.theory import TheoryError, predict
from isfed.theory.msd_prediction import hessian
from isfed.theory.probabilities import risk_gradients


def _gradient(problem, params):
    return risk_gradients(problem, params).mean(axis=0)


@pytest.mark.parametrize(
    "loss",
    [LeastSquares(0.1), Logistic(0.2), Huber(0.1, knee=50.0), Softmax(ridge=0.1, num_classes=3)],
)
def test_hessian_is_the_derivative_of_the_gradient(loss):
    rng = np.random.default_rng(0)
    agents = []
    for n in (3, 5):
        x = rng.standard_normal((n, 2))
        y = np.arange(float(n)) % 3 if isinstance(loss, Softmax) else np.sign(x[:, 0])
        agents.append((x, y))
    problem = Problem(FederatedData.from_agents(agents), loss)
    params = rng.standard_normal(problem.num_params)
    columns = [
        (_gradient(problem, params + step) - _gradient(problem, params - step)) / 2e-5
        for step in 1e-5 * np.eye(problem.num_params)
    ]
    np.testing.assert_allclose(hessian(problem, params), np.array(columns), atol=1e-7)


def test_steady_state_of_a_scalar_problem():
    """mu^2 R / (1 - (1 - mu h)^2), and the curve that leads there."""
    data = FederatedData.from_agents([([[1.0], [1.0]], [0.0, 2.0])])
    problem = Problem(data, LeastSquares())
    algorithm = ISFedAvg(step_size=0.1, num_active=1, agents=Uniform(), examples=Uniform())
    found = predict(problem, algorithm)  # w^o = 1, gradients +-2, h = 2
    expected = 0.01 * 4.0 / (1 - 0.8**2)
    assert found.steady == pytest.approx(expected)
    curve = found.curve(np.array([0, 1, 2, 500]), np.array([3.0]))
    after_one = 4.0 * 0.8**2 + 0.01 * 4.0
    after_two = after_one * 0.8**2 + 0.01 * 4.0
    np.testing.assert_allclose(curve, [4.0, after_one, after_two, expected])
    too_far = ISFedAvg(step_size=2.0, num_active=1, agents=Uniform(), examples=Uniform())
    with pytest.raises(TheoryError, match="no steady state"):
        _ = predict(problem, too_far).steady


@pytest.mark.parametrize("recipe", [PAPER, EQUAL, OUTLIERS], ids=lambda r: r.name)
def test_predicted_and_measured_steady_states_agree(recipe):
    problem = recipe.replace(num_agents=60, num_examples=50).make(seed=2)
    for algorithm in (
        FedAvg(step_size=0.01, num_active=4),
        ISFedAvg(step_size=0.01, num_active=4, agents=Uniform(), examples=Uniform()),
        ISFedAvg(step_size=0.01, num_active=4, agents=Oracle(), examples=Oracle()),
        ISFedAvg(step_size=0.01, num_active=4),
    ):
        history = simulate(problem, algorithm, rounds=4000, repetitions=20, initial=problem.optimum)
        steady = history.steady(share=0.75)
        predicted = 10 * np.log10(predict(problem, algorithm).steady)
        # The step is not infinitely small and `memory` is not the oracle: half a decibel for both.
        allowed = (0.5 if algorithm.agents != Memory() else 1.2) + 4 * steady.stderr_db
        assert abs(steady.db - predicted) < allowed, algorithm.name


def test_without_the_division_by_steps_a_run_ends_elsewhere():
    data = FederatedData.from_agents([([[1.0]], [0.0]), ([[1.0]], [4.0])])
    problem = Problem(data, LeastSquares(), local_steps=np.array([1, 3]))
    found = predict(problem, FedAvg(step_size=1e-3, num_active=2))
    assert found.target == pytest.approx([3.0])  # (0 + 3 * 4) / 4, while w^o = 2
    assert found.steady == pytest.approx(1.0, rel=0.01)


def test_a_hessian_that_cannot_be_is_refused(monkeypatch):
    problem = EQUAL.replace(num_agents=2, num_examples=10).make()
    monkeypatch.setattr("isfed.theory.round_curvature.MOST_PARAMS", 1)
    with pytest.raises(TheoryError, match="too large to build"):
        hessian(problem, np.zeros(2))


def test_the_expected_excess_is_that_of_the_recursion():
    problem = EQUAL.replace(num_agents=4, num_examples=10).make()
    found = predict(problem, ISFedAvg(step_size=0.01, num_active=2))
    start = np.ones(problem.num_params)
    square = ((start - found.target) @ found.basis) ** 2
    for _ in range(30):
        square = (1 - 0.01 * found.curvature) ** 2 * square + 0.01**2 * found.noise
    assert found.excess(30, start) == pytest.approx(0.5 * found.curvature @ square)


def test_the_excess_is_that_of_the_risk_whether_or_not_steps_are_divided():
    """FedAvg at mu / E is the same algorithm with the 1/E at mu, and so is its excess."""
    problem = EQUAL.replace(num_agents=4, num_examples=10).make()
    problem = replace(problem, local_steps=5)
    fedavg = FedAvg(step_size=0.002, num_active=2)
    divided = replace(fedavg, step_size=0.01, divide_by_steps=True)
    start = np.ones(problem.num_params)
    one, other = (predict(problem, algorithm) for algorithm in (fedavg, divided))
    assert one.excess(30, start) == pytest.approx(other.excess(30, start), rel=1e-9)
    assert one.steady == pytest.approx(other.steady, rel=1e-9)
    uneven = replace(problem, local_steps=np.array([1, 2, 5, 1]))
    found = predict(uneven, fedavg)  # converges elsewhere: the excess there does not vanish
    gap = uneven.risk(found.target) - uneven.risk(uneven.optimum)
    quiet = replace(found, noise=np.zeros_like(found.noise))
    assert quiet.excess(10**6, start) == pytest.approx(gap, rel=1e-6)
