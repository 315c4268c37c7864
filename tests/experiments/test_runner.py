"""Runs that are stopped, killed, resumed: they end bit for bit like one that was not."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
import traceback
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from isfed.base.files import PART
from isfed.experiments import (
    ConfigError,
    StoreError,
    make_experiment,
    run_experiment,
    store,
)
from isfed.simulate import driver
from isfed.simulate.history import DivergenceError
from isfed.theory.stability import stable_step_size


class Stop:
    """A progress that presses Ctrl-C after some chunks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, name: str, rounds: int, done: int, *, repetitions: int) -> None:
        pass

    def advance(self, rounds: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def results(folder: Path) -> dict[str, np.ndarray]:
    """Every number of a results folder except times."""
    found = {}
    for path in sorted((folder / store.CHECKPOINTS).glob("*.npz")):
        with np.load(path) as file:
            found |= {f"{path.name}/{name}": file[name] for name in file.files}
    table = pq.read_table(folder / store.HISTORY)
    found |= {f"history/{c}": table[c].to_numpy() for c in table.column_names}
    return {name: values for name, values in found.items() if not name.endswith("/seconds")}


def assert_same(one: Path, other: Path) -> None:
    first, second = results(one), results(other)
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


@pytest.fixture(autouse=True)
def _checkpoint_after_every_chunk(monkeypatch):
    monkeypatch.setattr(driver, "LEAST_BETWEEN", 0.0)
    monkeypatch.setattr(driver, "MOST_SHARE", 1e9)


def test_a_stopped_run_resumes_to_the_same_end(small, tmp_path):
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "cut", progress=Stop(3), chunk_seconds=1e-6)
    assert not (tmp_path / "cut" / store.SUMMARY).exists()
    run_experiment(experiment, tmp_path / "cut", resume=True, chunk_seconds=1e-6, threads=1)
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_twenty_kills_at_random_moments(small, tmp_path):
    """Kill -9 a run again and again; no folder is ever damaged and the end is bit-equal."""
    small["rounds"] = 6000
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "whole", threads=1)
    cut = tmp_path / "cut"
    random_moment = random.Random(1)
    kills = 0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_experiment(experiment, cut, resume=True, threads=1, chunk_seconds=2e-3)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        if kills < 20:
            time.sleep(random_moment.uniform(0.0, 0.12))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
        elif kills < 20:  # it was faster than the kill: start over, the count goes on
            assert os.WEXITSTATUS(status) == 0
            assert_same(tmp_path / "whole", cut)
            shutil.rmtree(cut)
        else:
            assert os.WEXITSTATUS(status) == 0
            break
    assert kills >= 20
    assert_same(tmp_path / "whole", cut)


def test_parts_of_files_are_cleared_away(small, tmp_path):
    """What a kill leaves in the middle of a write is no obstacle and does not stay."""
    (tmp_path / "run").mkdir()
    part = tmp_path / "run" / f".digest.txt.x7{PART}"
    part.write_text("half")
    run_experiment(make_experiment(small), tmp_path / "run")
    assert not part.exists()


def test_an_existing_folder_is_not_touched_without_a_word(small, tmp_path):
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "run")
    before = results(tmp_path / "run")
    with pytest.raises(StoreError, match="--resume"):
        run_experiment(experiment, tmp_path / "run")
    other = make_experiment({**small, "seed": 9})
    with pytest.raises(StoreError, match="another configuration"):
        run_experiment(other, tmp_path / "run", resume=True)
    after = results(tmp_path / "run")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    run_experiment(other, tmp_path / "run", overwrite=True)
    assert not np.array_equal(before["history/msd"], results(tmp_path / "run")["history/msd"])


@pytest.mark.parametrize(
    "change",
    [{"problem": {"ridge": -1.0}}, {"problem": {"num_agents": 20, "num_examples": 2}}],
)
def test_what_cannot_run_does_not_cost_the_old_results(small, tmp_path, change):
    run_experiment(make_experiment(small), tmp_path / "run")
    before = results(tmp_path / "run")
    with pytest.raises(ConfigError):
        run_experiment(make_experiment({**small, **change}), tmp_path / "run", overwrite=True)
    after = results(tmp_path / "run")
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_overwriting_leaves_the_files_of_others(small, tmp_path):
    run_experiment(make_experiment(small), tmp_path / "run")
    (tmp_path / "run" / "notes.md").write_text("mine")
    run_experiment(make_experiment({**small, "seed": 8}), tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "notes.md").read_text() == "mine"


