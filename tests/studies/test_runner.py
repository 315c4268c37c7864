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
import pytest

from isfed import Clock, simulate
from isfed.simulate import run_driver
from isfed.simulate.pilot_runs import with_best_step_size
from isfed.studies import (
    ConfigError,
    StoreError,
    Workers,
    load_results,
    make_experiment,
    run_experiment,
    work_cells,
)
from isfed.studies.results_folder import CELLS, SUMMARY, TIMES

OFTEN = Workers(chunk_seconds=1e-6)


class Stop:
    """A progress that presses Ctrl-C after some chunks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, name: str, work: int, done: int) -> None:
        pass

    def advance(self, work: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a results folder except the one with times."""
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    return {name: content for name, content in found.items() if name not in (TIMES, ".lock")}


@pytest.fixture(autouse=True)
def _checkpoint_after_every_chunk(monkeypatch):
    monkeypatch.setattr(run_driver, "LEAST_BETWEEN", 0.0)
    monkeypatch.setattr(run_driver, "MOST_SHARE", 1e9)


@pytest.mark.parametrize("engine", ["kernel", "agents", "objects"])
def test_a_stopped_run_resumes_to_the_same_end(small, tmp_path, engine):
    experiment = make_experiment({**small, "engine": engine})
    run_experiment(experiment, tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, cut, progress=Stop(3), workers=OFTEN)
    assert not (cut / SUMMARY).exists()
    assert list(cut.rglob("*.checkpoint.npz"))
    with pytest.raises(StoreError, match="not finished"):
        load_results(cut)
    workers = Workers(threads=1, chunk_seconds=1e-6)
    run_experiment(experiment, cut, resume=True, workers=workers)
    assert files(tmp_path / "whole") == files(cut)
    assert not (cut / CELLS).exists()


def _killed_twenty_times(experiment, whole: Path, cut: Path, *, longest: float) -> None:
    """Kill -9 a run again and again; no folder is ever damaged and the end is bit-equal."""
    random_moment = random.Random(1)
    kills = 0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                workers = Workers(threads=1, chunk_seconds=2e-3)
                run_experiment(experiment, cut, resume=True, workers=workers)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        if kills < 20:
            time.sleep(random_moment.uniform(0.0, longest))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
            continue
        assert os.WEXITSTATUS(status) == 0
        assert files(whole) == files(cut)
        if kills >= 20:
            return
        shutil.rmtree(cut)  # it was faster than the kill: start over, the count goes on
    raise AssertionError(f"only {kills} kills in time")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("engine", "rounds"), [("kernel", 6000), ("objects", 250)])
def test_twenty_kills_at_random_moments(small, tmp_path, engine, rounds):
    experiment = make_experiment({**small, "rounds": rounds, "engine": engine})
    run_experiment(experiment, tmp_path / "whole", workers=Workers(threads=1))
    _killed_twenty_times(experiment, tmp_path / "whole", tmp_path / "cut", longest=0.12)


