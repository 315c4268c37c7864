"""The softmax loss against its literal formulas, finite differences and scikit-learn."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from isfed import FederatedData, Logistic, Problem, Softmax
from isfed.problems.optimum import minimise

CLASSES, FEATURES, ROWS = 4, 11, 30
LOSS = Softmax(num_classes=CLASSES, ridge=0.03)


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    params = rng.standard_normal(CLASSES * FEATURES)
    x = rng.standard_normal((ROWS, FEATURES))
    y = rng.integers(CLASSES, size=ROWS).astype(float)
    return params, x, y, rng.uniform(0.2, 3.0, ROWS)


def literal_gradients(params, x, y, ridge):
    """One gradient per example, by the formula (p - e_y) x^T + 2 ridge W."""
    matrix = params.reshape(CLASSES, FEATURES)
    gradients = []
    for row, label in zip(x, y, strict=True):
        share = np.exp(matrix @ row) / np.exp(matrix @ row).sum()
        share[int(label)] -= 1.0
        gradients.append((np.outer(share, row) + 2 * ridge * matrix).ravel())
    return np.array(gradients)


@pytest.mark.parametrize("ridge", [0.0, 0.03, 5.0])
def test_gradient_and_norms_are_the_literal_ones(batch, ridge):
    params, x, y, weight = batch
    literal = literal_gradients(params, x, y, ridge)
    gradient, norms = Softmax(num_classes=CLASSES, ridge=ridge).gradient(params, x, y, weight)
    np.testing.assert_allclose(gradient, weight @ literal / ROWS, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(norms, np.linalg.norm(literal, axis=1), rtol=1e-12)


def test_gradient_is_the_derivative_of_the_values(batch):
    params, x, y, weight = batch
    step = 1e-6
    slopes = [
        weight @ (LOSS.values(params + e, x, y) - LOSS.values(params - e, x, y)) / (2 * step * ROWS)
        for e in step * np.eye(params.size)
    ]
    np.testing.assert_allclose(LOSS.gradient(params, x, y, weight)[0], slopes, atol=1e-8)


def test_slopes_and_bends_are_derivatives_in_the_margins(batch):
    params, x, y, _ = batch
    margins = x @ params.reshape(CLASSES, FEATURES).T
    change = np.random.default_rng(2).standard_normal(margins.shape)
    step = 1e-6
    ahead, behind = margins + step * change, margins - step * change
    first = (LOSS.of_margins(ahead, y) - LOSS.of_margins(behind, y)) / (2 * step)
    np.testing.assert_allclose((LOSS.slopes(margins, y) * change).sum(axis=1), first, atol=1e-8)
    second = (LOSS.slopes(ahead, y) - LOSS.slopes(behind, y)) / (2 * step)
    np.testing.assert_allclose(LOSS.bends(margins, y, change), second, atol=1e-8)


def test_huge_margins_neither_overflow_nor_lose_the_gradient():
    loss = Softmax(num_classes=3)
    gradient, norms = loss.gradient(
        np.array([1e4, -1e4, 0.0]), np.ones((1, 1)), np.array([1.0]), np.ones(1)
    )
    np.testing.assert_array_equal(gradient, [1.0, -1.0, 0.0])
    np.testing.assert_array_equal(norms, [np.sqrt(2.0)])
    values = loss.values(np.array([1e4, -1e4, 0.0]), np.ones((1, 1)), np.array([1.0]))
    np.testing.assert_array_equal(values, [2e4])


def test_curvature_bounds_every_change_of_gradient_and_is_reached(batch):
    params, x, y, _ = batch
    other = params + 1e-4 * np.random.default_rng(3).standard_normal(params.size)
    change = literal_gradients(other, x, y, 0.03) - literal_gradients(params, x, y, 0.03)
    ratio = np.linalg.norm(change, axis=1) / np.linalg.norm(other - params)
    assert (ratio <= LOSS.curvature(x)).all()
    two = Softmax(num_classes=2)  # at zero, along the difference of the two rows, it is equality
    direction = 1e-5 * np.concatenate([x[0], -x[0]])
    here, _ = two.gradient(np.zeros(2 * FEATURES), x[:1], y[:1] % 2, np.ones(1))
    there, _ = two.gradient(direction, x[:1], y[:1] % 2, np.ones(1))
    reached = np.linalg.norm(there - here) / np.linalg.norm(direction)
    assert reached == pytest.approx(two.curvature(x[:1])[0], rel=1e-6)


def test_two_classes_are_the_logistic_loss(batch):
    _, x, y, weight = batch
    half = np.random.default_rng(4).standard_normal(FEATURES)
    sign = np.where(y < 2, -1.0, 1.0)
    logistic, _ = Logistic().gradient(2 * half, x, sign, weight)
    softmax, _ = Softmax(num_classes=2).gradient(
        np.concatenate([-half, half]), x, (sign + 1) / 2, weight
    )
    np.testing.assert_allclose(softmax, np.concatenate([-logistic, logistic]), rtol=1e-12)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2])
def test_optimum_agrees_with_scikit_learn(ridge):
    x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    x, y = x / 16.0, y.astype(float)
    weight = np.random.default_rng(5).uniform(0.1, 1.0, len(y))
    weight /= weight.sum()
    found = minimise(Softmax(num_classes=10, ridge=ridge), x, y, weight)
    model = LogisticRegression(
        C=1 / (2 * ridge), fit_intercept=False, solver="newton-cg", tol=1e-12, max_iter=10_000
    )
    expected = model.fit(x, y, sample_weight=weight).coef_.ravel()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    gradient, _ = Softmax(num_classes=10, ridge=ridge).gradient(found, x, y, weight * len(y))
    assert np.linalg.norm(gradient) < 1e-10


def test_optimum_without_ridge_needs_classes_that_overlap():
    x = np.array([[1.0], [2.0], [-1.0]])
    with pytest.raises(ValueError, match=r"no minimiser of the Softmax risk.*separable"):
        minimise(Softmax(num_classes=2), x, np.array([0.0, 0.0, 1.0]), np.full(3, 1 / 3))


def problem_of(targets, num_classes):
    data = FederatedData(
        np.ones((len(targets), 1)), np.array(targets, float), np.array([0, len(targets)])
    )
    return Problem(data=data, loss=Softmax(num_classes=num_classes))


@pytest.mark.parametrize("bad", [-1.0, 3.0, 0.5])
def test_a_target_that_is_no_class_is_an_error(bad):
    with pytest.raises(ValueError, match=rf"targets\[2\]={bad} but .* a class, 0 to 2"):
        problem_of([0, 1, bad, 2], 3)


def test_a_class_that_never_occurs_is_an_error():
    with pytest.raises(ValueError, match=r"class 1 of num_classes=4 never occurs .*2 such"):
        problem_of([0, 3, 0], 4)


@pytest.mark.parametrize("bad", [1, 0, 2.5, True])
def test_num_classes_is_a_whole_number_of_at_least_two(bad):
    with pytest.raises(ValueError, match=f"num_classes={bad}"):
        Softmax(num_classes=bad)
