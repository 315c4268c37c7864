"""The comparison finds what importance sampling buys, and says so when it buys nothing."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from isfed import (
    OUTLIERS,
    Columns,
    FederatedData,
    ISFedAvg,
    LeastSquares,
    Problem,
    Softmax,
    read_table,
)
from isfed.studies import compare
from isfed.studies.comparison import Budget, Comparison, Curve, gain_interval

BUDGET = Budget(num_active=4, rounds=300, repetitions=8, records=30)


@pytest.fixture(scope="module")
def outliers():
    """One agent in ten has a hundred times the noise of the others."""
    recipe = OUTLIERS.replace(num_agents=40, num_examples=20, noisy_share=0.1, batch_size=(1, 3))
    problem = recipe.make(seed=1)
    return problem, compare(problem, BUDGET)


def test_it_buys_where_a_few_agents_are_noisy(outliers):
    _, found = outliers
    rows = {row["name"]: row for row in found.rows()}
    assert found.buys
    assert "importance" in found.winner or "control" in found.winner
    assert rows[found.winner]["final_excess"] < rows["FedAvg"]["final_excess"] / 3
    assert rows[found.winner]["gain_low_db"] > 0.0
    assert found.verdict().startswith("On rows they have not seen, ")
    assert "How certain: in 8 paired runs" in found.verdict()


def test_every_way_and_its_average_has_a_row(outliers):
    problem, found = outliers
    assert problem.local_steps.max() > 1
    plain = ["FedAvg", "FedAvg, passes", "importance", "importance, passes", "control variates",
             "control variates, drift"]  # fmt: skip
    assert list(found.curves) == [f"{n}{end}" for n in plain for end in ("", ", averaged")]
    best = {name: float(curve.final.mean()) for name, curve in found.curves.items()}
    assert best["importance, averaged"] < best["FedAvg"]


def test_each_has_the_best_of_its_own_step_sizes_inside_the_grid(outliers):
    _, found = outliers
    for curve in found.curves.values():
        assert curve.step_size == min(curve.tried, key=lambda step: curve.tried[step])
        assert min(curve.tried) < curve.step_size < max(curve.tried)
        steps = np.log2(sorted(curve.tried))
        beside = np.abs(steps - np.log2(curve.step_size))
        assert np.isclose(sorted(beside)[1], 0.5, atol=1e-9)  # a factor sqrt(2)


def test_the_curves_are_excess_losses_from_the_same_start(outliers):
    problem, found = outliers
    start = problem.risk(np.zeros(problem.num_params)) - problem.risk(problem.optimum)
    for curve in found.curves.values():
        np.testing.assert_allclose(curve.excess[:, 0], start, rtol=1e-12)
        assert curve.excess.min() >= -1e-12  # nobody is below the optimum
        assert curve.excess.shape == (8, 31)
        assert curve.uploads == pytest.approx(4.0, abs=0.4)  # in passes one may have two places


def test_it_buys_nothing_where_everybody_is_alike():
    x = np.ones((200, 1))
    y = np.tile([1.0, -1.0], 100)  # at the optimum, 0, every gradient has length 2
    data = FederatedData(x, y, np.arange(21) * 10)
    problem = Problem(data=data, loss=LeastSquares(), batch_size=10)
    mine = ISFedAvg(step_size=1.0, num_active=4, average=True, label="mine")
    found = compare(problem, BUDGET, challenger=mine)
    assert list(found.curves) == ["FedAvg", "FedAvg, averaged", "mine"]
    assert found.gain_db("FedAvg") == (0.0, 0.0, 0.0)


def curve(excess, name="a"):
    excess = np.array(excess, float)
    return Curve(name, 1.0, {}, np.arange(excess.shape[1]) * 10, excess, 8.0, 4.0)


def both(one, other, **more):
    return Comparison({"FedAvg": curve(one, "FedAvg"), "other": curve(other, "other")}, 1.0, **more)


SLOW = [[9, 7, 5, 3], [9, 7, 5, 3.2], [9, 7, 5, 3.1]]
FAST = [[9, 3, 1, 1.1], [9, 3.1, 1, 1], [9, 3, 1, 1.05]]


def test_what_is_needed_is_read_off_the_mean_curve():
    found = both(SLOW, FAST)
    assert found.level == pytest.approx(3.1)
    assert [row["rounds"] for row in found.rows()] == [30, 10]
    assert [row["uploads"] for row in found.rows()] == [120, 40]
    assert [row["gradients"] for row in found.rows()] == [240, 80]
    assert found.winner == "other"
    assert "33% of the uploads (40 instead of 120" in found.verdict()
    worse = both(FAST, SLOW)
    assert worse.rows()[1]["rounds"] is None
    assert not worse.buys
    assert "Keep FedAvg" in worse.verdict()
    assert "told from chance" in both(SLOW, SLOW).verdict()


def test_the_practical_effect_comes_first_in_the_users_units():
    errors = {"FedAvg": np.array([2.0, 2.02]), "other": np.array([2.01, 1.99])}
    alike = both(SLOW, FAST, held_out=errors).verdict()
    assert alike.startswith("On rows they have not seen, all ways predict alike: RMSE 2.01")
    assert "no practical difference" in alike
    apart = both(SLOW, FAST, held_out={**errors, "other": np.array([1.9, 1.9])}).verdict()
    assert apart.startswith("On rows they have not seen, other predicts better: RMSE 1.9, FedAvg")
    classes = {"FedAvg": np.array([0.10]), "other": np.array([0.13])}
    worse = both(SLOW, FAST, held_out=classes, number=False).verdict()
    assert worse.startswith("On rows they have not seen, other predicts worse: 13% wrong, FedAvg")


def test_errors_that_chance_explains_are_not_called_better():
    row = np.arange(300)
    coin = np.stack([row % 2, 7 * row % 100 < 46]).astype(float)  # two ways that guess
    base, lucky = coin.mean(axis=1)
    assert base - lucky > 0.03
    errors = {"FedAvg": np.array([base]), "other": np.array([lucky])}
    more = {"held_out": errors, "number": False}
    found = both(SLOW, FAST, each_row={"FedAvg": coin[0], "other": coin[1]}, **more)
    assert found.apart == set()
    assert found.verdict().startswith(
        f"On rows they have not seen, the ways cannot be told apart: {100 * lucky:.3g}% wrong to "
        f"{100 * base:.3g}% wrong (no more than chance on 300 rows)."
    )
    surely = coin[0] * (np.arange(300) % 5 > 0)  # one in five of its mistakes is right
    found = both(SLOW, FAST, each_row={"FedAvg": coin[0], "other": surely}, **more)
    assert found.apart == {"other"}
    assert "other predicts better" in found.verdict()


def test_one_test_decides_headline_and_interval():
    rng = np.random.default_rng(0)
    surely = 0
    for _ in range(60):
        one, other = np.exp(0.3 * rng.standard_normal((2, 8)) + [[0.25], [0.0]])
        _, low, high = gain_interval(one, other, 0.95)
        refused = stats.ttest_rel(np.log(one), np.log(other)).pvalue < 0.05
        assert refused == (not low <= 0.0 <= high)
        surely += refused
        found = Comparison(
            {"FedAvg": curve(one[:, None], "FedAvg"), "other": curve(other[:, None], "other")}, 1.0
        )
        assert found.buys == (refused and found.gain_db("other")[0] >= 0.5)
    assert 5 < surely < 55


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
    assert np.isfinite(found.curves["importance"].excess).all()


def test_bad_budgets():
    with pytest.raises(ValueError, match="repetitions=1 must be at least 2"):
        Budget(num_active=1, repetitions=1)
    with pytest.raises(ValueError, match="records=0"):
        Budget(num_active=1, records=0)
    data = FederatedData(np.ones((2, 1)), np.ones(2), np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="num_active=3 exceeds num_agents=2"):
        compare(Problem(data=data, loss=LeastSquares()), Budget(num_active=3))
