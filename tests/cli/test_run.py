"""`isfed run`: what it writes, and how mistakes end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from isfed.studies import load_results
from isfed.studies.name_registry import DESIGNS, POLICIES

SMALL = """
rounds = 40
repetitions = 2
[problem]
num_agents = 12
num_examples = 10
[[algorithm]]
kind = "FedAvg"
step_size = 0.01
num_active = 3
[[algorithm]]
step_size = 0.01
num_active = 3
"""


def test_run_writes_the_results_folder(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    code, text = run("run", "mine.toml")
    assert code == 0, text
    folder = tmp_path / "runs" / "mine"
    for name in ("config.toml", "history.parquet", "summary.json", "times.json", "msd.png"):
        assert (folder / name).stat().st_size > 0
    assert "gain over FedAvg" in text
    code, text = run("run", "mine.toml")
    assert code == 1
    assert "--resume" in text
    assert run("run", "mine.toml", "--resume")[0] == 0
    assert run("run", "mine.toml", "--overwrite")[0] == 0


def test_every_problem_has_a_table_and_levels_choose_their_steps(run, tmp_path):
    table = SMALL.replace("step_size = 0.01\n", "").partition("[problem]")[2]
    methods = table.partition("num_examples = 10\n")[2]
    text = """
kind = "levels"
rounds = 10
repetitions = 1
seeds = [1, 2]
[step_sizes]
own = true
grid = [0.01, 0.02]
repetitions = 1
widen = 0
[[problem]]
name = "one"
source = { num_agents = 12, num_examples = 10 }
[[problem]]
name = "two"
source = { num_agents = 8, num_examples = 10 }
"""
    (tmp_path / "mine.toml").write_text(text + methods)
    code, text = run("run", "mine.toml")
    assert code == 0, text
    assert text.count("mine: 2 repetitions") == 2
    assert "by the level of its own trials" in " ".join(text.split())
    found = load_results("runs/mine")
    assert [len(a.summary["levels"]) for a in found.algorithms] == [2, 2, 2, 2]


def test_the_written_configuration_runs_again(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    assert run("run", "mine.toml")[0] == 0
    assert run("run", "runs/mine/config.toml", "--out", "again")[0] == 0
    first, again = (load_results(folder) for folder in ("runs/mine", "again"))
    assert first.digest == again.digest
    assert (first.algorithms[1].msd == again.algorithms[1].msd).all()


def test_classes_are_shown_with_accuracy_and_loss_at_tuned_steps(run, tmp_path):
    problem = 'data = "breast-cancer"'
    text = SMALL.replace("num_agents = 12\nnum_examples = 10", problem).replace("0.01", '"auto"')
    (tmp_path / "mine.toml").write_text(text)
    code, text = run("run", "mine.toml")
    assert code == 0, text
    shown = r"^- FedAvg, \d+ held-out rows: accuracy \d+\.\d ± \d+\.\d%, loss \d\.\d+ ± \d"
    assert re.search(shown, text, re.MULTILINE), text
    steps = [row.step_size for row in load_results("runs/mine").algorithms]
    assert all(0.0 < step < 100.0 for step in steps)


def test_a_clock_is_shown_in_virtual_seconds(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL + "[clock]\ndrop = 0.1\n")
    code, text = run("run", "mine.toml")
    assert code == 0, text
    assert "virtual" in text  # seconds a round


@pytest.mark.parametrize(
    ("text", "options", "code", "words"),
    [
        (SMALL + "step_sze = 1\n", [], 2, ["step_sze", "step_size"]),
        (SMALL + "[clock]\ndrop = 2.0\n", [], 2, ["clock", "drop=2.0"]),
        (SMALL, ["--rounds", "-3"], 2, ["rounds=-3"]),
        (SMALL, ["--threads", "0"], 2, ["threads"]),
        (SMALL.replace("num_active = 3", "num_active = 99"), [], 2, ["num_active=99"]),
        (SMALL.replace("0.01", "90.0"), [], 1, ["diverged in round", "step_size"]),
        ("nonsense", [], 2, ["not valid TOML"]),
        (SMALL + "[problem.more]\n", [], 2, ["[problem]", "'more'"]),
    ],
)
def test_mistakes_end_in_one_line_and_a_code(run, tmp_path, text, options, code, words):
    (tmp_path / "mine.toml").write_text(text)
    found, output = run("run", "mine.toml", *options)
    assert found == code
    assert "Traceback" not in output
    for word in words:
        assert word in output


def test_a_missing_file_and_an_unknown_command(run):
    assert run("run", "nowhere.toml")[0] == 2
    assert run("rum")[0] == 2


def test_a_place_that_cannot_be_written(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    Path("file").write_text("not a folder")
    code, text = run("run", "mine.toml", "--out", "file")
    assert code == 1
    assert "cannot write to file" in text


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_computed(run, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(SMALL)
    assert run("run", "mine.toml")[0] == 0
    monkeypatch.setattr("isfed.studies.executors.Executor.run", None)  # nothing gets so far
    name = b"r\xff".decode("utf-8", "surrogateescape")  # as Python passes on such a word
    for words in (("run", "mine.toml"), ("report", "runs/mine")):
        code, text = run(*words, "--out", name)
        assert code == 1
        assert r"cannot use 'r\udcff': the name is not UTF-8" in " ".join(text.split())
    assert {path.name for path in tmp_path.iterdir()} == {"mine.toml", "runs"}


def test_a_run_that_starts_to_diverge_is_warned_of(run, tmp_path):
    text = SMALL.replace("0.01", "1.2")
    (tmp_path / "grows.toml").write_text(text)
    code, said = run("run", "grows.toml")
    assert code == 0, said
    assert "warning: FedAvg is diverging" in " ".join(said.split())
    assert "exceeds" in said
    assert (tmp_path / "runs/grows/summary.json").exists()


def test_one_algorithm_that_diverges_costs_the_others_nothing(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL.replace("0.01", "90.0", 1))
    code, text = run("run", "mine.toml")
    assert code == 1
    assert "diverged in round" in text
    assert "error: FedAvg diverged in round" in " ".join(text.split())
    results = load_results(tmp_path / "runs" / "mine")
    assert [algorithm.name for algorithm in results.diverged] == ["FedAvg"]
    assert results["ISFedAvg, memory"].msd.size == 40
    assert (tmp_path / "runs" / "mine" / "msd.png").exists()


def test_a_run_too_short_to_have_settled_says_so(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL.replace("repetitions = 2", "repetitions = 8"))
    code, text = run("run", "mine.toml")
    assert code == 0, text
    assert "Not settled (*)" in text
    assert "use more --rounds" in " ".join(text.split())
    assert "* │" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "lokey"], ["backend='lokey'", "'loky'", "threading, ray, dask"]),
        (["--backend", "loky", "--jobs", "0"], ["jobs=0"]),
        (["--jobs", "2"], ["jobs=2 needs a backend", "loky"]),
    ],
)
def test_workers_that_cannot_be(run, tmp_path, options, words):
    (tmp_path / "mine.toml").write_text(SMALL)
    code, text = run("run", "mine.toml", *options)
    assert code == 2
    for word in words:
        assert word in " ".join(text.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("backend", "module"), [("ray", "ray"), ("dask", "distributed")])
def test_a_missing_extra_says_what_to_install(run, tmp_path, monkeypatch, backend, module):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name)
    )
    (tmp_path / "mine.toml").write_text(SMALL)
    code, text = run("run", "mine.toml", "--backend", backend)
    assert code == 2
    assert f"pip install 'isfed[{backend}]'" in " ".join(text.split())


OWN = """
from dataclasses import dataclass
from isfed.sampling.policies import Initial, Refresh, ScorePolicy

