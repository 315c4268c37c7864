"""Local work on networks against pfl and FedJAX: CPU seconds, interleaved in one run.

    python benchmarks/speed/torch_peers.py [--rounds 10] [--model mlp|cnn]

The work is that of torch_overhead.py, one thread each; see requirements-peers.txt for the peers.
One that is not installed is left out.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import os

os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

from importlib import import_module
from typing import Any

import torch
from peers import fedjax_rounds, pfl_rounds
from torch import nn
from torch_overhead import BOTH, MODELS, STEP, B, Bare, E, L, Ours, make_data, measure, report

from isfed import FedAvg, Problem
from isfed.torch import Network


class Peer:
    """Rounds of another library."""

    def __init__(self, advance: Any) -> None:
        self.advance = advance

    def round(self) -> None:
        self.advance(1)


class WithLoss(nn.Module):
    """A module that has its loss as a method, as pfl wants it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x, y):
        return nn.functional.cross_entropy(self.inner(x), y.long())  # pfl makes floats of them

    def metrics(self, _x, _y):
        return {}


def jax_model(name: str) -> tuple[Any, Any]:
    """The forward pass and the parameters of the same network in JAX."""
    jax = import_module("jax")
    numpy, lax = jax.numpy, jax.lax
    state = MODELS[name]().state_dict()
    params = {key: numpy.asarray(value.numpy()) for key, value in state.items()}

    def dense(p, x, layer):
        return x @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]

    def conv(p, x, layer):
        y = lax.conv_general_dilated(x, p[f"{layer}.weight"], (1, 1), "SAME")
        y = jax.nn.relu(y + p[f"{layer}.bias"][:, None, None])
        return lax.reduce_window(y, -numpy.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def mlp(p, x):
        return dense(p, jax.nn.relu(dense(p, x.reshape(len(x), -1), 1)), 3)

    def cnn(p, x):
        x = conv(p, conv(p, x, 0), 3)
        return dense(p, jax.nn.relu(dense(p, x.reshape(len(x), -1), 7)), 9)

    forward = {"mlp": mlp, "cnn": cnn}[name]

    def loss(p, batch, _rng):
        logs = jax.nn.log_softmax(forward(p, batch["x"]))
        return -numpy.take_along_axis(logs, batch["y"][:, None], axis=1).mean()

    return loss, params


def contestants(name: str) -> dict[str, Any]:
    """isfed, a loop without any library, and the peers that are installed."""
    data, algorithm = make_data(), FedAvg(step_size=STEP, num_active=L)
    problem = Problem(data, Network(MODELS[name]), local_steps=E, batch_size=B)
    runs: dict[str, Any] = {
        "isfed": Ours(MODELS[name], data, algorithm, "last_layer"),
        "bare PyTorch": Bare(MODELS[name], data),
    }
    makers = {
        "pfl": lambda: pfl_rounds(problem, algorithm, WithLoss(MODELS[name]())),
        "fedjax": lambda: fedjax_rounds(problem, algorithm, *jax_model(name)),
    }
    for peer, make in makers.items():
        try:
            import_module(peer)
        except ImportError as error:
            print(f"{peer} is left out: {error} (see benchmarks/speed/requirements-peers.txt)")
            continue
        runs[peer] = Peer(make())
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", choices=("mlp", "cnn", "both"), default="both")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in BOTH if given.model == "both" else [given.model]:
        seconds = measure(contestants(name), rounds=given.rounds)
        report(f"{name}, one thread, median of {given.rounds} rounds", seconds)


if __name__ == "__main__":
    main()
