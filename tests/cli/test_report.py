"""The page that every command leaves beside its results, and the command to run them again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from isfed.studies import results_folder
from isfed.studies.results_folder import COMMAND, REPORT, TIMES

SMALL = """
rounds = 40
repetitions = 4
problem = {num_agents = 12, num_examples = 10}
[[algorithm]]
kind = "FedAvg"
step_size = 0.01
num_active = 3
[[algorithm]]
step_size = 0.01
num_active = 3
[[algorithm]]
kind = "LocalGD"
step_size = 0.01
"""
NOT_COMPARED = (TIMES, results_folder.LOCK)


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a results folder but the one with the times."""
    found = {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if Path(name).name not in NOT_COMPARED}


def test_a_run_leaves_its_page_and_its_command_and_who_computes_changes_no_byte(run, tmp_path):
    (tmp_path / "my own.toml").write_text(SMALL)
    words = ["run", "my own.toml", "--rounds", "30", "--seed=3"]
    code, text = run(*words)
    assert code == 0, text
    made = tmp_path / "runs" / "my own"
    assert f"open {Path('runs/my own') / REPORT} to see them" in " ".join(text.split())
    again = (made / COMMAND).read_text().strip()
    assert shlex.split(again) == ["isfed", "run", "my own.toml", "--rounds", "30", "--seed", "3"]
    page = (made / REPORT).read_text()
    for said in ("--seed 3", "num_active = 3", "ISFedAvg, memory", "<svg"):
        assert said in page
    assert "seconds" not in page.split("</style>")[1].split("<script")[0]
    others = {"loky": ["--jobs", "2"], "threading": ["--threads", "1"]}
    for backend, more in others.items():
        code, text = run(*words, "--backend", backend, *more, "--out", backend)
        assert code == 0, text
        assert contents(tmp_path / backend) == contents(made)
    assert set(contents(made)) <= set(results_folder.WRITTEN)


def test_a_resumed_and_an_overwritten_folder_have_the_page_of_their_results(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    assert run("run", "mine.toml")[0] == 0
    made = tmp_path / "runs" / "mine"
    before = contents(made)
    (made / REPORT).unlink()
    assert run("run", "mine.toml", "--resume")[0] == 0
    assert contents(made) == before
    code, _ = run("run", "mine.toml", "--rounds", "20", "--overwrite")
    assert code == 0
    assert "--rounds 20" in (made / REPORT).read_text()
    assert run("run", "mine.toml", "--overwrite")[0] == 0
    assert contents(made) == before


def test_a_run_that_diverged_has_a_page_that_says_so(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL.replace("0.01", "90.0", 1))
    assert run("run", "mine.toml")[0] == 1
    assert "FedAvg diverged in round" in (tmp_path / "runs/mine" / REPORT).read_text()


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (
            ["reproduce", "regression", "--no-heterogeneity", "--rounds", "9", "--seed", "2"],
            "regression",
        ),
        (["diagnose", "paper", "--batch-size", "2"], "diagnose-paper"),
        (
            ["compare", "table.csv", "--agent", "site", "--target", "y", "--drop", "z",
             "--rounds", "30", "--repetitions", "2", "--save", "model.json"],
            "compare-table",
        ),
    ],
)  # fmt: skip
def test_the_other_commands_leave_one_too(run, tmp_path, words, made):
    rows = [f"s{i % 4},{i % 7},{i % 3},{(3 * i) % 11}" for i in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["site,x,z,y", *rows]))
    code, text = run(*words)
    assert code == 0, text
    typed = shlex.split((tmp_path / "runs" / made / COMMAND).read_text())
    assert typed[0] == "isfed"
    assert sorted(typed[1:]) == sorted(words)
    assert shlex.join(typed) in (tmp_path / "runs" / made / REPORT).read_text()


def test_a_page_is_not_made_of_results_that_were_changed(run, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    assert run("run", "mine.toml")[0] == 0
    config = tmp_path / "runs" / "mine" / results_folder.CONFIG
    config.write_text(config.read_text().replace("num_active = 3", "num_active = 4", 1))
    code, text = run("report", "runs/mine")
    assert code == 1
    assert "config.toml is not as the run left it" in " ".join(text.split())
