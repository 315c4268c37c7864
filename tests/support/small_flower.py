"""A federation of five agents over a grid without a network, and the same run in one process."""

# pyright: reportMissingImports=false
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from local_grid import LocalGrid

from isfed import PAPER, ISFedAvg
from isfed.federation.safety import Safety
from isfed.flower import Strategy, agent_turn, tell_agent
from isfed.methods.object_federation import Federation

AGENTS, SEED = 5, 11
PROBLEM = PAPER.replace(num_agents=AGENTS).make(seed=SEED)
STEP_SIZE = 0.01
ALGORITHM = ISFedAvg(step_size=STEP_SIZE, num_active=3)
NAMES = [f"agent{k}" for k in range(AGENTS)]


def turn(agent, **options):
    """The handler of one agent."""
    return agent_turn(
        lambda _: PROBLEM.data.agent(agent),
        loss=PROBLEM.loss,
        local_steps=int(PROBLEM.local_steps[agent]),
        batch_size=int(PROBLEM.batch_size[agent]),
        **options,
    )


def client_app(turn=turn):
    app = ClientApp()

    @app.train()
    def train(message, context):
        return turn(context.node_config["partition-id"])(message, context)

    app.query()(tell_agent)
    return app


def make_grid(tmp_path, spoil=None, turn=turn):
    configs = [{"partition-id": k, "isfed-state": str(tmp_path / "state")} for k in range(AGENTS)]
    return LocalGrid(client_app(turn), configs, spoil)


def initial(dtype="float64"):
    return ArrayRecord({"params": Array(np.zeros(PROBLEM.num_params, dtype))})


def make_strategy(algorithm=ALGORITHM, **options):
    quick: dict[str, Any] = {
        "names": NAMES,
        "time_limit": 5.0,
        "join_limit": 0.0,
        "fraction_evaluate": 0.0,
    }
    # As the in-process run: its agents divide their steps, and nobody is capped.
    quick |= {"weighting": "step", "safety": Safety(most_inclusion=1.0)}
    options = {**quick, **options}
    return Strategy(algorithm, num_agents=AGENTS, seed=SEED, **options)


def params_of(result):
    return result.arrays["params"].numpy()


def in_process(rounds, algorithm=ALGORITHM):
    run = Federation(
        PROBLEM, algorithm, seed=SEED, repetition=0, initial=np.zeros(PROBLEM.num_params)
    )
    for i in range(rounds):
        run.step(i)
    return run.params
