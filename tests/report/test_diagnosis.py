"""What a diagnosis shows, read from its folder."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from isfed import PAPER, FederatedData, LeastSquares, Problem, diagnose
from isfed.report.diagnosis_report import (
    constant_lines,
    diagnosis_table,
    dominant_lines,
    tuned_page_table,
    tuned_table,
)
from isfed.report.figures import inclusion_figure
from isfed.report.page_from_results import page_data
from isfed.studies import StoreError, load_results
from isfed.studies.diagnosis_folder import check_folder, write_diagnosis


def test_the_folder_holds_it(tmp_path):
    problem = PAPER.replace(num_agents=20, num_examples=10).make()
    found = diagnose(problem, num_active=3)
    write_diagnosis(tmp_path / "run", problem, found)
    results = load_results(tmp_path / "run")
    assert results.kind == "diagnosis"
    assert results.summary["recommendation"] == found.recommendation()
    options = [option["sampling"] for option in results.summary["options"]]
    assert options == ["uniform", "agents", "examples", "both"]
    assert all(path.stat().st_size > 1000 for path in inclusion_figure(results))
    assert diagnosis_table(results).columns[1:] == ("none", "agents", "examples", "both")
    shown = StringIO()
    Console(file=shown, width=80).print(diagnosis_table(results), tuned_table(results))
    assert "…" not in shown.getvalue()  # nothing is cut on a narrow screen
    ways = results.summary["tuned"]
    ways[0] |= {"gain_db": None, "reaches": None}  # diverges at every step size
    last = [cell.text for cell in tuned_page_table(results).rows[-1]]
    assert last[:2] == [ways[0]["name"], "unknown"]
    assert last[3] == "never"
    agents, examples = dominant_lines(results)
    assert f": {found.top_agents[0][0]} (" in agents
    assert f"of agent {found.top_examples[0][0]} (" in examples
    data = page_data(results)
    assert data.verdict == found.answer()
    assert data.advice[0].startswith("Why FedAvg ends above the lowest loss: ")
    assert data.advice[1].startswith("How certain: ")
    assert found.tuned is not None
    assert data.advice[2].startswith(
        f"Step size: {found.tuned.advised.step_size:.2g} for 2,000 rounds"
    )
    table = results.inclusion
    of_agents = table["inclusion"][table["unit"] == "agent"]
    np.testing.assert_array_equal(of_agents, np.sort(found.choices.agents)[::-1])
    with pytest.raises(StoreError, match="--overwrite"):
        check_folder(tmp_path / "run", overwrite=False)
    check_folder(tmp_path / "run", overwrite=True)


def test_constants_that_do_not_exist(tmp_path):
    data = FederatedData.from_agents(
        [(np.ones((3, 2)), np.arange(3.0)), (np.ones((3, 2)), np.ones(3))]
    )
    problem = Problem(data, LeastSquares(0.0))
    results = write_diagnosis(tmp_path / "run", problem, diagnose(problem, num_active=1))
    assert any("nu: none" in line for line in constant_lines(results))
