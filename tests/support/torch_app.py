"""A Flower app whose agents train a small network by isfed's loop; one of them may be held up."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

from isfed.algorithms.importance import importance
from isfed.datasets.named import digits
from isfed.datasets.partition import shards
from isfed.flower import Strategy, torch_turn
from isfed.torch import Network

client, server = ClientApp(), ServerApp()
DEFAULTS = {"rounds": 4, "seed": 7, "results": "", "hold": ""}
STEPS, BATCH, AGENTS = 5, 16, 3
torch.set_num_threads(1)


def module():
    """Batch norm and dropout: buffers, a counter without dimensions, and draws."""
    return nn.Sequential(
        nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    )


NETWORK = Network(module)
ALGORITHM = importance(step_size=0.1, num_active=2, weighting="step")


def data():
    """The digits of three agents."""
    rows = digits()
    x, y = rows.features[:600].astype(np.float32), rows.targets[:600].astype(np.int64)
    return shards(y, num_agents=AGENTS, per_agent=4).federate(x, y)


@client.train()
def train(message, context):
    """A turn; then it waits as long as the file says so."""
    agent = context.node_config["partition-id"]
    turn = torch_turn(lambda _: data().agent(agent), NETWORK, local_steps=STEPS, batch_size=BATCH)
    reply = turn(message, context)
    here = f"{message.content['isfed']['round']}"
    hold = Path(context.run_config["hold"])
    (hold.parent / f"worked-{here}").touch()
    until = time.monotonic() + 600.0
    while hold.exists() and hold.read_text() == here and time.monotonic() < until:
        time.sleep(0.2)
    return reply


@server.main()
def main(grid, context):
    """All rounds, from the checkpoint if there is one."""
    config = context.run_config
    results = Path(config["results"])
    (results / "server.pid").write_text(str(os.getpid()))

    def on_round(report, params):
        with open(results / "rounds.jsonl", "a") as file:
            file.write(json.dumps({"round_index": report.round_index}) + "\n")

    strategy = Strategy(
        ALGORITHM, num_agents=AGENTS, seed=config["seed"], weighting="step", time_limit=600.0,
        join_limit=600.0, checkpoint=results / "checkpoint.npz",
        names=[f"agent{k}" for k in range(AGENTS)], on_round=on_round, fraction_evaluate=0.0,
    )  # fmt: skip
    initial = ArrayRecord(NETWORK.state_dict(NETWORK.initial()))
    result = strategy.start(grid, initial, num_rounds=config["rounds"])
    torch.save(result.arrays.to_torch_state_dict(), results / "model.pt")
    (results / "done").write_text("")
