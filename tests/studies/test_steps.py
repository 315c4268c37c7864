"""The best step size, and the measures that decide on it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from isfed import FedAvg, FederatedData, LeastSquares, Logistic, Problem, Regression, simulate
from isfed.studies.executors import Executor, Workers
from isfed.studies.problem_sources import Given
from isfed.studies.step_grid import StepGrid, search_step_size
from isfed.studies.study_engine import NoStepError
from isfed.studies.test_measures import ErrorRates, HeldOutLoss
from isfed.studies.work_cells import CellStore


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


@dataclass(frozen=True, eq=False)
class Measured(Given):
    """A problem whose runs are measured by their own loss."""

    def measure(self, problem: Problem) -> HeldOutLoss:
        data = problem.data
        weights = data.row_weights()
        return HeldOutLoss(LeastSquares(), data.features, data.targets, weights, every=20)


def search(problem, grid, *, rounds=200, widen=0):
    executor = Executor(Workers(), 1, CellStore())
    asked = StepGrid(grid=grid, repetitions=2, widen=widen)
    algorithm = FedAvg(step_size=1.0, num_active=problem.num_agents // 2)
    run = {"source": Measured(problem), "rounds": rounds, "seed": 0}
    return search_step_size(executor, "FedAvg", algorithm, asked, share=0.25, **run)


PROBLEM = Regression(num_agents=10, num_examples=20).make()


def test_the_best_step_of_a_grid_is_found_and_divergence_is_never_best():
    choice = search(PROBLEM, (1e-5, 1e-2, 50.0))
    assert choice.best == 1e-2
    assert choice.losses[50.0] == np.inf
    assert not choice.at_edge


def test_the_loss_is_the_mean_of_the_last_measurements():
    choice = search(PROBLEM, (1e-3,))
    history = simulate(
        PROBLEM, FedAvg(step_size=1e-3, num_active=5), rounds=200, repetitions=2,
        measure=Measured(PROBLEM).measure(PROBLEM),
    )  # fmt: skip
    assert (
        choice.losses[1e-3] == history.measured["loss"][:, -3:].mean()
    )  # 11 records: 3 are a quarter


@pytest.mark.parametrize("first", [1e-7, 10.0])
def test_the_grid_grows_while_the_best_is_at_its_edge(first):
    wide = search(PROBLEM, (first, 2 * first), widen=40)
    assert not wide.at_edge
    steps = sorted(wide.losses)
    assert all(b == 2 * a for a, b in itertools.pairwise(steps))


def test_the_grid_grows_no_further_than_it_may():
    assert sorted(search(PROBLEM, (1e-7, 2e-7), widen=1).losses) == [1e-7, 2e-7, 4e-7]


def test_a_grid_that_diverges_everywhere_is_an_error():
    rng = np.random.default_rng(0)
    data = FederatedData(
        rng.standard_normal((20, 2)), rng.standard_normal(20), np.array([0, 10, 20])
    )
    with pytest.raises(NoStepError, match="diverged at every step size from 1e"):
        search(Problem(data, LeastSquares()), (1e3, 1e4), rounds=100)
