"""Which running means suit an averaged model: the current ones, their average, or new ones?

    python docs/make/networks_batch_norm.py [--seeds 3] [--rounds 100]

A CNN with batch norm on MNIST in two shards per agent, trained by the default method. What is shown
is a mean of models; the buffers beside it are the mean of what the last cohort returned, the same
exponential average over a pass, or computed anew on rows of all agents at the model that is shown.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

from isfed import LookAheadPasses, Problem
from isfed.studies.experiment_config import read_study
from isfed.torch import Network, evaluate

STEP, ROWS = 0.1, 2000
WAYS = ("last model, its own", "averaged, current", "averaged, averaged", "averaged, recomputed")


def module() -> nn.Module:
    """Two convolutions with batch norm, and one linear layer."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 14)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 9, 10),
    )  # fmt: skip


def recomputed(network: Network, params: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The model with running means and variances of these rows."""
    model: Any = network.module(params)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over the batches
    model.train()
    with torch.no_grad():
        for part in np.array_split(rows, 10):
            model(torch.from_numpy(np.array(part)))
    return network.params(model.state_dict())


def accuracies(seed: int, rounds: int) -> list[float]:
    """The accuracy of every way after the last round."""
    source = read_study("networks", setting="b-shards").source
    given = source.make()
    network = Network(module)
    problem = Problem(given.data, network, given.local_steps, given.batch_size)
    method = LookAheadPasses(num_active=10, step_size=STEP)
    agents = network.make_agents(problem, method.rules(problem.num_agents), seed=seed, repetition=0)
    state = method.start(agents, network.initial())
    trained, longest = agents.num_trained, problem.num_agents / method.num_active
    mean = state.params[trained:].copy()
    for i in range(rounds):
        state = method.round(state, agents, i)
        mean += (state.params[trained:] - mean) / min(longest, 1.0 + i / 4.0)
    shown = method.model(state)
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(given.data.targets), ROWS, replace=False)
    models = (
        state.params,
        shown,
        np.concatenate([shown[:trained], mean]),
        recomputed(network, shown, given.data.features[rows]),
    )
    test: Any = source.measure(given)
    return [evaluate(network, model, test.x, test.y).accuracy for model in models]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = 100 * np.array([accuracies(seed, given.rounds) for seed in range(given.seeds)])
    print("| model, running means | accuracy (%) |\n|---|---:|")
    for way, column in zip(WAYS, found.T, strict=True):
        error = column.std(ddof=1) / np.sqrt(len(column)) if len(column) > 1 else np.nan
        print(f"| {way} | {column.mean():.1f} ± {error:.1f} |")


if __name__ == "__main__":
    main()
