"""Flower's own simulation as an engine: the strategy and the agents, on Ray, in this machine."""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from isfed.flower import require_flwr
from isfed.methods import ISFedAvg
from isfed.simulate import simulate
from isfed.simulate.kernel_run import num_cores

AGENTS = 12
ALGORITHM = ISFedAvg(step_size=0.01, num_active=4)


@dataclass(frozen=True)
class Agreement:
    """One engine's final model, how far it is from the kernel's, and the seconds it took."""

    engine: str
    params: np.ndarray
    difference: float
    seconds: float


def compare_engines(*, rounds: int = 20, seed: int = 0) -> list[Agreement]:
    """The same small setting on the kernel, the objects, and Flower's simulation."""
    require_flwr()
    if find_spec("ray") is None:
        raise ImportError("Flower's simulation is not installed: pip install 'isfed[ray]'")
    # Before Flower and Ray are imported: no look-ups.
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    os.environ.update(quiet, RAY_USAGE_STATS_ENABLED="0")
    from isfed.flower.demo_app import demo_problem

    problem, results = demo_problem(AGENTS, seed), []
    for engine in ("kernel", "objects", "flower"):
        began = time.perf_counter()
        if engine == "flower":
            params = simulate_flower(rounds=rounds, seed=seed)
        else:
            run = simulate(problem, ALGORITHM, rounds=rounds, seed=seed, engine=engine)
            params = run.params[0]
        seconds = time.perf_counter() - began
        reference = results[0].params if results else params
        results.append(Agreement(engine, params, float(np.abs(params - reference).max()), seconds))
    return results


def simulate_flower(*, rounds: int, seed: int) -> np.ndarray:
    """(M,) the model after the last round, run by Flower's simulation."""
    from flwr.app import Array, ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from isfed.flower.agent_handler import tell_agent
    from isfed.flower.agent_state import STATE_FOLDER
    from isfed.flower.demo_app import demo_problem, problem_turn
    from isfed.flower.strategy import Strategy

    client, server, params = ClientApp(), ServerApp(), []
    client.query()(tell_agent)

    @client.train()
    def train(message, context):
        context.node_config[STATE_FOLDER] = folder
        return problem_turn(demo_problem(AGENTS, seed), message, context)

    @server.main()
    def main(grid, context) -> None:
        strategy = Strategy(
            ALGORITHM,
            num_agents=AGENTS,
            seed=seed,
            weighting="change" if ALGORITHM.on_change else "step",  # as the other engines
            on_round=lambda _, model: params.append(model),
            fraction_evaluate=0.0,
        )
        first = np.zeros(demo_problem(AGENTS, seed).num_params)
        strategy.start(grid, ArrayRecord({"params": Array(first)}), num_rounds=rounds)

    with tempfile.TemporaryDirectory(prefix="isfed-") as folder:
        cores = {"num_cpus": num_cores(), "include_dashboard": False}
        resources = {"client_resources": {"num_cpus": 1}, "init_args": cores}
        run_simulation(server, client, num_supernodes=AGENTS, backend_config=resources)
    return params[-1]
