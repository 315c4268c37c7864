"""The best step size, and the measures that decide on it."""

from __future__ import annotations

import numpy as np
import pytest

from isfed import FedAvg, FederatedData, LeastSquares, Logistic, Problem, Regression
from isfed.experiments.measures import ErrorRates, HeldOutLoss
from isfed.experiments.steps import NoStepError, choose_step_size


def test_errors_are_counted_by_hand():
    x = np.array([[1.0], [2.0], [-1.0], [3.0]])
    y = np.array([1.0, -1.0, -1.0, 1.0])
    measure = ErrorRates(x, y, every=1)
    found = measure(np.array([[1.0], [-1.0], [0.0]]))
    # w = 1 calls rows 0, 1, 3 positive: row 1 is wrong. w = -1 is wrong on the other three.
    # w = 0 calls every row negative: the two positive rows are wrong.
    np.testing.assert_allclose(found[:, 0], [0.25, 0.75, 0.5])
    np.testing.assert_allclose(found[:, 1], [0.25, 0.75, 0.5])
    assert measure.majority_error() == 0.5


def test_balanced_error_weighs_the_classes_equally():
    x = np.ones((10, 1))
    y = np.array([1.0] * 9 + [-1.0])
    error, balanced = ErrorRates(x, y, every=1)(np.array([[1.0]]))[0]
    assert error == pytest.approx(0.1)
    assert balanced == pytest.approx(0.5)


def test_several_classes_take_the_largest_score():
    x = np.eye(3)
    y = np.array([0.0, 1.0, 2.0])
    measure = ErrorRates(x, y, every=1)
    assert measure(np.eye(3).reshape(1, -1))[0, 0] == 0.0
    assert measure(np.roll(np.eye(3), 1, axis=0).reshape(1, -1))[0, 0] == 1.0


def test_held_out_loss_is_the_weighted_mean():
    x, y = np.array([[1.0], [2.0]]), np.array([1.0, -1.0])
    loss = Logistic()
    weight = np.array([3.0, 1.0])
    found = HeldOutLoss(loss, x, y, weight, every=1)(np.array([[0.5]]))[0, 0]
    values = loss.values(np.array([0.5]), x, y)
    assert found == pytest.approx((3 * values[0] + values[1]) / 4)


def test_the_best_step_of_a_grid_is_found_and_divergence_is_never_best():
    problem = Regression(num_agents=10, num_examples=20).make()
    data = problem.data
    measure = HeldOutLoss(LeastSquares(), data.features, data.targets, data.row_weights(), every=20)
    choice = choose_step_size(
        problem, FedAvg(step_size=1.0, num_active=5), measure, (1e-5, 1e-2, 50.0),
        rounds=200, repetitions=2,
    )  # fmt: skip
    assert choice.best == 1e-2
    assert choice.losses[50.0] == np.inf
    assert not choice.at_edge


def test_a_grid_that_diverges_everywhere_is_an_error():
    rng = np.random.default_rng(0)
    data = FederatedData(
        rng.standard_normal((20, 2)), rng.standard_normal(20), np.array([0, 10, 20])
    )
    problem = Problem(data, LeastSquares())
    measure = HeldOutLoss(problem.loss, data.features, data.targets, np.ones(20), every=10)
    with pytest.raises(NoStepError, match="diverged at every step size"):
        choose_step_size(
            problem, FedAvg(step_size=1.0, num_active=1), measure, (1e3, 1e4),
            rounds=100, repetitions=1,
        )  # fmt: skip
