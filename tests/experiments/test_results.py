"""load_results gives back what a run wrote, typed, and names what is wrong with a folder."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from isfed.experiments import StoreError, load_results, make_experiment, run_experiment
from isfed.experiments.folder import CONFIG, HISTORY, SUMMARY
from isfed.experiments.results import StepSearch
from isfed.simulate.run import simulate


@pytest.fixture
def folder(small, tmp_path):
    run_experiment(make_experiment(small), tmp_path / "run")
    return tmp_path / "run"


def test_the_histories_are_those_of_simulate(small, folder):
    experiment = make_experiment(small)
    results = load_results(folder)
    problem = experiment.source.make()
    for name, algorithm in experiment.algorithms.items():
        history = simulate(problem, algorithm, rounds=60, repetitions=3, seed=5)
        found = results[name]
        np.testing.assert_array_equal(found.msd, history.mean)
        np.testing.assert_array_equal(found.msd_stderr, history.stderr)
        np.testing.assert_array_equal(found.msd_q90, np.quantile(history.msd, 0.9, axis=0))
        weight = history.watched("largest_weight").mean(axis=0)
        np.testing.assert_array_equal(found.telemetry["largest_weight"], weight)
        steady = history.msd[:, -15:].mean(axis=1)
        np.testing.assert_array_equal(found.repetitions["steady_msd"], steady)
        assert found.summary["msd_db"] == history.steady().db
        assert found.summary["gradients_per_round"] == history.gradients.mean() / 60
        assert found.seconds > 0.0


def test_what_else_is_there(small, folder):
    results = load_results(str(folder))
    assert (results.kind, results.name) == ("experiment", "small")
    assert results.digest == make_experiment(small).digest
    assert results.config["problem"]["num_agents"] == 20
    assert results.made_with.keys() >= {"isfed", "numpy", "numba"}
    with pytest.raises(KeyError, match="'FedAvg', 'ISFedAvg, memory'"):
        results["FedProx"]


def test_folders_that_are_not_there(tmp_path):
    with pytest.raises(StoreError, match="not there"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="not a results folder"):
        load_results(tmp_path)


@pytest.mark.parametrize("name", [CONFIG, HISTORY])
def test_damage_is_named(folder, name):
    (folder / name).write_bytes(b"\x00\x01")
    with pytest.raises(StoreError, match="damaged"):
        load_results(folder)


def test_a_summary_without_its_keys_is_damage(folder):
    summary = json.loads((folder / SUMMARY).read_text())
    del summary["made_with"]
    (folder / SUMMARY).write_text(json.dumps(summary))
    with pytest.raises(StoreError, match="made_with"):
        load_results(folder)


def test_infinity_is_null_in_the_file():
    search = StepSearch.of({0.1: 2.0, 0.5: 1.0, 1.0: math.inf})
    assert search.best == 0.5
    assert not search.at_edge
    assert search.as_dict()["losses"] == [[0.1, 2.0], [0.5, 1.0], [1.0, math.inf]]
    assert StepSearch.of({0.1: 1.0, 0.5: 2.0}).at_edge
