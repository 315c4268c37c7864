"""Methods at a common and at their best step size: what is kept, what is refused, what is said."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from isfed import FedAvg, FederatedData, ISFedAvg, Logistic, Memory, Problem, Running
from isfed.studies import Experiment, StoreError, executors, make_experiment, step_grid
from isfed.studies.config_schema import write_value
from isfed.studies.experiment import StudyTask
from isfed.studies.name_registry import write_algorithm
from isfed.studies.results_folder import CONFIG, MEASURES, SUMMARY
from isfed.studies.step_grid import StepGrid
from isfed.studies.study_engine import run_study
from isfed.studies.test_measures import ErrorRates, HeldOutLoss
from isfed.studies.work_cells import run_cell


@dataclass(frozen=True)
class Small:
    """Two clouds of points over five agents."""

    held_out: bool = False
    every: int = 10
    data_dir: Path | None = None

    def make(self) -> Problem:
        x, y = self._rows(1 if self.held_out else 0)
        return Problem(FederatedData(x, y, np.arange(0, 51, 10)), Logistic(ridge=0.01))

    def _rows(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        y = np.where(np.arange(50) % 2 == 0, 1.0, -1.0)
        return rng.standard_normal((50, 2)) + y[:, None], y

    def measure(self, problem: Problem) -> ErrorRates:
        return ErrorRates(*self._rows(2), every=self.every)

    def held_out_loss(self, problem: Problem) -> HeldOutLoss:
        return HeldOutLoss(problem.loss, *self._rows(3), np.ones(50), every=self.every)

    def describe(self) -> dict[str, Any]:
        return {"data": "small", "every": self.every}


METHODS = {
    "FedAvg": FedAvg(step_size=0.1, num_active=2),
    "memory": ISFedAvg(step_size=0.1, num_active=2, agents=Memory(), examples=Memory()),
}


def small(source=None, methods=METHODS):
    """The study of a problem that has no name in a file."""
    source = source or Small()
    grid = StepGrid(grid=(0.1, 0.5), rounds=15, repetitions=1, widen=0, again=True)
    tables = {
        "name": "small", "kind": "tuned", "problem": source.describe(),
        "step_sizes": write_value(grid),
        "algorithm": [write_algorithm(name, method) for name, method in methods.items()],
    }  # fmt: skip
    task = StudyTask("", source, methods, 25, 3, step_sizes=grid, tuned=tuple(methods))
    options = {"paper": {"FedAvg": 0.4}}
    return Experiment("small", (task,), 0, tables, kind="tuned", options=options)


TUNED = small()


def test_the_folder_holds_everything(tmp_path):
    results = run_study(TUNED, tmp_path / "run")
    written = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert written == results.summary
    assert written["landmarks"]["majority_test_error"] == 0.5
    assert 0.0 < written["landmarks"]["optimum_test_error"] < 0.5
    assert written["common_step_size"] == 0.1
    assert [row["name"] for row in written["algorithms"]][:2] == ["FedAvg", "memory"]
    assert results.searches.keys() == METHODS.keys()
    assert list(results.searches["FedAvg"].losses) == [0.1, 0.5]
    assert not list(tmp_path.glob("*.json"))  # nothing beside the folder


def test_the_last_measurement_is_at_the_end(tmp_path):
    run_study(TUNED, tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / MEASURES).to_pydict()
    assert sorted(set(table["round"])) == [0, 10, 20, 25]


def test_the_configuration_says_what_the_methods_are(tmp_path):
    run_study(TUNED, tmp_path / "run")
    config = tomllib.loads((tmp_path / "run" / CONFIG).read_text())
    steps = {"grid": [0.1, 0.5], "rounds": 15, "repetitions": 1, "widen": 0, "again": True}
    assert config["step_sizes"] == steps
    assert [table["name"] for table in config["algorithm"]] == ["FedAvg", "memory"]
    again = make_experiment({"algorithm": config["algorithm"]}).algorithms
    for name, method in METHODS.items():
        assert replace(again[name], label="") == replace(method, label="")


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(step_size=0.1, num_active=2, divide_by_steps=True),
        ISFedAvg(step_size=0.1, num_active=3, agents=Running(floor=0.2), examples=Memory(rate=0.3)),
    ],
)
def test_an_algorithm_s_table_makes_it_again(algorithm):
    made = make_experiment({"algorithm": [write_algorithm("a", algorithm)]}).algorithms["a"]
    assert replace(made, label="") == replace(algorithm, label="")


def test_where_the_data_are_is_no_part_of_the_configuration_but_the_methods_are():
    assert small(Small(data_dir=Path("/elsewhere"))).digest == TUNED.digest
    assert small(methods={"FedAvg": METHODS["FedAvg"]}).digest != TUNED.digest
    other = {**METHODS, "memory": replace(METHODS["memory"], agents=Running())}
    assert small(methods=other).digest != TUNED.digest


def test_a_refused_folder_costs_nothing(tmp_path, monkeypatch):
    """The folder is looked at before an hour goes into step sizes."""
    (tmp_path / "thesis.tex").write_text("ten years of work")

    def never(*_, **__):
        raise AssertionError("step sizes were chosen for a folder that is refused")

    monkeypatch.setattr(step_grid, "search_step_size", never)
    with pytest.raises(StoreError, match="not results"):
        run_study(TUNED, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["thesis.tex"]


def test_steps_are_chosen_once(tmp_path, monkeypatch):
    """Stopped after the step sizes were tried: they are not tried again."""
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_study(TUNED, tmp_path / "run")
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.rglob("steps-*.npz")}
    assert len(kept) == 4
    ran = []
    monkeypatch.setattr(
        executors, "run_cell", lambda cell, *rest: ran.append(cell.file) or run_cell(cell, *rest)
    )
    results = run_study(TUNED, tmp_path / "run", resume=True)
    assert len(ran) == 4
    assert not any(name.startswith("steps") for name in ran)
    assert results.summary == run_study(TUNED, tmp_path / "other").summary
