"""The app that `isfed federation demo` runs: the paper's regression, one part of it per agent."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from isfed.federation.guarded import RoundReport
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Safety
from isfed.flower.agent_handler import agent_turn, tell_agent
from isfed.flower.strategy import Strategy
from isfed.methods import ISFedAvg
from isfed.problems import PAPER, Problem

client, server = ClientApp(), ServerApp()
client.query()(tell_agent)

# What a run can be told, with the values it has otherwise; Flower refuses other keys.
DEFAULTS: dict[str, Any] = {
    "rounds": 5,
    "seed": 0,
    "agents": 3,
    "active": 2,
    "step-size": 0.01,
    "time-limit": 120.0,
    "join-limit": 120.0,
    "absences": "drop",
    "weighting": "step",  # as the in-process run that the demo is compared with
    "enough": 1.0,
    "most-refusals": 3,
    "named": True,  # nodes are registered under names; otherwise each is asked for its number
    "results": "",
}


@cache
def demo_problem(agents: int, seed: int) -> Problem:
    """The paper's regression with so many agents."""
    return PAPER.replace(num_agents=agents).make(seed=seed)


def demo_algorithm(config: dict[str, Any]) -> ISFedAvg:
    """ISFedAvg with its default policies."""
    return ISFedAvg(step_size=float(config["step-size"]), num_active=int(config["active"]))


@client.train()
def demo_train(message: Message, context: Context) -> Message:
    """One turn on this agent's part of the data."""
    config, agent = context.run_config, int(context.node_config["partition-id"])
    problem = demo_problem(int(config["agents"]), int(config["seed"]))
    steps, batch = int(problem.local_steps[agent]), int(problem.batch_size[agent])
    turn = agent_turn(
        lambda _: problem.data.agent(agent), loss=problem.loss, local_steps=steps, batch_size=batch
    )
    return turn(message, context)


@server.main()
def demo_main(grid: Grid, context: Context) -> None:
    """All rounds; the model after each goes into the folder of results."""
    config = context.run_config
    results, agents, seed = Path(str(config["results"])), int(config["agents"]), int(config["seed"])

    def on_round(report: RoundReport, params: np.ndarray) -> None:
        line = json.dumps({**vars(report), "params": params.tolist()})
        with open(results / "rounds.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    strategy = Strategy(
        demo_algorithm(config),
        num_agents=agents,
        seed=seed,
        safety=Safety(
            absences=Absences(config["absences"]),
            enough=float(config["enough"]),
            most_refusals=int(config["most-refusals"]),
            most_inclusion=1.0,  # as in process, with which it is compared
        ),
        weighting="change" if config["weighting"] == "change" else "step",
        time_limit=float(config["time-limit"]),
        join_limit=float(config["join-limit"]),
        checkpoint=results / "checkpoint.npz",
        names=[f"agent{k}" for k in range(agents)] if config["named"] else None,
        on_round=on_round,
        fraction_evaluate=0.0,
    )
    (results / "server.pid").write_text(str(os.getpid()), encoding="utf-8")
    initial = ArrayRecord({"params": Array(np.zeros(demo_problem(agents, seed).num_params))})
    strategy.start(grid, initial, num_rounds=int(config["rounds"]))
    (results / "done").write_text("\n".join(strategy.report()), encoding="utf-8")


def write_app(
    folder: Path, *, module: str = __name__, defaults: dict[str, Any] | None = None
) -> None:
    """Write the Flower app: two modules that import from `module`, and a description."""
    package = folder / "isfed_demo"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for part in ("client", "server"):
        # An assignment, not `import as`: Flower looks for one before it imports anything.
        source = f"from {module} import {part}\n\napp = {part}\n"
        (package / f"{part}.py").write_text(source, encoding="utf-8")
    values = {**DEFAULTS, **(defaults or {})}
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "isfed-demo"\nversion = "1.0.0"\n'
        'description = "ISFedAvg on the regression of its paper"\nlicense = "Apache-2.0"\n'
        "dependencies = []\n\n"
        '[tool.hatch.build.targets.wheel]\npackages = ["isfed_demo"]\n\n'
        '[tool.flwr.app]\npublisher = "isfed"\n\n'
        '[tool.flwr.app.components]\nserverapp = "isfed_demo.server:app"\n'
        'clientapp = "isfed_demo.client:app"\n\n'
        f"[tool.flwr.app.config]\n{lines}\n",
        encoding="utf-8",
    )
