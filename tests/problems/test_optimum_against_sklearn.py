"""The minimisers against scikit-learn on the same objective, on data that is always there."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, Ridge

from isfed import FederatedData, LeastSquares, Logistic, Problem
from isfed.problems.optimum import minimise

OFFSETS = np.array([0, 10, 200, 300])  # unequal agents, so that the rows have unequal weights


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_least_squares_agrees_with_ridge(ridge):
    x, y = (np.asarray(part) for part in load_diabetes(return_X_y=True))
    data = FederatedData(20 * x[:300], y[:300] / 100, OFFSETS)
    found = Problem(data=data, loss=LeastSquares(ridge=ridge)).optimum
    model = Ridge(alpha=ridge, fit_intercept=False, solver="svd")
    model.fit(data.features, data.targets, sample_weight=data.row_weights())
    np.testing.assert_allclose(found, model.coef_, atol=1e-6)


@pytest.mark.parametrize("ridge", [1e-4, 1e-2])
@pytest.mark.parametrize("standardised", [True, False])
def test_logistic_agrees_with_logistic_regression(ridge, standardised):
    x, y = (np.asarray(part) for part in load_breast_cancer(return_X_y=True))
    x = (x - x.mean(axis=0)) / x.std(axis=0) if standardised else x
    data = FederatedData(x[:300], 2.0 * y[:300] - 1.0, OFFSETS)
    found = Problem(data=data, loss=Logistic(ridge=ridge)).optimum
    model = LogisticRegression(
        C=1 / (2 * ridge), fit_intercept=False, solver="newton-cholesky", tol=1e-13, max_iter=1000
    )
    model.fit(data.features, data.targets, sample_weight=data.row_weights())
    np.testing.assert_allclose(found, model.coef_[0], atol=1e-6)


def test_separable_classes_without_ridge_have_no_minimiser():
    x = np.array([[1.0, 0.0], [2.0, 1.0], [-1.0, 3.0]])
    y = np.array([1.0, 1.0, -1.0])
    with pytest.raises(ValueError, match=r"no minimiser of the Logistic risk.*ridge=0"):
        minimise(Logistic(), x, y, np.full(3, 1 / 3))


def test_a_direction_without_data_stays_at_zero():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal(50), np.zeros(50)])
    y = np.where(rng.random(50) < 0.5, -1.0, 1.0)
    assert minimise(Logistic(), x, y, np.full(50, 0.02))[1] == 0.0
