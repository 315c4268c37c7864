"""The exact variance of a round's estimate against a sum over everything that can happen."""

from itertools import product

import numpy as np
import pytest

from isfed import (
    Deville,
    FederatedData,
    HartleyRao,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Oracle,
    Poisson,
    Problem,
    Sampford,
    Softmax,
    Systematic,
    Uniform,
    WithReplacement,
)
from isfed.methods.object_federation import Federation
from isfed.sampling.designs.outcomes import outcomes
from isfed.theory import gradient_variance
from isfed.theory.probabilities import choices_at, example_gradients

DESIGNS = [Systematic(), Deville(), HartleyRao(), Sampford(), Poisson(), WithReplacement()]


def tiny(loss=None, *, steps=(1, 2, 1)):
    rng = np.random.default_rng(3)
    agents = []
    for n in (3, 4, 3):
        x = rng.standard_normal((n, 2))
        agents.append((x, np.sign(x @ [1.0, -2.0] + rng.standard_normal(n))))
    data = FederatedData.from_agents(agents)
    return Problem(data, loss or LeastSquares(0.1), local_steps=np.array(steps), batch_size=2)


def listed_variance(problem, algorithm, params):
    """E|estimate - mean|^2 by its definition, eq. (14), from the outcomes of all draws."""
    chosen = choices_at(problem, algorithm, params)
    estimates = []  # of every agent: (value, probability) over the batches of all its steps
    for k in range(problem.num_agents):
        gradients = example_gradients(problem.loss, params, *problem.data.agent(k))
        steps, batch = int(problem.local_steps[k]), int(problem.batch_size[k])
        prob = chosen.of_agent(problem, k) / batch
        single = [
            (sum(gradients[b] / (len(prob) * prob[b]) for b in units) / batch, chance)
            for units, chance in outcomes(algorithm.example_design, prob * batch)
        ]
        scale = 1.0 if algorithm.divide_by_steps else steps
        estimates.append(
            [
                (scale * sum(value for value, _ in path) / steps, np.prod([c for _, c in path]))
                for path in product(single, repeat=steps)
            ]
        )
    mean, square = 0.0, 0.0
    agent_prob = chosen.agents / algorithm.num_active
    for units, chance in outcomes(algorithm.agent_design, chosen.agents):
        distinct = sorted(set(units))
        times = [units.count(k) for k in distinct]  # an agent drawn twice works once
        for turn in product(*(estimates[k] for k in distinct)):
            weight = chance * np.prod([c for _, c in turn])
            total = np.zeros(problem.num_params)
            for k, count, (value, _) in zip(distinct, times, turn, strict=True):
                total += count * value / (problem.num_agents * agent_prob[k])
            total /= algorithm.num_active
            mean, square = mean + weight * total, square + weight * total**2
    return mean, square - mean**2


@pytest.mark.parametrize("policy", [Uniform(), Oracle(floor=0.2)])
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: type(d).__name__)
def test_variance_is_the_one_of_all_outcomes(design, policy):
    problem = tiny()
    algorithm = ISFedAvg(
        step_size=1.0, num_active=2, agents=policy, examples=policy, agent_design=design,
        example_design=design,
    )  # fmt: skip
    params = np.array([0.3, -1.0])
    mean, variance = listed_variance(problem, algorithm, params)
    found = gradient_variance(problem, algorithm, params=params)
    tolerance = 1e-4 if isinstance(design, HartleyRao) else 1e-10  # a Fourier series, cut
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.agents + found.examples, variance, rtol=tolerance)


def test_without_the_division_by_steps_the_mean_is_another():
    problem = tiny()
    algorithm = ISFedAvg(
        step_size=1.0, num_active=2, agents=Uniform(), examples=Uniform(), divide_by_steps=False
    )
    params = np.array([0.3, -1.0])
    mean, variance = listed_variance(problem, algorithm, params)
    found = gradient_variance(problem, algorithm, params=params)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.agents + found.examples, variance, rtol=1e-10)


