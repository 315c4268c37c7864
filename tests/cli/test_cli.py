"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import isfed
from isfed.cli.app import app
from isfed.sampling.designs import ALL_DESIGNS

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


@pytest.mark.skipif(not os.environ.get("ISFED_DATA"), reason="set ISFED_DATA to the data sets")
def test_reproduce_classification_in_small(run, tmp_path):
    words = ["reproduce", "classification", "--rounds", "20", "--repetitions", "2"]
    code, text = run(*words)
    assert code == 0, text
    expected = ("the minimiser w^o itself", "always the majority class", "18.46%", "22.45%")
    for word in (*expected, "Best step size of memory", "best step"):
        assert word in text
    folder = tmp_path / "runs" / "classification-one-class"
    for name in ("steps.json", "summary.json", "measures.parquet", "measures.png", "config.toml"):
        assert (folder / name).stat().st_size > 0
    code, text = run(*words)
    assert code == 1
    assert "--resume" in text
    assert run(*words[:2], "--partition", "natral")[0] == 2
    assert run(*words[:2], "--rounds", "0")[0] == 2


def test_absent_data_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ISFED_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    code, text = run("reproduce", "classification")
    assert code == 1
    assert "ijcnn1.trn.bz2" in text
    assert not (tmp_path / "runs").exists()


def _no_network(*_, **__):
    raise OSError("no network in this test")


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
        (["--agent", "sit", "--target", "target"], ["no column 'sit'", "did you mean 'site'?"]),
        (["--agent", "site", "--target", "target", "--drop", "are"], ["no column 'are'"]),
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


ROWS = ["site,x,y", "a,1,2", "a,2,3", "b,3,1", "b,4,5"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["site,x,y", "a,1,low", "a,2,high", "b,3,low", "b,4,high"], ["line 2", "'y'", "text"]),
        ([*ROWS, "c,5,6"], ["line 6", "'site'", "agent c has 1 row(s)"]),
        ([*ROWS[:3], "b,many,1", "b,4,5"], ["line 4", "'x'", "'many' is not a number"]),
        ([*ROWS[:3], "b,,1", "b,4,5"], ["line 4", "'x'", "missing"]),
        ([*ROWS[:3], "b,nan,1", "b,4,5"], ["line 4", "'x'", "missing"]),
        ([*ROWS[:3], "b,inf,1", "b,4,5"], ["line 4", "'x'", "inf"]),
        ([*ROWS[:3], "b,3,-inf", "b,4,5"], ["line 4", "'y'", "inf"]),
        ([*ROWS[:3], "b,3,", "b,4,5"], ["line 4", "'y'", "target is missing"]),
        ([*ROWS[:3], ",3,1", "b,4,5"], ["line 4", "'site'", "no agent is named"]),
        ([*ROWS[:3], "b,3", "b,4,5"], ["line 4", "2 fields"]),
        (ROWS[:1], ["no rows"]),
        ([], ["empty"]),
    ],
)
def test_compare_says_where_a_table_is_wrong(run, tmp_path, rows, words):
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n" if rows else "")
    code, text = run("compare", "mine.csv", "--agent", "site", "--target", "y")
    assert code == 2, text
    for word in ("mine.csv", *words):
        assert word in text
    assert not (tmp_path / "runs").exists()


def test_one_class_is_nothing_to_learn(run, tmp_path):
    (tmp_path / "mine.csv").write_text("site,x,y\na,1,no\na,2,no\nb,3,no\nb,4,no\n")
    options = ["--agent", "site", "--target", "y", "--task", "classification"]
    code, text = run("compare", "mine.csv", *options)
    assert code == 2
    assert "'y' has 1 different values" in text
    assert not (tmp_path / "runs").exists()


def test_a_million_agents_of_one_row(run, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = range(1_000_000)
    pq.write_table(pa.table({"site": rows, "x": rows, "y": rows}), tmp_path / "mine.parquet")
    code, text = run("compare", "mine.parquet", "--agent", "site", "--target", "y")
    assert code == 2
    assert "1000000 of 1000000 agents have so few" in text
    assert "Is 'site' the column of the agents?" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 0:3", ["line 3", "index 0"]),
        ("1 x:3", ["line 3", "index 'x'"]),
        ("1 2:3 2:4", ["line 3", "index 2 occurs twice"]),
        ("1 3:3 2:4", ["line 3", "comes after 3"]),
        ("1 1:nan", ["line 3", "'nan'"]),
        ("1 1:inf", ["line 3", "'inf'"]),
        ("yes 1:2", ["line 3", "label 'yes'"]),
        ("1 1", ["line 3", "not of the form"]),
    ],
)
def test_compare_says_where_a_libsvm_file_is_wrong(run, tmp_path, line, words):
    lines = ["1 1:1 2:0.5", "-1 1:2 2:1", line, "-1 1:2"]
    (tmp_path / "mine.libsvm").write_text("\n".join(lines) + "\n")
    code, text = run("compare", "mine.libsvm", "--agent", "1", "--target", "label")
    assert code == 2, text
    for word in ("mine.libsvm", *words):
        assert word in text
    assert not (tmp_path / "runs").exists()


