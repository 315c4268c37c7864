"""`isfed reproduce networks` on a small scale, with its figure and its sentences."""

# pyright: reportMissingImports=false

import copy
import json

import pytest
from typer.testing import CliRunner

from isfed.cli.app import app
from isfed.studies import experiment_config

TINY = {
    "name": "networks-tiny", "title": "digits, one digit per agent",
    "values": {"num_active": 3}, "rounds": 6, "step_sizes": {"grid": [0.05, 0.3]},
    "problem": {"hidden": 8, "num_agents": 10, "partition": "one-class", "local_steps": 3,
                "every": 2},
}  # fmt: skip


@pytest.fixture
def run(monkeypatch, tmp_path):
    tables = experiment_config.study_tables("networks")
    some = ("FedAvg", "FedAvg, averaged", "default")
    tables["algorithm"] = [table for table in tables["algorithm"] if table["name"] in some]
    tables["setting"] = {"tiny": TINY}
    monkeypatch.setattr(experiment_config, "study_tables", lambda name: copy.deepcopy(tables))
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["reproduce", "networks", *words])


def test_it_runs_draws_and_goes_on(run, tmp_path):
    found = run("--quick", "--rounds", "4")
    assert found.exit_code == 0, found.output
    folder = tmp_path / "runs" / "networks-quick" / "tiny"
    for name in ("accuracy.png", "accuracy.svg", "summary.json"):
        assert (folder / name).stat().st_size > 0
    assert "default" in found.output
    assert "FedAvg, averaged ends at" in found.output
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "nothing to compare" not in page
    assert "optimum" not in page
    assert "FedAvg, averaged ends at" in page
    assert page.count("at the edge of") == 0  # of two step sizes each is
    assert page.count("Only two step sizes were tried") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert {row["msd_stderr_db"] for row in summary["algorithms"]} == {None}
    again = run("--quick", "--rounds", "4", "--resume")
    assert again.exit_code == 0, again.output
    assert run("--quick", "--rounds", "4").exit_code != 0  # it would write over results


def test_one_repetition_is_enough(run):
    found = run("--quick", "--rounds", "4", "--repetitions", "1")
    assert found.exit_code == 0, found.output


def test_mistakes_are_one_line(run):
    found = run("--setting", "z")
    assert found.exit_code == 2
    assert "must be all or one of tiny" in found.output
    assert run("--repetitions", "0").exit_code == 2
