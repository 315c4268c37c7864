"""The curvature of a round against sums over all draws, written out."""

from typing import Any

import numpy as np
import pytest

from isfed import FederatedData, Huber, ISFedAvg, LeastSquares, Logistic, Memory, Problem, Softmax
from isfed.theory.probabilities import choices_at
from isfed.theory.round_curvature import CurvatureAt, LargestCurvature, hessian


def small(loss, *, local_steps: Any = 1, seed=0):
    rng = np.random.default_rng(seed)
    agents = []
    for n in (4, 6, 3):
        x = rng.standard_normal((n, 3))
        y = rng.standard_normal(n)
        if isinstance(loss, Logistic):
            y = np.where(y > 0, 1.0, -1.0)
        if isinstance(loss, Softmax):
            y = np.arange(n) % 3.0
        agents.append((x, y))
    data = FederatedData.from_agents(agents)
    return Problem(data, loss, batch_size=2, local_steps=local_steps)


def example_hessian(loss, x, y, params):
    """By differences of the gradient of one example."""
    size, length = params.size, 1e-5
    columns = []
    for unit in np.eye(size):
        ends = [
            loss.gradient(params + side * length * unit, x[None], y[None], np.ones(1))[0]
            for side in (1.0, -1.0)
        ]
        columns.append((ends[0] - ends[1]) / (2 * length))
    return np.stack(columns, axis=1)


def literal(problem, algorithm, choices, model):
    """E[H] and E[H^2] of a round of independent draws."""
    size = problem.num_params
    mean, square = np.zeros((size, size)), np.zeros((size, size))
    agents = algorithm.num_active
    for k in range(problem.num_agents):
        x, y = problem.data.agent(k)
        p = choices.agents[k] / agents
        q = choices.of_agent(problem, k) / problem.batch_size[k]
        each = [example_hessian(problem.loss, *row, model) for row in zip(x, y, strict=True)]
        own = np.mean(each, axis=0)
        draws = problem.batch_size[k] * problem.local_steps[k]
        scale = 1.0 if algorithm.divide_by_steps else float(problem.local_steps[k])
        single = sum(h @ h / q[n] for n, h in enumerate(each)) / len(y) ** 2
        of_agent = own @ own + (single - own @ own) / draws
        mean += scale * own / problem.num_agents
        square += scale**2 * of_agent / (problem.num_agents**2 * p)
    return mean, mean @ mean + (square - mean @ mean) / agents


def near_a_model(loss, divide):
    """A problem, a method, a model, and the probabilities there."""
    problem = small(loss, local_steps=np.array([1, 2, 3]))
    policy = Memory(floor=0.3)
    algorithm = ISFedAvg(
        step_size=1.0, num_active=2, agents=policy, examples=policy, divide_by_steps=divide
    )
    model = 0.3 * np.arange(1.0, 1.0 + problem.num_params)
    return problem, algorithm, model, choices_at(problem, algorithm, model)


LOSSES = [LeastSquares(0.1), Huber(0.1, knee=0.5), Logistic(0.1), Softmax(0.1, num_classes=3)]


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_curvature_at_a_model_is_the_literal_one(loss, divide):
    problem, algorithm, model, chosen = near_a_model(loss, divide)
    mean, square = literal(problem, algorithm, chosen, model)
    found = CurvatureAt(problem, model).drawn(algorithm, chosen)
    columns = np.eye(problem.num_params)
    np.testing.assert_allclose(found.mean_matrix(), mean, atol=1e-8)
    np.testing.assert_allclose([found.square(c) for c in columns], square, atol=1e-7)
    np.testing.assert_allclose([found.mean(c) for c in columns], mean, atol=1e-8)
    np.testing.assert_allclose(found.square_matrix(), square, atol=1e-7)


@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_of_very_many_rows_the_square_is_made_of_the_agents_matrices(loss, divide, monkeypatch):
    problem, algorithm, model, chosen = near_a_model(loss, divide)
    for curvature in (CurvatureAt(problem, model), LargestCurvature(problem)):
        found = curvature.drawn(algorithm, chosen)
        monkeypatch.setattr("isfed.theory.round_curvature.TALL", 10**6)
        by_vectors = found.square_matrix()
        monkeypatch.setattr("isfed.theory.round_curvature.TALL", 0)
        np.testing.assert_allclose(found.square_matrix(), by_vectors, rtol=1e-12, atol=1e-13)


def test_least_squares_has_one_curvature(monkeypatch):
    problem = small(LeastSquares(0.1))
    algorithm = ISFedAvg(step_size=1.0, num_active=2)
    chosen = choices_at(problem, algorithm)
    here = CurvatureAt(problem, np.ones(3)).drawn(algorithm, chosen)
    for most in (10**6, 8):  # at once, and in compiled loops
        monkeypatch.setattr("isfed.theory.round_curvature.TALL", most)
        anywhere = LargestCurvature(problem).drawn(algorithm, chosen)
        for vector in np.eye(3):
            np.testing.assert_allclose(anywhere.square(vector), here.square(vector), rtol=1e-12)
            np.testing.assert_allclose(anywhere.mean(vector), here.mean(vector), rtol=1e-12)


def test_what_does_not_depend_on_the_draws_is_computed_once():
    problem = small(Logistic(0.1))
    counted = []

    class Counted(CurvatureAt):
        def of_agents(self, vectors):
            counted.append(1)
            return super().of_agents(vectors)

    curvature = Counted(problem, np.ones(3))
    for policy in (Memory(), Memory(floor=0.5)):
        algorithm = ISFedAvg(step_size=1.0, num_active=2, agents=policy, examples=policy)
        drawn = curvature.drawn(algorithm, choices_at(problem, algorithm))
        for vector in np.eye(3):
            drawn.square(vector)
    assert len(counted) == 2 * 3
    np.testing.assert_allclose(curvature.mean_matrix(), hessian(problem, np.ones(3)))
