"""The minimisers: the paper's closed form, the local ones, the logistic one."""

import numpy as np
import pytest

from isfed import FederatedData, LeastSquares, Logistic, Problem, Softmax
from isfed.problems import scaled_risk
from isfed.problems.optimum import minimise


def ragged(*, sizes=(5, 9, 3, 7), num_features=3, seed=0, signs=False):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(num_features)
    agents, noises = [], []
    for n in sizes:
        x = rng.standard_normal((n, num_features)) * rng.uniform(0.5, 2.0, num_features)
        noise = rng.standard_normal(n)
        y = x @ truth + noise
        agents.append((x, np.sign(y) if signs else y))
        noises.append(noise)
    return FederatedData.from_agents(agents), truth, noises


@pytest.mark.parametrize("ridge", [0.0, 0.001, 1.0])
def test_closed_form_equals_the_papers(ridge):
    """w^o = (R + rho I)^-1 R w* + (R + rho I)^-1 r_uv, section V-A."""
    data, truth, noises = ragged()
    second_moment, cross = np.zeros((3, 3)), np.zeros(3)
    for k in range(4):
        x, _ = data.agent(k)
        for u, v in zip(x, noises[k], strict=True):
            second_moment += np.outer(u, u) / (4 * len(x))
            cross += v * u / (4 * len(x))
    inverse = np.linalg.inv(second_moment + ridge * np.eye(3))
    paper = inverse @ second_moment @ truth + inverse @ cross
    np.testing.assert_allclose(Problem(data, LeastSquares(ridge)).optimum, paper, rtol=1e-12)


@pytest.mark.parametrize("loss", [LeastSquares(0.01), LeastSquares(0.0), Logistic(0.01)])
def test_the_gradient_vanishes_at_every_minimiser(loss):
    data, _, _ = ragged(signs=isinstance(loss, Logistic))
    problem = Problem(data, loss)
    gradients = [
        loss.gradient(problem.optimum, *data.agent(k), np.ones(data.num_examples[k]))[0]
        for k in range(4)
    ]
    np.testing.assert_allclose(np.mean(gradients, axis=0), 0.0, atol=1e-12)
    for k in range(4):
        x, y = data.agent(k)
        gradient, _ = loss.gradient(problem.local_optimum(k), x, y, np.ones(len(y)))
        np.testing.assert_allclose(gradient, 0.0, atol=1e-12)
        assert np.linalg.norm(gradients[k]) > 0.01  # the agents do not agree


@pytest.mark.parametrize("loss", [LeastSquares(0.01), Logistic(0.01)])
def test_no_other_model_has_a_smaller_risk(loss):
    data, _, _ = ragged(signs=isinstance(loss, Logistic))
    problem = Problem(data, loss)
    rng = np.random.default_rng(3)
    for scale in (1e-3, 1e-1, 10.0):
        other = problem.optimum + scale * rng.standard_normal(3)
        assert problem.risk(other) > problem.risk(problem.optimum)


def test_fewer_examples_than_features_without_ridge_give_the_smallest_minimiser():
    data, _, _ = ragged(sizes=(2,))
    x, y = data.agent(0)
    optimum = Problem(data, LeastSquares()).optimum
    np.testing.assert_allclose(optimum, np.linalg.pinv(x) @ y, rtol=1e-8)


def test_separable_classes_need_a_ridge():
    data = FederatedData.from_agents([([[1.0], [2.0], [-1.0]], [1.0, 1.0, -1.0])])
    with pytest.raises(
        ValueError, match=r"no minimiser of the Logistic risk .* set a larger ridge"
    ):
        _ = Problem(data, Logistic(ridge=0.0)).optimum
    assert np.isfinite(Problem(data, Logistic(ridge=1e-6)).optimum).all()


def test_the_optimum_follows_the_true_model():
    """Targets moved by x . shift move w^o by the drift response times shift."""
    data, _, _ = ragged()
    shift = np.array([0.3, -0.7, 1.1])
    moved = FederatedData(data.features, data.targets + data.features @ shift, data.offsets)
    before, after = (Problem(d, LeastSquares(0.05)) for d in (data, moved))
    np.testing.assert_allclose(
        after.optimum - before.optimum, before.drift_response @ shift, rtol=1e-12
    )
    assert before.drift_response.flags.c_contiguous  # any other order compiles the kernel anew


def test_only_least_squares_drifts():
    data, _, _ = ragged(signs=True)
    with pytest.raises(ValueError, match="needs LeastSquares, not Logistic"):
        _ = Problem(data, Logistic(0.1)).drift_response


def test_an_unknown_loss_has_no_known_minimiser():
    class Mine:
        def gradient(self, params, x, y, weight):
            return params, np.ones(len(y))

    data, _, _ = ragged()
    with pytest.raises(ValueError, match="no minimiser is known for Mine"):
        _ = Problem(data, Mine()).optimum


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_many_rows_begin_with_a_sample_and_end_with_all(ridge):
    """More rows than the sample takes, agent after agent, classes in their own proportions."""
    rng = np.random.default_rng(3)
    rows = 2 * scaled_risk.SAMPLE + 1234
    x = rng.standard_normal((rows, 6)) * [0.01, 1.0, 1.0, 5.0, 1.0, 1.0]
    y = np.argmax(x[:, :4] + rng.gumbel(size=(rows, 4)), axis=1).astype(float)
    weight = np.linspace(1.0, 3.0, rows)
    weight /= weight.sum()
    loss = Softmax(ridge=ridge, num_classes=4)
    found = minimise(loss, x, y, weight)
    gradient, _ = loss.gradient(found, x, y, rows * weight)
    assert np.linalg.norm(gradient) < 1e-12
    np.testing.assert_allclose(found.reshape(4, 6).sum(axis=0), 0.0, atol=1e-9)
