"""The agent's side of a network: a handler for Flower's train messages that trains a module."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message

from isfed.base.argument_types import checked
from isfed.base.random_streams import Purpose
from isfed.base.value_checks import check_whole
from isfed.federation.agent import Upload
from isfed.federation.agents import PLAIN_LOCAL, Local, Turns
from isfed.federation.privacy import Privacy
from isfed.flower import wire_format
from isfed.flower.agent_handler import Handler, Secrecy, answer, tell
from isfed.flower.array_records import Layout
from isfed.problems import FederatedData, Problem
from isfed.sampling.policies import Table, memory_size
from isfed.torch import Network
from isfed.torch.agents import TorchAgents


class _Alone:
    """One agent of `TorchAgents` on its own machine, with what a turn over Flower asks of `Agent`.

    Models, changes and corrections are in the order of the cloud's arrays.
    """

    def __init__(self, problem: Problem, order: wire_format.Order, arrays: ArrayRecord) -> None:
        self.agents = TorchAgents(problem, order.rules, seed=0, repetition=0)
        self.agents.first = order.agent
        self.agents.keys[Purpose.EXAMPLES] = np.uint64(order.key)
        size = memory_size(order.rules.agents, self.agents.num_trained)
        self.agents.memory[0] = np.full(size if order.rules.agents.learns else 0, -1.0)
        self.places = _Places(self.agents.network, arrays)
        if self.places.buffers != set(order.buffers):
            raise ValueError(
                f"the buffers of this network are {sorted(self.places.buffers)}, and the cloud "
                f"takes {sorted(order.buffers)} for buffers: name them, Strategy(buffers=[...])"
            )
        self.rules, self.targets = order.rules, problem.data.targets
        self.local_steps = int(self.agents.local_steps[0])
        self.batch_size = int(self.agents.batch_size[0])

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

    @property
    def loss(self) -> float:
        """The mean training loss of its last turn."""
        return self.agents.told[0]

    def take_turn(
        self,
        params: np.ndarray,
        step: float,
        round_index: int,
        *,
        local: Local = PLAIN_LOCAL,
        steps: int | None = None,
        correction: np.ndarray | None = None,
        velocity: np.ndarray | None = None,
    ) -> Upload:
        """One turn; the options are those of `Agent.take_turn`."""
        turns = Turns(np.array([0]), self.places.inward(params), np.array([step]))
        inward: dict[str, Any] = {"steps": None if steps is None else np.array([steps])}
        # Of the buffers, which have no gradient, no step takes note.
        for name, vector in (("correction", correction), ("velocity", velocity)):
            inward[name] = None if vector is None else self.places.inward(vector)[None]
        local = replace(local, **inward)
        found = self.agents.work(turns, round_index, local)
        if not (np.isfinite(found.changes).all() and math.isfinite(self.loss)):
            # Before anything is kept: an average with it would never be a number again.
            raise ValueError(
                f"agent {self.agents.first} ended its turn of round {round_index} with a model or "
                f"a loss that is not finite (loss {self.loss:g}); try a smaller step_size"
            )
        if velocity is not None:
            velocity[:] = self.places.outward(found.velocity[0])
        change = self.places.outward(found.changes[0])
        return Upload(change, float(found.scores[0]), int(found.gradients[0]))

    def loss_at(self, params: np.ndarray) -> float:
        """The agent's risk at a model."""
        return float(self.agents.losses(np.zeros(1, np.int64), self.places.inward(params))[0])

    def gradient_at(self, params: np.ndarray) -> np.ndarray:
        """(M,) the gradient of that risk."""
        found = self.agents.gradients(np.zeros(1, np.int64), self.places.inward(params))
        return self.places.outward(found[0])

    def sampled_loss_at(self, params: np.ndarray, round_index: int) -> float:
        """The loss of one example, drawn uniformly."""
        stream = self.agents.stream(Purpose.EXAMPLES, round_index, self.agents.first)
        row = slice(at := int(stream.uniforms(1)[0] * len(self.targets)), at + 1)
        data = self.agents.problem.data
        rows = data.features[row], data.targets[row]
        return float(self.agents.network.values(self.places.inward(params), *rows)[0])


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
    the same network, data and seed, also under a correction: the agent then remembers its
    gradients in a file.

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
        order = secrecy.order(message)
        arrays: Any = message.content[wire_format.MODEL]
        config: Any = message.content.get(wire_format.TRAIN_CONFIG) or {}
        x, y = (np.asarray(part) for part in load(context))
        problem = Problem(
            FederatedData(x, y, np.array([0, len(y)])),
            network,
            int(config.get("local-steps", local_steps)),
            int(config.get("batch-size", batch_size)),
        )
        alone: Any = _Alone(problem, order, arrays)
        if order.ask:
            return tell(alone, order, message)
        upload, layout = answer(alone, order, message, context, secrecy)
        metrics = {"train_loss": alone.loss, "num-examples": len(y)}
        return Message(wire_format.pack_upload(upload, layout, metrics), reply_to=message)

    return turn


class _Places:
    """Between the vector of the cloud's arrays and the network's own, by name."""

    def __init__(self, network: Network, arrays: ArrayRecord) -> None:
        flat = network.make_worker().flat
        given = {name: np.array(array.numpy()) for name, array in arrays.items()}
        flat.load_state_dict(given)  # a ValueError if it is of another architecture
        found, layout = flat.named(np.arange(flat.size)), Layout.of(arrays)
        nowhere = {
            name: np.full(math.prod(shape), -1)  # what is not trained
            for name, shape in zip(layout.names, layout.shapes, strict=True)
        }
        places = np.concatenate([found.get(name, nowhere[name]) for name in layout.names])
        self.buffers = {name for name, at in found.items() if at.size and at[0] >= flat.trained}
        self.size, self.known = flat.size, places >= 0
        self.places = places[self.known]

    def inward(self, vector: np.ndarray) -> np.ndarray:
        """A vector of the cloud in the network's order."""
        found = np.zeros(self.size)
        found[self.places] = vector[self.known]
        return found

    def outward(self, vector: np.ndarray) -> np.ndarray:
        """A vector of the network in the cloud's order; what is not trained is 0."""
        found = np.zeros(self.known.size)
        found[self.known] = vector[self.places]
        return found
