"""load_results gives back what a run wrote, typed, and names what is wrong with a folder."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from isfed.simulate.simulate_call import simulate
from isfed.studies import StoreError, load_results, make_experiment, run_experiment
from isfed.studies.results_folder import CONFIG, HISTORY, MANIFEST, MEASURES, SUMMARY
from isfed.studies.results_reader import StepSearch


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


def _digit_changed(path):
    """Another number in a file that can still be read."""
    text = path.read_text(encoding="utf-8")
    place = max(place for place, sign in enumerate(text) if sign in "12345678")
    path.write_text(f"{text[:place]}9{text[place + 1 :]}", encoding="utf-8")


@pytest.mark.parametrize("name", [CONFIG, SUMMARY])
def test_a_digit_that_was_changed_after_the_run_is_noticed(small, folder, name):
    before = (folder / name).read_bytes()
    _digit_changed(folder / name)
    with pytest.raises(StoreError, match=f"{name} is not as the run left it.*remove {MANIFEST}"):
        load_results(folder)
    with pytest.raises(StoreError, match=f"{name} is not as the run left it|another configuration"):
        run_experiment(make_experiment(small), folder, resume=True)
    (folder / name).write_bytes(before)
    assert load_results(folder).digest
    _digit_changed(folder / name)
    (folder / MANIFEST).unlink()  # as earlier versions left a folder, or by decision of the user
    assert load_results(folder).digest
    assert run_experiment(make_experiment(small), folder, overwrite=True).digest


def test_tables_that_were_exchanged_removed_or_added_are_noticed(small, folder, tmp_path):
    other = tmp_path / "other"
    run_experiment(make_experiment({**small, "seed": 6}), other)
    mine = (folder / HISTORY).read_bytes()
    (folder / HISTORY).write_bytes((other / HISTORY).read_bytes())  # whose own checksum is right
    with pytest.raises(StoreError, match=f"{HISTORY} is not as the run left it"):
        load_results(folder)
    (folder / HISTORY).unlink()
    with pytest.raises(StoreError, match=f"{HISTORY} is missing"):
        load_results(folder)
    (folder / HISTORY).write_bytes(mine)
    (folder / MEASURES).write_bytes(mine)
    with pytest.raises(StoreError, match=f"{MEASURES} is not as the run left it"):
        load_results(folder)


def test_a_manifest_that_is_damaged_is_named(folder):
    (folder / MANIFEST).write_text("{", encoding="utf-8")
    with pytest.raises(StoreError, match=f"{MANIFEST} is damaged"):
        load_results(folder)


@pytest.mark.parametrize("name", [CONFIG, HISTORY])
def test_damage_is_named(folder, name):
    (folder / MANIFEST).unlink()
    (folder / name).write_bytes(b"\x00\x01")
    with pytest.raises(StoreError, match="damaged"):
        load_results(folder)


def test_a_summary_without_its_keys_is_damage(folder):
    (folder / MANIFEST).unlink()
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
