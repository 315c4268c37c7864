"""`isfed reproduce networks` on a small scale, with its figure and its sentences."""

# pyright: reportMissingImports=false

import json

import pytest
from typer.testing import CliRunner

from isfed.cli.app import app
from isfed.studies import networks_study
from isfed.studies.dataset_config import OneClass
from isfed.studies.network_config import NetworkData

TINY = networks_study.Setting(
    "tiny",
    "digits, one digit per agent",
    NetworkData(hidden=8, num_agents=10, partition=OneClass(), local_steps=3, every=2),
    3, 6, (0.05, 0.3),
)  # fmt: skip


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setattr(networks_study, "SETTINGS", {"tiny": TINY})
    monkeypatch.setattr(
        networks_study, "network_methods",
        lambda setting, known=networks_study.network_methods: {
            name: known(setting)[name] for name in ("FedAvg", "FedAvg, averaged", "default")
        },
    )  # fmt: skip
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
