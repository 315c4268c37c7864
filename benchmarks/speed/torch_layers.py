"""The passes written by hand against autograd, network by network, and torch.compile.

    python benchmarks/speed/torch_layers.py [--rounds 12]

CPU seconds per round, interleaved in one run; the work is that of torch_overhead.py. A pass by hand
that is not 1.2 times as fast as autograd is not worth its lines. torch.compile needs a C++
compiler; where there is none, its part is left out.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch_overhead import MODELS, STEP, Bare, L, Ours, make_data, measure, report

from isfed import FedAvg


def with_pool(size: int, channels: int) -> nn.Module:
    left = 13 if size == 3 else 14
    return nn.Sequential(
        nn.Conv2d(1, channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(size, 2),
        nn.Conv2d(channels, 2 * channels, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * channels * (left - 2) ** 2, 10),
    )  # fmt: skip


LAYERS = {
    "MLP": MODELS["mlp"],
    "softmax regression": MODELS["small"],
    "MLP, Tanh": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10)
    ),
    "CNN": MODELS["cnn"],
    "CNN, Tanh": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 144, 10)
    ),
    "CNN of 8, MaxPool2d(2)": lambda: with_pool(2, 8),
    "CNN of 8, MaxPool2d(3, 2)": lambda: with_pool(3, 8),
    "CNN of 16, MaxPool2d(3, 2)": lambda: with_pool(3, 16),
    "CNN without pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(400, 10),
    ),
}  # fmt: skip


class Compiled(Bare):
    """The bare loop with its forward and backward pass compiled by PyTorch."""

    module: Any

    def __init__(self, make, data) -> None:
        super().__init__(make, data)
        plain = self.loss
        self.loss = torch.compile(lambda x, y: plain(self.inner(x), y))
        self.inner, self.module = self.module, Inputs(self.module)


class Inputs:
    """A module that hands its inputs on: the compiled loss calls the module itself."""

    def __init__(self, inner: nn.Module) -> None:
        self.load_state_dict, self.state_dict = inner.load_state_dict, inner.state_dict
        self.parameters = inner.parameters

    def __call__(self, x):
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    data, fedavg = make_data(), FedAvg(step_size=STEP, num_active=L)
    for name, make in LAYERS.items():
        runs = {way: Ours(make, data, fedavg, "last_layer") for way in ("autograd", "by hand")}
        runs["autograd"].problem.loss.worker.fast = None
        report(name, measure(runs, rounds=given.rounds))
    for name in ("MLP", "CNN"):
        begin = time.perf_counter()
        try:
            compiled = Compiled(LAYERS[name], data)
            compiled.round()
        except Exception as error:
            print(f"torch.compile is left out: {str(error).splitlines()[0]}")
            return
        print(
            f"{name}: torch.compile took {time.perf_counter() - begin:.0f} s before its first round"
        )
        runs = {"bare PyTorch": Bare(LAYERS[name], data), "torch.compile": compiled}
        runs["isfed"] = Ours(LAYERS[name], data, fedavg, "last_layer")
        report(name, measure(runs, rounds=given.rounds))


if __name__ == "__main__":
    main()
