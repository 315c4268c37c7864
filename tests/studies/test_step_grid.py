"""`[step_sizes]`: the best step of a grid is that of least loss on rows that nothing else uses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from isfed import FedAvg, simulate
from isfed.studies import ConfigError, load_results, make_experiment, run_experiment
from isfed.studies.held_out_error import Kept, split
from isfed.studies.results_folder import TIMES
from isfed.studies.step_grid import HeldRows
from isfed.studies.work_cells import problem_of

GRID = {"grid": [0.005, 0.02, 0.08], "repetitions": 2, "rounds": 20, "widen": 0}
PROBLEM = {"preset": "paper", "num_agents": 8, "num_examples": 12}
FEDAVG = {"kind": "FedAvg", "num_active": 3}
TOP = {"rounds": 30, "repetitions": 2, "problem": PROBLEM, "step_sizes": GRID}


def test_the_chosen_step_is_that_of_a_literal_search(tmp_path):
    experiment = make_experiment(TOP | {"algorithm": [FEDAVG]})
    search = run_experiment(experiment, tmp_path / "run").searches["FedAvg"]
    problem, _ = problem_of(experiment.source)
    rest = split(problem, 0, agents=False).training
    parts = split(rest, 1, agents=False)
    x, y = parts.rows
    for step, loss in search.losses.items():
        # Measured in rounds 0 to 20, of which the last quarter (5 of 21) decides.
        literal = []
        for last in range(16, 21):
            run = simulate(
                parts.training, FedAvg(step_size=step, num_active=3), rounds=last, repetitions=2
            )
            literal += [np.mean(problem.loss.values(w, x, y)) for w in run.params]
        assert loss == pytest.approx(np.mean(literal), rel=1e-12)
    assert search.best == min(search.losses, key=lambda step: search.losses[step])


def test_an_algorithm_with_a_step_size_keeps_it(tmp_path):
    fixed = FEDAVG | {"name": "fixed", "step_size": 0.03}
    experiment = make_experiment(TOP | {"algorithm": [FEDAVG, fixed]})
    assert experiment.tasks[0].tuned == ("FedAvg",)
    results = run_experiment(experiment, tmp_path / "run")
    assert results["fixed"].step_size == 0.03
    assert results["FedAvg"].step_size == results.searches["FedAvg"].best
    assert list(results.searches) == ["FedAvg"]


def test_the_run_is_that_of_the_step_by_hand(tmp_path):
    tuned = run_experiment(make_experiment(TOP | {"algorithm": [FEDAVG]}), tmp_path / "tuned")
    given = FEDAVG | {"step_size": tuned["FedAvg"].step_size}
    by_hand = {key: value for key, value in TOP.items() if key != "step_sizes"}
    fixed = run_experiment(make_experiment(by_hand | {"algorithm": [given]}), tmp_path / "fixed")
    assert np.array_equal(tuned["FedAvg"].msd, fixed["FedAvg"].msd)


def test_the_configuration_makes_the_same_experiment_again():
    first = make_experiment(TOP | {"algorithm": [FEDAVG]})
    assert "step_size" not in first.resolved["algorithm"][0]
    assert make_experiment(first.resolved).digest == first.digest


def test_rows_that_decide_are_not_those_that_test(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["site,a,b,y"]
    for row in range(90):
        a, b = rng.normal(size=2)
        lines.append(f"{row % 3},{a:.6f},{b:.6f},{'yes' if a + b > 0 else 'no'}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    problem = {"file": "rows.csv", "agent": "site", "target": "y", "task": "classification"}
    given = TOP | {"problem": problem, "algorithm": [FEDAVG]}
    experiment = make_experiment(given, folder=tmp_path)
    tests = {tuple(row) for row in split(problem_of(experiment.source)[0], 0, agents=False).rows[0]}
    held = HeldRows(experiment.source, 0, 1)
    decide = {tuple(row) for row in held.rows[0]}
    train = {tuple(row) for row in held.make().data.features}
    kept = {tuple(row) for row in Kept(experiment.source, 0, agents=False).make().data.features}
    assert decide
    assert train
    assert not (decide & tests)
    assert not (decide & train)
    assert not (train & tests)
    assert decide | train == kept
    summary = run_experiment(experiment, tmp_path / "run").summary
    assert summary["held_out"]["FedAvg"]["rows"]["examples"] == len(tests)


@pytest.mark.parametrize(
    ("grid", "algorithm", "words"),
    [
        ({"grid": []}, {}, "rising order"),
        ({"grid": [0.2, 0.1]}, {}, "rising order"),
        ({"grid": [0.0, 0.1]}, {}, "rising order"),
        ({"grid": [0.1, float("inf")]}, {}, "rising order"),
        ({"grid": "wide"}, {}, "must be a list"),
        ({"grid": [0.1, "x"]}, {}, "must be a list"),
        ({}, {}, "needs a key 'grid'"),
        ({"grid": [0.1], "round": 3}, {}, "did you mean 'rounds'"),
        ({"grid": [0.1], "rounds": 0}, {}, "rounds=0"),
        ({"grid": [0.1], "widen": -1}, {}, "widen=-1"),
        ({"grid": [0.1]}, {"step_size": 0.1}, "nothing to tune"),
        ({"grid": [0.1]}, {"kind": "FedAvgg"}, "FedAvg"),
    ],
)
def test_what_is_wrong_is_named(grid, algorithm, words):
    with pytest.raises(ConfigError, match=words):
        make_experiment(TOP | {"step_sizes": grid, "algorithm": [FEDAVG | algorithm]})


def test_agents_with_too_few_rows_are_refused(tmp_path):
    few = TOP | {"problem": PROBLEM | {"num_examples": 3}, "algorithm": [FEDAVG]}
    with pytest.raises(ConfigError, match="7 or more rows"):
        run_experiment(make_experiment(few), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_slow_methods_run_last_after_a_preview_and_change_nothing(tmp_path):
    current = {"agents": "current", "examples": "current"}
    methods = [{"name": "slow", **current}, FEDAVG, {"name": "ours"}]
    methods = [{"step_size": 0.01, "num_active": 3, **method} for method in methods]
    given = {key: value for key, value in TOP.items() if key != "step_sizes"}
    experiment = make_experiment(given | {"algorithm": methods})
    shown = []
    with_preview = run_experiment(experiment, tmp_path / "with", preview=shown.append)
    run_experiment(experiment, tmp_path / "without")
    for path in (tmp_path / "without").rglob("*.*"):
        if path.name not in (TIMES, ".lock"):
            same = tmp_path / "with" / path.relative_to(tmp_path / "without")
            assert path.read_bytes() == same.read_bytes(), path.name
    (preview,) = shown
    assert [row.name for row in preview.algorithms] == ["FedAvg", "ours"]
    assert [row.name for row in with_preview.algorithms] == ["slow", "FedAvg", "ours"]
    for row in preview.algorithms:
        known = load_results(tmp_path / "with")[row.name]
        assert np.array_equal(row.msd, known.msd)
        assert row.number("msd_db") == known.number("msd_db")
        assert row.rounds_per_second > 0.0
    assert json.dumps(preview.config) == json.dumps(experiment.resolved)
