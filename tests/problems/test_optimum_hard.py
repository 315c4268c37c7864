"""The minimiser on hard problems: against Newton's method in long double, and scikit-learn."""

import numpy as np
import pytest
from hard_problems import HARD, compositions
from sklearn.linear_model import LogisticRegression

from isfed import FederatedData, Huber, LeastSquares, Logistic, Problem, Softmax
from isfed.base.progress import listening
from isfed.problems import optimum as newton_module
from isfed.problems import scaled_risk as risk_module
from isfed.problems.optimum import NoOptimumError, minimise

LONG = np.longdouble
RELATIVE = 1e-10


def long_risk(loss, x, y, weight, matrix):
    """The risk, its gradient and its Hessian in long double, from their definitions."""
    margins = x @ matrix.T
    if isinstance(loss, LeastSquares):
        residual = margins[:, 0] - y
        values, slopes, bends = residual**2, 2 * residual[:, None], np.full((len(y), 1, 1), LONG(2))
    elif isinstance(loss, Huber):
        residual = margins[:, 0] - y
        size, near = np.abs(residual), np.abs(residual) <= loss.knee
        values = np.where(near, residual**2, loss.knee * (2 * size - loss.knee))
        slopes = 2 * np.clip(residual, -loss.knee, loss.knee)[:, None]
        bends = np.where(near, LONG(2), LONG(0))[:, None, None]
    elif isinstance(loss, Logistic):
        lead = y * margins[:, 0]
        values = np.where(lead > 0, np.log1p(np.exp(-np.abs(lead))), 0) + np.where(
            lead > 0, 0, np.log1p(np.exp(-np.abs(lead))) - lead
        )
        chance = 1 / (1 + np.exp(lead))
        slopes = (-y * chance)[:, None]
        bends = (chance * (1 - chance))[:, None, None]
    else:
        top = margins.max(axis=1, keepdims=True)
        share = np.exp(margins - top)
        mass = share.sum(axis=1, keepdims=True)
        share = share / mass
        own = np.arange(len(matrix)) == y[:, None]
        values = (np.log(mass) + top)[:, 0] - margins[own]
        slopes = share - own
        bends = share[:, :, None] * (np.eye(len(matrix)) - share[:, None, :])
    ridge = LONG(loss.ridge)
    value = weight @ values + ridge * np.sum(matrix**2)
    gradient = (weight[:, None] * slopes).T @ x + 2 * ridge * matrix
    size = matrix.size
    hessian = np.zeros((size, size), LONG)
    width = x.shape[1]
    for a in range(len(matrix)):
        for b in range(len(matrix)):
            block = (x * (weight * bends[:, a, b])[:, None]).T @ x
            hessian[a * width : (a + 1) * width, b * width : (b + 1) * width] = block
    return value, gradient.ravel(), hessian + 2 * ridge * np.eye(size)


def solve(matrix, right):
    """Cholesky in long double, of a matrix that a tiny diagonal makes positive definite."""
    scale = np.sqrt(np.maximum(np.diag(matrix), LONG(1e-300)))
    matrix = matrix / scale[:, None] / scale + LONG(1e-17) * np.eye(len(matrix), dtype=LONG)
    lower = np.zeros_like(matrix)
    for j in range(len(matrix)):
        rest = matrix[j, j] - lower[j, :j] @ lower[j, :j]
        lower[j, j] = np.sqrt(max(rest, LONG(1e-30)))
        lower[j + 1 :, j] = (matrix[j + 1 :, j] - lower[j + 1 :, :j] @ lower[j, :j]) / lower[j, j]
    solution = right / scale
    for j in range(len(matrix)):
        solution[j] = (solution[j] - lower[j, :j] @ solution[:j]) / lower[j, j]
    for j in reversed(range(len(matrix))):
        solution[j] = (solution[j] - lower[j + 1 :, j] @ solution[j + 1 :]) / lower[j, j]
    return solution / scale


def least_risk(problem, start):
    """The risk at `start`, and the least that Newton's method finds from there."""
    x, y = problem.data.features.astype(LONG), problem.data.targets.astype(LONG)
    weight = problem.data.row_weights().astype(LONG)
    matrix = start.astype(LONG).reshape(problem.loss.compiled.num_rows, -1)
    begin, gradient, hessian = long_risk(problem.loss, x, y, weight, matrix)
    least = begin
    for _ in range(6):
        step = solve(hessian, gradient)
        for length in 0.5 ** np.arange(30):
            moved = matrix - LONG(length) * step.reshape(matrix.shape)
            value, gradient_there, hessian_there = long_risk(problem.loss, x, y, weight, moved)
            if value < least:
                matrix, least, gradient, hessian = moved, value, gradient_there, hessian_there
                break
        else:
            break
    return float(begin), float(least)


