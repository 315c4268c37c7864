"""The registry: one line gives a method a name, and its record says what its keys are."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tomli_w

import isfed
from isfed import (
    Deville,
    FedAvg,
    ISFedAvg,
    LocalPivotal,
    Memory,
    Method,
    Policy,
    Spread,
    Systematic,
)
from isfed.base.import_by_name import allowing
from isfed.federation.agents import TrainRequest
from isfed.sampling.designs import ALL_DESIGNS, SPREAD_DESIGNS
from isfed.studies import ConfigError, make_experiment, register, run_experiment
from isfed.studies.config_schema import arguments, expected_value, read_value, write_value
from isfed.studies.name_registry import (
    DESIGNS,
    LOSSES,
    METHODS,
    POLICIES,
    Registry,
    method_keys,
    read_algorithm,
    write_algorithm,
)
from isfed.studies.neural_network_config import NetworkData
from isfed.studies.results_folder import fingerprint


@dataclass(frozen=True, kw_only=True)
class Everybody(Method):
    """Gradient descent with all agents: the smallest method of one's own."""

    step_size: float
    shrink: float = 1.0
    mode: Literal["plain", "fancy"] = "plain"
    weights: Sequence[float] = ()
    nudge: Policy | None = None

    def round(self, state, agents, round_index):
        """All agents take their steps; the mean of their changes moves the model."""
        import numpy as np

        everybody = np.arange(agents.num_agents)
        step = np.full(agents.num_agents, self.step_size)
        uploads = agents.work(TrainRequest(everybody, state.params, step), round_index)
        return state._replace(params=state.params + self.shrink * uploads.changes.mean(axis=0))


@pytest.fixture(autouse=True)
def _forget():
    known = dict(METHODS._known)
    yield
    METHODS._known = known


def test_one_line_and_a_method_runs_from_a_file(small, tmp_path):
    register("Everybody", Everybody)
    small["algorithm"].append({"kind": "Everybody", "step_size": 0.01, "weights": [1, 2.5]})
    experiment = make_experiment(small)
    table = experiment.resolved["algorithm"][2]
    assert table == {
        "name": "Everybody", "kind": "Everybody", "step_size": 0.01, "shrink": 1.0,
        "mode": "plain", "weights": [1.0, 2.5],
    }  # fmt: skip
    results = run_experiment(experiment, tmp_path / "run")
    msd = results["Everybody"].msd
    assert msd[-1] < msd[0]
    assert results["Everybody"].summary["agent_distance"] is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["needs a key 'step_size'", "a number"]),
        ({"step_size": "fast"}, ["step_size='fast'", "a number"]),
        ({"step_size": True}, ["step_size=True"]),
        ({"step_size": 1, "shrnk": 2}, ["'shrnk'", "'shrink'"]),
        ({"step_size": 1, "mode": "fanzy"}, ["mode='fanzy'", "'fancy'"]),
        ({"step_size": 1, "mode": 7}, ["mode=7", "'plain' or 'fancy'"]),
        ({"step_size": 1, "weights": 3}, ["weights=3", "a list, each entry a number"]),
        ({"step_size": 1, "weights": ["a"]}, ["weights=['a']", "a list, each entry a number"]),
        ({"step_size": 1, "nudge": "memori"}, ["nudge.policy='memori'", "'memory'"]),
    ],
)
def test_mistakes_name_the_key_what_was_given_and_the_nearest(given, words):
    register("Everybody", Everybody)
    with pytest.raises(ConfigError) as caught:
        read_algorithm({"kind": "Everybody", **given}, where="algorithm 3")
    message = str(caught.value)
    assert "algorithm 3" in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_name_is_given_once():
    register("FedAvg", FedAvg)
    with pytest.raises(ValueError, match="'FedAvg' is already registered"):
        register("FedAvg", ISFedAvg)


