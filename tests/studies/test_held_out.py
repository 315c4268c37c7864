"""What is held out is never trained on, and is evaluated as written out here."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from isfed import FederatedData, LeastSquares, Logistic, Problem, Softmax, simulate
from isfed.report.page_from_results import page_data
from isfed.studies import Budget
from isfed.studies.comparison_run import ComparisonStudy
from isfed.studies.dataset_config import BreastCancer
from isfed.studies.experiment_config import make_experiment
from isfed.studies.held_out_error import qualities, quality, split
from isfed.studies.problem_sources import Given
from isfed.studies.study_engine import run_study
from isfed.studies.test_measures import ErrorRates


def make(loss, sizes=(3, 10, 20, 10, 5, 8), seed=0):
    rng = np.random.default_rng(seed)
    rows = sum(sizes)
    y = rng.standard_normal(rows)
    if isinstance(loss, Logistic):
        y = np.where(y > 0, 1.0, -1.0)
    if isinstance(loss, Softmax):
        y = np.arange(rows) % 3.0
    # Every row has a number of its own, to be told from all others.
    x = np.column_stack([rng.standard_normal((rows, 2)), np.arange(rows)])
    return Problem(FederatedData(x, y, np.cumsum([0, *sizes])), loss, batch_size=3)


def test_every_row_is_in_one_part():
    problem = make(LeastSquares(0.1))
    parts = split(problem, seed=4)
    numbers = [
        set(x[:, 2].astype(int).tolist())
        for x in (parts.training.data.features, parts.rows[0], parts.agents[0])
    ]
    assert set.union(*numbers) == set(range(56))
    assert sum(map(len, numbers)) == 56
    assert parts.training.num_agents == 5  # one of six is held out
    of_agent = np.searchsorted(problem.data.offsets, sorted(numbers[2]), side="right") - 1
    assert len(set(of_agent)) == 1
    assert len(numbers[2]) == problem.data.num_examples[of_agent[0]]
    assert np.all(parts.training.batch_size <= parts.training.data.num_examples)
    again = split(problem, seed=4)
    np.testing.assert_array_equal(parts.rows[0], again.rows[0])


def test_few_agents_and_rows_are_all_trained_on():
    parts = split(make(LeastSquares(), sizes=(3, 4, 3)), seed=0)
    assert parts.training.num_agents == 3
    assert len(parts.rows[1]) == len(parts.agents[1]) == 0
    assert list(qualities(make(LeastSquares(), sizes=(3, 4, 3)), np.ones((2, 3)), 0)) == [
        "training"
    ]


def test_qualities_are_those_written_out():
    w = np.array([0.5, -1.0, 0.01])
    problem = make(LeastSquares(0.3))
    x, y = problem.data.features, problem.data.targets
    loss, error = quality(problem.loss, w, x, y)
    assert loss == pytest.approx(np.mean((x @ w - y) ** 2))  # without the ridge
    assert error == pytest.approx(np.sqrt(loss))
    problem = make(Logistic(0.3))
    y = problem.data.targets
    loss, error = quality(problem.loss, w, x, y)
    assert loss == pytest.approx(np.mean(np.log1p(np.exp(-y * (x @ w)))))
    assert error == np.mean(np.sign(x @ w) != y)
    problem = make(Softmax(0.3, num_classes=3))
    y, model = problem.data.targets.astype(int), np.arange(9.0) / 50
    scores = x @ model.reshape(3, 3).T
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss, error = quality(problem.loss, model, x, problem.data.targets)
    assert loss == pytest.approx(-np.mean(np.log(shares[np.arange(56), y])))
    assert error == np.mean(shares.argmax(axis=1) != y)


def test_a_class_keeps_a_row_to_learn_from():
    problem = make(Softmax(num_classes=3, ridge=0.1))
    for seed in range(20):
        targets = problem.data.targets.copy()
        targets[targets == 2.0] = 0.0
        targets[
            np.flatnonzero(np.isin(problem.data.features, split(problem, seed).rows[0]).all(1))[0]
        ] = 2.0
        rare = Problem(
            FederatedData(problem.data.features, targets, problem.data.offsets),
            problem.loss,
            batch_size=3,
        )
        parts = split(rare, seed)
        assert set(parts.training.data.targets) == {0.0, 1.0, 2.0}
        assert 2.0 not in parts.rows[1]


def test_a_class_of_held_out_agents_alone_leaves_nothing_to_hold_out(tmp_path):
    problem = make(Softmax(num_classes=3, ridge=0.1))
    apart = split(problem, seed=0).agents[0][:, 2].astype(int)
    targets = problem.data.targets % 2.0
    targets[apart[0]] = 2.0
    features = problem.data.features / [1.0, 1.0, 56.0]
    rare = Problem(
        FederatedData(features, targets, problem.data.offsets), problem.loss, batch_size=3
    )
    budget = Budget(num_active=2, rounds=8, repetitions=2)
    results = run_study(ComparisonStudy("rare", Given(rare), budget), tmp_path / "run")
    assert results.summary["held_out"] is None
    assert page_data(results).tables


CLASSES = {
    "rounds": 30,
    "repetitions": 2,
    "problem": {"data": "breast-cancer"},
    "algorithm": [
        {"kind": "FedAvg", "step_size": 0.1, "num_active": 2},
        {"kind": "ISFedAvg", "step_size": "auto", "num_active": 2, "agents": "oracle"},
        {"kind": "FedAvg", "name": "away", "step_size": 1e150, "num_active": 2},
    ],
}


def right_and_loss(models, rows):
    """Mean accuracy and mean logistic loss, as they are printed in books."""
    x, y = rows
    margins = y * (models @ x.T)
    return np.mean(margins > 0), np.mean(np.log1p(np.exp(-margins)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_experiment_on_classes_is_tested_on_rows_it_was_not_trained_on(tmp_path):
    experiment = make_experiment(CLASSES)
    results = run_study(experiment, tmp_path / "run")
    problem = experiment.source.make()
    parts = split(problem, 0, agents=False)
    assert parts.training.num_agents == problem.num_agents
    assert len(parts.agents[1]) == 0
    assert not set(map(bytes, parts.rows[0])) & set(map(bytes, parts.training.data.features))
    assert len(results.summary["held_out"]) == 2  # what diverged is not tested
    assert "away" not in results.summary["held_out"]
    history = simulate(
        parts.training, experiment.algorithms["FedAvg"], rounds=30, repetitions=2, seed=0
    )
    right, loss = right_and_loss(history.params, parts.rows)
    found = results.summary["held_out"]["FedAvg"]["rows"]
    assert found["examples"] == len(parts.rows[1]) > 80
    assert 1.0 - found["error"] == pytest.approx(right, abs=1e-12)
    assert found["loss"] == pytest.approx(loss, rel=1e-9)
    titles = [table.caption for table in page_data(results).differences]
    assert titles == ["On rows not trained on"]


@dataclass(frozen=True, kw_only=True)
class WithTestRows(BreastCancer):
    """The same with rows to test on."""

    def measure(self, problem):
        return ErrorRates(*apart(problem), every=10)


def apart(problem):
    return problem.data.features[::3] + 0.5, problem.data.targets[::3]


def test_test_rows_need_no_second_training(tmp_path):
    made = make_experiment(CLASSES)
    task = replace(made.tasks[0], source=WithTestRows())
    experiment = replace(made, tasks=(task,))
    one = {"FedAvg": experiment.algorithms["FedAvg"]}
    results = run_study(replace(made, tasks=(replace(task, algorithms=one),)), tmp_path / "run")
    problem = experiment.source.make()
    history = simulate(problem, one["FedAvg"], rounds=30, repetitions=2, seed=0)
    right, loss = right_and_loss(history.params, apart(problem))
    found = results.summary["held_out"]["FedAvg"]["test"]
    assert 1.0 - found["error"] == pytest.approx(right, abs=1e-12)
    assert found["loss"] == pytest.approx(loss, rel=1e-9)


def test_an_experiment_on_numbers_has_no_accuracy(small, tmp_path):
    assert "held_out" not in run_study(make_experiment(small), tmp_path / "run").summary
