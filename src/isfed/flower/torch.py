"""The agent's side of a network: a handler for Flower's train messages that trains a module."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message

from isfed.base.arguments import checked
from isfed.base.checks import check_whole
from isfed.base.streams import Purpose
from isfed.federation.agent import Upload
from isfed.federation.agents import Turns
from isfed.federation.privacy import Privacy
from isfed.federation.trust import check_noise
from isfed.flower import wire
from isfed.flower.arrays import Layout
from isfed.flower.client import Handler, Hidden, Secrecy, own_number, state_folder
from isfed.flower.memory import Memory, private_folder
from isfed.problems import FederatedData, Problem
from isfed.sampling.policies import Table, memory_size
from isfed.torch import Network
from isfed.torch.agents import TorchAgents


class _Alone:
    """One agent of `TorchAgents` on its own machine, as its file of memories knows agents."""

    def __init__(self, problem: Problem, order: wire.Order) -> None:
        self.agents = TorchAgents(problem, order.rules, seed=0, repetition=0)
        self.agents.first = order.agent
        self.agents.keys[Purpose.EXAMPLES] = np.uint64(order.key)
        size = memory_size(order.rules.agents, self.agents.num_trained)
        self.agents.memory[0] = np.full(size if order.rules.agents.learns else 0, -1.0)
        self.order = order

    @property
    def table(self) -> Table:
        """Of its examples."""
        return self.agents.table(0)

    @property
    def memory(self) -> np.ndarray:
        """What it remembers for the score that it reports."""
        return self.agents.memory[0]

    @memory.setter
    def memory(self, values: np.ndarray) -> None:
        self.agents.memory[0] = values

    def work(self, params: np.ndarray) -> tuple[Upload, float]:
        """One turn, and its mean training loss."""
        rules, prob = self.order.rules, self.order.agent_prob
        steps = int(self.agents.local_steps[0]) if rules.divide_by_steps else 1
        step = rules.step_size / (steps * (1.0 if prob is None else rules.num_agents * prob))
        turns = Turns(np.array([0]), params, np.array([step]))
        found = self.agents.work(turns, self.order.round_index)
        upload = Upload(found.changes[0], float(found.scores[0]), int(found.gradients[0]))
        return upload, self.agents.told[0]


@checked
def torch_turn(
    load: Callable[[Context], tuple[Any, Any]],
    network: Network,
    *,
    local_steps: int = 1,
    batch_size: int = 1,
    score_noise: float = 0.0,
    privacy: Privacy | None = None,
    reports_per_day: int | None = None,
) -> Handler:
    """A handler for `app.train()` that trains a network by isfed's own loop.

    The reply's metrics are train_loss and num-examples. The numbers are those of `simulate` with
    the same network, data and seed.

    load: a function from the context to this agent's features and targets.
    network: the model and its loss; the cloud sends `ArrayRecord(module.state_dict())`.
    local_steps: E_k, unless `train_config` has a key local-steps.
    batch_size: B_k, unless `train_config` has a key batch-size.
    score_noise, privacy, reports_per_day: what leaves the agent, see `agent_turn`.
    """
    secrecy = Secrecy(score_noise, privacy, reports_per_day)
    check_whole(local_steps, name="local_steps", least=1)
    check_whole(batch_size, name="batch_size", least=1)

    def turn(message: Message, context: Context) -> Message:
        order = wire.unpack_order(message.content)
        check_noise(order.scores, score_noise)
        if order.terms is not None:
            raise ValueError(
                "a network's agents do not remember their gradients over Flower: use `train` in "
                "one process, or leave correction out"
            )
        arrays: Any = message.content[wire.MODEL]
        config: Any = message.content.get(wire.TRAIN_CONFIG) or {}
        x, y = (np.asarray(part) for part in load(context))
        problem = Problem(
            FederatedData(x, y, np.array([0, len(y)])),
            network,
            int(config.get("local-steps", local_steps)),
            int(config.get("batch-size", batch_size)),
        )
        layout, names = Layout.of(arrays), _Names(network, arrays)
        alone: Any = _Alone(problem, order)
        folder = private_folder(state_folder(context))
        memory = Memory(folder, alone, order, own_number(context))
        told = memory.recall()
        upload, loss = alone.work(names.params)
        hidden = Hidden(folder, context, secrecy.limit)
        upload = Upload(
            names.arranged(upload.change, layout), upload.score, upload.gradients
        )  # as the cloud sees it, for noise is on what leaves
        upload = secrecy.hide(upload, order, hidden, memory, told)
        metrics = {"train_loss": loss, "num-examples": len(y)}
        return Message(wire.pack_upload(upload, layout, metrics), reply_to=message)

    return turn


class _Names:
    """Between the arrays of a message and the network's own vector, by name."""

    def __init__(self, network: Network, arrays: ArrayRecord) -> None:
        self.network = network
        given = {name: np.array(array.numpy()) for name, array in arrays.items()}
        self.params = network.params(given)  # a ValueError if it is of another architecture

    def arranged(self, change: np.ndarray, layout: Layout) -> np.ndarray:
        """A change in the order of the cloud's arrays; what is not trained does not change."""
        flat = self.network.make_worker().flat
        moved = flat.named(change)
        parts = []
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            part = moved.get(name)
            parts.append(np.zeros(int(np.prod(shape))) if part is None else part)
        return np.concatenate(parts)
