"""Turns in several processes give the numbers of one."""

# pyright: reportMissingImports=false

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from isfed import FederatedData, Memory, Problem, simulate
from isfed.federation.agents import LocalOptions, TrainRequest
from isfed.torch import Network, importance
from isfed.torch.process_pool import MEMORY, Pool

RNG = np.random.default_rng(0)
SIZES = (6, 9, 5, 12, 7)
ROWS = RNG.standard_normal((sum(SIZES), 4)).astype(np.float32)
DATA = FederatedData(ROWS, RNG.integers(0, 3, sum(SIZES)), np.cumsum([0, *SIZES]))
NETWORK = Network(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))


def test_two_processes_give_the_numbers_of_one():
    problem = Problem(DATA, NETWORK, 3, 2)
    algorithm = importance(step_size=0.1, num_active=3, examples=Memory())
    one, two = (simulate(problem, algorithm, rounds=3, threads=n) for n in (1, 2))
    np.testing.assert_array_equal(two.params, one.params)
    np.testing.assert_array_equal(two.example_prob, one.example_prob)
    np.testing.assert_array_equal(two.ledgers, one.ledgers)
    np.testing.assert_array_equal(two.agent_prob, one.agent_prob)


@pytest.mark.parametrize("local", [LocalOptions(), LocalOptions(momentum=0.5, prox=0.1)])
@pytest.mark.parametrize("shared", [True, False])
def test_whatever_a_turn_needs_crosses(shared, local):
    problem = Problem(DATA, NETWORK, 3, 2)
    rules = importance(step_size=0.1, num_active=3).rules(5)
    size = problem.num_params
    params = NETWORK.initial() + (0.0 if shared else RNG.standard_normal((5, size)))
    turns = TrainRequest(np.arange(5), params, np.linspace(0.1, 0.2, 5))
    correction, velocity = RNG.standard_normal((2, 5, size))
    velocity = velocity if local.momentum else None
    steps = np.array([1, 2, 3, 1, 2])
    local = replace(local, steps=steps, correction=correction, velocity=velocity)
    one, two = (
        NETWORK.make_agents(problem, rules, seed=0, repetition=0, workers=n) for n in (1, 2)
    )
    for i in range(2):
        for found, expected in zip(
            two.work(turns, i, local), one.work(turns, i, local), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
    assert two.memory == one.memory
    assert two.turn_losses == one.turn_losses


class Deadly(nn.Linear):
    """Fails while a file exists, except in the process of the test: with an error, or by death."""

    def __init__(self, flag: str, survivor: int, error: str = "") -> None:
        super().__init__(4, 3)
        self.flag, self.survivor, self.error = flag, survivor, error

    def forward(self, input):
        if Path(self.flag).exists() and os.getpid() != self.survivor:
            if self.error:
                raise RuntimeError(self.error)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(input)


def _deadly_agents(tmp_path, error="", workers=2):
    flag, survivor = tmp_path / "flag", os.getpid()
    problem = Problem(DATA, Network(lambda: Deadly(str(flag), survivor, error)), 3, 2)
    rules = importance(step_size=0.1, num_active=3).rules(5)
    agents = problem.loss.make_agents(problem, rules, seed=0, repetition=0, workers=workers)
    return agents, TrainRequest(np.arange(5), problem.loss.initial(), np.full(5, 0.1)), flag


def test_an_error_in_another_process_is_raised_here_and_the_next_round_works(tmp_path):
    agents, turns, flag = _deadly_agents(tmp_path, error="no more rows", workers=3)
    before = agents.work(turns, 0).changes.copy()
    flag.touch()
    with pytest.raises(ValueError, match=r"agent 1 cannot do its turn of round 0: no more rows"):
        agents.work(turns, 0)
    flag.unlink()
    np.testing.assert_array_equal(agents.work(turns, 0).changes, before)


def test_after_ctrl_c_the_next_round_hears_no_old_reply(monkeypatch):
    problem = Problem(DATA, NETWORK, 3, 2)
    rules = importance(step_size=0.1, num_active=3).rules(5)
    one, two = (
        NETWORK.make_agents(problem, rules, seed=0, repetition=0, workers=n) for n in (1, 2)
    )
    turns = TrainRequest(np.arange(5), NETWORK.initial(), np.full(5, 0.1))

    def interrupted(pool, count):  # while it waits; the reply stays in the pipe
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            two.work(turns, 0)
    later = turns._replace(params=turns.params + 1.0)
    np.testing.assert_array_equal(two.work(later, 1).changes, one.work(later, 1).changes)


def _shared_files() -> set[Path]:
    folders = (MEMORY, Path(tempfile.gettempdir()))
    return {path for folder in folders for path in folder.glob("isfed-mail-*")}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing can be killed like this")
def test_a_killed_process_is_an_error_and_leaves_no_memory_behind(tmp_path):
    agents, turns, flag = _deadly_agents(tmp_path)
    before = agents.work(turns, 0).changes.copy()
    pool = agents.pool
    shared, folder = pool.shared.path, pool.folder.path
    assert shared in _shared_files()
    flag.touch()
    with pytest.raises(RuntimeError, match="takes turns of the agents has ended"):
        agents.work(turns, 0)
    assert not shared.exists()
    assert not folder.exists()
    flag.unlink()
    np.testing.assert_array_equal(agents.work(turns, 0).changes, before)
    again = agents.pool.shared.path
    assert again in _shared_files()
    del pool
    agents.pool = None  # collected
    assert again not in _shared_files()