def test_an_existing_folder_is_not_touched_without_a_word(small, tmp_path):
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(StoreError, match="--resume"):
        run_experiment(experiment, tmp_path / "run")
    other = make_experiment({**small, "seed": 9})
    with pytest.raises(StoreError, match="another configuration"):
        run_experiment(other, tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == before
    run_experiment(other, tmp_path / "run", overwrite=True)
    assert files(tmp_path / "run")["history.parquet"] != before["history.parquet"]


def test_old_results_stay_until_the_new_ones_exist(small, tmp_path):
    folder = tmp_path / "run"
    experiment, other = make_experiment(small), make_experiment({**small, "seed": 9})
    run_experiment(experiment, folder)
    before = files(folder)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(other, folder, overwrite=True, progress=Stop(4), workers=OFTEN)
    assert {n: c for n, c in files(folder).items() if not n.startswith(CELLS)} == before
    assert load_results(folder).digest == experiment.digest
    assert run_experiment(experiment, folder, resume=True).digest == experiment.digest
    # What was begun goes on, and only when it is done the old results are gone.
    assert run_experiment(other, folder, resume=True).digest == other.digest
    run_experiment(other, tmp_path / "other")
    assert files(folder) == files(tmp_path / "other")


@pytest.mark.parametrize(
    "change",
    [{"problem": {"ridge": -1.0}}, {"problem": {"num_agents": 20, "num_examples": 2}}],
)
def test_what_cannot_run_does_not_cost_the_old_results(small, tmp_path, change):
    run_experiment(make_experiment(small), tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(ConfigError):
        run_experiment(make_experiment({**small, **change}), tmp_path / "run", overwrite=True)
    assert files(tmp_path / "run") == before


def test_results_are_not_replaced_by_a_run_that_diverged_altogether(small, tmp_path):
    folder, wild = tmp_path / "run", {**small, "seed": 8}
    wild["algorithm"] = [{**table, "step_size": 50.0} for table in small["algorithm"]]
    run_experiment(make_experiment(small), folder)
    before = files(folder)
    with pytest.raises(StoreError, match=r"are kept.*FedAvg diverged in round \d+.*ISFedAvg"):
        run_experiment(make_experiment(wild), folder, overwrite=True)
    assert files(folder) == before
    # The same after a stop, when nothing says --overwrite any more.
    with pytest.raises(KeyboardInterrupt):
        run_experiment(
            make_experiment(wild), folder, overwrite=True, progress=Stop(1), workers=OFTEN
        )
    with pytest.raises(StoreError, match="are kept"):
        run_experiment(make_experiment(wild), folder, resume=True)
    assert files(folder) == before
    # Where one algorithm did not diverge, or nothing better is lost, new results are written.
    wild["algorithm"][0]["step_size"] = 0.01
    assert len(run_experiment(make_experiment(wild), folder, overwrite=True).diverged) == 1
    wild["algorithm"][0]["step_size"] = 60.0
    assert len(run_experiment(make_experiment(wild), tmp_path / "new").diverged) == 2
    wild["algorithm"][0]["step_size"] = 70.0
    results = run_experiment(make_experiment(wild), tmp_path / "new", overwrite=True)
    assert len(results.diverged) == 2


def test_overwriting_leaves_the_files_of_others(small, tmp_path):
    run_experiment(make_experiment(small), tmp_path / "run")
    (tmp_path / "run" / "notes.md").write_text("mine")
    run_experiment(make_experiment({**small, "seed": 8}), tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "notes.md").read_text() == "mine"


def _stopped(small, folder: Path, **options):
    experiment = make_experiment(small)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, folder, progress=Stop(3), workers=OFTEN, **options)
    return experiment, next(folder.rglob("*.checkpoint.npz"))


def test_a_checkpoint_of_another_version_is_refused(small, tmp_path, monkeypatch):
    experiment, _ = _stopped(small, tmp_path / "run")
    monkeypatch.setattr(work_cells, "version", lambda _: "9.9")
    with pytest.raises(StoreError, match="another configuration or version"):
        run_experiment(experiment, tmp_path / "run", resume=True)


def test_a_truncated_checkpoint_is_an_error_that_says_what_to_do(small, tmp_path):
    experiment, path = _stopped(small, tmp_path / "run")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="damaged") as caught:
        run_experiment(experiment, tmp_path / "run", resume=True)
    assert "delete it" in str(caught.value)
    assert len(path.read_bytes()) == len(whole) // 2
    path.unlink()
    run_experiment(experiment, tmp_path / "run", resume=True)
    run_experiment(experiment, tmp_path / "other")
    assert files(tmp_path / "run") == files(tmp_path / "other")


