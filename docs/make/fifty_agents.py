"""Fifty agents on one machine, 30% of the turns absent and 10% slow: do rounds go on, unbiased?

    python docs/make/fifty_agents.py [--agents 50] [--active 20] [--uneven] [--patience 1]

The strategy, its messages and the agents' turns are those of a deployment; the nodes are in this
process. Every agent's change is always a unit vector of its own, so the model shows who weighed
how much: without bias each coordinate grows by 1/K per round on average. Scores differ by a factor
of ten, so the probabilities do too.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import logging
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

DELAY, LIMIT, POLL = 0.15, 5.0, 0.02  # seconds: of a slow agent, of a round, between two looks
SETTLING = 40  # rounds in which response rates are learned, left out of the account


class OwnDirection:
    """A loss whose gradient is minus the agent's own unit vector, at every model."""

    def __init__(self, agent: int, size: int) -> None:
        self.agent, self.size = agent, size

    def num_params(self, num_features: int) -> int:
        return self.size

    def gradient(self, params: Any, x: Any, y: Any, weight: Any) -> Any:
        gradient = np.zeros(self.size)
        gradient[self.agent] = -float(np.mean(weight))
        return gradient, np.full(len(y), 1.0 + 9.0 * self.agent / self.size)


def study(
    *,
    agents: int,
    active: int,
    rounds: int,
    absent: float,
    slow: float,
    uneven: bool = False,
    patience: float = 0.25,
) -> dict[str, Any]:
    """Run, and say how far every agent's weight is from 1/K, in standard errors."""
    from flwr.app import Array, ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.supercore.task_identity import TaskIdentity
    from local_grid import LocalGrid

    from isfed import ISFedAvg, Uniform
    from isfed.federation.response_rates import Absences
    from isfed.federation.safety import Safety
    from isfed.flower import Strategy, agent_turn, message_exchange

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as a SuperLink would
    message_exchange.POLL_SECONDS = POLL
    rng = np.random.default_rng(0)
    # With `uneven`, half of the agents cause three quarters of the absences and delays.
    share = np.where(np.arange(agents) % 2, 1.5, 0.5) if uneven else np.ones(agents)
    app = ClientApp()

    @app.train()
    def _(message: Any, context: Any) -> Any:
        agent = int(context.node_config["partition-id"])
        if rng.random() < absent * share[agent]:
            raise RuntimeError("absent")
        turn = agent_turn(
            lambda _: (np.zeros((4, 1)), np.zeros(4)), loss=OwnDirection(agent, agents),
            local_steps=1, batch_size=1,
        )  # fmt: skip
        return turn(message, context)

    class SlowGrid(LocalGrid):
        """Replies of slow agents come later."""

        due: dict[str, float] = {}  # noqa: RUF012

        def push_messages(self, messages: Any) -> list[str]:
            ids = super().push_messages(messages)
            for ident, message in zip(ids, messages, strict=True):
                agent = message.metadata.dst_node_id - 1000
                late = rng.random() < slow * share[agent]
                self.due[ident] = time.monotonic() + (DELAY if late else 0.0)
            return ids

        def pull_messages(self, message_ids: Any) -> list[Any]:
            now = time.monotonic()
            return super().pull_messages([i for i in message_ids if self.due[i] <= now])

    models = [np.zeros(agents)]
    with tempfile.TemporaryDirectory() as folder:
        configs = [{"partition-id": k, "isfed-state": folder} for k in range(agents)]
        strategy = Strategy(
            ISFedAvg(step_size=1.0, num_active=active, examples=Uniform()),
            num_agents=agents, names=[f"agent{k}" for k in range(agents)], fraction_evaluate=0.0,
            time_limit=LIMIT, join_limit=0.0, on_round=lambda _, model: models.append(model.copy()),
            safety=Safety(
                absences=Absences.ADJUSTED, enough=0.8, patience=patience, most_refusals=0
            ),
        )  # fmt: skip
        initial = ArrayRecord({"params": Array(np.zeros(agents))})
        before = time.perf_counter()
        result = strategy.start(SlowGrid(app, configs), initial, num_rounds=rounds)
        seconds = (time.perf_counter() - before) / rounds
    steps = agents * np.diff(np.array(models), axis=0)[SETTLING:]  # (rounds, K), mean 1
    means, errors = steps.mean(axis=0), steps.std(axis=0, ddof=1) / np.sqrt(len(steps))
    whole = steps.mean(axis=1)
    answered = [metrics["answered"] for metrics in result.train_metrics_clientapp.values()]
    return {
        "rounds": len(answered),
        "answered": float(np.mean(answered)),
        "total": float(whole.mean()),
        "bias of the total": float(
            (whole.mean() - 1.0) / (whole.std(ddof=1) / np.sqrt(len(whole)))
        ),
        "largest bias of an agent": float(np.max(np.abs(means - 1.0) / errors)),
        "weight of odd agents": float(steps[:, 1::2].mean()),
        "their bias": _standard_errors(steps[:, 1::2]),
        "weight of even agents": float(steps[:, 0::2].mean()),
        "bias of these": _standard_errors(steps[:, 0::2]),
        "seconds per round": seconds,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _standard_errors(steps: np.ndarray) -> float:
    """How far the mean weight of some agents is from 1."""
    mean = steps.mean(axis=1)
    return float((mean.mean() - 1.0) / (mean.std(ddof=1) / np.sqrt(len(mean))))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--active", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--absent", type=float, default=0.3)
    parser.add_argument("--slow", type=float, default=0.1)
    parser.add_argument("--patience", type=float, default=0.25, help="of the rounds wait for all")
    parser.add_argument("--uneven", action="store_true", help="some far more than others")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for name, value in study(**vars(given)).items():
        print(f"{name:26s} {value:.4g}")


if __name__ == "__main__":
    main()
