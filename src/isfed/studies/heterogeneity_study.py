"""How much importance sampling gains as a few agents become noisier than the rest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from isfed.methods import FedAvg, ISFedAvg
from isfed.problems import OUTLIERS
from isfed.sampling.policies import Memory, Oracle
from isfed.studies.config_schema import write_value
from isfed.studies.executors import Executor
from isfed.studies.problem_sources import RegressionSource
from isfed.studies.study_engine import Outcome, Study
from isfed.studies.work_cells import Cell, Finished, merged

SHARE = 0.5  # of the rounds, the last ones, whose mean is the level


@dataclass(frozen=True)
class Grid(Study):
    """Which problems to run, and how long."""

    noisy_shares: Sequence[float] = (0.01, 0.03, 0.1, 0.3)
    noise_ratios: Sequence[float] = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
    rounds: int = 2000
    repetitions: int = 20
    data_seeds: int = 3
    step_size: float = 0.01
    num_active: int = 6
    seed: int = 0  # of all draws; the data have seeds of their own
    kind: ClassVar[str] = "heterogeneity"
    name: ClassVar[str] = "heterogeneity"

    @property
    def points(self) -> list[tuple[float, float]]:
        """(share, ratio) of every point."""
        return [(share, ratio) for share in self.noisy_shares for ratio in self.noise_ratios]

    @property
    def algorithms(self) -> dict[str, ISFedAvg]:
        """What is compared at every point."""
        common = {"step_size": self.step_size, "num_active": self.num_active}
        return {
            "fedavg": FedAvg(**common),
            "oracle": ISFedAvg(**common, agents=Oracle(), examples=Oracle()),
            "memory": ISFedAvg(**common, agents=Memory(), examples=Memory()),
        }

    @property
    def resolved(self) -> dict[str, Any]:
        """The configuration."""
        return write_value(self)

    @property
    def source(self) -> RegressionSource:
        """Of the first point."""
        return _source(*self.points[0], 0)

    def outcome(self, executor: Executor) -> Outcome:
        """Run all points of the grid; gains are over FedAvg at the same point."""
        results = executor.run(_groups(self, executor), "gain over heterogeneity")
        points = [_point(self, share, ratio, results) for share, ratio in self.points]
        outcome = self.summarised(_over_data_seeds(self, results), points=points)
        rows = {row["name"]: row for row in outcome.summary["algorithms"]}
        for name, row in rows.items():
            reference = rows[f"{name.rpartition(', ')[0]}, fedavg"]
            row["gain_db"] = reference["msd_db"] - row["msd_db"]
            errors = reference["msd_stderr_db"], row["msd_stderr_db"]
            row["gain_stderr_db"] = float(np.hypot(*errors))
        return outcome


def _source(share: float, ratio: float, data_seed: int) -> RegressionSource:
    return RegressionSource(OUTLIERS.replace(noisy_share=share, noise_ratio=ratio), data_seed)


def _place(share: float, ratio: float) -> str:
    return f"{100 * share:g}% noisy, ratio {ratio:g}"


def _groups(grid: Grid, executor: Executor) -> dict[str, list[Cell]]:
    """One group for every algorithm at every point and data seed."""
    groups = {}
    count = len(grid.points) * grid.data_seeds * len(grid.algorithms)
    for (share, ratio), data_seed in itertools.product(grid.points, range(grid.data_seeds)):
        source = _source(share, ratio, data_seed)
        for name, algorithm in grid.algorithms.items():
            title = f"{_place(share, ratio)}, {name}, data {data_seed}"
            groups[title] = executor.cells(
                title, f"{share!r} {ratio!r} {data_seed} {name}", grid.repetitions, count,
                source=source, algorithm=algorithm, rounds=grid.rounds, seed=grid.seed,
                details=False,
            )  # fmt: skip
    return groups


def _over_data_seeds(grid: Grid, results: dict[str, Finished]) -> dict[str, Finished]:
    """Every algorithm at every point, with the repetitions of all data seeds."""
    together = {}
    for share, ratio in grid.points:
        for name in grid.algorithms:
            title = f"{_place(share, ratio)}, {name}"
            parts = [results[f"{title}, data {seed}"] for seed in range(grid.data_seeds)]
            together[title] = merged(parts, rows=1)
    return together


def _point(grid: Grid, share: float, ratio: float, results: dict[str, Finished]) -> dict[str, Any]:
    """The gain over FedAvg at one point: mean and standard error over problems of other seeds."""
    db = {}
    for name in grid.algorithms:
        parts = [
            results[f"{_place(share, ratio)}, {name}, data {seed}"]
            for seed in range(grid.data_seeds)
        ]
        levels = [np.nan if p.diverged else p.history.steady(share=SHARE).db for p in parts]
        db[name] = np.array(levels)
    gain, memory_gain = db["fedavg"] - db["oracle"], db["fedavg"] - db["memory"]
    root = np.sqrt(max(grid.data_seeds, 1))
    return {
        "noisy_share": share,
        "noise_ratio": ratio,
        "fedavg_db": float(db["fedavg"].mean()),
        "gain_db": float(gain.mean()),
        "gain_stderr_db": float(gain.std(ddof=1) / root) if grid.data_seeds > 1 else 0.0,
        "memory_gain_db": float(memory_gain.mean()),
    }