# What each method must be told beside a step size of 0.01 and 3 agents a round.
NEEDED: dict[str, dict[str, Any]] = {
    "KAVG": {"steps": 2}, "PeriodicAveraging": {"steps": 2},
    "StichSGD": {"strong": 5.0, "shift": 100.0},
    "HierFAVG": {"edges": 3}, "FedCS": {"deadline": 30.0}, "HiCSFL": {"output_layer": [1, 1]},
}  # fmt: skip
MORE = [
    {"kind": "CooperativeSGD", "name": "a ring", "mixing": "ring"},
    {"kind": "CooperativeSGD", "name": "an anchor", "auxiliary": 1,
     "mixing": {"matrix": "elastic", "pull": 0.05}},
    {"kind": "HierFAVG", "name": "groups", "edges": [[*range(5)], [*range(5, 20)]]},
    {"kind": "LocalGD", "name": "unequal", "steps": [1, 2] * 10},
    {"kind": "ISFedAvg", "name": "corrected", "correction": {"kind": "difference"}},
    {"kind": "ISFedAvg", "name": "steered", "correction": "drift"},
    {"kind": "ISFedAvg", "name": "a gain", "correction": {"kind": "drift", "gain": 0.1}},
    {"kind": "ISFedAvg", "name": "spread", "agent_design": "spread"},
    {"kind": "ISFedAvg", "name": "apart", "agent_design":
     {"design": "spread", "by": "local-pivotal", "sketch": 2, "every": 2}},
    {"kind": "ISFedAvg", "name": "places", "agent_design":
     {"design": "local-pivotal", "points": [[k, k * k] for k in range(20)]}},
]  # fmt: skip


def _table(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    usual = {"step_size": 0.01, "num_active": 3}
    return {"kind": kind, **{k: v for k, v in usual.items() if k in method_keys(kind)}, **given}


def test_every_method_that_is_exported_has_a_name():
    # What goes around a method is none, and neither are parts.
    parts = (
        "method_wrappers", "by_score", "control_variates", "estimators", "federated", "local_steps",
        "passes_over_agents", "stratified_passes", "servers",
    )  # fmt: skip
    others = {f"methods.{name}" for name in parts}
    exported = {
        name
        for name, home in isfed._homes().items()
        if home.startswith("methods") and home not in others
    }
    assert exported - {"Algorithm", "Method", "ModelState"} == set(METHODS)


def test_every_method_runs_from_a_file_and_its_table_makes_it_again(small, tmp_path):
    tables = [_table(kind, NEEDED.get(kind, {})) for kind in METHODS]
    tables += [_table(given["kind"], given) for given in MORE]
    small |= {"algorithm": tables, "rounds": 3, "repetitions": 2}
    experiment = make_experiment(small)
    again = make_experiment(tomllib.loads(experiment.to_toml()))
    assert again.resolved == experiment.resolved
    assert again.algorithms == experiment.algorithms
    assert again.digest == experiment.digest
    results = run_experiment(experiment, tmp_path / "run")
    assert len(results.algorithms) == len(tables)
    assert len({fingerprint("x", table) for table in experiment.resolved["algorithm"]}) == len(
        tables
    )
    for algorithm in results.algorithms:
        assert np.isfinite(algorithm.msd).all(), algorithm.name
        assert algorithm.summary["gradients_per_round"] > 0
    for name, algorithm in experiment.algorithms.items():  # also one that no file made
        assert tomli_w.dumps(write_algorithm(name, algorithm))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "FedCS", "deadline": 0.001}, ["FedCS", "deadline=0.001", "no agent meets it"]),
        ({"kind": "HierFAVG", "edges": 30}, ["HierFAVG", "edges=30 exceeds num_agents=20"]),
        ({"kind": "LocalSGD", "steps": [1, 2]}, ["LocalSGD", "2 numbers for num_agents=20"]),
        (
            {"kind": "DecentralisedSGD", "mixing": {"matrix": "graph", "rows": [[1.0]]}},
            ["DecentralisedSGD", "shape (1, 1)"],
        ),
        (
            {"kind": "DecentralisedSGD", "mixing": {"matrix": "graph", "rows": [[1, 0], [1]]}},
            ["algorithm 1", "row 1 of the mixing matrix has 1 numbers"],
        ),
        ({"kind": "DecentralisedSGD", "mixing": "rng"}, ["mixing.matrix='rng'", "'ring'"]),
    ],
)
def test_what_a_method_cannot_do_on_a_problem_is_said_before_the_folder_is_made(
    small, tmp_path, given, words
):
    small["algorithm"] = [_table(given["kind"], given)]
    with pytest.raises(ConfigError) as caught:
        run_experiment(make_experiment(small), tmp_path / "run")
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_everything_that_is_there_has_a_name():
    assert set(DESIGNS.values()) == {*ALL_DESIGNS, *SPREAD_DESIGNS}
    assert set(POLICIES) == {"uniform", "oracle", "current", "running", "memory"}
    assert set(LOSSES) == {"least-squares", "huber", "logistic", "softmax"}