@pytest.mark.parametrize("design", ["sampford", "poisson"])
def test_a_design_without_a_kernel_runs_all_the_same(small, tmp_path, design):
    small["algorithm"][1]["agent_design"] = design
    results = run_experiment(make_experiment(small), tmp_path / "run")
    assert results.algorithms[1].msd.size == 60
    small["engine"] = "kernel"
    with pytest.raises(ConfigError, match="ISFedAvg, memory: the kernel cannot run"):
        run_experiment(make_experiment(small), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_folder_of_other_files_is_refused(small, tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="not results"):
            run_experiment(make_experiment(small), tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_finished_run_resumes_to_itself(small, tmp_path):
    experiment = make_experiment(small)
    run_experiment(experiment, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir() if p.name != ".lock"}
    run_experiment(experiment, tmp_path / "run", resume=True)
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir() if p.name != ".lock"}
    assert before == after


def test_a_full_disk_loses_nothing(small, tmp_path, monkeypatch):
    experiment, _ = _stopped(small, tmp_path / "cut")
    run_experiment(experiment, tmp_path / "whole")
    before = files(tmp_path / "cut")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            run_experiment(experiment, tmp_path / "cut", resume=True)
    assert files(tmp_path / "cut") == before  # no part of a file is left behind either
    run_experiment(experiment, tmp_path / "cut", resume=True)
    assert files(tmp_path / "whole") == files(tmp_path / "cut")


def test_divergence_costs_the_others_nothing(small, tmp_path):
    run_experiment(make_experiment(small), tmp_path / "well")
    small["algorithm"][0]["step_size"] = 50.0
    results = run_experiment(make_experiment(small), tmp_path / "run")
    fedavg, ours = results.algorithms
    assert results.diverged == (fedavg,)
    assert fedavg.diverged_round == fedavg.rounds.size < 60
    assert f"FedAvg diverged in round {fedavg.diverged_round}" in fedavg.summary["diverged"]
    well = load_results(tmp_path / "well").algorithms[1]
    assert (ours.msd == well.msd).all()
    assert ours.summary["msd_db"] == well.summary["msd_db"]
    assert ours.summary["gain_db"] is None


def test_the_summary_holds_what_the_table_prints(small, tmp_path):
    results = run_experiment(make_experiment(small), tmp_path / "run")
    fedavg, ours = (algorithm.summary for algorithm in results.algorithms)
    assert fedavg["gain_db"] == 0.0
    uniform = results.summary
    assert fedavg["agent_distance"] == pytest.approx(uniform["uniform_agent_distance"])
    assert fedavg["example_distance"] == pytest.approx(uniform["uniform_example_distance"])
    assert ours["gain_db"] == pytest.approx(fedavg["msd_db"] - ours["msd_db"])
    assert ours["uploads_per_round"] == 3.0


def test_auto_chooses_a_step_and_says_which(tmp_path):
    given = {
        "name": "auto", "rounds": 5, "repetitions": 2,
        "problem": {"preset": "equal", "num_agents": 10, "num_examples": 10},
        "algorithm": [{"kind": "FedAvg", "step_size": "auto", "num_active": 3}],
    }  # fmt: skip
    experiment = make_experiment(given)
    row = run_experiment(experiment, tmp_path / "run").algorithms[0]
    problem = experiment.source.make()
    algorithm = next(iter(experiment.algorithms.values()))
    assert row.step_size == with_best_step_size(problem, algorithm, rounds=5).step_size
    assert row.summary["telemetry"]["variance_ratio"] == 1.0


def test_a_clock_in_the_file_is_the_clock_of_the_runs(small, tmp_path):
    """Against simulate() with the same clock, and stopped half-way to the same end."""
    clock = {"rate": [5.0, 50.0], "jitter": 0.2, "drop": 0.3}
    experiment = make_experiment({**small, "clock": clock})
    results = run_experiment(experiment, tmp_path / "run")
    problem = experiment.source.make()
    for row, algorithm in zip(results.algorithms, experiment.algorithms.values(), strict=True):
        history = simulate(
            problem, algorithm, rounds=60, repetitions=3, seed=5, clock=Clock(**clock)
        )
        assert (row.msd == history.msd.mean(axis=0)).all()
        seconds = [history.ledger(r).seconds / 60 for r in range(3)]
        assert row.summary["seconds_per_round"] == pytest.approx(np.mean(seconds))
        assert row.summary["uploads_per_round"] < 3.0
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "cut", workers=OFTEN, progress=Stop(3))
    run_experiment(experiment, tmp_path / "cut", resume=True)
    assert files(tmp_path / "cut") == files(tmp_path / "run")
    plain = run_experiment(make_experiment(small), tmp_path / "plain").algorithms[0]
    assert "seconds_per_round" not in plain.summary


def test_batches_larger_than_an_agent_run_with_replacement_and_are_refused_before_elsewhere(
    small, tmp_path
):
    problem = {**small["problem"], "num_examples": 2, "batch_size": [3, 4]}
    common = {"step_size": 0.01, "num_active": 2}
    fine = [{"kind": "FedAvg", **common}, {"kind": "ISFedAvg", "full_batch": True, **common}]
    run_experiment(
        make_experiment({**small, "problem": problem, "algorithm": fine}), tmp_path / "fine"
    )
    assert (tmp_path / "fine" / SUMMARY).exists()
    drawn = make_experiment(
        {**small, "problem": problem, "algorithm": [*fine, {"kind": "ISFedAvg", **common}]}
    )
    with pytest.raises(ConfigError, match=r"^ISFedAvg, memory: batch_size=. of agent 0 exceeds"):
        run_experiment(drawn, tmp_path / "refused")
