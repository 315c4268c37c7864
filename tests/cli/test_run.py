"""`isfed run`: what it writes, and how mistakes end."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_a_run_that_starts_to_diverge_is_warned_of(run, tmp_path):
    text = SMALL.replace("0.01", "1.2")
    (tmp_path / "grows.toml").write_text(text)
    code, said = run("run", "grows.toml")
    assert code == 0, said
    assert "warning: FedAvg is diverging" in " ".join(said.split())
    assert "exceeds" in said
    assert (tmp_path / "runs/grows/summary.json").exists()
