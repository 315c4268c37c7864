"""A results folder as typed objects: `load_results`."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isfed.base.argument_checks import checked
from isfed.base.atomic_files import read_columns, read_json
from isfed.sampling.telemetry import COLUMNS
from isfed.studies.results_folder import (
    CELLS,
    CONFIG,
    FORMAT,
    HISTORY,
    INCLUSION,
    MEASURES,
    REPETITIONS,
    SUMMARY,
    TABLES,
    TIMES,
    StoreError,
    check_manifest,
    check_name,
    look_at,
)


@dataclass(frozen=True, eq=False)
class Measurements:
    """One measure along a run: its mean over the repetitions and the standard error of that."""

    rounds: np.ndarray  # (points,)
    mean: np.ndarray
    stderr: np.ndarray


@dataclass(frozen=True, eq=False)
class AlgorithmResult:
    """One algorithm of a results folder.

    Attributes:
        name: the name in tables and figures.
        step_size: the one used; nan if there is none.
        rounds: (T,) 1, 2, ..., the last finite round; empty where no history is kept.
        msd, msd_stderr, msd_q10, msd_q90: (T,) mean of |w_i - w^o|^2 over the repetitions, its
            standard error, and the quantiles of the repetitions; w^o is that of the method's
            `client_weights`.
        telemetry: (T,) by name, see `isfed.sampling.telemetry.COLUMNS`.
        measures: by name, what was measured along the way.
        repetitions: (R,) by name, the numbers of every repetition, for paired comparisons.
        diverged_round: when the model left every bound; None if it did not.
        settled: whether the msd had stopped changing, see
            `isfed.studies.results_summary.LevelChange`; None if nobody can tell.
        summary: the algorithm's entry in summary.json, as it is.
        seconds: what the run took.
    """

    name: str
    step_size: float
    rounds: np.ndarray
    msd: np.ndarray
    msd_stderr: np.ndarray
    msd_q10: np.ndarray
    msd_q90: np.ndarray
    telemetry: Mapping[str, np.ndarray]
    measures: Mapping[str, Measurements]
    repetitions: Mapping[str, np.ndarray]
    diverged_round: int | None
    settled: bool | None
    summary: Mapping[str, Any] = field(repr=False)
    seconds: float = math.nan

    @property
    def rounds_per_second(self) -> float:
        """Rounds, each counted once for every repetition, in a second of one cell."""
        rounds = self.rounds.size * len(self.repetitions.get("repetition", ()))
        return rounds / max(self.seconds, 1e-9)

    def number(self, key: str) -> float:
        """A number of the summary; nan where it has none."""
        value = self.summary.get(key)
        return math.nan if value is None else float(value)


@dataclass(frozen=True)
class StepSearch:
    """The step sizes that were tried for one algorithm and the loss of each; inf: it diverged."""

    best: float
    losses: Mapping[float, float]

    @classmethod
    def of(cls, losses: Mapping[float, float]) -> StepSearch:
        """The choice that the losses suggest; of equals the smallest."""
        return cls(min(losses, key=lambda step: (losses[step], step)), losses)

    @property
    def at_edge(self) -> bool:
        """Whether the best is the first or the last of the grid: then the grid is too narrow."""
        finite = [step for step, loss in self.losses.items() if math.isfinite(loss)]
        return self.best in (min(finite), max(self.losses))

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        pairs = [[step, loss] for step, loss in self.losses.items()]
        return {"best": self.best, "at_edge": self.at_edge, "losses": pairs}


@dataclass(frozen=True, eq=False)
class Results:
    """What a results folder holds.

    Attributes:
        path: the folder.
        kind: which sort of study: experiment, tuned, comparison, heterogeneity, diagnosis.
        name: the name of the experiment.
        digest: the fingerprint of the configuration.
        config: the configuration with every default.
        algorithms: in the order of the configuration; gains are over the first.
        searches: by algorithm, the step sizes that were tried.
        made_with: versions of isfed and of what it uses.
        summary: summary.json, as it is.
        inclusion: the inclusion probabilities by rank, if it is a diagnosis.
    """

    path: Path
    kind: str
    name: str
    digest: str
    config: Mapping[str, Any]
    algorithms: tuple[AlgorithmResult, ...]
    searches: Mapping[str, StepSearch]
    made_with: Mapping[str, Any]
    summary: Mapping[str, Any] = field(repr=False)
    inclusion: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)

    def __getitem__(self, name: str) -> AlgorithmResult:
        for algorithm in self.algorithms:
            if algorithm.name == name:
                return algorithm
        known = ", ".join(repr(algorithm.name) for algorithm in self.algorithms)
        raise KeyError(f"no algorithm {name!r} in {self.path}; it has {known}")

    @property
    def diverged(self) -> tuple[AlgorithmResult, ...]:
        """The algorithms that diverged."""
        return tuple(a for a in self.algorithms if a.diverged_round is not None)


@checked
def load_results(folder: str | Path) -> Results:
    """Read a results folder; a StoreError says what is wrong with one that cannot be read.

    Args:
        folder: what a command wrote, for instance "runs/regression"; docs/results.md lists its
            files.

    Examples:
        >>> import tempfile
        >>> from isfed.studies import make_experiment, run_experiment
        >>> fedavg = {"kind": "FedAvg", "step_size": 0.01, "num_active": 3}
        >>> small = {"rounds": 10, "repetitions": 2, "problem": {"num_agents": 12}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = run_experiment(make_experiment(small | {"algorithm": [fedavg]}), folder)
        ...     results = load_results(folder)
        >>> results["FedAvg"].msd.shape, results["FedAvg"].summary["uploads_per_round"]
        ((10,), 3.0)
    """
    path = Path(folder)
    try:
        summary = _summary(path)
    except (OSError, ValueError) as error:  # a name that no file can have
        raise StoreError(f"{str(path)[:200]!r} cannot be read: {error}"[:400]) from error
    try:
        check_manifest(path)
        config = tomllib.loads((path / CONFIG).read_text(encoding="utf-8"))
        tables = {name: read_columns(path / name) for name in TABLES if (path / name).exists()}
        times = read_json(path / TIMES) if (path / TIMES).exists() else {}
        return results_of(path, config, summary=summary, tables=tables, times=times)
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise StoreError(
            f"{path} is damaged ({what}); run it again with --overwrite, or elsewhere with --out"
        ) from error


def results_of(
    path: Path, config: Mapping[str, Any], *, summary: Any, tables: Any, times: Any
) -> Results:
    """The results that the files of a folder make."""
    return Results(
        path=path,
        kind=summary["kind"],
        name=summary["experiment"],
        digest=summary["digest"],
        config=config,
        algorithms=tuple(_algorithm(row, tables, times) for row in summary["algorithms"]),
        searches={n: _search(search) for n, search in summary.get("step_sizes", {}).items()},
        made_with=summary["made_with"],
        summary=summary,
        inclusion=tables.get(INCLUSION, {}),
    )


def _summary(path: Path) -> dict[str, Any]:
    """The summary of a folder that holds complete results of this format."""
    check_name(path)
    if not path.is_dir():
        raise StoreError(f"{path} is {'not a folder' if path.exists() else 'not there'}")
    contents = look_at(path)
    if contents.damage:
        raise StoreError(f"{contents.damage}; run it again with --overwrite")
    if contents.format is None:
        if contents.unfinished:
            raise StoreError(
                f"{path} holds a run that is not finished (see {CELLS}/); --resume continues it"
            )
        raise StoreError(f"{path} is not a results folder: it has no {SUMMARY} of isfed")
    if contents.format == 0:
        raise StoreError(
            f"{path} holds results of an earlier version of isfed (format 0), which this one does "
            "not read; run it again with --overwrite, or with another --out"
        )
    if contents.format > FORMAT:
        raise StoreError(
            f"{path} was written by a later version of isfed (format {contents.format}, this one "
            f"knows {FORMAT}); update isfed"
        )
    return read_json(path / SUMMARY)


def _search(search: Mapping[str, Any]) -> StepSearch:
    losses = {float(s): math.inf if loss is None else float(loss) for s, loss in search["losses"]}
    return StepSearch(float(search["best"]), losses)


def _algorithm(row: Mapping[str, Any], tables: Mapping[str, Any], times: Any) -> AlgorithmResult:
    name = row["name"]
    history = _rows(tables.get(HISTORY, {}), algorithm=name)
    measures = _rows(tables.get(MEASURES, {}), algorithm=name)
    nothing = np.empty(0)
    step_size = row.get("step_size")
    return AlgorithmResult(
        name=name,
        step_size=math.nan if step_size is None else float(step_size),
        rounds=history.get("round", nothing),
        msd=history.get("msd", nothing),
        msd_stderr=history.get("msd_stderr", nothing),
        msd_q10=history.get("msd_q10", nothing),
        msd_q90=history.get("msd_q90", nothing),
        telemetry={column: history[column] for column in COLUMNS if column in history},
        measures={
            str(measure): Measurements(measured["round"], measured["mean"], measured["stderr"])
            for measure in dict.fromkeys(measures.get("measure", ()))
            for measured in [_rows(measures, measure=measure)]
        },
        repetitions=_rows(tables.get(REPETITIONS, {}), algorithm=name),
        diverged_round=row.get("diverged_round"),
        settled=row.get("settled"),
        summary=row,
        seconds=float(times.get("seconds", {}).get(name, math.nan)),
    )


def _rows(columns: Mapping[str, np.ndarray], **wanted: str) -> dict[str, np.ndarray]:
    """The rows of a table in which a column has a value, without that column."""
    if not columns:
        return {}
    ((key, value),) = wanted.items()
    here = np.asarray(columns[key]) == value
    return {name: np.asarray(rest)[here] for name, rest in columns.items() if name != key}
