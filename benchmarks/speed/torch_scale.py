"""Networks at scale: memory with many agents, and two processes against one.

    python benchmarks/speed/torch_scale.py memory [--agents 10000]
    python benchmarks/speed/torch_scale.py processes [--rounds 10] [--model mlp|cnn]
    python benchmarks/speed/torch_scale.py ray [--rounds 10] [--model mlp|cnn]

Memory is what a run adds to the process beyond the data, in megabytes of resident memory; seconds
are wall time per round, interleaved. On a busy machine two processes get twice the share of one,
whatever they do: the CPU seconds of all processes (Linux only) say what two idle cores would give.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch_overhead import STEP, K, L, cnn, make_data, mlp

from isfed import FedAvg, FederatedData, Problem
from isfed.torch import Network, importance


def peak() -> float:
    """Megabytes of the process at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def memory(agents: int) -> None:
    """A run of importance sampling over many agents."""
    rng = np.random.default_rng(0)
    rows = 20
    x = rng.standard_normal((agents * rows, 196), dtype=np.float32)
    x.flags.writeable = False
    data = FederatedData(x, rng.integers(0, 10, agents * rows), np.arange(agents + 1) * rows)
    make = lambda: nn.Sequential(nn.Linear(196, 200), nn.ReLU(), nn.Linear(200, 10))  # noqa: E731
    problem = Problem(data, Network(make), local_steps=5, batch_size=10)
    algorithm = importance(step_size=0.05, num_active=L)
    before = peak()
    rules = algorithm.rules(agents)
    found = problem.loss.make_agents(problem, rules, seed=0, repetition=0)
    state = algorithm.start(found, problem.loss.initial())
    for i in range(200):
        state = algorithm.round(state, found, i)
    size = problem.num_params
    print(f"K={agents}: data {x.nbytes / 2**20:.0f} MB, model {8 * size / 2**20:.1f} MB (M={size})")
    print(f"  process with the data {before:.0f} MB, after 200 rounds {peak():.0f} MB")
    print(f"  the tables and memories of the agents: {_kept(found, state) / 2**20:.2f} MB")


def _kept(agents, state) -> int:
    tables = sum(table.nodes.nbytes for table in agents.tables.values())
    memories = sum(kept.nbytes for kept in agents.memory.values())
    return tables + memories + sum(np.asarray(kept).nbytes for kept in state.sampler)


def cpu_seconds() -> float:
    """Of this process and its children, so far."""
    children = Path("/proc/self/task").glob("*/children")
    pids = ["self", *(pid for path in children for pid in path.read_text().split())]
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])  # user and system
    return total / os.sysconf("SC_CLK_TCK")


def processes(make, rounds: int, *, ray: bool) -> None:
    """The same rounds in this process and in two: of this machine, or actors of Ray."""
    problem = Problem(make_data(), Network(make), local_steps=5, batch_size=20)
    algorithm = FedAvg(step_size=STEP, num_active=L)
    runs = {}
    for workers in (1, 2):
        agents = problem.loss.make_agents(
            problem, algorithm.rules(K), seed=0, repetition=0, workers=workers
        )
        if ray and workers > 1:
            agents.use_ray(workers)
        state = algorithm.start(agents, problem.loss.initial())
        runs[workers] = [agents, algorithm.round(state, agents, 0), [], 0.0]
    for i in range(1, rounds + 1):
        for run in runs.values():
            before, spent = time.perf_counter(), cpu_seconds()
            run[1] = algorithm.round(run[1], run[0], i)
            run[2].append(time.perf_counter() - before)
            run[3] += cpu_seconds() - spent
    one, two = (np.array(run[2]) for run in runs.values())
    ratio = one / two
    low, high = np.percentile(ratio, [25, 75])
    print(
        f"one process {1e3 * np.median(one):.0f} ms, two {1e3 * np.median(two):.0f} ms, "
        f"x {np.median(ratio):.2f} ({low:.2f} to {high:.2f}), {rounds} rounds"
    )
    if ray:  # whose actors are no children of this process
        return
    one, two = (run[3] for run in runs.values())
    print(
        f"CPU of all processes: one {one:.2f} s, two {two:.2f} s; on two idle cores x "
        f"{2 * one / two:.2f} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "processes", "ray"))
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "memory":
        memory(given.agents)
    else:
        processes({"mlp": mlp, "cnn": cnn}[given.model], given.rounds, ray=given.what == "ray")


if __name__ == "__main__":
    main()
