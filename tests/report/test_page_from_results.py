"""From results folders to pages: what is said of one folder and of two."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from rich.console import Console
from typer.testing import CliRunner

from isfed.cli.app import app
from isfed.report.comparison_report import comparison_table, more_work_line, ways_table
from isfed.report.html_page import page
from isfed.report.page_from_results import page_data
from isfed.report.page_sentences import edge_lines, verdict, warnings
from isfed.report.two_runs import differences, pair_data
from isfed.studies import load_results
from isfed.studies.results_reader import StepSearch

ROUNDS = 500


def save(
    path: Path, kind: str, config: dict[str, Any], summary: dict[str, Any], **tables: Any
) -> Path:
    """The files of a results folder."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(tomli_w.dumps(config))
    heading = {"format": 1, "kind": kind, "digest": "0123456789abcdef"}
    (path / "summary.json").write_text(json.dumps(heading | summary))
    names = [algorithm["name"] for algorithm in summary["algorithms"]]
    times = {"cores": 2, "seconds": dict.fromkeys(names, 1.5)}
    (path / "times.json").write_text(json.dumps(times))
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), path / f"{name}.parquet")
    return path


def row(name: str, level: float, gain: float | None, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "step_size": 0.01, "msd_db": level, "msd_stderr_db": 0.3, "gain_db": gain,
        "gain_stderr_db": 0.4, "settled": True, "diverged_round": None,
        "gradients_per_round": 30682.0, "uploads_per_round": 6.0, "final": {}, **more,
    }  # fmt: skip


def write(
    path: Path, rows: list[dict[str, Any]], *, kind: str = "experiment", seed: int = 0, **more: Any
) -> Path:
    """A results folder with a curve and a measure for every algorithm."""
    config = {
        "name": "sample", "rounds": ROUNDS, "seed": seed, "problem": {"num_agents": 300},
        "algorithm": [{"name": r["name"], "step_size": 0.01} for r in rows],
    }  # fmt: skip
    names = [r["name"] for r in rows]
    x = np.arange(1, ROUNDS + 1)
    msd = np.concatenate([np.exp(-x / 50.0) + 10 ** (r["msd_db"] / 10) for r in rows])
    history = {
        "algorithm": np.repeat(names, ROUNDS).tolist(), "round": np.tile(x, len(rows)),
        "msd": msd, "msd_stderr": 0.1 * msd, "msd_q10": msd, "msd_q90": msd,
    }  # fmt: skip
    measured = {
        "algorithm": np.repeat(names, 5).tolist(), "measure": ["test_error"] * 5 * len(rows),
        "round": np.tile(x[99::100], len(rows)), "mean": np.linspace(0.5, 0.1, 5 * len(rows)),
        "stderr": np.full(5 * len(rows), 0.01),
    }  # fmt: skip
    summary = {
        "experiment": "sample", "rounds": ROUNDS, "repetitions": 20, "steady_rounds": 125,
        "no_msd": None, "algorithms": rows, "made_with": {"isfed": "0.1.0"}, **more,
    }  # fmt: skip
    return save(path, kind, config, summary, history=history, measures=measured)


@pytest.fixture
def folder(tmp_path) -> Path:
    rows = [row("FedAvg", -30.0, 0.0), row("ISFedAvg, <memory>", -38.0, 8.0, settled=False)]
    return write(tmp_path / "first", rows)


def test_one_folder_as_a_page(folder):
    data = page_data(load_results(folder))
    said = "ISFedAvg, <memory> ends lowest: 8.0 ± 0.4 dB below FedAvg"
    assert data.verdict == f"{said}, but the run was too short to have settled."
    assert [figure.title for figure in data.figures] == ["Distance to the optimum", "Test error"]
    first, second = data.figures
    assert list(first.axes) == ["rounds", "uploads", "gradients"]
    curve = first.series[1]
    assert curve.units == {"rounds": 1.0, "uploads": 6.0, "gradients": 30682.0}
    assert curve.high == pytest.approx(1.2 * curve.mean)  # 2 standard errors of a tenth
    assert first.band == "2 standard errors over 20 repetitions"
    texts = [cell.text for cell in first.table.rows[1]]
    assert texts[1:5] == ["0.01", "−38.00 ± 0.30 dB", "8.00 ± 0.40 dB", "no"]
    assert texts[5:] == ["6", "30,682"]
    assert second.table.rows[0][2].text == "0.322 ± 0.01"
    assert data.data == (("num agents", "300"),)
    assert data.configurations["config.toml"] == (folder / "config.toml").read_text()
    assert f"isfed run {folder}/config.toml" in data.commands[0]
    assert "ISFedAvg, &lt;memory&gt;" in page(data)


