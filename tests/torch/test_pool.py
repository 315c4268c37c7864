"""Turns in several processes give the numbers of one."""

# pyright: reportMissingImports=false

import numpy as np
import pytest
from torch import nn

from isfed import FederatedData, Memory, Problem, simulate
from isfed.federation.agents import Local, Turns
from isfed.torch import Network, importance
from isfed.torch.pool import joined, part_of

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


@pytest.mark.parametrize("shared", [True, False])
def test_a_round_is_cut_and_joined_again(shared):
    problem = Problem(DATA, NETWORK, 3, 2)
    rules = importance(step_size=0.1, num_active=3).rules(5)
    agents = NETWORK.make_agents(problem, rules, seed=0, repetition=0)
    size = problem.num_params
    params = NETWORK.initial() + (0.0 if shared else RNG.standard_normal((5, size)))
    turns = Turns(np.arange(5), params, np.linspace(0.1, 0.2, 5))
    local = Local(steps=np.array([1, 2, 3, 1, 2]), correction=RNG.standard_normal((5, size)))
    whole = agents.work(turns, 0, local)
    agents.memory.clear()
    parts = [agents.work(*_with_round(part_of(turns, local, rows))) for rows in
             (slice(0, 2), slice(2, 5))]  # fmt: skip
    for found, expected in zip(joined(parts), whole, strict=True):
        np.testing.assert_array_equal(found, expected)


def _with_round(part):
    turns, local = part
    return turns, 0, local