def test_a_checkpoint_of_another_version_is_refused(small, tmp_path, monkeypatch):
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "run")
    monkeypatch.setattr(store, "version", lambda _: "9.9")
    with pytest.raises(StoreError, match="another configuration or version"):
        run_experiment(experiment, tmp_path / "run", resume=True)


def test_a_design_without_a_kernel_is_named(small, tmp_path):
    small["algorithm"][1]["agent_design"] = "sampford"
    with pytest.raises(ConfigError, match="engine='objects'"):
        run_experiment(make_experiment(small), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_of_other_files_is_refused(small, tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="not results"):
            run_experiment(make_experiment(small), tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "ten years of work"


def test_a_finished_run_resumes_to_itself(small, tmp_path):
    experiment = make_experiment(small)
    first = run_experiment(experiment, tmp_path / "run")
    again = run_experiment(experiment, tmp_path / "run", resume=True)
    assert first == again


def test_a_truncated_checkpoint_is_an_error_that_says_what_to_do(small, tmp_path):
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "run")
    path = tmp_path / "run" / store.CHECKPOINTS / "algorithm-1.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="damaged") as caught:
        run_experiment(experiment, tmp_path / "run", resume=True)
    assert "delete it" in str(caught.value)
    assert len(path.read_bytes()) == len(whole) // 2
    path.unlink()
    run_experiment(experiment, tmp_path / "run", resume=True)
    run_experiment(experiment, tmp_path / "other")
    assert_same(tmp_path / "run", tmp_path / "other")


def test_a_full_disk_loses_nothing(small, tmp_path, monkeypatch):
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "cut", progress=Stop(2), chunk_seconds=1e-6)
    before = {p: p.read_bytes() for p in (tmp_path / "cut").rglob("*") if p.is_file()}

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run_experiment(experiment, tmp_path / "cut", resume=True)
    after = {p: p.read_bytes() for p in (tmp_path / "cut").rglob("*") if p.is_file()}
    assert after == before  # no part of a file is left behind either
    run_experiment(experiment, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_one_run_at_a_time(small, tmp_path):
    experiment = make_experiment(small)
    holder = store.Store(tmp_path / "run", experiment)
    with (
        holder.opened(resume=False, overwrite=False),
        pytest.raises(StoreError, match="another run"),
    ):
        run_experiment(experiment, tmp_path / "run", resume=True)


def test_divergence_is_reported_and_remembered(small, tmp_path):
    small["algorithm"][0]["step_size"] = 50.0
    experiment = make_experiment(small)
    with pytest.raises(DivergenceError, match="FedAvg diverged in round"):
        run_experiment(experiment, tmp_path / "run")
    with pytest.raises(DivergenceError, match="FedAvg diverged in round"):
        run_experiment(experiment, tmp_path / "run", resume=True)


def test_the_summary_holds_what_the_table_prints(small, tmp_path):
    summary = run_experiment(make_experiment(small), tmp_path / "run")
    fedavg, ours = summary["algorithms"]
    assert fedavg["gain_db"] == 0.0
    assert fedavg["agent_distance"] == pytest.approx(summary["uniform_agent_distance"])
    assert fedavg["example_distance"] == pytest.approx(summary["uniform_example_distance"])
    assert ours["gain_db"] == pytest.approx(fedavg["msd_db"] - ours["msd_db"])
    assert ours["uploads_per_round"] == 3.0


def test_auto_chooses_a_step_and_says_which(tmp_path):
    given = {
        "name": "auto", "rounds": 5, "repetitions": 2,
        "problem": {"preset": "equal", "num_agents": 10, "num_examples": 10},
        "algorithm": [{"kind": "FedAvg", "step_size": "auto", "num_active": 3}],
    }  # fmt: skip
    experiment = make_experiment(given)
    summary = run_experiment(experiment, tmp_path / "run")
    row = summary["algorithms"][0]
    problem = experiment.source.make()
    algorithm = next(iter(experiment.algorithms.values()))
    assert row["step_size"] == stable_step_size(problem, algorithm)
    assert row["telemetry"]["variance_ratio"] == 1.0
    again = run_experiment(experiment, tmp_path / "run", resume=True)
    assert again["algorithms"][0]["step_size"] == row["step_size"]
