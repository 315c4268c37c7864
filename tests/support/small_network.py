"""The federation of `small_flower` with a network: batch norm has buffers, dropout draws."""

# pyright: reportMissingImports=false
import numpy as np
import small_flower
import torch
from flwr.app import ArrayRecord
from torch import nn

from isfed import FederatedData, Problem, simulate
from isfed.flower import torch_turn
from isfed.torch import Network

RNG = np.random.default_rng(0)
SIZES = (12, 20, 8, 15, 10)  # of small_flower.AGENTS agents
ROWS = RNG.standard_normal((sum(SIZES), 4))
DATA = FederatedData(ROWS, RNG.integers(0, 3, len(ROWS)), np.cumsum([0, *SIZES]))
STEPS, BATCH, STEP_SIZE = 3, 4, 0.2


def module():
    """In its vector the parameters come before the buffers; in a message, layer after layer."""
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)
    return nn.Sequential(*layers).double()


NETWORK = Network(module)
PROBLEM = Problem(DATA, NETWORK, STEPS, BATCH)


def turn(agent, network=NETWORK, **options):
    """The handler of one agent."""
    work = {"local_steps": STEPS, "batch_size": BATCH}
    return torch_turn(lambda _: DATA.agent(agent), network, **work, **options)


def make_grid(tmp_path, spoil=None, turn=turn):
    return small_flower.make_grid(tmp_path, spoil, turn)


def initial(dtype="float64"):
    state = NETWORK.state_dict(NETWORK.initial())
    kind = getattr(torch, dtype)
    return ArrayRecord({n: v.to(kind) if v.is_floating_point() else v for n, v in state.items()})


def params_of(result):
    return NETWORK.params(result.arrays.to_torch_state_dict())


def in_process(rounds, algorithm):
    return simulate(PROBLEM, algorithm, rounds=rounds, seed=small_flower.SEED).params[0]