def test_the_command_that_made_the_folder_is_quoted(folder):
    (folder / "command.txt").write_text("isfed reproduce regression --seed 3\n")
    assert page_data(load_results(folder)).commands == ("isfed reproduce regression --seed 3",)


def test_only_an_experiment_can_be_run_from_its_configuration(tmp_path):
    results = load_results(write(tmp_path / "a", [row("a", -30.0, 0.0)], kind="tuned"))
    assert page_data(results).commands == ()


def test_a_diagnosis_as_a_page(tmp_path):
    rank = np.array([1, 2, 4, 8, 16, 31])  # not every one is kept
    table = {
        "unit": ["example"] * 6, "rank": rank, "inclusion": 0.01 * rank,
        "over_uniform": 32.0 - rank,
    }  # fmt: skip
    option = {"sampling": "both", "variance": 1e-3, "variance_ratio": None, "gain_db": 3.5}
    summary = {
        "experiment": "d", "algorithms": [], "made_with": {}, "recommendation": "Sample.",
        "setting": {"num_agents": 4, "rows": 31}, "options": [option | {"step_limit": 0.9}],
        "remarks": ["All agents are alike."],
        "top_agents": [{"agent_name": "north", "times_uniform": 3.25}],
        "top_examples": [{"agent_name": "north", "row_name": "row 7", "times_uniform": 5.0}],
    }  # fmt: skip
    folder = save(tmp_path / "d", "diagnosis", {"name": "d"}, summary, inclusion=table)
    data = page_data(load_results(folder))
    assert data.verdict == "Sample."
    (figure,) = data.figures
    drawn = [[cell.text for cell in cells] for cells in figure.table.rows]
    assert drawn == [["row 7 of agent north", "5"], ["in the middle", "16"], ["least drawn", "1"]]
    shown = [cell.text for cell in data.tables[0].rows[0]]
    assert shown[:5] == ["importance sampling of both", "0.001", "unknown", "3.50", "0.9"]
    assert shown[5:] == ["unknown", "unknown"]
    assert len(data.tables) == 1
    assert data.next_steps == ()  # it is not of a table
    assert data.warnings == ("All agents are alike.",)
    assert "4 agents, 31 rows" in data.summary
    assert "How often every example is drawn" in page(data)


def test_agents_have_names_where_they_are_known(tmp_path):
    table = {
        "unit": ["agent"] * 3, "rank": [1, 2, 3], "inclusion": [0.9, 0.6, 0.5],
        "over_uniform": [1.35, 0.9, 0.75],
    }  # fmt: skip
    summary = {
        "experiment": "d", "algorithms": [], "made_with": {}, "recommendation": "Sample.",
        "setting": {"num_agents": 3, "rows": 31}, "options": [], "remarks": [],
    }  # fmt: skip
    for top, first in (
        ([], "most drawn"), ([{"agent_name": "north", "times_uniform": 1.35}], "north")
    ):  # fmt: skip
        known = summary | {"top_agents": top}
        folder = save(tmp_path / first, "diagnosis", {"name": "d"}, known, inclusion=table)
        (figure,) = page_data(load_results(folder)).figures
        names = [cells[0].text for cells in figure.table.rows]
        assert names == [first, "in the middle", "least drawn"]


