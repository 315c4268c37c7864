"""examples/flower-torch with its own loop, or with isfed's local steps as its README says.

A turn may be held up.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

from isfed import FederatedData, LookAheadPasses, flower
from isfed.federation.safety import Safety
from isfed.torch import Network, importance

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower-torch" / "after"))
from torchapp.client_app import train as own_train
from torchapp.task import Net, load

client, server = ClientApp(), ServerApp()
DEFAULTS = {"loop": "isfed", "rounds": 3, "seed": 7, "results": "", "hold": ""}
STEPS, BATCH, AGENTS = 20, 32, 3
LONGEST = 1800.0  # seconds: nobody is absent because the machine is busy
torch.set_num_threads(1)


network = Network(Net, nn.CrossEntropyLoss(reduction="none"))
# Who does the local steps: isfed, isfed under a correction or by default, or the example itself.
LOOPS = {
    "default": LookAheadPasses(step_size=0.05, num_active=2),
    "isfed": importance(step_size=0.05, num_active=2, weighting="step"),
    "drift": importance(step_size=1.0, num_active=2, correction="drift"),
    "own": LookAheadPasses(num_active=2),
}


def load_arrays(context):
    """The images of this agent."""
    return tuple(part.numpy() for part in load(context.node_config["partition-id"]))


def data():
    """Those of all agents, for the run in process."""
    parts = [load(agent) for agent in range(AGENTS)]
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return FederatedData(x, y, np.cumsum([0, *(len(part[1]) for part in parts)]))


def own_turn(message, context):
    """The training function of the example, whose draws depend on the round and the agent alone."""
    with torch.random.fork_rng():
        order = message.content["isfed"]
        torch.manual_seed(AGENTS * order["round"] + order["agent"])
        return own_train(message, context)


isfed_turn = flower.torch_turn(load_arrays, network, local_steps=STEPS, batch_size=BATCH)
TURNS = dict.fromkeys(LOOPS, isfed_turn) | {"own": own_turn}


def run(grid, config, **options):
    """All rounds of a federation whose agents take their turns in the loop of that name."""
    algorithm = LOOPS[config["loop"]]
    strategy = flower.Strategy(
        algorithm, num_agents=AGENTS, seed=config["seed"],
        weighting=getattr(algorithm, "weighting", None),
        time_limit=LONGEST, join_limit=LONGEST, names=[f"agent{k}" for k in range(AGENTS)],
        fraction_evaluate=0.0, **{"safety": Safety(most_inclusion=1.0), **options},
    )  # fmt: skip
    initial = ArrayRecord(network.state_dict(network.initial()))
    train_config = ConfigRecord({"lr": 0.05})  # of the example's loop
    return strategy.start(
        grid, initial, num_rounds=config["rounds"], train_config=train_config
    ).arrays.to_torch_state_dict()


@client.train()
def train(message, context):
    """A turn; then it waits as long as the file says so."""
    reply = TURNS[context.run_config["loop"]](message, context)
    here = f"{message.content['isfed']['round']}"
    hold = Path(context.run_config["hold"])
    (hold.parent / f"worked-{here}").touch()
    until = time.monotonic() + LONGEST
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

    model = run(grid, config, checkpoint=results / "checkpoint.npz", on_round=on_round)
    torch.save(model, results / "model.pt")
    (results / "done").write_text("")
