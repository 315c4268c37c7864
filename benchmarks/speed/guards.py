"""What the guards of a cloud cost: a guarded round over a bare one, interleaved in one run.

    python benchmarks/speed/guards.py [--tries 41]

The bare side runs the same method over the same kind of agents without `Guarded`, without a cap on
inclusion, and without a report. That guards add no
byte to a message is a test, `tests/flower/test_replies.py`.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
import torch
from torch import nn

from isfed import PAPER, FederatedData, ISFedAvg, Problem
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.guarded import Guarded
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.safety import Safety
from isfed.methods.over_network import over_network
from isfed.methods.resumable_job import Job
from isfed.torch import Network
from isfed.torch.agents import TorchAgents

K, L = 100, 10
BARE = Safety(most_inclusion=1.0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def images() -> Problem:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((K * 60, 1, 28, 28), dtype=np.float32)
    data = FederatedData(x, rng.integers(0, 10, K * 60), np.arange(K + 1) * 60)
    network = Network(mlp, nn.CrossEntropyLoss(reduction="none"))
    return Problem(data, network, np.full(K, 5), np.full(K, 20))


def sides(problem: Problem, kind: type, **choices):
    """A guarded round and a bare one, as functions without arguments."""
    method = ISFedAvg(step_size=0.01, num_active=L, **choices)
    guarded, bare = (over_network(method, num_agents=K, safety=s) for s in (Safety(), BARE))
    first = getattr(problem.loss, "initial", None)
    start = np.zeros(problem.num_params) if first is None else np.asarray(first(0), np.float64)
    agents = [kind(problem, m.rules(K), seed=0, repetition=0) for m in (guarded, bare)]
    job = Job(guarded, Guarded(agents[0], Safety()), start)
    state, index = bare.start(agents[1], start), 0

    def plain() -> None:
        nonlocal state, index
        state, index = bare.round(state, agents[1], index), index + 1

    return job.step, plain


def ratio(one, other, *, tries: int, rounds: int) -> tuple[float, float, float, float]:
    """Median, quartiles, and microseconds of a bare round; CPU time, by turns."""

    def spent(side) -> float:
        begin = time.process_time()
        for _ in range(rounds):
            side()
        return time.process_time() - begin

    for side in (one, other):
        spent(side)
    pairs = [(spent(one), spent(other)) for _ in range(tries)]
    ratios = [a / b for a, b in pairs]
    low, high = np.quantile(ratios, [0.25, 0.75])
    return median(ratios), low, high, min(b for _, b in pairs) / rounds * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=41)
    tries = parser.parse_args().tries
    torch.set_num_threads(1)
    paper, rows = PAPER.replace(num_agents=K, num_examples=100).make(), images()
    for name, problem, kind, rounds, choices in (
        ("network of 159 010 numbers, PyTorch", rows, TorchAgents, 1, {}),
        ("linear model, agents as objects", paper, ObjectAgents, 20, {}),
        ("linear model, compiled agents", paper, CompiledAgents, 200, {}),
    ):
        middle, low, high, micro = ratio(
            *sides(problem, kind, **choices), tries=tries, rounds=rounds
        )
        print(f"{name:38} {middle:.3f} ({low:.3f} to {high:.3f}), a round takes {micro:.0f} us",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