def test_after_a_diagnosis_of_a_table_comes_a_comparison(tmp_path):
    summary = {
        "experiment": "d", "algorithms": [], "made_with": {}, "recommendation": "Sample.",
        "setting": {"num_agents": 3, "rows": 31}, "options": [], "remarks": [],
    }  # fmt: skip
    folder = save(tmp_path / "d", "diagnosis", {"name": "d"}, summary)
    for command, wanted in (
        ("isfed diagnose 'my table.csv' --theory --agent site --target y --na -9",
         "isfed compare 'my table.csv' --agent site --target y --na -9"),
        ("isfed diagnose paper", ""),
    ):  # fmt: skip
        (folder / "command.txt").write_text(command + "\n")
        data = page_data(load_results(folder))
        assert [code for _, code in data.next_steps] == ([wanted] if wanted else [])
        assert ("What to do next" in page(data)) == bool(wanted)


def test_a_study_of_several_problems_has_a_figure_for_each(tmp_path):
    rows = [
        row("a: x", -30.0, 0.0, problem="a"), row("a: y", -35.0, 5.0, problem="a"),
        row("b: x", -10.0, 0.0, problem="b"), row("b: y", -10.1, 0.1, problem="b"),
    ]  # fmt: skip
    data = page_data(load_results(write(tmp_path / "s", rows, kind="systems")))
    assert [figure.title for figure in data.figures] == [
        "Distance to the optimum, a", "Distance to the optimum, b",
    ]  # fmt: skip
    assert [series.name for series in data.figures[1].series] == ["b: x", "b: y"]
    assert data.verdict == (
        "On a: a: y ends lowest: 5.0 ± 0.4 dB below a: x. "
        "On b: No algorithm ends below b: x by more than two standard errors."
    )


def test_a_comparison_draws_the_loss_and_not_the_same_curve_again(tmp_path):
    rows = [row("FedAvg", -30.0, 0.0)]
    results = load_results(write(tmp_path / "a", rows, kind="comparison"))
    (fedavg,) = results.algorithms
    loss = replace(fedavg, measures={"excess": fedavg.measures["test_error"]})
    figures = page_data(replace(results, algorithms=(loss,))).figures
    assert [f.title for f in figures] == ["Loss above the optimum"]


def test_a_comparison_shows_what_was_held_out(tmp_path):
    part = {"examples": 1200, "loss": 0.25, "loss_stderr": 0.01, "error": 0.125}
    found = {"FedAvg": {"training": part, "rows": part | {"loss": 0.5}}}
    results = load_results(write(tmp_path / "a", [row("FedAvg", -30.0, 0.0)], held_out=found))
    (table,) = page_data(results).differences  # before the figures
    assert table.columns == (
        "way", "wrong, held-out rows (1,200)", "wrong, trained on (1,200)",
        "loss, held-out rows (1,200)", "loss, trained on (1,200)",
    )  # fmt: skip
    texts = [[cell.text for cell in cells] for cells in table.rows]
    assert texts == [["FedAvg", "12.5%", "12.5%", "0.5 ± 0.01", "0.25 ± 0.01"]]


def test_errors_that_are_alike_are_folded_and_those_that_differ_come_first(tmp_path):
    rows = [row("FedAvg", -30.0, 0.0), row("importance", -33.0, 3.0)]
    found = {
        name: {"rows": {"examples": 1200, "loss": 0.25, "loss_stderr": 0.01, "error": error}}
        for name, error in (("FedAvg", 0.125), ("importance", 0.131))
    }
    for alike in (True, False):
        more = {"kind": "comparison", "held_out": found, "held_out_alike": alike}
        results = load_results(write(tmp_path / f"{alike}", rows, **more))
        (table,) = page_data(results).differences
        assert table.folded == alike
        assert table.caption.endswith("all ways are alike") == alike
    number = {"held_out": found, "account": {"span": [0.0, 9.0]}}  # a loss would say it again
    results = load_results(write(tmp_path / "number", rows, kind="comparison", **number))
    (table,) = page_data(results).differences
    assert table.columns == ("way", "RMSE, held-out rows (1,200)")