@pytest.mark.parametrize("registry", [DESIGNS, POLICIES, LOSSES])
def test_what_is_written_makes_it_again(registry: Registry):
    for name in registry:
        made = registry.read({registry.word: name} | _needed(registry, name), "here")
        again = registry.read(registry.write(made), "here")
        assert again == made


def _needed(registry: Registry, name: str) -> dict[str, Any]:
    return {"num_classes": 3} if name == "softmax" else {}


@pytest.mark.parametrize(
    ("table", "design"),
    [
        ("spread", Spread()),
        ({"design": "spread", "every": 7}, Spread(every=7)),
        ({"design": "spread", "by": "systematic"}, Spread(Systematic())),
        ({"design": "spread", "by": {"design": "deville"}, "sketch": 3}, Spread(Deville(), 3)),
        ({"design": "spread", "by": "local-pivotal"}, Spread(LocalPivotal())),
        ({"design": "local-pivotal", "points": [[1, 2], [3, 4]]}, LocalPivotal([[1, 2], [3, 4]])),
    ],
)
def test_a_file_names_spreads(table, design):
    given = {"step_size": 0.1, "num_active": 1, "agent_design": table}
    _, algorithm, again = read_algorithm(given, where="x")
    assert algorithm.agent_design == design
    assert read_algorithm(tomllib.loads(tomli_w.dumps(again)), where="x")[1] == algorithm


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"agent_design": {"design": "spread", "by": "poisson"}}, ["Deville()", "LocalPivotal()"]),
        ({"agent_design": {"design": "spread", "by": "devile"}}, ["'devile'", "'deville'"]),
        ({"agent_design": {"design": "spread", "evry": 3}}, ["'evry'", "'every'"]),
        ({"agent_design": {"design": "spread", "every": 0}}, ["every=0"]),
        ({"agent_design": {"design": "deville", "by": "deville"}}, ["'by'", "(deville)"]),
        ({"agent_design": "local-pivotal"}, ["needs points", "Spread(LocalPivotal())"]),
        (
            {"agent_design": {"design": "local-pivotal", "points": [[1, 2], [3]]}},
            ["rows of equal length", "[[1, 2], [3]]"],
        ),
        ({"correction": "drif"}, ["'drif'", "'drift'"]),
        ({"correction": {"kind": "drift", "gain": 2}}, ["gain=2", "between 0 and 1"]),
        ({"correction": {"kind": "drift", "gian": 0.1}}, ["'gian'", "'gain'"]),
        ({"correction": {"gain": 0.1}}, ["needs a key 'kind'"]),
    ],
)
def test_mistakes_in_a_spread_or_a_correction_are_named(given, words):
    with pytest.raises(ConfigError) as caught:
        read_algorithm({"step_size": 0.1, "num_active": 2, **given}, where="algorithm 1")
    assert "\n" not in str(caught.value)
    for word in ("algorithm 1", *words):
        assert word in str(caught.value)


def test_an_algorithm_without_a_name_is_described_all_the_same():
    table = write_algorithm("mine", Everybody(step_size=0.5))
    assert table["kind"] == "Everybody"
    assert "step_size=0.5" in table["record"]
    assert write_algorithm("x", ISFedAvg(step_size=0.1, num_active=2))["kind"] == "ISFedAvg"


