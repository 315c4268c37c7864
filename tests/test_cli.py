"""The command line as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import isfed
from isfed.cli import app
from isfed.designs import ALL_DESIGNS

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


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call the command line in an empty folder; returns (exit code, output)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(words))
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.output

    return call


def test_version(run):
    assert run("--version") == (0, f"isfed {isfed.__version__}\n")


def test_help_explains_every_command(run):
    code, text = run("--help")
    assert code == 0
    for command in ("run", "reproduce", "designs"):
        assert command in text
    code, text = run("run", "--help")
    assert code == 0
    for option in ("--resume", "--overwrite", "--out", "--threads"):
        assert option in text


def test_designs_lists_every_design(run):
    code, text = run("designs")
    assert code == 0
    assert text.count("inclusion probabilities") >= len(ALL_DESIGNS) - 1


def test_run_writes_the_results_folder(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    code, text = run("run", "mine.toml")
    assert code == 0, text
    folder = tmp_path / "runs" / "mine"
    for name in ("config.toml", "history.parquet", "summary.json", "msd.png", "msd.svg"):
        assert (folder / name).stat().st_size > 0
    assert "gain over FedAvg" in text
    code, text = run("run", "mine.toml")
    assert code == 1
    assert "--resume" in text
    assert run("run", "mine.toml", "--resume")[0] == 0
    assert run("run", "mine.toml", "--overwrite")[0] == 0


def test_the_written_configuration_runs_again(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    assert run("run", "mine.toml")[0] == 0
    assert run("run", "runs/mine/config.toml", "--out", "again")[0] == 0
    first = (tmp_path / "runs" / "mine" / "digest.txt").read_text()
    assert (tmp_path / "again" / "digest.txt").read_text() == first


@pytest.mark.parametrize(
    ("text", "options", "code", "words"),
    [
        (SMALL + "step_sze = 1\n", [], 2, ["step_sze", "step_size"]),
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


def test_reproduce_regression_in_small(run, tmp_path):
    code, text = run(
        "reproduce", "regression", "--rounds", "20", "--repetitions", "2", "--no-heterogeneity"
    )
    assert code == 0, text
    for word in ("ISFedAvg, current", "23.1 dB", "1.22e-02", "uniform probabilities"):
        assert word in text
    assert (tmp_path / "runs" / "regression" / "msd.png").exists()


@pytest.fixture
def tumours(tmp_path) -> Path:
    """The breast-cancer table with an artificial column of sites, as a CSV file."""
    from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer(as_frame=True)
    frame = bunch.frame
    frame["site"] = [f"site {row % 12}" for row in range(len(frame))]
    path = tmp_path / "tumours.csv"
    frame.to_csv(path, index=False)
    return path


def test_compare_on_a_table(run, tumours, tmp_path):
    code, text = run(
        "compare", str(tumours), "--agent", "site", "--target", "target", "--task",
        "classification", "--rounds", "60", "--repetitions", "3",
    )  # fmt: skip
    assert code == 0, text
    assert "Importance sampling" in text
    assert "12 agents, 569 rows" in text
    folder = tmp_path / "runs" / "compare-tumours"
    for name in ("summary.json", "history.parquet", "comparison.png", "comparison.svg"):
        assert (folder / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--agent", "sit", "--target", "target"], ["no column 'sit'"]),
        (["--agent", "site", "--target", "target", "--missing", "x"], ["missing='x'"]),
        (["--agent", "site", "--target", "target", "--task", "guess"], ["guess"]),
        (["--agent", "site", "--target", "target", "--active", "99"], ["num_active=99"]),
        (["--agent", "site", "--target", "target", "--rounds", "0"], ["rounds=0"]),
    ],
)
def test_compare_names_what_is_wrong_and_writes_nothing(run, tumours, tmp_path, options, words):
    code, text = run("compare", str(tumours), *options)
    assert code == 2
    assert "Traceback" not in text
    for word in words:
        assert word in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", [["--rounds", "0"], ["--rounds", "-1"], ["--seed", "-1"]])
def test_the_flower_engine_refuses_impossible_numbers(run, option):
    code, text = run("reproduce", "regression", "--engine", "flower", *option)
    assert code == 2
    assert f"{option[0][2:]}={option[1]}" in text


def test_one_repetition_gives_no_verdict_and_valid_json(run, tmp_path):
    words = ["--rounds", "8", "--repetitions", "1", "--no-heterogeneity"]
    code, text = run("reproduce", "regression", *words)
    assert code == 0, text
    assert "no verdict" in text

    def never(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    summary = (tmp_path / "runs" / "regression" / "summary.json").read_text()
    found = json.loads(summary, parse_constant=never)
    assert found["algorithms"][0]["msd_stderr_db"] is None
