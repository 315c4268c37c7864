"""A diagnosis as a results folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from isfed.datasets import FederatedTable
from isfed.problems import Problem
from isfed.studies.problem_sources import Given
from isfed.studies.results_folder import INCLUSION, Configured, Folder
from isfed.studies.results_reader import Results, load_results
from isfed.studies.results_summary import made_with
from isfed.theory.diagnosis import Diagnosis

MOST_POINTS = 2000  # a curve of a million points says no more


@dataclass(frozen=True)
class DiagnosisConfig(Configured):
    """What was diagnosed; before it is known, a folder can be asked whether it may be used."""

    resolved: dict[str, Any]
    kind: ClassVar[str] = "diagnosis"


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something else, and one that holds results if they are to stay."""
    Folder(folder, DiagnosisConfig({})).check(resume=False, overwrite=overwrite)


def write_diagnosis(
    folder: Path,
    problem: Problem,
    diagnosis: Diagnosis,
    *,
    table: FederatedTable | None = None,
    overwrite: bool = False,
) -> Results:
    """Write all there is of a diagnosis; agents, features and rows are named as in the table."""
    setting = {key: value for key, value in diagnosis.setting.items() if value is not None}
    config = DiagnosisConfig(
        {"name": diagnosis.problem, "setting": setting, "problem": Given(problem).describe()}
    )
    summary = diagnosis.as_dict()
    for row in (*summary["top_agents"], *summary["top_examples"]):
        row["agent_name"] = str(row["agent"] if table is None else table.agents[row["agent"]])
    for row in summary["top_examples"]:
        row["row_name"] = f"example {row['example'] + 1}"
        if table is not None:
            at = problem.data.offsets[row["agent"]] + row["example"]
            row["row_name"] = table.spot(int(table.rows[at]))
    for row in summary["waits_for"]:
        named = table is not None
        row["feature_name"] = table.features[row["feature"]] if named else f"{row['feature'] + 1}"
    if table is not None:
        summary |= {"data": table.account.lines(), "account": table.account.as_dict()}
    place = Folder(folder, config)
    with place.opened(resume=False, overwrite=overwrite):
        heading = {"experiment": diagnosis.problem, "algorithms": [], "made_with": made_with()}
        tables = {INCLUSION: inclusion_columns(problem, diagnosis)}
        place.replace(tables, {**heading, "no_msd": None, **summary}, {})
    return load_results(folder)


def inclusion_columns(problem: Problem, diagnosis: Diagnosis) -> dict[str, Any]:
    """The inclusion probabilities by rank, and over the uniform ones; of many a few."""
    sizes = problem.data.num_examples
    agents = np.sort(diagnosis.choices.agents)[::-1]
    over = agents / (agents.sum() / agents.size)
    times = np.sort(diagnosis.choices.examples * np.repeat(sizes / problem.batch_size, sizes))[::-1]
    place = np.unique(np.geomspace(1, times.size, MOST_POINTS).astype(int)) - 1
    count = agents.size
    return {
        "unit": ["agent"] * count + ["example"] * place.size,
        "rank": np.concatenate([np.arange(count), place]) + 1,
        "share": np.concatenate([(np.arange(count) + 1) / count, (place + 1) / times.size]),
        "inclusion": np.concatenate([agents, np.full(place.size, np.nan)]),
        "over_uniform": np.concatenate([over, times[place]]),
    }
