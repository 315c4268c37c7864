"""The study of heterogeneity: it keeps what is done and goes on from there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from isfed.experiments import StoreError, heterogeneity
from isfed.experiments.heterogeneity import FILE, Grid, run_grid
from isfed.experiments.store import locked

GRID = Grid(noisy_shares=(0.01,), noise_ratios=(1.0, 100.0), rounds=30, repetitions=2, data_seeds=2)


def test_points_are_kept_and_not_run_twice(tmp_path, monkeypatch):
    study = run_grid(GRID, tmp_path)
    assert len(study["points"]) == 2
    assert json.loads((tmp_path / FILE).read_text())["points"] == study["points"]

    def never(*_):
        raise AssertionError("a point was run twice")

    monkeypatch.setattr(heterogeneity, "_point", never)
    assert run_grid(GRID, tmp_path) == study


def test_a_damaged_study_is_an_error(tmp_path):
    (tmp_path / FILE).write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        run_grid(GRID, tmp_path)


@pytest.mark.parametrize("text", ["[1, 2]", '"words"', '{"digest": "%s", "points": [1]}'])
def test_a_file_of_another_shape_is_an_error(tmp_path, text):
    (tmp_path / FILE).write_text(text.replace("%s", GRID.digest))
    with pytest.raises(StoreError, match="damaged"):
        run_grid(GRID, tmp_path)


def test_another_run_holds_the_folder(tmp_path):
    with locked(tmp_path), pytest.raises(StoreError, match="another run"):
        run_grid(GRID, tmp_path)


def test_the_seed_of_the_draws_counts(tmp_path):
    one, other = (run_grid(replace(GRID, seed=seed), tmp_path) for seed in (0, 1))
    assert one["points"][0]["gain_db"] != other["points"][0]["gain_db"]
