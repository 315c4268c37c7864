"""Where problems come from: presets, data sets, files, and what is said of those that cannot."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from isfed import LeastSquares, Logistic, Problem, Softmax
from isfed.studies import ConfigError, make_experiment, read_experiment, run_experiment
from isfed.studies.dataset_config import NAMED, BreastCancer, Digits, Dirichlet, Iid, Shards
from isfed.studies.problem_sources import Given, read_problem

ALGORITHM = {"kind": "FedAvg", "step_size": 0.01, "num_active": 2}
ROWS = ["site,x,colour,y", *(f"s{i % 4},{i % 7},{'rgb'[i % 3]},{i % 5}" for i in range(40))]


@pytest.fixture
def table(tmp_path):
    (tmp_path / "mine.csv").write_text("\n".join(ROWS) + "\n")
    return {"file": "mine.csv", "agent": "site", "target": "y"}


def made(problem, folder):
    given = {"rounds": 3, "repetitions": 2, "problem": problem, "algorithm": [ALGORITHM]}
    return make_experiment(given, folder=folder)


def test_a_file_becomes_a_problem(table, tmp_path):
    experiment = made({**table, "ridge": 0.5, "batch_size": 3}, tmp_path)
    problem = experiment.source.make()
    assert (problem.num_agents, problem.data.num_features) == (4, 5)  # x, three colours, intercept
    assert problem.loss == LeastSquares(ridge=0.5)
    assert problem.batch_size.tolist() == [3] * 4
    classes = made({**table, "task": "classification", "drop": ["colour"]}, tmp_path)
    problem = classes.source.make()
    assert problem.loss == Softmax(num_classes=5, ridge=1e-3)
    assert problem.data.num_features == 2
    huber = made({**table, "loss": {"loss": "huber", "knee": 0.5}}, tmp_path).source.make()
    assert huber.loss.knee == 0.5


def test_the_written_configuration_makes_the_same_problem(table, tmp_path):
    experiment = made({**table, "loss": "huber", "missing": 3}, tmp_path)
    again = make_experiment(tomllib.loads(experiment.to_toml()), folder=tmp_path / "elsewhere")
    assert again.digest == experiment.digest
    first, second = experiment.source.make(), again.source.make()
    np.testing.assert_array_equal(first.data.features, second.data.features)
    assert first.loss == second.loss


def test_the_content_counts_and_not_the_place(table, tmp_path):
    digest = made(table, tmp_path).digest
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "other.csv").write_text("\n".join(ROWS) + "\n")
    assert made({**table, "file": "copy/other.csv"}, tmp_path).digest == digest
    (tmp_path / "mine.csv").write_text("\n".join(ROWS[:-1]) + "\n")
    assert made(table, tmp_path).digest != digest


def test_a_file_that_changed_since_is_named(table, tmp_path):
    text = made(table, tmp_path).to_toml()
    (tmp_path / "mine.csv").write_text("\n".join(ROWS[:-1]) + "\n")
    with pytest.raises(ConfigError, match="sha256 differs"):
        make_experiment(tomllib.loads(text))


def test_paths_are_relative_to_the_file_that_names_them(table, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "mine.toml").write_text(
        'rounds = 3\nrepetitions = 2\n[problem]\nfile = "mine.csv"\nagent = "site"\ntarget = "y"\n'
        '[[algorithm]]\nkind = "FedAvg"\nstep_size = 0.01\nnum_active = 2\n'
    )
    results = run_experiment(read_experiment(tmp_path / "mine.toml"), tmp_path / "run")
    assert results.algorithms[0].msd.size == 3
    assert results.config["problem"]["file"] == str(tmp_path / "mine.csv")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"file": "nowhere.csv"}, ["nowhere.csv", "does not exist"]),
        ({"file": 3}, ["file=3", "a path"]),
        ({"agnt": "site"}, ["'agnt'", "'agent'"]),
        ({"task": "regresion"}, ["task='regresion'", "'regression'"]),
        ({"batch_size": 0}, ["batch_size=0"]),
        ({"loss": "hubber"}, ["loss='hubber'", "'huber'"]),
        ({"preset": "paper"}, ["preset", "file", "one of"]),
    ],
)
def test_mistakes_are_named_before_anything_runs(table, tmp_path, change, words):
    with pytest.raises(ConfigError) as caught:
        made({**table, **change}, tmp_path)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("column", "word"), [("agent", "sit"), ("target", "z")])
def test_a_column_that_is_not_there(table, tmp_path, column, word):
    experiment = made({**table, column: word}, tmp_path)
    with pytest.raises(ConfigError, match=f"no column '{word}'"):
        run_experiment(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_sets_have_keys_of_their_own(tmp_path):
    given = {"data": "digits", "num_agents": 10, "partition": {"partition": "shards"}, "ridge": 1}
    source = read_problem(given, tmp_path)
    assert source == Digits(num_agents=10, partition=Shards(per_agent=2), ridge=1.0)
    assert read_problem(source.describe(), tmp_path) == source
    assert source.make().num_agents == 10
    other = read_problem({"data": "breast-cancer", "partition": "iid", "seed": 4}, tmp_path)
    assert other == BreastCancer(partition=Iid(), seed=4)
    assert other.make().loss == Logistic(ridge=1e-2)
    assert Digits().partition == Dirichlet(concentration=0.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": "digit"}, ["data='digit'", "'digits'"]),
        ({"data": "digits", "agents": 3}, ["'agents'"]),
        ({"data": "digits", "partition": "iidd"}, ["partition='iidd'", "'iid'"]),
        ({"data": "digits", "seed": 0.5}, ["seed=0.5"]),
        ({"preset": "paper", "data": "digits"}, ["preset", "data"]),
        ("paper", ["[problem]", "'paper'"]),
    ],
)
def test_data_sets_that_cannot_be(given, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_problem(given, tmp_path)
    for word in words:
        assert word in str(caught.value)


def test_a_data_set_runs_from_a_file(tmp_path):
    results = run_experiment(made({"data": "breast-cancer"}, tmp_path), tmp_path / "run")
    assert results.algorithms[0].msd.size == 3


def test_names_of_the_command_line_are_the_same_problems():
    problem, active = NAMED["breast-cancer"](None)
    assert (problem.num_agents, active) == (20, 2)
    assert set(NAMED) >= {"paper", "equal", "outliers", "ijcnn1", "ijcnn1-natural", "digits"}


def test_a_problem_that_is_there_is_known_by_its_content():
    problem, _ = NAMED["breast-cancer"](None)
    same = Problem(problem.data, problem.loss, batch_size=problem.batch_size, name=problem.name)
    assert Given(problem).describe() == Given(same).describe()
    other = Problem(problem.data, problem.loss, batch_size=1, name=problem.name)
    assert Given(problem).describe() != Given(other).describe()


def test_sources_travel_to_other_processes(table, tmp_path):
    source = made(table, tmp_path).source
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert hash(again) == hash(source)


def test_synthetic_devices_in_a_file():
    given = {"data": "synthetic", "num_agents": 4, "num_features": 3, "num_classes": 3, "seed": 2}
    source = read_problem(given, Path())
    problem = source.make()
    assert (problem.num_agents, problem.num_params) == (4, 12)
    again = read_problem(source.describe(), Path())
    assert again == source
    with pytest.raises(ConfigError, match="alpha=-1"):
        read_problem({"data": "synthetic", "alpha": -1.0}, Path())


def test_data_sets_have_their_names_in_a_process_that_imports_nothing_else():
    code = (
        "from isfed.studies import make_experiment; from isfed.studies.problem_sources import DATA"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*DATA)"], capture_output=True, text=True, check=True
    )
    assert {"ijcnn1", "digits", "breast-cancer", "synthetic", "network"} <= {*done.stdout.split()}
