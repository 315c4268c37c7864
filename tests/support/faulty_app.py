"""The app of the demo with agents that misbehave by plan: {agent: {round: fault}} in a file."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from isfed.flower import demo_app

server = demo_app.server
client = ClientApp()
DEFAULTS = {"faults": "", "log": ""}


def spoil(fault: str, reply):
    """What the fault does to an honest reply."""
    change, score = np.zeros(2), 1.0
    if fault == "raise":
        raise RuntimeError("planned: the client raises")
    if fault.startswith("sleep"):
        time.sleep(float(fault.split()[1]))
        return reply
    match fault:
        case "nan":
            change = np.full(2, math.nan)
        case "shape":
            change = np.zeros((3, 3))
        case "huge":
            change = np.zeros(25_000_000)  # 200 MB
        case "negative":
            score = -1.0
        case "infinite":
            score = math.inf
        case "enormous":
            score = 1e200
        case _:
            raise ValueError(fault)
    reply.__dict__["_content"] = RecordDict(
        {
            "change": ArrayRecord({"params": Array(change)}),
            "metrics": MetricRecord({"score": score}),
        }
    )
    return reply


@client.train()
def train(message, context):
    """An honest turn, then the fault that is planned for this agent and round."""
    faults = json.loads(Path(context.run_config["faults"]).read_text())
    agent = str(context.node_config["partition-id"])
    number = str(message.content["isfed"]["round"])
    with open(context.run_config["log"], "a") as file:  # for the test: who works on what
        file.write(f"{agent} {number}\n")
    reply = demo_app.train(message, context)
    fault = faults.get(agent, {}).get(number)
    return reply if fault is None else spoil(fault, reply)
