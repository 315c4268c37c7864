"""The same sweep on a local Ray cluster of two workers: `make test-ray`."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from isfed.problems import Problem
from isfed.studies import Workers, make_experiment, run_experiment
from isfed.studies.leaderboard_config import make_protocol
from isfed.studies.leaderboard_study import Leaderboard
from isfed.studies.problem_sources import RegressionSource
from isfed.studies.study_engine import run_study

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("ISFED_TEST_RAY"), reason="a Ray cluster takes its time: make test-ray"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed: pip install 'isfed[ray]'",
    ),
]


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a results folder except the one with times."""
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    return {n: content for n, content in found.items() if n not in ("times.json", ".lock")}


@pytest.fixture
def experiment(small):
    return make_experiment({**small, "repetitions": 20})


def test_loky_threading_and_ray_give_identical_files(experiment, tmp_path):
    for backend in ("loky", "threading", "ray"):
        run_experiment(experiment, tmp_path / backend, workers=Workers(backend=backend, jobs=2))
    run_experiment(experiment, tmp_path / "here")
    whole = files(tmp_path / "here")
    for backend in ("loky", "threading", "ray"):
        assert files(tmp_path / backend) == whole


@dataclass(frozen=True)
class Deadly(RegressionSource):
    """A source that kills the first worker that makes it."""

    parent: int = 0
    place: str = ""

    def make(self) -> Problem:
        mark = Path(self.place) / "death"
        if os.getpid() != self.parent and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().make()


def test_a_worker_killed_in_the_middle_costs_no_result(experiment, small, tmp_path):
    task = experiment.tasks[0]
    deadly = Deadly(task.source.recipe, task.source.seed, os.getpid(), str(tmp_path))
    experiment = replace(experiment, tasks=(replace(task, source=deadly),))
    with pytest.warns(UserWarning, match="a worker died"):
        run_experiment(experiment, tmp_path / "run", workers=Workers(backend="ray", jobs=2))
    assert (tmp_path / "death").exists()
    run_experiment(make_experiment({**small, "repetitions": 20}), tmp_path / "well")
    assert files(tmp_path / "run") == files(tmp_path / "well")


def test_more_jobs_than_the_cluster_has(experiment, tmp_path, monkeypatch):
    import ray  # pyright: ignore[reportMissingImports]

    from isfed.studies import ConfigError

    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level=logging.ERROR)
    try:
        with pytest.raises(ConfigError, match="jobs=2, but the Ray cluster has 1 CPUs"):
            run_experiment(experiment, tmp_path / "run", workers=Workers(backend="ray", jobs=2))
    finally:
        ray.shutdown()


@pytest.fixture
def nodes():
    """A cluster of two nodes on this machine, and the second one."""
    import ray  # pyright: ignore[reportMissingImports]
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    head = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


class LosesANode:
    """Progress that ends a node of the cluster after some work."""

    def __init__(self, cluster, node, work: int) -> None:
        self.cluster, self.node, self.left = cluster, node, work

    def begin(self, name: str, work: int, done: int) -> None:
        """Nothing to say."""

    def advance(self, work: int) -> None:
        """End the node once."""
        self.left -= work
        if self.left < 0 and self.node is not None:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


def test_a_leaderboard_on_two_nodes_and_on_the_one_that_is_left(nodes, tmp_path):
    from small_board import TINY  # here, because actors import this file without tests/support

    study, workers = Leaderboard(make_protocol(TINY)), Workers(backend="ray", jobs=2)
    run_study(study, tmp_path / "loky", workers=Workers(backend="loky", jobs=2))
    run_study(study, tmp_path / "two nodes", workers=workers)
    whole = files(tmp_path / "loky")
    assert files(tmp_path / "two nodes") == whole
    progress = LosesANode(*nodes, work=500)
    with pytest.warns(UserWarning, match="a worker died"):
        run_study(study, tmp_path / "one node", workers=workers, progress=progress)
    assert progress.node is None
    assert files(tmp_path / "one node") == whole
