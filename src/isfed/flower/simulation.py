"""Flower's own simulation as an engine: the strategy and the agents, on Ray, in this machine."""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from isfed.flower import require_flwr
from isfed.methods import ISFedAvg
from isfed.problems import PAPER, Problem, Regression
from isfed.simulate import simulate
from isfed.simulate.kernel_run import num_cores

SMALL = PAPER.replace(num_agents=12)


@cache
def _problem(recipe: Regression, seed: int) -> Problem:
    """Made once in every worker; only the recipe travels to it."""
    return recipe.make(seed=seed)


def require_simulation() -> None:
    """Raise an ImportError that says what to install."""
    require_flwr()
    if find_spec("ray") is None:
        raise ImportError("Flower's simulation is not installed: pip install 'isfed[ray]'")


def simulate_flower(
    recipe: Regression, algorithm: ISFedAvg, *, rounds: int, seed: int = 0
) -> np.ndarray:
    """The model after every round, (rounds, M), run by Flower's simulation."""
    require_simulation()
    # Before Flower and Ray are imported: no look-ups, and where the workers' agents keep files.
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    os.environ.update(quiet, RAY_USAGE_STATS_ENABLED="0")
    from flwr.simulation import run_simulation

    with tempfile.TemporaryDirectory(prefix="isfed-") as folder:
        server, params = _server(recipe, algorithm, rounds=rounds, seed=seed)
        run_simulation(
            server,
            _client(recipe, seed, Path(folder)),
            num_supernodes=recipe.num_agents,
            backend_config={
                "client_resources": {"num_cpus": 1},
                "init_args": {"num_cpus": num_cores(), "include_dashboard": False},
            },
        )
    return np.array(params)


def _client(recipe: Regression, seed: int, folder: Path):
    from flwr.clientapp import ClientApp

    from isfed.flower.agent_handler import STATE_FOLDER, agent_turn, tell_agent

    app = ClientApp()

    @app.train()
    def train(message, context):
        problem = _problem(recipe, seed)
        agent = int(context.node_config["partition-id"])
        context.node_config[STATE_FOLDER] = str(folder)
        turn = agent_turn(
            lambda _: problem.data.agent(agent),
            loss=problem.loss,
            local_steps=int(problem.local_steps[agent]),
            batch_size=int(problem.batch_size[agent]),
        )
        return turn(message, context)

    app.query()(tell_agent)
    return app


def _server(recipe: Regression, algorithm: ISFedAvg, *, rounds: int, seed: int):
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp import ServerApp

    from isfed.flower.strategy import Strategy

    app, params = ServerApp(), []

    @app.main()
    def main(grid, context) -> None:
        strategy = Strategy(
            algorithm,
            num_agents=recipe.num_agents,
            seed=seed,
            weighting="change" if algorithm.on_change else "step",  # as the other engines
            on_round=lambda _, model: params.append(model),
            fraction_evaluate=0.0,
        )
        first = np.zeros(_problem(recipe, seed).num_params)
        strategy.start(grid, ArrayRecord({"params": Array(first)}), num_rounds=rounds)

    return app, params


@dataclass(frozen=True)
class Agreement:
    """One engine's final model, how far it is from the kernel's, and the seconds it took."""

    engine: str
    params: np.ndarray
    difference: float
    seconds: float


def compare_engines(*, rounds: int = 20, seed: int = 0) -> list[Agreement]:
    """The same small setting on the kernel, the objects, and Flower's simulation."""
    require_simulation()
    problem = _problem(SMALL, seed)
    algorithm = ISFedAvg(step_size=0.01, num_active=4)
    found = []
    for engine in ("kernel", "objects", "flower"):
        began = time.perf_counter()
        if engine == "flower":
            params = simulate_flower(SMALL, algorithm, rounds=rounds, seed=seed)[-1]
        else:
            run = simulate(problem, algorithm, rounds=rounds, seed=seed, engine=engine)
            params = run.params[0]
        seconds = time.perf_counter() - began
        reference = found[0].params if found else params
        found.append(Agreement(engine, params, float(np.abs(params - reference).max()), seconds))
    return found
