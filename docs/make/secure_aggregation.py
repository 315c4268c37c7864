"""Can SecAgg+ of the pinned Flower carry ISFedAvg? Run it and compare with the plain sum.

    python docs/make/secure_aggregation.py [--rounds 20] [--agents 12] [--active 6]

Agents weight their own change (`weighting="step"`), so the cloud needs only the sum. Flower's
SecAgg+ gives the mean of those who answered, weighted by `num_examples`: with a 1 from everybody,
times their number, it is that sum. Workflow, masks and key shares are Flower's own; the nodes are
in this process. A strategy of Flower's former interface is needed, for its workflow takes no other.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import copy
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from isfed import PAPER, Agent, ISFedAvg, Uniform
from isfed.base.random_streams import NO_AGENT, Purpose, Stream, stream_key
from isfed.methods.object_federation import Federation
from isfed.sampling.policies import Table

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))


def run(*, agents: int, active: int, rounds: int, clip: float, absent: float) -> dict[str, Any]:
    """Rounds with SecAgg+, beside the same rounds with the exact sum of the same changes."""
    from flwr.app import Context, RecordDict
    from flwr.client import NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp
    from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat
    from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
    from flwr.server.compat.grid_client_proxy import GridClientProxy
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.supercore.task_identity import TaskIdentity
    from local_grid import LocalGrid

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as a SuperLink would
    problem = PAPER.replace(num_agents=agents).make(seed=1)
    method = ISFedAvg(step_size=0.01, num_active=active, agents=Uniform())
    rules = method.rules(agents)
    workers = [
        Agent(k, problem.data.agent(k), problem.loss,
              (int(problem.local_steps[k]), int(problem.batch_size[k])), rules)
        for k in range(agents)
    ]  # fmt: skip
    for worker in workers:
        worker.key = stream_key(0, repetition=0, purpose=Purpose.EXAMPLES)
    sent: dict[int, np.ndarray] = {}

    class Client(NumPyClient):
        def __init__(self, index: int) -> None:
            self.index = index

        def fit(self, parameters: Any, config: Any) -> Any:
            upload = workers[self.index].work(parameters[0], config["p"], config["round"])
            sent[self.index] = upload.change
            return [upload.change], 1, {}

    app = ClientApp(
        lambda context: Client(int(context.node_config["partition-id"])).to_client(),
        mods=[secaggplus_mod],
    )
    rng = np.random.default_rng(0)
    gone: set[int] = set()

    def spoil(agent: int, reply: Any) -> Any:
        return None if agent in gone else reply

    class Wire(LocalGrid):
        """Everybody gets a copy, as over a network: Flower's mod changes its message."""

        def push_messages(self, messages: Any) -> list[str]:
            for message in messages:
                message.__dict__["_content"] = copy.deepcopy(message.content)
            return super().push_messages(messages)

    grid = Wire(app, [{"partition-id": k} for k in range(agents)], spoil)
    params, table = np.zeros(problem.num_params), Table(agents, Uniform(), method.agent_design)
    key = stream_key(0, repetition=0, purpose=Purpose.AGENTS)

    def draw(number: int) -> Any:
        return table.draw(active, Stream.at(key, round_index=number, agent=NO_AGENT))

    manager = SimpleClientManager()
    proxies = {k: GridClientProxy(1000 + k, grid, 1) for k in range(agents)}
    for proxy in proxies.values():
        manager.register(proxy)

    class Strategy(FedAvg):
        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            return [
                (proxies[int(k)], FitIns(parameters, {"p": float(p), "round": server_round - 1}))
                for k, p in zip(*draw(server_round - 1), strict=True)
            ]

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            mean = parameters_to_ndarrays(results[0][1].parameters)[0]
            self.step = len(results) / active * mean  # the sum over L
            return None, {}

    strategy = Strategy()
    context = LegacyContext(
        context=Context(1, 0, {}, RecordDict(), {}), config=ServerConfig(num_rounds=rounds),
        strategy=strategy, client_manager=manager,
    )  # fmt: skip
    workflow = SecAggPlusWorkflow(
        num_shares=1.0, reconstruction_threshold=0.5, clipping_range=clip, max_weight=1.0
    )
    errors, lengths, halted = [], [], 0
    before = time.perf_counter()
    for number in range(rounds):
        sent.clear()
        gone.clear()
        drawn = [int(k) for k in draw(number)[0]]
        gone |= {k for k in drawn if rng.random() < absent}
        context.state.config_records[MAIN_CONFIGS_RECORD] = _config(number + 1)
        context.state.array_records[MAIN_PARAMS_RECORD] = (
            recorddict_compat.parameters_to_arrayrecord(
                ndarrays_to_parameters([params]), keep_input=True
            )
        )
        strategy.step = None
        workflow(grid, context)
        exact = sum(sent[k] for k in sent if k not in gone) / active
        if strategy.step is None:
            halted += 1
            continue
        errors.append(float(np.abs(strategy.step - exact).max()))
        lengths.append(float(np.abs(exact).max()))
        params = params + exact
    seconds = (time.perf_counter() - before) / rounds
    return {
        "rounds": len(errors), "halted": halted, "largest error": max(errors, default=np.nan),
        "median step": float(np.median(lengths)) if lengths else np.nan,
        "seconds per round": seconds,
        "msd": float(np.sum((params - problem.optimum) ** 2)),
        "reference msd": _reference(problem, method, rounds),
    }  # fmt: skip


def _config(number: int) -> Any:
    from flwr.app import ConfigRecord
    from flwr.server.workflow.constant import Key

    return ConfigRecord({Key.CURRENT_ROUND: number})


def _reference(problem: Any, method: Any, rounds: int) -> float:
    initial = np.zeros(problem.num_params)
    federation = Federation(problem, method, seed=0, repetition=0, initial=initial)
    for number in range(rounds):
        federation.step(number)
    return float(np.sum((federation.params - problem.optimum) ** 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--active", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print("clip  absent  rounds  halted  largest error  median step  msd / reference  s per round")
    for clip, absent in ((8.0, 0.0), (0.5, 0.0), (0.05, 0.0), (0.5, 0.1), (0.5, 0.3)):
        found = run(
            agents=given.agents, active=given.active, rounds=given.rounds, clip=clip, absent=absent
        )
        print(
            f"{clip:4g}  {absent:6g}  {found['rounds']:6d}  {found['halted']:6d}  "
            f"{found['largest error']:13.1e}  {found['median step']:11.1e}  "
            f"{found['msd']:.4g} / {found['reference msd']:.4g}  {found['seconds per round']:.3f}"
        )


if __name__ == "__main__":
    main()
