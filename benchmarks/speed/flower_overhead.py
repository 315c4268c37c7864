"""The time of a round with Flower's FedAvg and with ours, same agents, one run, interleaved:

python benchmarks/speed/flower_overhead.py [--rounds 10]

Three ways take turns on one federation (SuperLink, three SuperNodes, TLS, node keys): Flower's
FedAvg; our strategy with Flower's exchange of messages, which looks for replies every three
seconds; and our strategy as it is, with its own exchange.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from isfed import ISFedAvg
from isfed.flower import Strategy, demo_app, wire_format
from isfed.flower.demo import DemoResults, in_process, terminable
from isfed.flower.local_processes import LocalFederation
from isfed.flower.message_exchange import exchange

LIMIT = 120.0
WAYS = ("FedAvg", "ours, Flower's exchange", "ours")
client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    """A turn of ISFedAvg if there is an order, else the same steps without weights."""
    if wire_format.REQUEST in message.content:
        return demo_app.demo_train(message, context)
    agent = int(context.node_config["partition-id"])
    problem = demo_app.demo_problem(3, 0)
    x, y = problem.data.agent(agent)
    params, rng = message.content["arrays"]["params"].numpy(), np.random.default_rng()
    for _ in range(int(problem.local_steps[agent])):
        rows = rng.choice(len(y), int(problem.batch_size[agent]), replace=False)
        gradient, _ = problem.loss.gradient(params, x[rows], y[rows], np.ones(rows.size))
        params = params - 0.01 * gradient
    content = {
        "arrays": ArrayRecord({"params": Array(params)}),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    """Rounds of the three ways in turn; the times go into the folder of results."""
    results = Path(str(context.run_config["results"]))
    checkpoint = results / "checkpoint.npz"
    ours = Strategy(
        ISFedAvg(step_size=0.01, num_active=2),
        num_agents=3,
        names=["agent0", "agent1", "agent2"],
        time_limit=LIMIT,
        checkpoint=checkpoint,
    )
    plain = FedAvg(fraction_train=0.67, fraction_evaluate=0.0, min_available_nodes=3)
    initial = ArrayRecord({"params": Array(np.zeros(2))})
    models = {"FedAvg": initial, "ours": initial}
    ours.nodes.wait(grid, seconds=LIMIT)
    (results / "server.pid").write_text(str(os.getpid()))
    for number in range(1, int(context.run_config["rounds"]) + 2):
        for way in np.roll(WAYS, number):  # each way is first, second and third equally often
            began = time.perf_counter()
            strategy, whose = (plain, "FedAvg") if way == "FedAvg" else (ours, "ours")
            arrays = models[whose]
            messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
            if way == "ours":
                answers = exchange(grid, dict(enumerate(messages)), until=time.monotonic() + LIMIT)
                replies = answers.replies.values()
            else:
                replies = grid.send_and_receive(messages, timeout=LIMIT)
            replies = list(replies)
            models[whose] = strategy.aggregate_train(number, replies)[0] or arrays
            line = {"way": str(way), "seconds": time.perf_counter() - began, "n": len(replies)}
            if number > 1:  # the first round loads the app everywhere
                with open(results / "rounds.jsonl", "a") as file:
                    file.write(json.dumps(line) + "\n")
    (results / "done").write_text("")


def measure(rounds: int) -> None:
    """Start the federation, run, print."""
    in_process(demo_app.DEFAULTS)  # compiles what the agents load
    with tempfile.TemporaryDirectory(prefix="isfed-") as name, terminable():
        folder = Path(name)
        (folder / "results").mkdir()
        demo_app.write_app(folder / "app", module="flower_overhead")
        with LocalFederation(folder, agents=3) as federation:
            federation.env["PYTHONPATH"] = str(Path(__file__).parent)
            federation.start()
            federation.submit(
                folder / "app", {"rounds": rounds, "results": str(folder / "results")}
            )
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for line in DemoResults(folder / "results").follow():
                assert line["n"] == 2, line
                times[line["way"]].append(line["seconds"])
                print(f"{line['way']:26s} {line['seconds']:6.2f} s", flush=True)
    base = np.mean(times["FedAvg"])
    print(f"{rounds} rounds each, 2 of 3 agents per round, seconds per round")
    for way, seconds in times.items():
        mean, error = np.mean(seconds), np.std(seconds, ddof=1) / np.sqrt(len(seconds))
        change = 100 * (mean / base - 1)
        print(
            f"{way:26s} mean {mean:6.2f} +- {error:.2f}  median {np.median(seconds):6.2f}  "
            f"{change:+6.1f}% against FedAvg"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    measure(parser.parse_args().rounds)
