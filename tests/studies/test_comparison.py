"""The comparison finds what importance sampling buys, and says so when it buys nothing."""

import numpy as np
import pyarrow as pa
import pytest

from isfed import OUTLIERS, Columns, FederatedData, LeastSquares, Problem, Softmax, read_table
from isfed.studies import compare
from isfed.studies.comparison import Budget, Comparison, Curve

BUDGET = Budget(num_active=4, rounds=300, repetitions=8, records=30)


@pytest.fixture(scope="module")
def outliers():
    """One agent in ten has a hundred times the noise of the others."""
    recipe = OUTLIERS.replace(num_agents=40, num_examples=20, noisy_share=0.1, batch_size=(1, 3))
    problem = recipe.make(seed=1)
    return problem, compare(problem, BUDGET)


def test_it_buys_where_a_few_agents_are_noisy(outliers):
    _, found = outliers
    before, after = found.rows()
    assert found.buys
    assert after["final_excess"] < before["final_excess"] / 3
    assert after["rounds"] <= before["rounds"]
    assert f"after {after['rounds']} rounds instead of {before['rounds']}" in found.verdict()


def test_each_has_the_best_of_its_own_step_sizes_inside_the_grid(outliers):
    _, found = outliers
    for curve in (found.fedavg, found.isfedavg):
        assert curve.step_size == min(curve.tried, key=lambda step: curve.tried[step])
        assert min(curve.tried) < curve.step_size < max(curve.tried)


def test_the_curves_are_excess_losses_from_the_same_start(outliers):
    problem, found = outliers
    start = problem.risk(np.zeros(problem.num_params)) - problem.risk(problem.optimum)
    for curve in (found.fedavg, found.isfedavg):
        np.testing.assert_allclose(curve.excess[:, 0], start, rtol=1e-12)
        assert curve.excess.min() >= -1e-12  # nobody is below the optimum
        assert curve.excess.shape == (8, 31)
        assert curve.uploads == 4.0


def test_it_buys_nothing_where_all_gradients_are_alike():
    x = np.ones((200, 1))
    y = np.tile([1.0, -1.0], 100)  # at the optimum, 0, every gradient has length 2
    data = FederatedData(x, y, np.arange(21) * 10)
    found = compare(Problem(data=data, loss=LeastSquares()), BUDGET)
    assert not found.buys
    assert "buys nothing" in found.verdict()


def curve(excess):
    excess = np.array(excess, float)
    return Curve("a", 1.0, {}, np.arange(excess.shape[1]) * 10, excess, 8.0, 4.0)


def test_what_is_needed_is_read_off_the_mean_curve():
    slow = curve([[9, 7, 5, 3], [9, 7, 5, 3.2]])
    fast = curve([[9, 3, 1, 1.1], [9, 3.1, 1, 1]])
    found = Comparison(slow, fast, 0.0)
    assert found.level == pytest.approx(3.1)
    assert [row["rounds"] for row in found.rows()] == [30, 10]
    assert [row["uploads"] for row in found.rows()] == [120, 40]
    assert [row["gradients"] for row in found.rows()] == [240, 80]
    assert found.buys
    worse = Comparison(fast, slow, 0.0)
    assert worse.rows()[1]["rounds"] is None
    assert not worse.buys
    assert "above FedAvg. Keep FedAvg" in worse.verdict()
    assert "told from chance" in Comparison(slow, slow, 0.0).verdict()


def test_lower_in_the_end_but_no_sooner_is_said_so():
    excess = np.tile([9.0, 2.0, 2.0], (4, 1)) + 0.001 * np.arange(4)[:, None]
    found = Comparison(curve(excess), curve(excess - [0.0, 0.0, 1.0]), 0.0)
    assert not found.buys
    assert "ends 1 ± 0.0009 lower than FedAvg, but gets to" in found.verdict()
    assert "no sooner" in found.verdict()


def test_the_last_record_is_at_the_end():
    problem = OUTLIERS.replace(num_agents=8, num_examples=9, batch_size=(1, 2)).make()
    found = compare(problem, Budget(num_active=2, rounds=25, repetitions=2, records=10))
    assert found.fedavg.rounds.tolist() == [*range(0, 25, 2), 25]


def test_a_table_of_classes_becomes_a_softmax_problem():
    rng = np.random.default_rng(0)
    table = {"site": np.repeat([1, 2, 3], [3, 20, 20]), "x": rng.random(43), "y": np.arange(43) % 3}
    columns = Columns(agent="site", target="y", task="classification")
    read = read_table(pa.table(table), columns)
    sizes = np.minimum(8, read.data.num_examples)
    problem = Problem(read.data, read.loss(ridge=0.01), batch_size=sizes)
    assert problem.loss == Softmax(num_classes=3, ridge=0.01)
    np.testing.assert_array_equal(problem.batch_size, [3, 8, 8])
    found = compare(problem, Budget(num_active=2, rounds=60, repetitions=2, records=10))
    assert np.isfinite(found.isfedavg.excess).all()


def test_bad_budgets():
    with pytest.raises(ValueError, match="repetitions=1 must be at least 2"):
        Budget(num_active=1, repetitions=1)
    with pytest.raises(ValueError, match="records=0"):
        Budget(num_active=1, records=0)
    data = FederatedData(np.ones((2, 1)), np.ones(2), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="num_active=3 exceeds num_agents=2"):
        compare(Problem(data=data, loss=LeastSquares()), Budget(num_active=3))
