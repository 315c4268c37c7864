"""The Huber loss against its literal formulas, finite differences and least squares."""

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimise
from sklearn.linear_model import Ridge

from isfed import Huber, LeastSquares
from isfed.problems.optimum import minimise

ROWS, FEATURES = 40, 9


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, FEATURES))
    y = x @ rng.standard_normal(FEATURES) + 0.3 * rng.standard_t(1.5, ROWS)
    return rng.standard_normal(FEATURES), x, y, rng.uniform(0.2, 3.0, ROWS)


def literal(params, x, y, ridge, knee):
    """Value and gradient of every example, by the two cases of the definition."""
    values, gradients = [], []
    for row, target in zip(x, y, strict=True):
        residual = target - row @ params
        if abs(residual) <= knee:
            value, slope = residual**2, -2 * residual
        else:
            value, slope = knee * (2 * abs(residual) - knee), -2 * knee * np.sign(residual)
        values.append(value + ridge * params @ params)
        gradients.append(slope * row + 2 * ridge * params)
    return np.array(values), np.array(gradients)


@pytest.mark.parametrize("ridge", [0.0, 0.02])
@pytest.mark.parametrize("knee", [0.1, 1.0, 100.0])
def test_values_gradient_and_norms_are_the_literal_ones(batch, ridge, knee):
    params, x, y, weight = batch
    values, gradients = literal(params, x, y, ridge, knee)
    loss = Huber(ridge=ridge, knee=knee)
    gradient, norms = loss.gradient(params, x, y, weight)
    np.testing.assert_allclose(loss.values(params, x, y), values, rtol=1e-12)
    np.testing.assert_allclose(gradient, weight @ gradients / ROWS, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(norms, np.linalg.norm(gradients, axis=1), rtol=1e-10)


def test_gradient_is_the_derivative_of_the_values(batch):
    params, x, y, weight = batch
    loss, step = Huber(ridge=0.02, knee=1.0), 1e-6
    slopes = [
        weight @ (loss.values(params + e, x, y) - loss.values(params - e, x, y)) / (2 * step * ROWS)
        for e in step * np.eye(FEATURES)
    ]
    np.testing.assert_allclose(loss.gradient(params, x, y, weight)[0], slopes, atol=1e-7)


def test_the_gradient_is_continuous_at_the_knee():
    loss, x = Huber(knee=2.0), np.ones((3, 1))
    y = np.array([2.0 - 1e-9, 2.0, 2.0 + 1e-9])
    _, norms = loss.gradient(np.zeros(1), x, y, np.ones(3))
    np.testing.assert_allclose(norms, 4.0, atol=1e-8)
    np.testing.assert_allclose(loss.values(np.zeros(1), x, y), 4.0, atol=1e-8)


def test_a_knee_beyond_every_residual_is_least_squares_bit_for_bit(batch):
    params, x, y, weight = batch
    huber = Huber(ridge=0.02, knee=1e6).gradient(params, x, y, weight)
    square = LeastSquares(ridge=0.02).gradient(params, x, y, weight)
    np.testing.assert_array_equal(huber[0], square[0])
    np.testing.assert_array_equal(huber[1], square[1])


def test_curvature_is_that_of_least_squares(batch):
    _, x, _, _ = batch
    np.testing.assert_array_equal(
        Huber(ridge=0.1, knee=0.5).curvature(x), LeastSquares(ridge=0.1).curvature(x)
    )


@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_optimum_agrees_with_ridge_regression_for_a_wide_knee(batch, ridge):
    _, x, y, weight = batch
    weight = weight / weight.sum()
    expected = Ridge(alpha=ridge, fit_intercept=False, tol=1e-12).fit(x, y, sample_weight=weight)
    for loss in (LeastSquares(ridge=ridge), Huber(ridge=ridge, knee=1e6)):
        np.testing.assert_allclose(minimise(loss, x, y, weight), expected.coef_, atol=1e-6)


@pytest.mark.parametrize("knee", [0.05, 0.5, 5.0])
def test_optimum_is_where_an_independent_search_ends(batch, knee):
    _, x, y, weight = batch
    weight = weight / weight.sum()

    def risk(params):
        values, gradients = literal(params, x, y, 0.01, knee)
        return weight @ values, weight @ gradients

    expected = scipy_minimise(risk, np.zeros(FEATURES), jac=True, method="BFGS", tol=1e-10).x
    found = minimise(Huber(ridge=0.01, knee=knee), x, y, weight)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.linalg.norm(risk(found)[1]) < 1e-12


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_the_knee_is_a_positive_number(bad):
    with pytest.raises(ValueError, match="knee="):
        Huber(knee=bad)
