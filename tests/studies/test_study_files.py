"""Studies as files: several problems, grids of problems, methods in parts, settings and sizes."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from isfed import (
    PAPER,
    Average,
    Clock,
    FedAdam,
    FedAvg,
    Federated,
    HorvitzThompson,
    LocalSteps,
    LookAhead,
    Memory,
    simulate,
)
from isfed.methods.method_wrappers import Served
from isfed.methods.stratified_passes import StratifiedPasses
from isfed.studies import ConfigError, StoreError, make_experiment, run_experiment
from isfed.studies.experiment_config import merged_tables, read_study, study_settings

SMALL = {"preset": "paper", "num_agents": 8, "num_examples": 10, "batch_size": [1, 3]}
STUDY = {
    "rounds": 8, "repetitions": 2, "values": {"step_size": 0.02, "num_active": 3},
    "problem": [
        {"name": "one", "source": SMALL},
        {"name": "two", "rounds": 4, "source": SMALL | {"seed": 1}, "without": ["IS"],
         "own": {"FedAvg": {"num_active": 5}}},
    ],
    "algorithm": [{"name": "FedAvg", "kind": "FedAvg"}, {"name": "IS"}],
}  # fmt: skip
PARTS = {
    "sampler": {"sampler": "stratified-passes", "policy": {"policy": "memory", "floor": 0.2}},
    "estimator": "horvitz-thompson",
    "server": {"server": "average", "by": {"server": "look-ahead", "by": "fed-adam"}},
    "num_active": 3,
    "step_size": 0.02,
}

ON_STEP = {"estimator": "horvitz-thompson", "on": "step"}


def changed(**problem):
    """The study with other keys of its second problem."""
    tables = copy.deepcopy(STUDY)
    tables["problem"][1] |= problem
    return tables


def test_every_problem_is_run_as_by_hand(tmp_path):
    results = run_experiment(make_experiment(STUDY), tmp_path / "run")
    assert [a.name for a in results.algorithms] == ["one: FedAvg", "one: IS", "two: FedAvg"]
    problem = PAPER.replace(num_agents=8, num_examples=10, batch_size=(1, 3)).make(seed=1)
    run = simulate(problem, FedAvg(step_size=0.02, num_active=5), rounds=4, repetitions=2)
    np.testing.assert_array_equal(results["two: FedAvg"].msd, run.msd.mean(axis=0))
    row = results["one: IS"].summary
    assert (row["problem"], row["method"]) == ("one", "IS")
    gain = results["one: FedAvg"].number("msd_db") - row["msd_db"]
    assert row["gain_db"] == pytest.approx(gain)


def test_the_configuration_makes_the_study_again(tmp_path):
    first = make_experiment(STUDY)
    again = make_experiment(first.resolved)
    assert again.digest == first.digest
    assert [t.algorithms for t in again.tasks] == [t.algorithms for t in first.tasks]


def test_a_file_that_changed_after_results_exist_is_refused(tmp_path):
    run_experiment(make_experiment(STUDY), tmp_path / "run")
    other = make_experiment(changed(rounds=5))
    with pytest.raises(StoreError, match="another configuration"):
        run_experiment(other, tmp_path / "run", resume=True)


def test_where_the_data_are_is_no_part_of_the_configuration(tmp_path):
    digests = {
        make_experiment(changed(source={"data": "ijcnn1", "data_dir": str(folder)})).digest
        for folder in (tmp_path / "a", tmp_path / "b")
    }
    assert len(digests) == 1


def test_a_grid_of_problems_puts_seeds_together_unless_its_name_tells_them_apart(tmp_path):
    over = {"num_agents": [6, 8], "seed": [0, 1]}
    source = {key: value for key, value in SMALL.items() if key != "num_agents"}
    tables = {**STUDY, "problem": {**source, "over": over}}
    results = run_experiment(make_experiment(tables), tmp_path / "run")
    names = [a.name for a in results.algorithms]
    assert names == [f"num_agents {k}, {m}" for k in (6, 8) for m in ("FedAvg", "IS")]
    assert len(results["num_agents 6, IS"].repetitions["steady_msd"]) == 4
    apart = make_experiment({**tables, "problem": {**source, "over": over, "name": "{seed}"}})
    assert [task.title for task in apart.tasks] == ["0, ", "1, ", "0, ", "1, "]
    assert {task.seeded for task in apart.tasks} == {""}


def test_a_key_of_an_algorithm_goes_before_the_values_of_all():
    table = {"kind": "FedAvg", "num_active": 2}
    (made,) = make_experiment({**STUDY, "problem": SMALL, "algorithm": [table]}).algorithms.values()
    assert (made.num_active, made.step_size) == (2, 0.02)


def test_a_method_in_parts_is_that_of_its_objects():
    made = make_experiment({"problem": SMALL, "algorithm": [PARTS | {"name": "mine"}]})
    sampler = StratifiedPasses(3, Memory(floor=0.2))
    server = Average(LookAhead(FedAdam()))
    expected = Federated(sampler, LocalSteps(0.02), HorvitzThompson(), server)
    assert made.algorithms == {"mine": expected}
    assert make_experiment(made.resolved).algorithms == {"mine": expected}


def test_a_method_of_a_kind_goes_through_a_server():
    table = {"kind": "FedAvg", "step_size": 0.1, "num_active": 3}
    made = make_experiment({"problem": SMALL, "algorithm": [table | {"server": "fed-adam"}]})
    (method,) = made.algorithms.values()
    assert method == Served(FedAvg(step_size=0.1, num_active=3), FedAdam())
    assert make_experiment(made.resolved).algorithms == made.algorithms


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({**STUDY, "kind": "network"}, "kind='network' is not known; did you mean 'networks'"),
        (changed(without=["FedAvgg"]), "no algorithm is called 'FedAvgg'; did you mean 'FedAvg'"),
        (changed(source={"preset": "papers"}), "preset='papers' is not known"),
        (changed(rounds=0), "rounds=0 must be a whole number >= 1"),
        ({**STUDY, "step_sizes": {"grid": [0.1]}}, "nothing to tune"),
        ({"algorithm": [PARTS | {"sampler": "stratified"}]}, "did you mean 'stratified-passes'"),
        ({"algorithm": [PARTS | {"estimator": ON_STEP}]}, "weights on the change"),
        ({"algorithm": [PARTS | {"serve": "fed-adam"}]}, "unknown key 'serve'"),
    ],
)
def test_mistakes_are_one_line(tables, said):
    with pytest.raises(ConfigError, match=said) as caught:
        make_experiment(tables)
    assert "\n" not in str(caught.value)


def test_the_studies_that_come_with_isfed_make_themselves_again():
    for name in ("regression", "writers", "heterogeneity", "systems"):
        study = read_study(name)
        assert make_experiment(study.resolved).digest == study.digest
    for name in ("classification", "networks"):
        names = {read_study(name, setting=one).name for one in study_settings(name)}
        assert len(names) == len(study_settings(name)) > 1


def test_an_unknown_setting_or_size_is_named():
    with pytest.raises(ConfigError, match="setting='z' is not known"):
        read_study("networks", setting="z")
    with pytest.raises(ConfigError, match="size='quik' is not known; did you mean 'quick'"):
        read_study("systems", size="quik")


def test_rounds_of_trials_are_no_more_than_those_asked_for():
    study = read_study("writers", rounds=40)
    assert (study.rounds, study.resolved["step_sizes"]["rounds"]) == (40, 40)
    assert read_study("writers", rounds=4000).resolved["step_sizes"]["rounds"] == 500


def test_tables_are_merged_by_key_and_by_name():
    given = {"a": {"b": 1, "c": 2}, "list": [{"name": "x", "n": 1}, {"name": "y"}]}
    part = {"a": {"b": 3}, "list": {"x": {"n": 2}}, "new": 4}
    expected = {"a": {"b": 3, "c": 2}, "list": [{"name": "x", "n": 2}, {"name": "y"}], "new": 4}
    assert merged_tables(given, part) == expected


LEVELS = {
    "kind": "levels", "rounds": 12, "repetitions": 1, "seeds": [0, 3], "share": 0.25,
    "start": "optimum",
    "step_sizes": {
        "own": True, "grid": [0.005, 0.02, 0.08], "rounds": 12, "repetitions": 1, "seed": 100,
        "widen": 0, "close": [101, 102],
    },
    "problem": [
        {"name": "one", "source": SMALL, "clock": {"drop": 0.3}, "values": {"num_active": 3}},
        {"name": "two", "source": SMALL | {"seed": 1}, "share": 0.5, "step_sizes": {"close": []},
         "values": {"num_active": 4}},
        {"name": "given", "source": SMALL, "values": {"num_active": 3, "step_size": 0.01}},
    ],
    "algorithm": [{"name": "FedAvg", "kind": "FedAvg"}],
}  # fmt: skip


def test_levels_and_step_sizes_are_those_of_a_literal_search_over_seeds(tmp_path):
    experiment = make_experiment(LEVELS)
    assert make_experiment(experiment.resolved).digest == experiment.digest
    results = run_experiment(experiment, tmp_path / "run")

    def levels(seeds, step, active, share, data=0, clock=None, start=None):
        problem = PAPER.replace(num_agents=8, num_examples=10, batch_size=(1, 3)).make(seed=data)
        start = None if start is None else problem.optimum
        runs = [
            simulate(problem, FedAvg(step_size=step, num_active=active), rounds=12, seed=seed,
                     initial=start, clock=clock)
            for seed in seeds
        ]  # fmt: skip
        return [run.msd[0, -round(12 * share) :].mean() for run in runs]

    def search(close, **cell):
        cell["start"] = "optimum"
        tried = {step: levels([100], step, **cell) for step in (0.005, 0.02, 0.08)}
        if close:
            best = sorted(tried, key=lambda step: tried[step])[:2]
            tried = {step: tried[step] + levels(close, step, **cell) for step in best}
        return {step: np.mean(found) for step, found in tried.items()}

    cells = {
        "one": {"active": 3, "share": 0.25, "clock": Clock(drop=0.3)},
        "two": {"active": 4, "share": 0.5, "data": 1},
    }
    for name, cell in cells.items():
        losses = search((101, 102) if name == "one" else (), **cell)
        found = results.searches[f"{name}: FedAvg"]
        assert found.losses == losses
        assert found.best == min(losses, key=lambda step: losses[step])
        level = levels((0, 3), found.best, start="optimum", **cell)
        assert results[f"{name}: FedAvg"].summary["levels"] == level
    given = levels((0, 3), 0.01, active=3, share=0.25, start="optimum")
    assert results["given: FedAvg"].summary["levels"] == given
    assert list(results.searches) == ["one: FedAvg", "two: FedAvg"]
