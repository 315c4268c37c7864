"""The agent's side: a handler for Flower's train messages that wraps `Agent`.

Flower runs every message in a new process, so what the agent remembers lives in a file on its own
disk. The file holds the state before and after its last turn: when a cloud that was killed asks
for that turn again, the agent starts from where it stood and sends the same answer.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from isfed.base import files
from isfed.federation.agent import Agent
from isfed.federation.trust import check_noise, revealed_score
from isfed.flower import wire

STATE_FOLDER = "isfed-state"  # key of --node-config
Handler = Callable[[Message, Context], Message]


def agent_turn(
    load: Callable[[Context], tuple[np.ndarray, np.ndarray]],
    *,
    loss: Any,
    local_steps: int = 1,
    batch_size: int = 1,
    score_noise: float = 0.0,
) -> Handler:
    """A handler for `app.train()`: `load(context)` gives this agent's features and targets.

    `loss` is one of isfed's or an object of your own with `gradient(params, x, y, weight)` and
    `num_params(num_features)`; `local_steps` is E_k and `batch_size` B_k. With `score_noise` the
    logarithm of the score leaves with Laplace noise of that scale.
    """

    def turn(message: Message, context: Context) -> Message:
        order = wire.unpack_order(message.content)
        check_noise(order.scores, score_noise)
        model: Any = message.content[wire.MODEL]
        layout = wire.Layout.of(model)
        params = layout.flatten(model)
        features, targets = load(context)
        if not 1 <= batch_size <= len(targets) or local_steps < 1:
            raise ValueError(
                f"batch_size={batch_size} must be 1 to num_examples={len(targets)}, and "
                f"local_steps={local_steps} at least 1"
            )
        work = (local_steps, batch_size)
        agent = Agent(order.agent, (features, targets), loss, work, order.rules)
        agent.key = np.uint64(order.key)
        memory = Memory(state_folder(context) / f"agent-{order.agent}.npz", agent, order)
        told = memory.recall()
        upload = agent.work(params, order.agent_prob, order.round_index)
        if told is None:
            # From the system's entropy: noise that the cloud could reproduce would hide nothing.
            rng = np.random.default_rng()
            told = revealed_score(upload.score, order.scores, noise=score_noise, rng=rng)
        memory.keep(told)
        return Message(wire.pack_upload(replace(upload, score=told), layout), reply_to=message)

    return turn


def tell_agent(message: Message, context: Context) -> Message:
    """A handler for `app.query()`: which agent this node is, for nodes without registered names."""
    index = context.node_config.get("partition-id")
    if not isinstance(index, int):
        raise ValueError(
            f"partition-id={index!r} in --node-config must be this agent's number, 0 to K - 1"
        )
    return Message(RecordDict({wire.ORDER: ConfigRecord({"agent": index})}), reply_to=message)


def state_folder(context: Context) -> Path:
    """Where the agent's file is: --node-config 'isfed-state="/path"', or the user's own folder."""
    given = context.node_config.get(STATE_FOLDER)
    if given:
        return Path(str(given))
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "isfed"


class Memory:
    """The file of one agent: what it knew before and after the last turn it took."""

    def __init__(self, path: Path, agent: Agent, order: wire.Order) -> None:
        self.path, self.agent, self.order = path, agent, order
        self.before: dict[str, np.ndarray] = {}

    def _stored(self) -> dict[str, np.ndarray] | None:
        """The file if it belongs to this job."""
        if not self.path.exists():
            return None
        stored = files.load_arrays(self.path)
        return stored if str(stored.get("job")) == self.order.job else None

    def recall(self) -> float | None:
        """Put the agent where it stood, for a turn asked for again before that turn.

        Returns the score that was told in that case: noise anew would average out.
        """
        stored = self._stored()
        told = None
        if stored is not None:
            again = int(stored["round_index"]) == self.order.round_index
            moment = "before" if again else "after"
            nodes, memory = stored[f"nodes_{moment}"], stored[f"memory_{moment}"]
            if nodes.shape != self.agent.table.nodes.shape:
                raise ValueError(
                    f"{self.path} remembers another number of examples than the "
                    f"{self.agent.table.count} loaded; the data must not change during a job: "
                    "remove the file to begin anew"
                )
            self.agent.table.nodes, self.agent.memory = nodes, memory
            told = float(stored["told"]) if again else None
        self.before = {
            "nodes_before": self.agent.table.nodes.copy(),
            "memory_before": self.agent.memory.copy(),
        }
        return told

    def keep(self, told: float) -> None:
        """Write what the agent knows now, unless a later turn has been written meanwhile."""
        stored = self._stored()
        if stored is not None and int(stored["round_index"]) > self.order.round_index:
            return  # this process was overtaken: it answers a round that is over
        state = {
            "job": np.array(self.order.job),
            "round_index": np.array(self.order.round_index),
            "told": np.array(told),
            "nodes_after": self.agent.table.nodes,
            "memory_after": self.agent.memory,
            **self.before,
        }
        files.save_arrays(self.path, state)
