"""The same files whoever does the work, and a worker that dies costs nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from isfed.problems import Problem
from isfed.studies import ConfigError, StoreError, Workers, make_experiment, run_experiment
from isfed.studies import executors as workers_module
from isfed.studies.problem_sources import RegressionSource
from isfed.studies.work_cells import _made


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a results folder except the one with times."""
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    return {n: content for n, content in found.items() if n not in ("times.json", ".lock")}


@pytest.fixture
def experiment(small):
    return make_experiment({**small, "repetitions": 20})


def test_the_same_files_whoever_does_the_work(experiment, tmp_path):
    run_experiment(experiment, tmp_path / "here")
    for backend in ("threading", "loky"):
        told = Told()
        workers = Workers(backend=backend, jobs=2)
        run_experiment(experiment, tmp_path / backend, workers=workers, progress=told)
        assert files(tmp_path / backend) == files(tmp_path / "here")
        assert told.begun == [("8 cells", 2 * 20 * 60, 0)]
        assert sum(told.advanced) == 2 * 20 * 60
        assert len(told.advanced) == 8


class Told:
    """What a progress was told."""

    def __init__(self) -> None:
        self.begun, self.advanced = [], []

    def begin(self, name: str, work: int, done: int) -> None:
        self.begun.append((name, work, done))

    def advance(self, work: int) -> None:
        self.advanced.append(work)


def test_finished_cells_are_not_run_again_by_others(experiment, tmp_path):
    class Stop(Told):
        def advance(self, work: int) -> None:
            super().advance(work)
            if len(self.advanced) == 3:
                raise KeyboardInterrupt

    threads = Workers(backend="threading", jobs=1)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "cut", workers=threads, progress=Stop())
    done = [p for p in tmp_path.rglob("*.npz") if "checkpoint" not in p.name]
    assert len(done) >= 3
    told = Told()
    run_experiment(experiment, tmp_path / "cut", resume=True, progress=told)
    assert sum(done for _, _, done in told.begun) >= 3 * 5 * 60
    run_experiment(experiment, tmp_path / "whole")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_what_a_checkpoint_holds_is_counted_once(experiment, tmp_path):
    """Cut within a cell; whoever continues it ends at the whole of the work."""

    class Stop(Told):
        def advance(self, work: int) -> None:
            super().advance(work)
            if len(self.advanced) == 2:
                raise KeyboardInterrupt

    here = Workers(chunk_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path / "cut", workers=here, progress=Stop())
    assert list(tmp_path.rglob("*.checkpoint.npz"))
    told, threads = Told(), Workers(backend="threading", jobs=1)
    run_experiment(experiment, tmp_path / "cut", resume=True, workers=threads, progress=told)
    ((_, work, done),) = told.begun
    assert 0 < done < work
    assert done + sum(told.advanced) == work


@dataclass(frozen=True)
class Deadly(RegressionSource):
    """A source that kills the process that makes it, unless this is where it was born."""

    parent: int = 0
    times: int = 1
    place: str = ""

    def make(self) -> Problem:
        deaths = len(list(Path(self.place).glob("death-*")))
        if os.getpid() != self.parent and deaths < self.times:
            (Path(self.place) / f"death-{os.getpid()}").touch()
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows: ends
        return super().make()


def _deadly(experiment, place: Path, times: int):
    source = experiment.source
    deadly = Deadly(source.recipe, source.seed, os.getpid(), times, str(place))
    task = replace(experiment.tasks[0], source=deadly)
    return replace(experiment, tasks=(task,))


def test_a_worker_that_dies_costs_no_result(experiment, small, tmp_path):
    (tmp_path / "deaths").mkdir()
    deadly = _deadly(experiment, tmp_path / "deaths", 1)
    loky = Workers(backend="loky", jobs=2)
    with pytest.warns(UserWarning, match="a worker died"):
        run_experiment(deadly, tmp_path / "run", workers=loky)
    assert len(list((tmp_path / "deaths").iterdir())) >= 1
    run_experiment(make_experiment({**small, "repetitions": 20}), tmp_path / "well")
    assert files(tmp_path / "run") == files(tmp_path / "well")


def test_workers_that_die_again_and_again_are_given_up(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(workers_module, "MOST_DEATHS", 1)
    (tmp_path / "deaths").mkdir()
    deadly = _deadly(experiment, tmp_path / "deaths", 1000)
    loky = Workers(backend="loky", jobs=2)
    with (
        pytest.warns(UserWarning, match="a worker died"),
        pytest.raises(StoreError, match="workers keep dying"),
    ):
        run_experiment(deadly, tmp_path / "run", workers=loky)
    _made.cache_clear()


@pytest.mark.parametrize(
    ("backend", "module", "variable"),
    [("ray", "ray", "RAY_ADDRESS"), ("dask", "distributed", "DASK_SCHEDULER_ADDRESS")],
)
def test_a_cluster_that_is_not_there_is_said(
    experiment, tmp_path, monkeypatch, backend, module, variable
):
    pytest.importorskip(module)
    monkeypatch.setenv(variable, "127.0.0.1:1")
    with pytest.raises(ConfigError, match=f"{variable}=127.0.0.1:1.*unset {variable}"):
        run_experiment(experiment, tmp_path / "run", workers=Workers(backend=backend, jobs=1))
    run_experiment(experiment, tmp_path / "run", resume=True)  # the folder is as good as new


def test_blocks_are_as_many_as_the_workers_need():
    loky = Workers(backend="loky")
    assert Workers().block(100, 6, 1) is None
    assert loky.block(100, 6, 2) == 50  # two blocks of each: 12 cells for two workers
    assert loky.block(100, 1, 2) == 13
    assert loky.block(100, 6, 64) == 5  # a smaller one would not be worth its start


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": "multiprocessing"}, "loky, threading, ray, dask"),
        ({"backend": "loky", "jobs": 0}, "jobs=0"),
        ({"threads": 0}, "threads=0"),
        ({"jobs": 3}, "needs a backend"),
    ],
)
def test_what_cannot_be_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        Workers(**given)


LONG = """
rounds = 3000
repetitions = 400
[problem]
num_agents = 60
num_examples = 20
[[algorithm]]
step_size = 0.01
num_active = 6
"""


def _children(pid: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.add(int(stat.parent.name))
    return found


def _is_alive(pid: int) -> bool:
    """Whether it runs; one that nobody has waited for yet does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _until(happens, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not happens() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(happens())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("moment", ["as they start", "at work"])
def test_workers_end_with_the_process_that_was_killed(tmp_path, moment):
    (tmp_path / "long.toml").write_text(LONG)
    command = [sys.executable, "-m", "isfed", "run", "long.toml", "--backend", "loky", "--jobs=2"]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=said, stderr=said)
    left: set[int] = set()
    try:
        assert _until(lambda: len(_children(run.pid)) >= 2, 300), (tmp_path / "said").read_text()
        if moment == "at work":
            done = "runs/long/cells/*/*.npz"
            assert _until(lambda: any(tmp_path.glob(done)), 300), (tmp_path / "said").read_text()
        left = _children(run.pid)
        assert run.poll() is None
        run.kill()
        run.wait()
        assert _until(lambda: not any(map(_is_alive, left)), 60)
    finally:
        run.kill()  # which does nothing to one that has ended
        run.wait()
        for pid in filter(_is_alive, left):
            os.kill(pid, signal.SIGKILL)
