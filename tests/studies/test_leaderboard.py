"""The leaderboard: its protocol, its statistics, what goes wrong in it, and running it again."""

from __future__ import annotations

import copy
import json
import math
import sys
import tomllib
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
from small_board import TINY

from isfed.methods.catalogue import Knob
from isfed.methods.uniform_samplers import UniformCohort
from isfed.report.leaderboard_report import leaderboard_figures
from isfed.studies import (
    ConfigError,
    StoreError,
    Workers,
    leaderboard_entries,
    leaderboard_problem,
    load_results,
)
from isfed.studies import leaderboard_scores as scores
from isfed.studies.leaderboard_config import (
    knob_value,
    make_protocol,
    make_trials,
    read_protocol,
)
from isfed.studies.leaderboard_entries import GROUP, PARTS, SAMPLERS, compose, plugin_methods
from isfed.studies.leaderboard_study import Leaderboard, verify
from isfed.studies.study_engine import run_study
from isfed.studies.test_measures import ErrorRates


@pytest.fixture
def tiny() -> dict[str, Any]:
    """The tables of a tiny leaderboard, to change at will."""
    return copy.deepcopy(TINY)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The tiny leaderboard, run once."""
    return run_study(Leaderboard(make_protocol(TINY)), tmp_path_factory.mktemp("board") / "tiny")


def test_the_file_of_the_package_is_a_protocol():
    text = (resources.files("isfed.studies") / "leaderboard.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    protocol = read_protocol()
    assert protocol.methods[0].name == protocol.reference
    assert len(protocol.methods) == len(tables["method"]) >= 40
    assert sum(problem.tuned for problem in protocol.problems) >= 8
    assert protocol.numbers["trials"] == 15
    assert protocol.numbers["seed"] != protocol.numbers["tuning_seed"]
    again = make_protocol(protocol.tables)
    assert again.tables == protocol.tables
    assert {"only those heard", "asks candidates", "all agents in every round", "the solution"} == {
        method.hears for method in protocol.methods
    }


def test_trials_cover_the_decades_and_everybody_has_the_same():
    trials = make_trials(15, -2.0, 2.0)
    logs = np.log10([trial.step for trial in trials])
    assert np.allclose(np.diff(logs), 4.0 / 15.0, atol=1e-3)
    assert logs[0] > -2.0
    assert logs[-1] < 2.0
    places = np.array([trial.places for trial in trials])
    for column in places.T:  # no third of a knob's range is left out
        assert set((3 * column).astype(int)) == {0, 1, 2}


def test_knobs_stay_in_their_ranges():
    log, whole = Knob("a", 1e-3, 10.0), Knob("b", 5, 50, "whole")
    assert [knob_value(log, at, 30, 5) for at in (0.0, 1.0)] == [1e-3, 10.0]
    assert [knob_value(whole, at, 30, 5) for at in (0.0, 1.0)] == [5, 50]
    assert knob_value(Knob("c", 0.1, 1.0, "share of K"), 0.0, 30, 5) == 5
    assert knob_value(Knob("c", 0.1, 1.0, "share of K"), 1.0, 30, 5) == 30


def test_an_end_of_the_range_is_widened_by_a_decade():
    protocol = make_protocol(TINY | {"trials": 15})
    below, above = protocol.wider(15, -1), protocol.wider(15, 1)
    assert 1e-3 < below[0].step < below[-1].step < 1e-2
    assert 1e2 < above[0].step < above[-1].step < 1e3
    assert len(below) == len(above) == 4
    numbers = [t.number for t in (*protocol.trials(15), *above, *below)]
    assert len(set(numbers)) == len(numbers)


def test_costs_are_read_where_the_target_is_reached():
    msd = np.array([[8.0, 4.0, 2.0, 1.0], [8.0, 8.0, 8.0, 8.0], [8.0, 1.0, 1.0, 1.0]])
    levels = np.array([1.0, 8.0, np.inf])  # the last run diverged after it had reached the target
    costs = {"work": np.array([[0.0, 40.0]] * 3)}
    scored = scores.Scored(levels, msd, np.array([0, 4]), costs, np.zeros((3, 1)), ("a", "b", "c"))
    reached = scored.costs_to(2.0)
    assert reached["rounds"].tolist() == [3.0, math.inf, math.inf]
    assert reached["work"].tolist() == [30.0, math.inf, math.inf]
    assert scored.diverged == 1


def test_the_ranking_is_by_the_area_of_the_profile():
    fast, slow = np.array([10.0, 10.0]), np.array([30.0, 30.0])
    never = np.full(2, np.inf)
    ranked = scores.rank([{"slow": slow, "fast": fast, "never": never}], {})
    assert [one.method for one in ranked] == ["fast", "slow", "never"]
    assert ranked[0].score == 1.0
    assert ranked[1].score == pytest.approx(1.0 / 3.0, abs=0.02)  # from 3 to 4 times the best
    assert ranked[2].score == 0.0
    tie = scores.rank([{"a": fast, "b": fast}], {"a": 1.0, "b": 2.0})
    assert [one.method for one in tie] == ["b", "a"]
    # Who did not run on a problem has missed its target there.
    two = scores.rank([{"a": fast, "b": fast}, {"b": fast}], {})
    assert [one.score for one in two] == [1.0, 0.5]


def test_intervals_cover_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        found = scores.paired(1.0 + rng.standard_normal(20))
        covered += found.low <= 1.0 <= found.high
    assert abs(covered / 200 - 0.95) < 4.0 * math.sqrt(0.95 * 0.05 / 200)  # its standard error
    same = scores.paired(np.full(5, 2.0))
    assert (same.low, same.high, same.p) == (2.0, 2.0, 1.0)
    assert scores.paired(np.zeros(5)).p == 1.0


def test_effects_of_a_made_up_factorial():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(40)
    gain = {"a0": 0.0, "a1": 3.0, "b0": 0.0, "b1": 1.0}
    cells = {
        (a, b): noise + 0.1 * rng.standard_normal(40) - gain[a] - gain[b] - 2.0 * (a + b == "a1b1")
        for a in ("a0", "a1")
        for b in ("b0", "b1")
    }
    factors = {"sampler": ["a0", "a1"], "server": ["b0", "b1"]}
    mains = scores.effects(cells, factors, 1)
    assert mains["sampler", "a1"].mean == pytest.approx(4.0, abs=0.1)  # 3, and half of 2
    assert mains["server", "b1"].mean == pytest.approx(2.0, abs=0.1)
    pair = scores.effects(cells, factors, 2)["sampler", "a1", "server", "b1"]
    assert pair.mean == pytest.approx(2.0, abs=0.1)
    assert pair.clear
    assert pair.p < 1e-6
    del cells["a1", "b1"]  # a combination that does not exist is left out of both
    assert scores.effects(cells, factors, 1)["sampler", "a1"].mean == pytest.approx(3.0, abs=0.1)
    assert scores.effects(cells, factors, 2) == {}


def test_parts_that_do_not_fit_are_refused_by_the_composition():
    protocol = make_protocol(TINY)
    refused = [parts for method, parts, _ in protocol.combinations() if method is None]
    assert {tuple(parts[key] for key in PARTS)[:2] for parts in refused} == {
        ("shuffled passes", "control variates")
    }
    with pytest.raises(ValueError, match="cohorts of fixed size"):
        compose(refused[0], step_size=0.1, num_active=2, rounds=10)


def test_a_leaderboard_has_all_its_tables(results):
    summary = results.summary
    assert results.kind == "leaderboard"
    assert [row["method"] for row in summary["algorithms"]] == [
        "FedAvg with 1/E_k", "ISFedAvg", "PowerOfChoice",
    ]  # fmt: skip
    assert [(a["method"], a["problem"]) for a in summary["absent"]] == [
        ("HiCSFL", "outliers"), ("HiCSFL", "paper"),
    ]  # fmt: skip
    assert "softmax" in summary["absent"][0]["reason"]
    assert {(r["axis"], r["hears"]) for r in summary["rankings"]} == {
        (axis, hears) for axis in scores.AXES for hears in ("only those heard", "asks candidates")
    }
    assert {row["problem"] for row in summary["untuned"]} == {"outliers", "paper"}
    assert len(summary["factorial"]["combinations"]) == 6
    assert len(summary["factorial"]["against"]) == 3
    assert any("best combination" in line for line in summary["factorial"]["sentences"])
    for row in summary["algorithms"]:
        assert row["costs"]["work"] > 0
        assert row["costs"]["seconds"] > 0
        assert len(row["tried"]) >= 3


def test_a_combination_that_is_refused_is_no_effect_of_its_parts(tiny, tmp_path):
    """Points that are spread need to know how long a step is, which a plain mean does not."""
    tiny |= {"method": tiny["method"][1:2], "problem": tiny["problem"][:1]}
    tiny["factorial"] |= {
        "sampler": ["uniform", "spread by score"], "estimator": ["Horvitz-Thompson", "plain mean"],
        "server": ["plain"],
    }  # fmt: skip
    results = run_study(Leaderboard(make_protocol(tiny)), tmp_path / "out")
    factorial = results.summary["factorial"]
    (refused,) = factorial["refused"]
    assert (refused["sampler"], refused["estimator"]) == ("spread by score", "plain mean")
    assert "needs step sizes" in refused["reason"]
    assert len(factorial["combinations"]) == 3
    assert factorial["interactions"] == []


def test_a_combination_that_raises_is_listed_and_the_others_go_on(tiny, tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Leaves(UniformCohort):
        def draw(self, state, facts, agents, params, round_index):
            if round_index == 5:
                raise RuntimeError("nobody is here")
            return super().draw(state, facts, agents, params, round_index)

    monkeypatch.setitem(SAMPLERS, "leaves", lambda num, rounds: Leaves(num))
    tiny |= {"method": tiny["method"][1:2], "problem": tiny["problem"][:1]}
    tiny["factorial"] |= {"sampler": ["uniform", "leaves"], "estimator": ["plain mean"]}
    results = run_study(Leaderboard(make_protocol(tiny)), tmp_path / "out")
    factorial = results.summary["factorial"]
    assert {(one["sampler"], one["server"]) for one in factorial["refused"]} == {
        ("leaves", "plain"), ("leaves", "average"),
    }  # fmt: skip
    for one in factorial["refused"]:
        assert one["reason"].startswith("it raised RuntimeError: nobody is here")
        assert f"{__file__}, line" in one["reason"]
    assert {one["sampler"] for one in factorial["combinations"]} == {"uniform"}
    assert [one["level"] for one in factorial["effects"]] == ["average"]


def test_untuned_compositions_get_the_step_of_divided_steps(results):
    steps = {row["method"]: row["step_size"] for row in results.summary["untuned"]}
    assert steps["FedAvg with 1/E_k"] > steps["PowerOfChoice"]  # its steps are not divided


def test_errors_on_rows_held_apart_stand_beside_the_distance(tiny, monkeypatch):
    tiny["problem"] = [{"name": "cancer", "num_active": 2, "source": {"data": "breast-cancer"}}]
    protocol = make_protocol(tiny)
    (one,) = protocol.problems
    data = one.problem.data
    x, y = data.features[::3], data.targets[::3]
    rates = ErrorRates(x, y, every=1)
    monkeypatch.setattr(leaderboard_problem, "problem_of", lambda source: (one.problem, rates))
    board = leaderboard_problem.Board(protocol, one, [])
    params = np.stack([one.problem.optimum, np.zeros(30), np.full(30, np.nan)])
    scored = scores.Scored(
        np.array([0.0, 1.0, np.inf]), np.ones((3, 8)), np.array([0, 8]), {}, params, ("",) * 3
    )
    row = board._beside(scored)
    wrong = np.array([(x @ w > 0.0) != (y > 0.0) for w in params[:2]])  # the last one diverged
    assert row["test_error"] == pytest.approx(wrong.mean())
    by_class = [wrong[:, y == label].mean() for label in (-1.0, 1.0)]
    assert row["balanced_error"] == pytest.approx(np.mean(by_class))
    facts = board.facts()
    assert facts["majority_error"] == pytest.approx(min((y > 0).mean(), (y < 0).mean()))
    assert facts["chance_error"] == 0.5


def test_step_sizes_below_one_are_drawn(results):
    for figure in leaderboard_figures(results):
        for series in figure.series:
            assert series.x.min() >= 0.0  # where horizontal axes begin


def test_random_runs_are_the_same_again(results):
    assert [same for *_, same in verify(results, 4, 1)] == [True] * 4


def test_a_run_that_differs_is_found(results, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in results.path.iterdir():
        if path.is_file() and path.name != "manifest.json":
            (folder / path.name).write_bytes(path.read_bytes())
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for run in summary["runs"].values():
        run["prints"] = ["0" * 16 for _ in run["prints"]]
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert [same for *_, same in verify(load_results(folder), 2, 0)] == [False, False]


def _files(folder) -> dict[str, bytes]:
    skip = ("times.json", ".lock")
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name not in skip}


class StopAfter:
    """Progress that ends the run in the middle."""

    def __init__(self, work: int) -> None:
        self.left = work

    def begin(self, name: str, work: int, done: int) -> None:
        """Nothing to say."""

    def advance(self, work: int) -> None:
        """End the run when so much is done."""
        self.left -= work
        if self.left < 0:
            raise KeyboardInterrupt


def test_threads_leave_the_same_files(results, tmp_path):
    threads = Workers(backend="threading", jobs=2)
    run_study(Leaderboard(make_protocol(TINY)), tmp_path / "tiny", workers=threads)
    assert _files(tmp_path / "tiny") == _files(results.path)


@pytest.mark.parametrize("work", [50, 500, 1000, 1500])
def test_stopped_and_resumed_is_the_same(results, tmp_path, work):
    study, folder = Leaderboard(make_protocol(TINY)), tmp_path / "tiny"
    with pytest.raises(KeyboardInterrupt):
        run_study(study, folder, progress=StopAfter(work))
    assert not (folder / "summary.json").exists()
    run_study(study, folder, resume=True)
    assert _files(folder) == _files(results.path)


def test_a_changed_file_is_refused_after_results_exist(results, tiny):
    tiny["rounds"] = 50
    with pytest.raises(StoreError, match="another configuration"):
        run_study(Leaderboard(make_protocol(tiny)), results.path, resume=True)


PLUGIN = """
from dataclasses import dataclass
import numpy as np
from isfed.methods.method_protocol import Method, ModelState