def test_ways_are_ranked_with_what_each_needs_and_what_was_predicted(tmp_path):
    rows = [
        row("FedAvg", -30.0, 0.0, final_excess=0.2, rounds=300, uploads=900.0, gradients=7200.0),
        row("importance", -31.0, 1.0, final_excess=0.16, gain_low_db=-0.5, gain_high_db=2.5),
        row("averaged", -33.0, 3.0, final_excess=0.1, gain_low_db=1.0, gain_high_db=6.0,
            rounds=100, uploads=300.0, gradients=2400.0),
    ]  # fmt: skip
    doubled = {"typical": 0.1, "step_size": 0.1, "uploads": 2.0, "gradients": 2.0}
    more = {
        "kind": "comparison", "winner": "averaged",
        "predicted": {"FedAvg": {"typical": 0.2, "step_size": 0.1},
                      "averaged": {"typical": 0.02, "step_size": 0.1},
                      "FedAvg, 2 L agents": doubled},
    }  # fmt: skip
    results = load_results(write(tmp_path / "c", rows, **more))
    table = ways_table(results)
    assert [cells[0].text for cells in table.rows] == [
        "averaged (recommended)", "importance", "FedAvg",
    ]  # fmt: skip
    shown = {cells[0].text: [cell.text for cell in cells[3:8]] for cells in table.rows}
    assert shown["averaged (recommended)"] == ["3.0 (1.0 to 6.0)", "10.0", "100", "300", "2,400"]
    assert shown["importance"] == ["1.0 (−0.5 to 2.5)", "", "never", "never", "never"]
    assert shown["FedAvg"][:2] == ["0.0", "0.0"]
    assert (
        "with twice the agents per round it would end 3.0 dB lower, for twice the uploads and "
        "twice the gradients" in str(more_work_line(results))
    )
    narrow = Console(width=80, record=True, file=io.StringIO())
    narrow.print(comparison_table(results))
    text = narrow.export_text()
    assert "> averaged" in text
    assert "recommended)" not in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_after_a_comparison_the_best_is_used(tmp_path):
    rows = [
        row("FedAvg", -30.0, 0.0, final_excess=0.2, final_stderr=0.01),
        row("averaged", -33.0, 3.0, final_excess=0.1, final_stderr=0.01, gain_low_db=-1.0,
            gain_high_db=6.0),
    ]  # fmt: skip
    more = {"next_steps": ["from isfed import FedAvg", "FedAvg()"], "winner": "averaged"}
    folder = write(tmp_path / "c", rows, kind="comparison", **more)
    for command, again in (
        ("isfed compare t.csv --agent site", ["isfed compare t.csv --agent site --save model.json "
                                              "--resume"]),
        ("isfed compare t.csv --save model.json", []),
    ):  # fmt: skip
        (folder / "command.txt").write_text(command + "\n")
        results = load_results(folder)
        typed = [code for _, code in page_data(results).next_steps]
        predict = "isfed predict model.json NEW.csv --append --out predicted.csv"
        assert typed == ["from isfed import FedAvg\nFedAvg()", *again, predict]
    measured = tuple(
        replace(a, measures={"excess": a.measures["test_error"]}) for a in results.algorithms
    )
    (figure,) = page_data(replace(results, algorithms=measured)).figures
    shown = [[cell.text for cell in cells] for cells in figure.table.rows]
    assert [cells[0] for cells in shown] == ["averaged (recommended)", "FedAvg"]
    assert shown[0][3] == "3.0 (−1.0 to 6.0)"


def test_the_account_of_the_data_is_shown(tmp_path):
    rows = [row("FedAvg", -30.0, 0.0)]
    data = {"rows": 20_000, "dropped": ["a", "b"], "share": 0.25, "intercept": True}
    results = load_results(write(tmp_path / "a", rows, data=data))
    assert page_data(results).data == (
        ("rows", "20,000"), ("dropped", "a, b"), ("share", "0.25"), ("intercept", "yes"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (row("b", -30.5, 0.5), "No algorithm ends below a by more than two standard errors."),
        (row("b", -38.0, 8.0, gain_stderr_db=None), "b ends 8.0 dB below a; with one repetition"),
        (row("b", -38.0, None, diverged_round=7), "There is nothing to compare"),
    ],
)
def test_the_verdict_says_no_more_than_the_numbers(tmp_path, second, said):
    results = load_results(write(tmp_path / "a", [row("a", -30.0, 0.0), second]))
    assert verdict(results).startswith(said)


