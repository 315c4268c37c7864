"""Turns by Ray's actors give the numbers of one process, also where actors and nodes are lost."""

# pyright: reportMissingImports=false

import importlib.util
import os
import signal
import socket
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from isfed import FederatedData, Memory, Problem
from isfed.federation.agents import LocalOptions, TrainRequest
from isfed.torch import Network, importance, ray_pool, train
from isfed.torch.ray_pool import RayPool

AVAILABLE = importlib.util.find_spec("ray") is not None
with_ray = [
    pytest.mark.skipif(
        not os.environ.get("ISFED_TEST_RAY"), reason="a Ray cluster takes its time: make test-ray"
    ),
    pytest.mark.skipif(not AVAILABLE, reason="Ray is not installed: pip install 'isfed[ray]'"),
]
RNG = np.random.default_rng(0)
SIZES = RNG.integers(5, 12, 12)
ROWS = RNG.standard_normal((SIZES.sum(), 4)).astype(np.float32)
DATA = FederatedData(ROWS, RNG.integers(0, 3, len(ROWS)), np.cumsum([0, *SIZES]))


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))


class Fatal(nn.Linear):
    """Ends its process while a file of a list exists, which it removes; not that of the test."""

    def __init__(self, folder: str, survivor: int) -> None:
        super().__init__(4, 3)
        self.folder, self.survivor = folder, survivor

    def forward(self, input):
        if os.getpid() != self.survivor:
            for flag in Path(self.folder).glob("flag*"):
                flag.unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(input)


class Hungry(nn.Linear):
    """Wants more memory than there is after the trial of the module, but not in the test."""

    def __init__(self, survivor: int) -> None:
        super().__init__(4, 3)
        self.survivor, self.calls = survivor, 0

    def forward(self, input):
        self.calls += 1
        if os.getpid() != self.survivor and self.calls > 5:
            bytearray(10**15)
        return super().forward(input)


def make_agents(make=mlp):
    problem = Problem(DATA, Network(make), 3, 4)
    algorithm = importance(step_size=0.1, num_active=3, examples=Memory())
    return problem.loss.make_agents(problem, algorithm.rules(12), seed=0, repetition=0)


def request(agents, count=12):
    return TrainRequest(
        np.arange(count)[::-1].copy(), agents.network.initial(), np.linspace(0.1, 0.2, count)
    )


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes on this machine, a processor each beside that of the head."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.shutdown()


class TestOnOneMachine:
    pytestmark = with_ray

    def test_training_has_the_numbers_of_one_process(self):
        problem = Problem(DATA, Network(mlp), 3, 4)
        algorithm = importance(step_size=0.1, num_active=5, examples=Memory())
        one = train(problem, algorithm, rounds=3, deterministic=True)
        two = train(problem, algorithm, rounds=3, backend="ray", threads=2)
        np.testing.assert_array_equal(two.params, one.params)
        np.testing.assert_array_equal(two.history.example_prob, one.history.example_prob)
        np.testing.assert_array_equal(two.history.ledgers, one.history.ledgers)
        assert two.how == "agent by agent, by 2 actors of Ray"

    def test_whatever_a_turn_needs_crosses_and_lost_actors_cost_nothing_else(self, tmp_path):
        survivor = os.getpid()
        make = lambda: Fatal(str(tmp_path), survivor)  # noqa: E731
        one, two = make_agents(make), make_agents(make)
        two.use_ray(2)
        turns, size = request(one), one.num_params
        correction, velocity = RNG.standard_normal((2, 12, size))
        local = LocalOptions(momentum=0.5, prox=0.1)
        local = replace(local, correction=correction, velocity=velocity)
        for i, deaths in enumerate((0, 1, 0, 5)):  # the last time nobody is left
            for death in range(deaths):
                (tmp_path / f"flag{death}").touch()
            if deaths:
                with pytest.warns(UserWarning, match="a Ray actor is lost"):
                    found = two.work(turns, i, local)
            else:
                found = two.work(turns, i, local)
            for flag in tmp_path.glob("flag*"):
                flag.unlink()
            assert_equal(found, one.work(turns, i, local))
        many = turns._replace(params=turns.params + RNG.standard_normal((12, size)))
        assert_equal(two.work(many, 9), one.work(many, 9))
        assert two.memory == one.memory
        assert two.turn_losses == one.turn_losses
        two.close()

    def test_memory_that_an_actor_does_not_get_is_named(self):
        survivor = os.getpid()
        agents = make_agents(lambda: Hungry(survivor))
        agents.use_ray(2)
        with pytest.raises(RuntimeError, match="turn failed: a node ran out of memory; use fewer"):
            agents.work(request(agents), 0)
        agents.close()


class TestOnTwoNodes:
    pytestmark = with_ray

    def test_a_lost_node_costs_only_its_turns(self, cluster):
        one, two = make_agents(), make_agents()
        two.use_ray(None)
        assert two.workers == 2
        turns = request(one)
        assert_equal(two.work(turns, 0), one.work(turns, 0))
        nodes = {actor_node(actor) for actor in two.pool.actors.values()}
        assert len(nodes) == 2  # one on each
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the loss
            for i in range(1, 4):
                assert_equal(two.work(turns, i), one.work(turns, i))
        assert len(two.pool.actors) == 1
        two.close()

    def test_more_actors_than_processors(self, cluster):
        with pytest.raises(ValueError, match=r"threads=5 actors, but the Ray cluster has 2"):
            make_agents().use_ray(5)

    def test_other_versions_on_a_node_are_named(self, cluster, monkeypatch):
        mine = {**ray_pool._versions(), "torch": "0.1"}
        monkeypatch.setattr(ray_pool, "_versions", lambda: mine)
        with pytest.raises(RuntimeError, match=r"node .* has torch .* instead of 0\.1: install"):
            make_agents().use_ray(2)


def actor_node(actor) -> str:
    import ray

    return ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))


@pytest.mark.skipif(not AVAILABLE, reason="Ray is not installed: pip install 'isfed[ray]'")
def test_a_cluster_that_is_not_there_is_named_at_once(monkeypatch):
    """Ray itself would try for minutes; here nobody listens at the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for form in (address, f"ray://{address}"):
            monkeypatch.setenv("RAY_ADDRESS", form)
            expected = f"at RAY_ADDRESS={form}: .*refused.*ray start"
            with pytest.raises(ConnectionError, match=expected):
                make_agents().use_ray(2)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:a")
    with pytest.raises(ConnectionError, match=r"10\.0\.0\.1:a should be a host and a port"):
        make_agents().use_ray(2)


@pytest.mark.skipif(AVAILABLE, reason="Ray is installed")
def test_without_ray_it_says_what_to_install():
    with pytest.raises(ImportError, match=r"pip install 'isfed\[ray\]'"):
        make_agents().use_ray(2)


def test_memory_is_named_with_what_to_do():
    text = ray_pool._reason(RuntimeError("The actor died: worker was killed due to memory (OOM)"))
    assert text == (
        "a node ran out of memory; use fewer threads, or nodes with more of it (RuntimeError)"
    )


@pytest.mark.parametrize("parts", [1, 3, 8, 12])
def test_parts_have_an_agent_each_and_about_as_many_rows(parts):
    problem = Problem(DATA, Network(mlp), 3, 4)
    edges = RayPool._edges(problem, parts)
    assert edges[0] == 0
    assert edges[-1] == 12
    assert min(np.diff(edges)) >= 1
    rows = np.diff(problem.data.offsets[edges])
    assert max(rows) - min(rows) <= 2 * SIZES.max()