def test_everybody_and_everything_leaves_no_variance():
    problem = tiny(steps=(1, 1, 1))
    problem = Problem(problem.data, problem.loss, batch_size=problem.data.num_examples)
    algorithm = ISFedAvg(step_size=1.0, num_active=3)
    assert gradient_variance(problem, algorithm, params=np.ones(2)).total == pytest.approx(0.0)


def test_a_rotation_keeps_the_total():
    problem, algorithm = tiny(), ISFedAvg(step_size=1.0, num_active=2)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    plain, turned = (gradient_variance(problem, algorithm, rotate=r) for r in (None, turn))
    assert plain.total == pytest.approx(turned.total)
    assert plain.agents_share == pytest.approx(turned.agents_share)


@pytest.mark.parametrize("policy", [Uniform(), Oracle(), Oracle(floor=0.3)])
def test_choices_are_what_the_tables_of_a_federation_hold(policy):
    problem = tiny()
    algorithm = ISFedAvg(step_size=0.1, num_active=2, agents=policy, examples=policy)
    made = Federation(problem, algorithm, seed=0, repetition=0, initial=np.zeros(2))
    chosen = choices_at(problem, algorithm)
    np.testing.assert_allclose(chosen.agents, made.table.inclusion(2), rtol=1e-12)
    for k, agent in enumerate(made.agents):
        inclusion = agent.table.inclusion(agent.batch_size)
        np.testing.assert_allclose(chosen.of_agent(problem, k), inclusion, rtol=1e-12)


def test_fewer_gradients_than_draws():
    """One example alone has a gradient: it is certain, the others share the rest."""
    data = FederatedData.from_agents([([[1.0], [0.0], [0.0]], [1.0, 0.0, 0.0])])
    problem = Problem(data, LeastSquares(), batch_size=2)
    algorithm = ISFedAvg(step_size=1.0, num_active=1, agents=Oracle(), examples=Oracle())
    chosen = choices_at(problem, algorithm, np.zeros(1))
    assert chosen.examples.tolist() == [1.0, 0.5, 0.5]


@pytest.mark.parametrize("loss", [LeastSquares(0.1), Logistic(0.2)])
def test_gradients_of_examples_average_to_that_of_the_agent(loss):
    problem = tiny(loss)
    for k in range(3):
        x, y = problem.data.agent(k)
        rows = example_gradients(loss, np.array([0.5, 0.1]), x, y)
        mean, norms = loss.gradient(np.array([0.5, 0.1]), x, y, np.ones(len(y)))
        np.testing.assert_allclose(rows.mean(axis=0), mean, rtol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), norms, rtol=1e-12)


def test_gradients_of_a_loss_of_ones_own_are_found_one_by_one():
    class Own:
        def gradient(self, params, x, y, weight):
            return Softmax(num_classes=2).gradient(params, x, y, weight)

    x, y = np.array([[1.0, 2.0], [0.5, -1.0]]), np.array([0.0, 1.0])
    params = np.array([0.1, 0.2, 0.3, 0.4])
    known = example_gradients(Softmax(num_classes=2), params, x, y)
    np.testing.assert_allclose(example_gradients(Own(), params, x, y), known, rtol=1e-12)


def test_bad_input_is_named():
    problem = tiny()
    with pytest.raises(ValueError, match="num_active=4 exceeds num_agents=3"):
        gradient_variance(problem, ISFedAvg(step_size=1.0, num_active=4))
    with pytest.raises(ValueError, match="params must be 2 finite numbers"):
        gradient_variance(problem, ISFedAvg(step_size=1.0, num_active=2), params=np.ones(3))
    # probability 0 with a gradient: oracle's probabilities at w^o, looked at from elsewhere
    data = FederatedData.from_agents([([[1.0], [1.0]], [0.0, 0.0]), ([[1.0]], [0.0])])
    flat = Problem(data, LeastSquares())
    algorithm = ISFedAvg(step_size=1.0, num_active=1, agents=Oracle(), examples=Oracle())
    chosen = choices_at(flat, algorithm)
    chosen.agents[:] = [1.0, 0.0]
    with pytest.raises(ValueError, match="unit 1 has inclusion probability 0"):
        gradient_variance(flat, algorithm, params=np.ones(1), choices=chosen)
