"""When a run has settled: against the predicted risk itself, and what does not count."""

import numpy as np
import pytest

from isfed import FederatedData, LeastSquares, Problem, diagnose
from isfed.theory.msd_prediction import settling_time


def excess(curvature, noise, start, step, rounds):
    """The expected excess risk after so many rounds, by the recursion itself."""
    msd = start**2
    for _ in range(rounds):
        msd = (1 - step * curvature) ** 2 * msd + step**2 * noise
    return 0.5 * curvature @ msd


def test_rounds_are_those_of_the_recursion():
    curvature, noise = np.array([0.01, 0.3, 1.0]), np.array([0.1, 2.0, 1.0])
    start, step = np.array([20.0, -5.0, 30.0]), 0.2
    found = settling_time(curvature, np.eye(3), noise, start, step)
    end = excess(curvature, noise, start, step, 100_000)
    rounds = int(np.ceil(found.rounds))
    for later in (0, 10, 100, 1000):
        assert abs(excess(curvature, noise, start, step, rounds + later) / end - 1) < 0.1
    assert found.direction.tolist() == [1.0, 0.0, 0.0]
    assert found.features(3) == [(0, 1.0)]


def test_a_direction_without_data_is_not_waited_for():
    curvature = np.array([2e-3, 1.0])
    with_it = settling_time(curvature, np.eye(2), np.array([0.0, 1.0]), np.array([0.0, 3.0]), 0.1)
    without = settling_time(curvature[1:], np.eye(1), np.ones(1), np.array([3.0]), 0.1)
    assert with_it.rounds == pytest.approx(without.rounds)
    flat = settling_time(
        np.array([0.0, 1.0]), np.eye(2), np.array([0.0, 1.0]), np.array([5.0, 3.0]), 0.1
    )
    assert flat.rounds == pytest.approx(without.rounds)


def test_no_noise_and_no_way_to_go():
    still = settling_time(np.ones(2), np.eye(2), np.zeros(2), np.zeros(2), 0.1)
    assert still.rounds == 0.0
    noiseless = settling_time(np.ones(1), np.eye(1), np.zeros(1), np.ones(1), 0.1)
    assert 0.9 ** (2 * noiseless.rounds) == pytest.approx(1e-3)


def of_table(*extra):
    """Two features of scale 1, and columns that say nothing."""
    rng = np.random.default_rng(0)
    rows = 400
    x = rng.standard_normal((rows, 2))
    y = x @ [2.0, -1.0] + rng.standard_normal(rows)
    columns = [x, *(column * np.ones((rows, 1)) for column in extra), np.ones((rows, 1))]
    data = FederatedData(np.concatenate(columns, axis=1), y, np.arange(0, rows + 1, 20))
    return Problem(data, LeastSquares(1e-3), batch_size=4)


@pytest.mark.parametrize("column", [0.0, "copy"])
def test_columns_that_say_nothing_take_no_time(column):
    plain = diagnose(of_table(), num_active=2, theory=False)
    problem = of_table(0.0 if column == "copy" else column)
    if column == "copy":
        x = problem.data.features.copy()
        x[:, 2] = x[:, 0] + x[:, 1]
        data = FederatedData(x, problem.data.targets, problem.data.offsets)
        problem = Problem(data, problem.loss, batch_size=4)
    found = diagnose(problem, num_active=2, theory=False)
    for name, option in found.options.items():
        expected = plain.options[name]
        assert option.gain_db == pytest.approx(expected.gain_db, abs=0.2)
        steps = [(o.settled_after or 0.0) * (o.step_limit or 0.0) for o in (option, expected)]
        # The step limit is smaller by the length that the column adds, nothing else is.
        assert steps[0] == pytest.approx(steps[1], rel=0.6)