@dataclass(frozen=True, kw_only=True)
class {name}(Method):
    step_size: float
    num_active: int = 2

    def round(self, state, agents, round_index):
        {body}
        return ModelState(state.params)
"""


def _with_plugin(tiny, tmp_path, monkeypatch, name: str, body: str):
    """The tiny leaderboard with a method from a file."""
    path = tmp_path / f"plugin_{name.lower()}.py"
    path.write_text(PLUGIN.format(name=name, body=body), encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    tiny |= {"method": tiny["method"][:2], "problem": tiny["problem"][:1]}
    tiny.pop("factorial")
    import tomli_w

    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(tiny), encoding="utf-8")
    protocol = read_protocol(file, plugins=[str(path)])
    return path, run_study(Leaderboard(protocol), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("Raises", "1 / (0 if round_index > 3 else 1)", "ZeroDivisionError"),
        ("Nans", "state.params[:] = np.nan if round_index > 3 else 0.0", "diverged"),
        (
            "Hides",
            "agents.ledger.charge(gradients=-90 if round_index == 20 else 5)",
            "the ledger",
        ),
    ],
)
def test_a_bad_method_is_named_and_the_others_go_on(tiny, tmp_path, monkeypatch, name, body, words):
    path, results = _with_plugin(tiny, tmp_path, monkeypatch, name, body)
    rows = {row["method"]: row for row in results.summary["algorithms"]}
    assert rows[name]["diverged_runs"] == 3
    assert words in rows[name]["reason"]
    assert rows["ISFedAvg"]["diverged_runs"] == 0
    if name == "Raises":
        assert f"{path}, line 12" in rows[name]["reason"]


def test_a_method_of_ones_own_takes_part(tiny, tmp_path, monkeypatch):
    _, results = _with_plugin(tiny, tmp_path, monkeypatch, "Stays", "pass")
    row = next(r for r in results.summary["algorithms"] if r["method"] == "Stays")
    assert row["diverged_runs"] == 0
    assert row["level_db"] == pytest.approx(results.summary["problems"][0]["start_db"])
    assert [same for *_, same in verify(results, 3, 0)] == [True] * 3
    changed = dict(results.config)
    changed["method"] = [m | ({"plugin": "0" * 16} if "plugin" in m else {}) for m in
                         changed["method"]]  # fmt: skip
    study = Leaderboard(make_protocol(changed))
    with pytest.raises(StoreError, match="another configuration"):
        run_study(study, results.path, resume=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def f(:\n", "line 1"),
        ("import nowhere_at_all\n", "ModuleNotFoundError"),
        ("x = 1\n", "has no method"),
    ],
)
def test_a_wrong_plugin_is_refused_with_its_file(tmp_path, monkeypatch, content, words):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / f"wrong_{abs(hash(content))}.py"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="--plugin") as error:
        read_protocol(plugins=[str(path)])
    assert words in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nowhere_at_all:Thing", "ModuleNotFoundError"),
        ("json:JSONDecoder", "json:JSONDecoder lacks name"),
        ("json:dumps", "lacks a class"),
    ],
)
def test_a_method_may_be_an_entry_point(monkeypatch, value, words):
    points = [EntryPoint("good", "isfed:FedProx", GROUP), EntryPoint("bad", value, GROUP)]
    monkeypatch.setattr(leaderboard_entries, "entry_points", lambda group: points)
    (table,) = plugin_methods(["good"])
    assert table == {"kind": "FedProx", "name": "FedProx", "plugin": "isfed:FedProx"}
    with pytest.raises(ConfigError, match="--plugin bad: ") as error:
        plugin_methods(["bad"])
    assert words in str(error.value)
    with pytest.raises(ConfigError, match="did you mean 'good'"):
        plugin_methods(["goood"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tuning_seed": 7}, "scoring seed"),
        ({"reference": "FedAv"}, "reference='FedAv' is no method"),
        ({"decades": 0}, "decades=0"),
        ({"method": [{"kind": "FedAgv"}]}, "did you mean 'FedAvg'"),
        ({"problem": [{"name": "x", "num_active": 1, "source": {"data": "ijcn1"}}]}, "ijcnn1"),
        ({"factorial": {**TINY["factorial"], "server": ["plane"]}}, "did you mean 'plain'"),
        ({"trials": 0}, "trials=0"),
        ({"problem": [{"name": "x", "num_active": 1}]}, "[[problem]] needs a key 'source'"),
        ({"factorial": {"sampler": ["uniform"]}}, "[factorial] needs a key 'estimator'"),
    ],
)
def test_a_wrong_file_is_said_in_one_line(tiny, change, words):
    with pytest.raises(ConfigError) as error:
        make_protocol(tiny | change)
    assert words in str(error.value)


def test_unknown_names_on_the_command_line():
    with pytest.raises(ConfigError, match="problem 'digts' is not known; did you mean 'digits'"):
        read_protocol(problems=["digts"])
    with pytest.raises(ConfigError, match="did you mean 'SCAFFOLD'"):
        read_protocol(methods=["SCAFOLD"])
    with pytest.raises(ConfigError, match=r"neither a \.py file nor an entry point"):
        read_protocol(plugins=["nobody"])