@dataclass(frozen=True)
class Equal(ScorePolicy):
    name: str = "equal"
    initial: Initial = Initial.EQUAL
    refresh: Refresh = Refresh.NEVER
"""


@pytest.mark.parametrize("flag", [("--trust", "code"), ("--allow-imports",)])
def test_a_module_that_the_file_names_runs_only_if_allowed(run, tmp_path, monkeypatch, flag):
    monkeypatch.setattr(sys, "path", list(sys.path))
    place = tmp_path / ("code" if "code" in flag else "")
    place.mkdir(exist_ok=True)
    (place / "my_equal.py").write_text(OWN)
    (tmp_path / "mine.toml").write_text(SMALL + 'agents = "my_equal:Equal"\n')
    code, text = run("run", "mine.toml")
    assert code == 2
    assert "mine.toml: algorithm 2: agents.policy: 'my_equal:Equal'" in " ".join(text.split())
    assert not (tmp_path / "runs").exists()
    try:
        code, text = run("run", "mine.toml", *flag)
    finally:
        sys.modules.pop("my_equal", None)
        POLICIES._known.pop("my_equal:Equal", None)
    assert code == 0, text
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p) not in (place, tmp_path)])
    place.joinpath("my_equal.py").write_text("raise SystemExit('it ran')")
    code, text = run("report", "runs/mine")  # which imports nothing
    assert code == 0, text
    again = (tmp_path / "runs" / "mine" / "command.txt").read_text()
    assert again.split() == ["isfed", "run", "mine.toml", *flag]


FAULTY = """
from isfed import Deville

class Wrong(Deville):
    def draw(self, inclusion, rng):
        {line}
"""


@pytest.mark.parametrize("jobs", [(), ("--backend", "loky", "--jobs", "2")])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("return inclusion.nothing", "AttributeError: 'numpy.ndarray' object has no attribute"),
        ("raise ValueError('too few')", "ValueError: too few"),
        ("return Deville().draw(2 * inclusion, rng)", "ValueError: inclusion["),
    ],
)
def test_a_fault_in_a_class_of_users_has_its_file_and_line(run, tmp_path, line, said, jobs):
    (tmp_path / "code").mkdir()
    place = tmp_path / "code" / "my_design.py"
    place.write_text(FAULTY.format(line=line))
    (tmp_path / "mine.toml").write_text(SMALL + 'agent_design = "my_design:Wrong"\n')
    before = list(sys.path)
    try:
        code, text = run("run", "mine.toml", "--trust", "code", *jobs)
    finally:
        sys.path[:] = before
        sys.modules.pop("my_design", None)
        DESIGNS._known.pop("my_design:Wrong", None)
    text = " ".join(text.split())
    assert code == 1, text
    assert said in text
    assert "my_design.py, line 6, in draw" in text
    assert "isfed has a fault" not in text


def test_data_sets_have_their_names_in_a_fresh_process():
    code = "from isfed.studies import make_experiment as make; print(make({'problem': {'data': "
    code += "'network'}, 'algorithm': [{'step_size': 0.1, 'num_active': 2}]}).source)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "NetworkData(" in done.stdout, done.stderr