SHORT = ["--rounds", "30", "--repetitions", "2"]


def test_an_earlier_comparison_stays_unless_asked(run, tmp_path):
    rows = ["site,x,y", *(f"s{i % 4},{i % 7},{i % 5}" for i in range(40))]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    words = ["compare", "mine.csv", "--agent", "site", "--target", "y", *SHORT]
    assert run(*words)[0] == 0
    summary = tmp_path / "runs" / "compare-mine" / "summary.json"
    before = summary.read_bytes()
    code, text = run(*words, "--seed", "1")
    assert code == 1
    assert "--overwrite" in text
    assert summary.read_bytes() == before
    assert run(*words, "--seed", "1", "--overwrite")[0] == 0
    assert summary.read_bytes() != before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("ten years of work")
    code, text = run(*words, "--out", "other", "--overwrite")
    assert code == 1
    assert "thesis.tex" in text


def test_compare_that_diverges_or_is_stopped(run, tmp_path, monkeypatch):
    from isfed.experiments import comparison

    rows = ["site,x,y", *(f"s{i % 4},{i % 7},{i % 5}" for i in range(40))]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    words = ["compare", "mine.csv", "--agent", "site", "--target", "y", *SHORT]

    def raising(error: BaseException):
        def simulate(*_, **__):
            raise error

        return simulate

    diverged = isfed.DivergenceError.__new__(isfed.DivergenceError)
    monkeypatch.setattr(comparison, "simulate", raising(diverged))
    code, text = run(*words)
    assert code == 1
    assert "diverged at every step size" in text
    monkeypatch.setattr(comparison, "simulate", raising(KeyboardInterrupt()))
    code, text = run(*words)
    assert code == 130
    assert "nothing was written" in text
    assert "--resume" not in text
    assert not (tmp_path / "runs").exists()


def test_the_study_of_heterogeneity_heeds_the_options(run, tmp_path, monkeypatch):
    from isfed.cli import app as cli

    asked = []

    def run_grid(grid, folder, **_):
        asked.append(grid)
        point = {"noisy_share": 0.1, "noise_ratio": 3.0, "gain_db": 1.0, "gain_stderr_db": 0.1}
        return {"points": [point]}

    monkeypatch.setattr(cli, "run_grid", run_grid)
    code, text = run(
        "reproduce", "regression", "--rounds", "9", "--repetitions", "2", "--seed", "4"
    )
    assert code == 0, text
    assert (asked[0].rounds, asked[0].repetitions, asked[0].seed) == (9, 2, 4)


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


def test_diagnose_answers_for_a_named_problem(run, tmp_path):
    code, text = run("diagnose", "breast-cancer")
    assert code == 0, text
    assert "importance sampling of both" in text
    assert "by importance" in text or "would not help" in text
    content = json.loads((tmp_path / "runs/diagnose-breast-cancer/diagnosis.json").read_text())
    assert content["setting"]["num_agents"] == 20
    code, text = run("diagnose", "breast-cancer")
    assert code == 1
    assert "already holds a diagnosis; --overwrite" in text
    code, text = run("diagnose", "breast-cancer", "--overwrite", "--active", "5")
    assert code == 0, text


def test_diagnose_says_it_would_not_help(run, tmp_path):
    rows = ["site,x,y"] + [f"{site},1,{y}" for site in "abcdef" for y in (1, -1)]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    code, text = run(
        "diagnose", "table.csv", "--agent", "site", "--target", "y", "--batch-size", "1"
    )
    assert code == 0, text
    assert "It would not help you" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.csv"], "no file and no name"),
        (["table.csv"], "say --agent COLUMN and --target COLUMN"),
        (["table.csv", "--agent", "site", "--target", "z"], "z"),
        (["equal", "--ridge", "5"], "equal is no table"),
        (["equal", "--active", "301"], "num_active=301 must be between 1 and num_agents=300"),
        (["equal", "--active", "0"], "num_active=0 must be between 1 and num_agents=300"),
        (["equal", "--batch-size", "0"], "batch_size=0"),
        (["equal", "--local-steps", "0"], "local_steps=0"),
    ],
)
def test_diagnose_names_what_is_wrong(run, tmp_path, words, message):
    (tmp_path / "table.csv").write_text("site,x,y\na,1,1\nb,2,2\n")
    code, text = run("diagnose", *words)
    assert code == 2
    assert message in " ".join(text.split())
    assert not (tmp_path / "runs").exists()


def test_a_run_that_starts_to_diverge_is_warned_of(run, tmp_path):
    text = SMALL.replace("0.01", "1.2")
    (tmp_path / "grows.toml").write_text(text)
    code, said = run("run", "grows.toml")
    assert code == 0, said
    assert "warning: FedAvg is diverging" in " ".join(said.split())
    assert "exceeds" in said
    assert (tmp_path / "runs/grows/summary.json").exists()
