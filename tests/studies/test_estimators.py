"""The estimators: scikit-learn's own checks, and the solutions that it finds itself."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from isfed import FederatedClassifier, FederatedRegressor


@parametrize_with_checks([FederatedRegressor(rounds=600), FederatedClassifier(rounds=600)])
def test_as_scikit_learn_wants_it(estimator, check):
    check(estimator)


def test_the_regression_is_that_of_ridge():
    rng = np.random.default_rng(0)
    agents = np.repeat(np.arange(20), 30)  # equal sizes: every row weighs the same
    X = rng.standard_normal((600, 4)) * [1, 10, 0.1, 3] + [5, 0, 0, -2]
    y = X @ [1.0, 0.2, -3.0, 0.0] + 7 + 0.5 * rng.standard_normal(600)
    found = FederatedRegressor(num_active=5, rounds=3000).fit(X, y, agents=agents)
    plain = Ridge(alpha=1e-3).fit(X, y)
    scale = X.std(axis=0)
    np.testing.assert_allclose(found.coef_ * scale, plain.coef_ * scale, atol=0.05)
    assert found.score(X, y) > plain.score(X, y) - 1e-3


def test_rows_can_weigh_instead_of_agents():
    rng = np.random.default_rng(1)
    agents = np.repeat(np.arange(4), [200, 10, 10, 10])
    X = np.zeros((230, 1))
    y = np.where(agents == 0, 1.0, 0.0) + 1e-3 * rng.standard_normal(230)
    by_agent = FederatedRegressor(num_active=4).fit(X, y, agents=agents)
    by_row = FederatedRegressor(num_active=4, weights="rows").fit(X, y, agents=agents)
    assert by_agent.predict([[0.0]]) == pytest.approx(1 / 4, abs=0.02)
    assert by_row.predict([[0.0]]) == pytest.approx(200 / 230, abs=0.02)
    with pytest.raises(ValueError, match="weights='all' must be 'agents' or 'rows'"):
        FederatedRegressor(weights="all").fit(X, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_classes_are_those_of_logistic_regression(classes):
    X, y = load_iris(return_X_y=True)
    X, y = X[y < classes], np.array(["setosa", "versicolor", "virginica"])[y[y < classes]]
    found = FederatedClassifier(rounds=3000).fit(X, y, agents=np.arange(len(y)) % 15)
    plain = LogisticRegression(max_iter=1000).fit(X, y)
    assert found.score(X, y) > plain.score(X, y) - 0.03
    np.testing.assert_allclose(found.predict_proba(X).sum(axis=1), 1.0)
    assert found.predict_proba(X).shape == (len(X), classes)
    assert found.classes_.tolist() == plain.classes_.tolist()


def test_it_works_inside_scikit_learn():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(UserWarning, match="no agents were given, so the rows are dealt to 10"):
        assert cross_val_score(FederatedClassifier(rounds=900), X, y, cv=3).mean() > 0.85


def test_importance_is_not_slower_than_fedavg_where_few_rows_are_long():
    """0.561 against 0.370 with the step of the largest curvature anywhere."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2900, 9))
    margin = 0.7 * X @ rng.standard_normal(9) + rng.logistic(size=2900)
    y = margin > np.quantile(margin, 0.925)
    X[:3] *= 35.0
    agents = np.arange(2900) % 29
    losses = {}
    for importance in (True, False):
        model = FederatedClassifier(importance=importance, num_active=2).fit(X, y, agents=agents)
        losses[importance] = log_loss(y, model.predict_proba(X))
        assert model.step_size_ > 0.01
        assert model.n_rounds_ == 1500
    assert losses[True] < 1.05 * losses[False]


def test_a_run_that_is_still_moving_says_so():
    X = np.random.default_rng(0).standard_normal((60, 2))
    y = X @ [2.0, -1.0]
    with pytest.warns(ConvergenceWarning, match="use more rounds"):
        FederatedRegressor(step_size=1e-3, rounds=60).fit(X, y, agents=[0, 1, 2] * 20)


def test_agents_are_checked():
    X, y = np.ones((4, 1)), np.arange(4.0)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedRegressor().fit(X, y, agents=[1, 2])
    with pytest.raises(ValueError, match="num_active=9 exceeds num_agents=2"):
        FederatedRegressor(num_active=9).fit(X, y, agents=[1, 1, 2, 2])
