"""Losses against their formulas written out for one example at a time."""

import warnings
from math import exp

import numpy as np
import pytest

from isfed import LeastSquares, Logistic

LOSSES = [LeastSquares, Logistic]
RIDGES = [0.0, 0.3]


def one_gradient(loss, w, x, y):
    """The gradient of one example's loss, as in the paper: the ridge inside, the factor 2 kept."""
    if isinstance(loss, LeastSquares):
        return -2.0 * x * (y - x @ w) + 2.0 * loss.ridge * w
    return -y * x / (1.0 + exp(y * (x @ w))) + 2.0 * loss.ridge * w


def sample(num_features, *, num=5, seed=0):
    rng = np.random.default_rng([seed, num_features])
    x = rng.standard_normal((num, num_features))
    y = rng.choice([-1.0, 1.0], num)
    return rng.standard_normal(num_features), x, y, rng.uniform(0.1, 3.0, num)


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("num_features", [*range(1, 41)])  # around the lanes of eight
def test_gradient_and_norms_equal_the_literal_ones(make, ridge, num_features):
    loss = make(ridge=ridge)
    w, x, y, weight = sample(num_features)
    each = np.array([one_gradient(loss, w, x[n], y[n]) for n in range(5)])
    gradient, norms = loss.gradient(w, x, y, weight)
    mean = sum(weight[n] * each[n] for n in range(5)) / 5
    np.testing.assert_allclose(gradient, mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(norms, [np.sqrt(g @ g) for g in each], rtol=1e-12)


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("make", LOSSES)
def test_gradient_is_the_derivative_of_the_values(make, ridge):
    loss = make(ridge=ridge)
    w, x, y, weight = sample(9)
    gradient, _ = loss.gradient(w, x, y, weight)
    step = 1e-5  # central differences: an error of step^2 plus eps / step
    for j, unit in enumerate(np.eye(9)):
        rise = loss.values(w + step * unit, x, y) - loss.values(w - step * unit, x, y)
        assert gradient[j] == pytest.approx(np.mean(weight * rise) / (2 * step), abs=1e-8)


def test_values_equal_the_literal_ones():
    w, x, y, _ = sample(3)
    for n in range(5):
        margin = x[n] @ w
        ridge = 0.3 * (w @ w)
        assert LeastSquares(0.3).values(w, x, y)[n] == pytest.approx((y[n] - margin) ** 2 + ridge)
        literal = np.log(1.0 + np.exp(-y[n] * margin)) + ridge
        assert Logistic(0.3).values(w, x, y)[n] == pytest.approx(literal)


@pytest.mark.parametrize("make", LOSSES)
def test_the_ridge_is_weighted_with_its_example(make):
    w = np.array([3.0, -4.0])
    x, y = np.zeros((2, 2)), np.ones(2)
    gradient, norms = make(ridge=0.5).gradient(w, x, y, np.array([1.0, 7.0]))
    np.testing.assert_allclose(gradient, 4.0 * (2.0 * 0.5 * w))  # the mean of the weights is 4
    np.testing.assert_allclose(norms, [5.0, 5.0])


@pytest.mark.parametrize("size", [1e3, 1e10, 1e150])
def test_extreme_margins_do_not_overflow(size):
    loss = Logistic(ridge=0.0)
    x, w = np.array([[1.0], [1.0], [-1.0], [-1.0]]), np.array([size])
    y = np.array([1.0, -1.0, 1.0, -1.0])  # margins right, wrong, wrong, right
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient, norms = loss.gradient(w, x, y, np.ones(4))
        values = loss.values(w, x, y)
    np.testing.assert_array_equal(norms, [0.0, 1.0, 1.0, 0.0])
    np.testing.assert_array_equal(gradient, [0.5])
    np.testing.assert_allclose(values, [0.0, size, size, 0.0])


def test_a_norm_that_cancels_is_a_small_number():
    """With (y - x w) x = ridge w the gradient is zero; its square may round to below zero."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((200, 3))
    ridge = 0.1
    for row in x:
        w = row * (1.0 / (row @ row + ridge))  # the minimiser for this one example, y = 1
        _, norms = LeastSquares(ridge).gradient(w, row[None], np.ones(1), np.ones(1))
        # The square of the norm is a difference of numbers of size pull^2, so sqrt(eps) is lost.
        assert 0.0 <= norms[0] <= 1e-7 * np.linalg.norm(w)


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("make", LOSSES)
def test_curvature_bounds_the_change_of_every_gradient(make, ridge):
    loss = make(ridge=ridge)
    _, x, y, _ = sample(4, num=8)
    limits = loss.curvature(x)
    rng = np.random.default_rng(2)
    for n in range(8):
        for scale in (1e-3, 1.0, 100.0):
            one, other = scale * rng.standard_normal((2, 4))
            change = one_gradient(loss, one, x[n], y[n]) - one_gradient(loss, other, x[n], y[n])
            assert np.linalg.norm(change) <= limits[n] * np.linalg.norm(one - other) * (1 + 1e-12)


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("make", LOSSES)
def test_curvature_is_reached_along_the_example_at_margin_zero(make, ridge):
    loss = make(ridge=ridge)
    _, x, y, _ = sample(4)
    step = 1e-4 * x[0]
    change = one_gradient(loss, step, x[0], y[0]) - one_gradient(loss, -step, x[0], y[0])
    reached = np.linalg.norm(change) / np.linalg.norm(2 * step)
    assert reached == pytest.approx(loss.curvature(x)[0], rel=1e-6)  # third derivatives: step^2


def test_one_parameter_per_feature():
    assert LeastSquares().num_params(7) == Logistic().num_params(7) == 7


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("ridge", [-0.1, np.nan, np.inf])
def test_a_bad_ridge_is_named(make, ridge):
    with pytest.raises(ValueError, match=f"ridge={ridge} must be a finite number >= 0"):
        make(ridge=ridge)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([1.0, -1.0, 0.0, 0.0], r"targets\[2\]=0.0 but logistic loss needs -1 or \+1 \(2 such\)"),
        ([2.0], r"targets\[0\]=2.0"),
        ([1.0, -1.0000001], r"targets\[1\]=-1.0000001"),
    ],
)
def test_logistic_targets_are_signs(targets, message):
    with pytest.raises(ValueError, match=message):
        Logistic().check_targets(np.array(targets))
    LeastSquares().check_targets(np.array(targets))
