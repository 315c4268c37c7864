"""How commands end that were interrupted, or that met what nobody expected: one line and a code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

EXPERIMENT = """
rounds = 40
repetitions = 2
[problem]
preset = "paper"
num_agents = 10
num_examples = 12
[[algorithm]]
kind = "FedAvg"
step_size = 0.01
num_active = 3
[[algorithm]]
kind = "ISFedAvg"
step_size = 0.01
num_active = 3
"""
# Ctrl-C comes by an alarm, so that the moment does not depend on how busy the machine is.
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
from isfed.cli import main
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
signal.setitimer(signal.ITIMER_REAL, float(sys.argv.pop(1)))
main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="Windows has no alarms")
@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.6])
@pytest.mark.parametrize(
    "words",
    [("run", "mine.toml"), ("reproduce", "regression"), ("reproduce", "systems")],
    ids=" ".join,
)
def test_ctrl_c_while_libraries_load(tmp_path, words, seconds):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(seconds), *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    *before, last = done.stderr.splitlines()
    assert last == "error: stopped"
    assert set(before) <= {"loading ..."}  # a slow machine says it first


def test_ctrl_c_while_a_command_works(run, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("isfed.studies.study_engine.run_study", interrupted)
    code, text = run("run", "mine.toml")
    assert (code, text) == (130, "error: stopped; --resume continues from here\n")


def test_a_fault_of_ours_is_called_one(run, tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)

    ours: dict[str, Any] = {}  # a function whose lines are in no file of users
    exec("def fails(*_, **__):\n raise ZeroDivisionError('division\\nby zero')", ours)
    monkeypatch.setattr("isfed.studies.study_engine.run_study", ours["fails"])
    code, text = run("run", "mine.toml")
    assert code == 70
    assert "isfed has a fault: ZeroDivisionError: division by zero" in text
    assert "ISFED_TRACEBACK=1" in text


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ridge", "1e300", ["ridge=1e+300", "at most 1e+60"]),
        ("feature_variance", "[5e-324, 1e308]", ["feature_variance=(5e-324, 1e+308)", "1e+60"]),
        ("noise_variance", "[1e200, 1e200]", ["noise_variance=(1e+200, 1e+200)", "1e+60"]),
        ("noise_ratio", "inf", ["noise_ratio"]),
    ],
)
def test_numbers_that_no_square_can_hold(run, tmp_path, key, value, words):
    text = EXPERIMENT.replace('preset = "paper"', f'preset = "paper"\n{key} = {value}')
    (tmp_path / "mine.toml").write_text(text)
    code, said = run("run", "mine.toml")
    assert code == 2
    for word in words:
        assert word in " ".join(said.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "column",
    [
        [[1], [2], [1], [2]],
        [{"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}],
        [{"a": 1}, None, None, {"a": 2}],
    ],
    ids=["lists", "structs", "structs with gaps"],
)
@pytest.mark.parametrize("role", ["agent", "target", "feature"])
def test_columns_of_lists_and_structs_are_refused_by_name(run, tmp_path, column, role):
    plain = {"site": ["a", "a", "b", "b"], "y": [0.0, 1.0, 2.0, 3.0]}
    pq.write_table(pa.table({**plain, "odd": column}), tmp_path / "t.parquet")
    agent, target = {
        "agent": ("odd", "y"), "target": ("site", "odd"), "feature": ("site", "y")
    }[role]  # fmt: skip
    for command in ("compare", "diagnose"):
        code, text = run(command, "t.parquet", "--agent", agent, "--target", target)
        assert code == 2, text
        assert "'odd'" in text


def test_a_binary_digest_of_the_first_format(run, tmp_path):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "digest.txt").write_bytes(b"\xff\xfe\x00")
    code, text = run("run", "mine.toml", "--resume")
    assert code == 1
    assert "runs/mine" in text
    assert run("run", "mine.toml", "--overwrite")[0] == 0


def test_a_step_too_small_to_be_squared_has_no_moments(run, tmp_path):
    (tmp_path / "mine.toml").write_text(EXPERIMENT.replace("0.01", "1e-308"))
    assert run("run", "mine.toml")[0] == 0
    summary = json.loads((tmp_path / "runs" / "mine" / "summary.json").read_text())
    told = summary["algorithms"][1]["telemetry"]
    assert told["variance_ratio"] is None
    assert told["absent"].startswith("variance_ratio: in 10 of the last 10 rounds")
    columns = pq.read_table(tmp_path / "runs" / "mine" / "history.parquet")
    assert columns.column("moment").null_count == 40  # of the second algorithm
