"""The demo's problem under methods of several kinds: a composition, questions, control variates.

A turn may be held up.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from isfed import ISFedAvg, PowerOfChoice, Uniform, flower
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.safety import Safety
from isfed.flower import demo_app
from isfed.methods.by_score import ByScore
from isfed.methods.estimators import Mean
from isfed.methods.federated import Federated
from isfed.methods.local_steps import LocalSteps

client, server = ClientApp(), ServerApp()
DEFAULTS = {"method": "", "hold": "", "rounds": 3}
AGENTS, SEED = 3, 7
LONGEST = 1800.0  # seconds: nobody is absent because the machine is busy
METHODS = {
    "composition": Federated(ByScore(2, Uniform()), LocalSteps(0.01, 3, prox=0.5), Mean()),
    "losses": PowerOfChoice(
        step_size=0.01, num_active=2, candidates=3, candidates_by="uniform", local_steps=2
    ),
    "drift": ISFedAvg(step_size=0.01, num_active=2, correction="drift"),
}


@client.train()
def train(message, context):
    """A turn or an answer; after a turn it waits as long as the file says so."""
    reply = demo_app.demo_train(message, context)
    order = message.content["isfed"]
    if order.get("ask"):
        return reply
    hold = Path(context.run_config["hold"])
    (hold.parent / f"worked-{order['round']}").touch()
    until = time.monotonic() + LONGEST
    while hold.exists() and hold.read_text() == f"{order['round']}" and time.monotonic() < until:
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
            told = {"params": params.tolist(), **vars(report)}
            file.write(json.dumps(told) + "\n")

    strategy = flower.Strategy(
        METHODS[config["method"]], num_agents=AGENTS, seed=SEED, time_limit=LONGEST,
        join_limit=LONGEST, names=[f"agent{k}" for k in range(AGENTS)], on_round=on_round,
        checkpoint=results / "checkpoint.npz", fraction_evaluate=0.0,
        safety=Safety(most_inclusion=1.0, largest_ratio=1e9),
    )  # fmt: skip
    size = demo_app.demo_problem(AGENTS, SEED).num_params
    initial = ArrayRecord({"params": Array(np.zeros(size))})
    strategy.start(grid, initial, num_rounds=int(config["rounds"]))
    (results / "done").write_text("")


def in_process(name):
    """(rounds, M) the models after every round."""
    method, problem = METHODS[name], demo_app.demo_problem(AGENTS, SEED)
    agents = ObjectAgents(problem, method.rules(AGENTS), seed=SEED, repetition=0)
    state, models = method.start(agents, np.zeros(problem.num_params)), []
    for i in range(DEFAULTS["rounds"]):
        if isinstance(method, Federated):
            state, _ = method.step(state, agents, i)
        else:
            state = method.round(state, agents, i)
        models.append(method.model(state).copy())
    return np.array(models)