def test_the_keys_are_those_of_the_record():
    assert list(arguments(Everybody)) == ["step_size", "shrink", "mode", "weights", "nudge"]
    assert arguments(ISFedAvg)["agents"].default == Memory()


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (3, tuple[int, int], "a list of 2 entries, each a whole number"),
        ([1], tuple[int, int], "a list of 2 entries, each a whole number"),
        ("", str, "a text"),
        (1.5, int | None, "a whole number"),
        (1, bool, "true or false"),
        ({"a": 1}, Path, "a path"),
    ],
)
def test_what_was_expected_is_said_in_words(value, hint, words):
    assert expected_value(hint) == words
    with pytest.raises(ConfigError, match=words):
        read_value(value, hint, where="x", readers={})


def test_numbers_are_of_the_type_that_the_record_wants():
    value = read_value(1, float, where="x", readers={})
    assert isinstance(value, float)
    assert write_value((1, 2.0, Path("/a"))) == [1, 2.0, "/a"]


MINE = """
from dataclasses import dataclass
from os import system
from subprocess import Popen

from isfed import Deville
from isfed.methods.fedprox import FedProx


@dataclass(frozen=True)
class Backwards:
    shift: int = 1

    def draw(self, inclusion, rng):
        return Deville().draw(inclusion, rng)


class Twice(FedProx):
    pass


def make(shape, classes, hidden):
    pass


five = 5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The folder of a module of the user's own; afterwards the registries are as they were."""
    (tmp_path / "my_sampler.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for known in (DESIGNS, METHODS, POLICIES, LOSSES):
        monkeypatch.setattr(known, "_known", dict(known._known))
    sys.modules.pop("my_sampler", None)  # a page of the documents has one of this name, too
    yield tmp_path
    sys.modules.pop("my_sampler", None)


def test_a_file_names_a_class_of_ones_own_by_its_module(mine):
    given = {
        "kind": "my_sampler:Twice",
        "step_size": 0.1,
        "num_active": 2,
    }
    with allowing(anything=False, folders=mine):
        _, twice, table = read_algorithm(given, where="algorithm 1")
        assert type(twice).__name__ == "Twice"
        assert table["kind"] == "my_sampler:Twice"
        for shift in (1, 3):
            design = {"design": "my_sampler:Backwards", "shift": shift}
            given = {"step_size": 0.1, "num_active": 2, "agent_design": design}
            _, found, table = read_algorithm(given, where="algorithm 1")
            assert found.agent_design.shift == shift
            assert table["agent_design"] == design  # config.toml makes it again
            assert read_algorithm(table, where="again")[1] == found
    with pytest.raises(ConfigError, match="--trust FOLDER"):  # one permission is not for all files
        read_algorithm(given, where="algorithm 1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_sampler:Forwards", "cannot be imported: AttributeError: .*'Forwards'"),
        ("no_such:Design", "cannot be imported: ModuleNotFoundError: No module named 'no_such'"),
        (":Design", "cannot be imported: ValueError: Empty module name"),
        ("broken:Design", "cannot be imported: ZeroDivisionError: division by zero"),
        ("my_sampler:five", "is 5, not a class or a function"),
        ("my_sampler:Twice", "cannot be used as 'design': the class has no draw; write them"),
        ("my_sampler:make", "is <function make .*not a class that can be a 'design'"),
        ("my_sampler:Popen", r"belongs to Python's own library \(subprocess\)"),
        ("my_sampler:system", r"belongs to Python's own library \((posix|nt)\)"),
        ("os:system", r"belongs to Python's own library \(os\)"),
        ("builtins:exec", r"belongs to Python's own library \(builtins\)"),
        ("numpy:ndarray", "cannot be used as 'design': the class has no draw"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(mine, name, message):
    sys.path.insert(0, str(mine))
    given = {"step_size": 0.1, "num_active": 2, "agent_design": name}
    with (
        allowing(anything=True, folders=()),
        pytest.raises(ConfigError, match=f"agent_design.design: '{name}' {message}"),
    ):
        read_algorithm(given, where="algorithm 1")


NOTE = "import pathlib; pathlib.Path('started').touch()"
RUNS_A_PROGRAM = {
    "agents": {"policy": "subprocess:Popen", "args": [sys.executable, "-c", NOTE]},
    "agent_design": {"design": "os:system", "command": f'"{sys.executable}" -c "{NOTE}"'},
    "kind": "runpy:run_path",
    "examples": {"policy": "mine:Popen", "args": [sys.executable, "-c", NOTE]},
}


@pytest.mark.parametrize("key", RUNS_A_PROGRAM)
@pytest.mark.parametrize("flags", [{}, {"allow_imports": True}, {"trust": "."}])
def test_a_file_cannot_start_a_program_whatever_is_allowed(small, mine, monkeypatch, key, flags):
    monkeypatch.chdir(mine)
    (mine / "mine.py").write_text("from subprocess import Popen\n", encoding="utf-8")
    if flags.get("allow_imports"):
        sys.path.append(str(mine))
    started = []
    monkeypatch.setattr("subprocess.Popen.__init__", lambda *a, **k: started.append(a))
    small["algorithm"] = [{"step_size": 0.1, "num_active": 2, key: RUNS_A_PROGRAM[key]}]
    with pytest.raises(ConfigError, match="Python"):
        make_experiment(small, **flags)
    sys.modules.pop("mine", None)
    assert not started
    assert not Path("started").exists()


def test_nothing_is_imported_unless_whoever_reads_the_file_says_so(small, mine):
    (mine / "loud.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    small["algorithm"][1]["agent_design"] = "loud:Design"
    sys.path.append(str(mine))
    with pytest.raises(ConfigError, match=r"agent_design\.design: 'loud:Design' .*--allow-imports"):
        make_experiment(small, folder=mine)  # not even beside the file
    (mine / "elsewhere").mkdir()
    with pytest.raises(ConfigError, match=r"no module 'loud' in the trusted .*elsewhere"):
        make_experiment(small, trust=[mine / "elsewhere"])
    with pytest.raises(ConfigError, match="there is no folder 'nowhere' to trust"):
        make_experiment(small, trust="nowhere")
    with pytest.raises(SystemExit, match="it ran"):
        make_experiment(small, trust=mine)


def test_a_trusted_folder_replaces_no_installed_package(small, mine):
    (mine / "scipy.py").write_text(MINE, encoding="utf-8")
    small["algorithm"][1]["agent_design"] = "scipy:Backwards"
    with pytest.raises(ConfigError, match=r"Python finds .*site-packages.*another name"):
        make_experiment(small, trust=mine)


@pytest.mark.parametrize("key", ["model", "optimizer"])
def test_a_network_of_ones_own_needs_the_permission_too(small, mine, key):
    small["problem"] = {"data": "network", "rows": "digits", key: "my_sampler:make"}
    small["algorithm"] = small["algorithm"][:1]
    with pytest.raises(ConfigError, match="'my_sampler:make' is Python code"):
        make_experiment(small)
    source = make_experiment(small, trust=mine).source
    assert isinstance(source, NetworkData)
    assert getattr(source, key) == "my_sampler:make"
    small["problem"][key] = "os:system"
    with pytest.raises(ConfigError, match="belongs to Python's own library"):
        make_experiment(small, allow_imports=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "isfed:ByScore"}, "it is a part: write sampler = 'isfed:ByScore', without kind"),
        ({"kind": "FedAvg", "sampler": "uniform"}, "for it has a sampler: leave out 'kind'"),
    ],
)
def test_a_part_that_is_given_as_a_kind_is_said_to_be_one(given, message):
    with (
        allowing(anything=True, folders=()),
        pytest.raises(ConfigError, match=message),
    ):
        read_algorithm({"step_size": 0.1, "num_active": 2, **given}, where="algorithm 1")