def test_the_verdict_of_a_comparison_is_its_own(tmp_path):
    found = load_results(write(tmp_path / "a", [row("a", -30.0, 0.0)], verdict="Keep FedAvg."))
    assert verdict(found) == "Keep FedAvg."


def test_warnings(tmp_path):
    rows = [row("a", -30.0, 0.0, diverged_round=77), row("b", -31.0, 1.0, settled=False)]
    steps = {"b": {"best": 0.5, "losses": [[0.25, 2.0], [0.5, 1.0]]}}
    results = load_results(write(tmp_path / "a", rows, step_sizes=steps, no_msd="no optimum."))
    diverged, moving, unknown, edge = warnings(results)
    assert diverged == "a diverged in round 77; use a smaller step size than 0.01."
    assert moving.startswith("Not settled at the end: b.")
    assert unknown.endswith("no optimum.")
    assert (
        edge
        == "Only two step sizes were tried for each algorithm; a better one may lie beyond them."
    )
    tried = page_data(results).tables[0]
    assert [[cell.text for cell in cells] for cells in tried.rows] == [
        ["b", "0.25", "2", ""], ["b", "0.5", "1", "best"],
    ]  # fmt: skip


def search(best: float, *steps: float) -> StepSearch:
    return StepSearch(best, dict.fromkeys(steps, 1.0))


def test_step_sizes_at_the_edge_are_one_line(folder):
    results = load_results(folder)
    found = {
        "a": search(0.5, 0.1, 0.3, 0.5), "b": search(0.3, 0.1, 0.3, 0.5),
        "c, d": search(0.1, 0.1, 0.3, 0.5), "e": search(0.03, 0.03),
    }  # fmt: skip
    assert list(edge_lines(replace(results, searches=found))) == [
        "The best step size is at the edge of those tried for a (0.5); c, d (0.1): a better one "
        "may lie beyond."
    ]
    fixed = {"e": search(0.03, 0.03)}  # nothing was chosen
    assert list(edge_lines(replace(results, searches=fixed))) == []


def test_two_folders_as_a_page(folder, tmp_path):
    rows = [row("FedAvg", -30.1, 0.0), row("FedProx", -33.0, 3.0)]
    other = write(tmp_path / "second", rows, seed=5)
    data = pair_data(load_results(folder), load_results(other))
    assert data.title == "first and second"
    assert [cells[0].text for cells in data.differences[0].rows] == [
        "seed", "algorithm.ISFedAvg, <memory>.step_size", "algorithm.FedProx.step_size",
    ]  # fmt: skip
    assert [cell.text for cell in data.differences[0].rows[2]][1:] == ["not set", "0.01"]
    figure = data.figures[0]
    names = ["FedAvg · first", "ISFedAvg, <memory> · first", "FedAvg · second", "FedProx · second"]
    assert [series.name for series in figure.series] == names
    assert [series.colour for series in figure.series] == [0, 1, 0, 2]
    shown = {cells[0].text: [cell.text for cell in cells[1:]] for cells in figure.table.rows}
    assert shown["FedAvg"] == ["−30.00 ± 0.30 dB", "−30.10 ± 0.30 dB", "−0.10 ± 0.42 dB"]
    assert shown["FedProx"] == ["none", "−33.00 ± 0.30 dB", "none"]
    assert data.verdict.startswith("3 settings differ (seed, ")
    assert data.verdict.endswith("no algorithm ends elsewhere by more than two standard errors.")


def test_the_verdict_on_two_folders_names_the_largest_change(folder, tmp_path):
    rows = [row("FedAvg", -35.0, 0.0), row("ISFedAvg, <memory>", -38.1, 8.0)]
    one, other = load_results(folder), load_results(write(tmp_path / "second", rows))
    assert pair_data(one, other).verdict == (
        "Both folders hold the same configuration; 1 of 2 algorithms end elsewhere, most of all "
        "FedAvg: 5.00 ± 0.42 dB below in second."
    )


