"""The app of the demo with agents that misbehave by plan: {agent: {round: fault}} in a file.

A fault is "raise", "hold" (until the plan no longer says so), "huge", "undecodable", or a name in
`hostile`.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import time
from pathlib import Path

import hostile
import numpy as np
from flwr.app import Array
from flwr.clientapp import ClientApp

from isfed.flower import demo_app

server = demo_app.server
client = ClientApp()
DEFAULTS = {"faults": "", "log": ""}
LONGEST_SECONDS = 900.0
HOSTILE = {**hostile.UNREADABLE, **hostile.FAILURES, **hostile.SCORES}


def break_flower() -> None:
    """From now on this process describes arrays by what is no JSON: no Flower can read them."""
    honest = Array.deflate
    Array.deflate = lambda self: honest(self).replace(b'"dtype": ', b'"dtype":!')


def spoil(fault: str, reply):
    """What the fault does to an honest reply."""
    if fault == "raise":
        raise RuntimeError("planned: the client raises")
    if fault == "undecodable":
        break_flower()
        return hostile.send(reply, Array(np.zeros(2)))
    if fault == "huge":
        return hostile.send(reply, Array(np.zeros(25_000_000)))  # 200 MB
    return HOSTILE[fault](reply)


@client.train()
def train(message, context):
    """An honest turn, then the fault that is planned for this agent and round."""
    plan = Path(context.run_config["faults"])
    agent = str(context.node_config["partition-id"])
    number = str(message.content["isfed"]["round"])
    with open(context.run_config["log"], "a") as file:  # for the test: who works on what
        file.write(f"{agent} {number}\n")
    reply = demo_app.demo_train(message, context)
    until = time.monotonic() + LONGEST_SECONDS
    while (fault := planned(plan, agent, number)) == "hold" and time.monotonic() < until:
        time.sleep(0.2)
    return reply if fault in (None, "hold") else spoil(fault, reply)


def planned(plan: Path, agent: str, number: str) -> str | None:
    """The fault of that agent and round, as the plan is now."""
    return json.loads(plan.read_text()).get(agent, {}).get(number)
