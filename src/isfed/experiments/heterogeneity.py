"""How much importance sampling gains as a few agents become noisier than the rest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isfed.algorithms import FedAvg, ISFedAvg
from isfed.base.files import write_whole
from isfed.experiments.runner import Progress
from isfed.experiments.store import StoreError, locked, read_json
from isfed.problems import OUTLIERS
from isfed.sampling.policies import Memory, Oracle
from isfed.simulate.run import simulate

FILE = "heterogeneity.json"


@dataclass(frozen=True)
class Grid:
    """Which problems to run, and how long."""

    noisy_shares: Sequence[float] = (0.01, 0.03, 0.1, 0.3)
    noise_ratios: Sequence[float] = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
    rounds: int = 2000
    repetitions: int = 20
    data_seeds: int = 3
    step_size: float = 0.01
    num_active: int = 6
    seed: int = 0  # of all draws; the data have seeds of their own

    @property
    def digest(self) -> str:
        """A fingerprint of the grid."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def run_grid(
    grid: Grid, folder: Path, *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Run the points that heterogeneity.json does not hold yet; it is written after every one."""
    with locked(folder):
        return _run_grid(grid, folder / FILE, threads, progress)


def _run_grid(
    grid: Grid, path: Path, threads: int | None, progress: Progress | None
) -> dict[str, Any]:
    study: dict[str, Any] = {"digest": grid.digest, "points": []}
    found = read_json(path)
    if found is not None and found.get("digest") == grid.digest:
        study = found
    try:
        known = {(p["noisy_share"], p["noise_ratio"]) for p in study["points"]}
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged ({error!r}); delete it to start again") from error
    wanted = [(s, r) for s in grid.noisy_shares for r in grid.noise_ratios]
    if progress is not None:
        each = 3 * grid.data_seeds * grid.rounds  # three algorithms
        progress.begin(
            "gain over heterogeneity", each * len(wanted), each * len(known),
            repetitions=grid.repetitions,
        )  # fmt: skip
    for share, ratio in wanted:
        if (share, ratio) in known:
            continue
        study["points"].append(_point(grid, share, ratio, threads))
        write_whole(path, (json.dumps(study, indent=2) + "\n").encode())
        if progress is not None:
            progress.advance(3 * grid.data_seeds * grid.rounds)
    study["points"].sort(key=lambda p: (p["noisy_share"], p["noise_ratio"]))
    return study


def _point(grid: Grid, share: float, ratio: float, threads: int | None) -> dict[str, Any]:
    """The gain over FedAvg at one point: mean and standard error over problems of other seeds."""
    recipe = OUTLIERS.replace(noisy_share=share, noise_ratio=ratio)
    common = {"step_size": grid.step_size, "num_active": grid.num_active}
    algorithms = {
        "fedavg": FedAvg(**common),
        "oracle": ISFedAvg(**common, agents=Oracle(), examples=Oracle()),
        "memory": ISFedAvg(**common, agents=Memory(), examples=Memory()),
    }
    levels: dict[str, list[float]] = {name: [] for name in algorithms}
    for data_seed in range(grid.data_seeds):
        problem = recipe.make(seed=data_seed)
        for name, algorithm in algorithms.items():
            history = simulate(
                problem,
                algorithm,
                rounds=grid.rounds,
                repetitions=grid.repetitions,
                seed=grid.seed,
                threads=threads,
            )
            levels[name].append(history.steady(share=0.5).db)
    db = {name: np.array(values) for name, values in levels.items()}
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