def test_levels_on_different_problems_are_not_compared(folder):
    one = load_results(folder)
    pairs = [
        [replace(one, config={**one.config, "problem": problem}) for problem in problems]
        for problems in (
            ({"file": "a.csv", "sha256": "1"}, {"file": "b.csv", "sha256": "2"}),
            ({"file": "a.csv", "sha256": "1"}, {"file": "b.csv", "sha256": "1"}),
        )
    ]
    other, same = (pair_data(*pair).verdict for pair in pairs)
    assert other.endswith("about different problems, whose levels cannot be compared.")
    assert same.endswith("no algorithm ends elsewhere by more than two standard errors.")


def test_a_comparison_says_what_a_diagnosis_predicts(tmp_path):
    rows = [row("FedAvg", -30.0, 0.0), row("importance", -33.0, 3.0)]
    results = load_results(write(tmp_path / "c", rows, kind="comparison"))
    assert page_data(results).advice == ()  # folders of older versions have no prediction
    step = results.algorithms[0].step_size
    ends = {"FedAvg": 2.0, "importance": 1.0}
    found = {name: {"typical": end, "step_size": step} for name, end in ends.items()}
    for algorithm, gain in zip(results.algorithms, (0.0, 2.0), strict=True):
        summary: Any = algorithm.summary
        summary["gain_db"] = gain
    known = replace(results, summary={**results.summary, "predicted": found})
    (line,) = page_data(known).advice
    assert line.startswith("What formulas predicted without a run: gains")
    assert "differ by 1.0 dB on average" in line
    assert line.endswith("step sizes within a factor of 1.0.")


def test_folders_of_one_name_go_by_their_paths(tmp_path):
    paths = [write(tmp_path / part / "run", [row("a", -30.0, 0.0)]) for part in ("x", "y")]
    data = pair_data(*(load_results(path) for path in paths))
    assert data.title == f"{paths[0]} and {paths[1]}"


def test_differences_of_nothing():
    assert list(differences({"a": [1, 2]}, {"a": [1, 2]})) == []


def test_curves_that_are_not_there(folder):
    results = load_results(folder)
    nothing = np.full(ROUNDS, math.nan)
    blank = tuple(replace(a, msd=nothing, measures={}) for a in results.algorithms)
    assert page_data(replace(results, algorithms=blank)).figures == ()


def call(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["report", *words], env={"COLUMNS": "400"})
    return found.exit_code, found.output


def test_the_command(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("first")[0] == 0
    assert "ends lowest: 8.0" in (folder / "report.html").read_text()
    write(tmp_path / "second", [row("FedAvg", -30.1, 0.0)])
    assert call("first", "second") == (0, "The report is in report-first-second.html\n")
    assert call("first", "--out", "deep/page.html")[0] == 0
    assert (tmp_path / "deep" / "page.html").exists()


def test_the_command_refuses_what_is_no_results_folder(folder, tmp_path):
    code, text = call(str(tmp_path / "nowhere"))
    assert code == 1
    assert "not there" in text
    code, text = call(str(folder), str(tmp_path))
    assert code == 1
    assert "is not a results folder" in text
    assert not (folder / "report.html").exists()


def test_a_study_of_heterogeneity_begins_with_its_gains(tmp_path):
    points = [
        {"noisy_share": share, "noise_ratio": ratio, "gain_db": ratio + share,
         "gain_stderr_db": 0.5, "memory_gain_db": None if ratio > 5.0 else 1.0}
        for share in (0.1, 0.3) for ratio in (1.0, 10.0)
    ]  # fmt: skip
    folder = write(tmp_path / "h", [row("a", -30.0, 0.0)], kind="heterogeneity")
    results = load_results(folder)
    results = replace(results, summary=dict(results.summary) | {"points": points})
    data = page_data(results)
    gains = data.figures[0]
    assert gains.title == "Gain over FedAvg"
    assert [series.name for series in gains.series] == [
        "10% noisy, oracle", "10% noisy, memory", "30% noisy, oracle", "30% noisy, memory",
    ]  # fmt: skip
    np.testing.assert_allclose(gains.series[2].mean, [1.3, 10.3])
    np.testing.assert_allclose(gains.series[2].x, [0.0, 10.0])
    np.testing.assert_allclose(gains.series[2].high, [2.3, 11.3])
    assert len(gains.table.rows) == 4
    assert "below FedAvg there" in data.figures[1].table.columns
    assert "Gain over FedAvg" in page(data)
