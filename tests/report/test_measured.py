"""Pages of problems without an optimum, as networks: verdict and tables speak of the accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from isfed.report.html_page import page
from isfed.report.page_from_results import page_data
from isfed.report.page_sentences import verdict
from isfed.report.terminal_tables import summary_table
from isfed.report.two_runs import pair_data
from isfed.studies.results_reader import AlgorithmResult, Measurements, Results

ROUNDS = np.array([0, 5, 10])
Levels = Mapping[str, tuple[float, float]]  # final level and standard error, by algorithm


def measured(level: float, error: float, start: float) -> Measurements:
    mean = np.array([start, (start + level) / 2, level])
    return Measurements(ROUNDS, mean, np.full(3, error))


def algorithm(name: str, **measures: Measurements) -> AlgorithmResult:
    unknown = np.full(10, np.nan)
    summary = {"uploads_per_round": 3.0, "gradients_per_round": 100.0, "msd_db": None}
    return AlgorithmResult(
        name=name, step_size=0.1, rounds=np.arange(1, 11), msd=unknown, msd_stderr=unknown,
        msd_q10=unknown, msd_q90=unknown, telemetry={}, measures=measures, repetitions={},
        diverged_round=None, settled=None, summary=summary,
    )  # fmt: skip


@pytest.fixture
def make(tmp_path) -> Callable[..., Results]:
    """Results with these final accuracies, and all with the same loss."""

    def made(accuracies: Levels, *, repetitions: int = 5, **more: Any) -> Results:
        rows = tuple(
            algorithm(
                name,
                loss=measured(0.5, 0.01, 2.3),
                accuracy=measured(level, error, 0.01),
            )
            for name, (level, error) in accuracies.items()
        )
        folder = tmp_path / "results"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text('name = "net"\n')
        summary = {"no_msd": "made with optimum=None", "rounds": 10, "repetitions": repetitions}
        return Results(folder, "experiment", "net", "0", {}, rows, {}, {}, summary | more)

    return made


FEDAVG, OURS = (0.898, 0.008), (0.912, 0.007)


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [
        (
            {"FedAvg": FEDAVG, "importance": OURS},
            "importance ends at 91.2 ± 0.7% accuracy, FedAvg at 89.8 ± 0.8%: no clear difference.",
        ),
        (
            {"FedAvg": FEDAVG, "importance": (0.952, 0.006), "spread": OURS},
            "importance ends highest, at 95.2 ± 0.6% accuracy, FedAvg at 89.8 ± 0.8%: a clear "
            "difference, 5.4 ± 1.0 percentage points.",
        ),
        (
            {"FedAvg": (0.95, 0.001), "importance": OURS, "spread": FEDAVG},
            "FedAvg ends highest, at 95.0 ± 0.1% accuracy, the next best, importance, at 91.2 ± "
            "0.7%: a clear difference, 3.8 ± 0.7 percentage points.",
        ),
        (
            {"FedAvg": (np.nan, np.nan), "importance": OURS},
            "importance ends at 91.2 ± 0.7% accuracy; there is nothing to compare it with.",
        ),
        (
            {"FedAvg": (np.nan, np.nan)},
            "There is nothing to compare: no algorithm ended with a known level.",
        ),
    ],
)
def test_the_verdict_is_of_the_accuracy(make, accuracies, said):
    assert verdict(make(accuracies)) == said


def test_few_repetitions_make_no_clear_difference(make):
    one = make({"FedAvg": (0.5, np.nan), "importance": (0.9, np.nan)}, repetitions=1)
    assert verdict(one) == (
        "importance ends at 90.0% accuracy, FedAvg at 50.0%; with one repetition there is no "
        "standard error, so chance may have made this."
    )
    two = make({"FedAvg": (0.5, 0.01), "importance": (0.9, 0.01)}, repetitions=2)
    assert verdict(two).endswith(
        "40.0 ± 1.4 percentage points apart, but 2 repetitions are too few to call that clear."
    )


def test_without_accuracy_the_loss_decides(make):
    found = make({"FedAvg": FEDAVG})
    rows = tuple(
        algorithm(name, loss=measured(level, 0.01, 2.3))
        for name, level in (("FedAvg", 0.5), ("importance", 0.4))
    )
    assert verdict(replace(found, algorithms=rows)) == (
        "importance ends at a loss of 0.4 ± 0.01, FedAvg at a loss of 0.5 ± 0.01: a clear "
        "difference, 0.1 ± 0.01."
    )


def test_the_page_speaks_of_accuracy_in_percent(make):
    data = page_data(make({"FedAvg": FEDAVG, "worse": (0.8, 0.01), "importance": (0.956, 0.03)}))
    assert data.warnings == ()  # nobody asked for an optimum
    first, second = data.figures
    assert (first.title, second.title) == ("Accuracy", "Loss")
    assert first.table.columns[2:4] == ("accuracy at the end", "above FedAvg (percentage points)")
    assert second.table.columns[3] == "below FedAvg"
    assert "settled" not in (*first.table.columns, *second.table.columns)
    texts = [[cell.text for cell in cells[2:4]] for cells in first.table.rows]
    assert texts == [
        ["89.8 ± 0.8%", ""], ["80.0 ± 1.0%", "−9.8 ± 1.3"], ["95.6 ± 3.0%", "+5.8 ± 3.1"],
    ]  # fmt: skip
    band = first.series[2]
    assert (band.low.min(), band.high.max()) == (0.0, 100.0)
    text = page(data)
    assert text.count('value="log"') == 1  # of the loss


def row(name: str, accuracy: float, first: int | None, second: int | None) -> dict[str, Any]:
    """A method, and its rounds to the final accuracies of FedAvg and of its average."""
    return {
        "name": name, "step_size": 0.03, "accuracy": accuracy, "accuracy_stderr": 0.002,
        "diverged": "", "worst_drop": 0.015, "megabytes_per_round": 0.0488,
        "rounds_to": {"FedAvg": first, "FedAvg, averaged": second},
        "steps_tried": 4, "steps_useless": 1,
    }  # fmt: skip


def networks(make: Callable[..., Results]) -> Results:
    rows = [
        row("FedAvg", 0.60, 10, None), row("FedAvg, averaged", 0.78, 5, 10),
        row("default", 0.79, 5, 10), row("SCAFFOLD", 0.5, None, None),
    ]  # fmt: skip
    levels = {"FedAvg": 0.61, "FedAvg, averaged": 0.8, "default": 0.8, "SCAFFOLD": 0.45}
    found = make({n: (level, 0.002) for n, level in levels.items()}, networks=rows, title="net")
    return replace(found, kind="networks")


def test_a_study_of_networks_has_its_table_on_the_page(make):
    data = page_data(networks(make))
    assert data.verdict.startswith("default ends highest, at 79.0 ± 0.2% accuracy,")
    assert data.advice == (
        "FedAvg ends at 60.0% after 10 rounds. First there, after 5: FedAvg, averaged; default.",
        "FedAvg, averaged ends at 78.0% after 10 rounds. First there, after 10: default.",
    )
    table = data.tables[0]
    texts = [[cell.text for cell in cells[2:]] for cells in table.rows]
    assert len(table.columns) == 8
    assert texts[0] == ["60.0 ± 0.2", "1.5", "10", "-", "0.0488", "1 of 4"]
    assert texts[3] == ["50.0 ± 0.2", "1.5", "-", "-", "0.0488", "1 of 4"]
    level = data.figures[0].table.rows[0][2].text
    assert level == "60.0 ± 0.2%"  # as in the table, not the last evaluation alone


def test_a_method_that_diverged_has_a_row(make):
    results = networks(make)
    rows = results.summary["networks"]
    rows[1] = rows[1] | {"diverged": "in round 3", "accuracy": None, "accuracy_stderr": None}
    data = page_data(results)
    assert [cell.text for cell in data.tables[0].rows[1][2:]] == ["diverged", *[""] * 5]
    assert data.verdict.startswith("default ends highest")


def test_two_folders_differ_in_percentage_points(make, tmp_path: Path):
    one = make({"FedAvg": FEDAVG})
    other = replace(make({"FedAvg": (0.958, 0.006)}), path=tmp_path / "results")
    data = pair_data(one, other)
    assert data.verdict.endswith(
        "FedAvg: 6.0 ± 1.0 percentage points above in " + str(other.path) + "."
    )
    assert data.figures[0].linear_only


def test_the_table_of_the_terminal_has_percent_too(make):
    found = make({"FedAvg": FEDAVG, "importance": OURS}, steady_rounds=5)
    finals = [FEDAVG, (OURS[0], None)]  # as of one repetition
    rows = []
    for row, (mean, error) in zip(found.algorithms, finals, strict=True):
        final = {
            "accuracy": {"mean": mean, "stderr": error},
            "loss": {"mean": 0.5, "stderr": 0.01},
        }
        rows.append(replace(row, summary=row.summary | {"final": final}))
    summary = found.summary | {"uniform_agent_distance": None}
    table = summary_table(replace(found, algorithms=tuple(rows), summary=summary))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    head, *lines = [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in captured.get().splitlines()
        if "┃" in line or "│" in line
    ]
    place = head.index("accuracy (%)")
    assert [line[place] for line in lines] == ["89.8 ± 0.8", "91.2"]
    assert [line[head.index("loss")] for line in lines] == ["0.5 ± 0.01"] * 2