@pytest.mark.parametrize("name", HARD)
def test_no_risk_is_smaller_than_that_at_the_optimum(name):
    problem = HARD[name]()
    at_optimum, least = least_risk(problem, problem.optimum)
    assert at_optimum - least <= RELATIVE * least


def test_the_reference_would_see_a_worse_model():
    problem = HARD["logistic plain"]()
    begin, least = least_risk(problem, 1.01 * problem.optimum)
    assert begin - least > 100 * RELATIVE * least
    at_optimum, same = least_risk(problem, problem.optimum)
    assert same == pytest.approx(least, rel=1e-15)
    assert at_optimum == pytest.approx(problem.risk(problem.optimum), rel=1e-14)


def held_back(problem):
    """Whether scikit-learn can do it too: it fails where nearly nothing holds the model back."""
    return isinstance(problem.loss, Logistic | Softmax) and problem.loss.ridge > 1e-6


@pytest.mark.parametrize("name", [name for name in HARD if held_back(HARD[name]())])
def test_scikit_learn_finds_nothing_better(name):
    problem = HARD[name]()
    model = LogisticRegression(
        C=1 / (2 * problem.loss.ridge), fit_intercept=False, solver="newton-cholesky", tol=1e-12,
        max_iter=1000,
    )  # fmt: skip
    data = problem.data
    model.fit(data.features, data.targets, sample_weight=data.row_weights())
    theirs, ours = problem.risk(model.coef_.ravel()), problem.risk(problem.optimum)
    assert ours - theirs <= RELATIVE * ours


def test_collinear_features_take_few_products_with_the_hessian(monkeypatch):
    """Rounding in the direction that all classes share once made every step take thousands."""
    made = []
    start = risk_module.Risk.__init__

    def remember(self, *given):
        start(self, *given)
        made.append((self, self.products_left))

    monkeypatch.setattr(risk_module.Risk, "__init__", remember)
    _ = compositions(ridge=1e-3).optimum
    assert sum(allowed - risk.products_left for risk, allowed in made) < 200


def test_a_hessian_that_cannot_be_used_leaves_it_to_gradients(monkeypatch):
    """Every product overflows: L-BFGS alone comes close, and is accepted or says no.

    It stops where the risk changes by no more than rounding, which leaves a gradient of about
    sqrt(eps) times its curvature: on the border of what is accepted, on either side of it by the
    processor. What it must not do is to accept a model that is wrong.
    """
    problem = HARD["logistic plain"]()
    expected = problem.optimum
    made, descend = [], newton_module._descend

    def broken(self, place, direction):
        raise risk_module.Exhausted

    monkeypatch.setattr(risk_module.Risk, "product", broken)
    monkeypatch.setattr(newton_module, "RISK_TOLERANCE", np.inf)
    monkeypatch.setattr(
        newton_module, "_descend",
        lambda risk, start: made.append((risk, descend(risk, start))) or made[-1][1],
    )  # fmt: skip
    again = HARD["logistic plain"]()
    if again.has_optimum:
        np.testing.assert_allclose(again.optimum, expected, rtol=1e-6)
    else:
        assert "the gradient is still" in str(again.no_optimum)
    risk, place = made[0]
    np.testing.assert_allclose(risk.params(place).ravel(), expected, rtol=1e-5)
    first = np.linalg.norm(risk.raw_gradient(risk.zero()))
    assert np.linalg.norm(risk.raw_gradient(place)) < 1e-7 * first


def test_features_too_large_to_be_squared_are_refused():
    x = np.array([[1e200, 1.0], [-1e200, 2.0], [3e200, 1.0]])
    y = np.array([1.0, -1.0, 1.0])
    for loss in (LeastSquares(0.1), Logistic(0.1), Huber(0.1)):
        with pytest.raises(NoOptimumError, match="standardise"):
            minimise(loss, x, y, np.full(3, 1 / 3))


def test_one_class_alone_has_no_minimiser():
    data = FederatedData.from_agents([([[1.0], [2.0]], [1.0, 1.0]), ([[3.0]], [1.0])])
    with pytest.raises(NoOptimumError, match="separable"):
        _ = Problem(data, Logistic(0.0)).optimum


def test_a_constant_target_is_reached_exactly():
    data = FederatedData.from_agents([([[1.0, 1.0], [2.0, 1.0]], [7.0, 7.0])])
    np.testing.assert_allclose(Problem(data, LeastSquares()).optimum, [0.0, 7.0], atol=1e-12)


def test_a_long_search_says_so():
    heard = []
    with listening(heard.append):
        _ = HARD["softmax of three classes"]().optimum
    assert set(heard) == {"finding the optimum w^o"}
    assert len(heard) > 10
    heard.clear()
    _ = Softmax(num_classes=2)  # nothing is heard outside the block
    assert heard == []
