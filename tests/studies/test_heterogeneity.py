"""The study of heterogeneity: its points are those of plain runs."""

from __future__ import annotations

import numpy as np
import pytest

from isfed import OUTLIERS, simulate
from isfed.studies import StoreError
from isfed.studies.experiment_config import read_study
from isfed.studies.results_folder import locked
from isfed.studies.study_engine import run_study

OVER = {"noisy_share": [0.01], "noise_ratio": [1.0, 100.0], "seed": [0, 1]}


def small(seed=0):
    changes = {"problem": {"over": OVER}}
    return read_study("heterogeneity", changes=changes, rounds=30, repetitions=2, seed=seed)


GRID = small()


def test_a_point_is_the_gain_over_plain_runs(tmp_path):
    results = run_study(GRID, tmp_path / "run")
    point = results.summary["points"][1]
    levels = {name: [] for name in GRID.algorithms}
    for data_seed in range(2):
        problem = OUTLIERS.replace(noisy_share=0.01, noise_ratio=100.0).make(seed=data_seed)
        for name, algorithm in GRID.algorithms.items():
            history = simulate(problem, algorithm, rounds=30, repetitions=2, seed=0)
            levels[name].append(history.steady(share=0.5).db)
    gain = np.array(levels["fedavg"]) - np.array(levels["oracle"])
    assert point["gain_db"] == gain.mean()
    assert point["gain_stderr_db"] == gain.std(ddof=1) / np.sqrt(2)
    assert (point["noisy_share"], point["noise_ratio"]) == (0.01, 100.0)


def test_the_folder_is_like_any_other(tmp_path):
    results = run_study(GRID, tmp_path / "run")
    assert results.kind == "heterogeneity"
    assert len(results.algorithms) == 6
    found = results["1% noisy, ratio 100, oracle"]
    assert found.msd.shape == (30,)
    assert len(found.repetitions["steady_msd"]) == 4  # two data seeds, two repetitions
    fedavg = results["1% noisy, ratio 100, fedavg"]
    gain = fedavg.number("msd_db") - found.number("msd_db")
    assert found.number("gain_db") == pytest.approx(gain)


def test_another_run_holds_the_folder(tmp_path):
    with locked(tmp_path / "run"), pytest.raises(StoreError, match="another run"):
        run_study(GRID, tmp_path / "run")


def test_the_seed_of_the_draws_counts(tmp_path):
    one, other = (run_study(small(seed), tmp_path / str(seed)) for seed in (0, 1))
    assert one.summary["points"][0]["gain_db"] != other.summary["points"][0]["gain_db"]
