"""The agent's side of a network: a handler for Flower's train messages that trains a module."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message

from isfed.base.argument_checks import checked
from isfed.base.random_streams import Purpose
from isfed.federation.agent import Upload
from isfed.federation.agents import TrainRequest
from isfed.federation.safety import Privacy, ScoreRange
from isfed.flower.agent_handler import Disclosure, Handler, turn_handler
from isfed.flower.array_records import Layout
from isfed.flower.wire_format import MODEL, TRAIN_CONFIG, AgentRequest
from isfed.problems import FederatedData, Problem
from isfed.sampling.policies import Table, memory_size
from isfed.torch import Network
from isfed.torch.agents import TorchAgents


class _SingleAgent:
    """One agent of `TorchAgents` on its own machine, with what a turn over Flower asks of `Agent`.

    Models, changes and corrections are in the order of the cloud's arrays.
    """

    def __init__(self, problem: Problem, request: AgentRequest, arrays: ArrayRecord) -> None:
        self.agents = TorchAgents(problem, request.rules, seed=0, repetition=0)
        self.agents.first = request.agent
        self.agents.keys[Purpose.EXAMPLES] = np.uint64(request.key)
        size = memory_size(request.rules.agents, self.agents.num_trained)
        self.agents.memory[0] = np.full(size if request.rules.agents.learns else 0, -1.0)
        self._match(arrays, set(request.buffers))
        self.rules, self.targets = request.rules, problem.data.targets
        self.local_steps = int(self.agents.local_steps[0])
        self.batch_size = int(self.agents.batch_size[0])

    def _match(self, arrays: ArrayRecord, buffers: set[str]) -> None:
        """Find the places of the cloud's arrays in the network's own vector, by name."""
        flat = self.agents.network.make_worker().flat
        given = {name: np.array(array.numpy()) for name, array in arrays.items()}
        flat.load_state_dict(given)  # a ValueError if it is of another architecture
        places, layout = flat.named(np.arange(flat.size)), Layout.of(arrays)
        own = {name for name, at in places.items() if at.size and at[0] >= flat.trained}
        if own != buffers:
            raise ValueError(
                f"the buffers of this network are {sorted(own)}, and the cloud "
                f"takes {sorted(buffers)} for buffers: name them, Strategy(buffers=[...])"
            )
        sizes = zip(layout.names, layout.sizes, strict=True)
        # -1 for what is not trained
        order = np.concatenate([places.get(name, np.full(size, -1)) for name, size in sizes])
        self.size, self.known = flat.size, order >= 0
        self.places = order[self.known]

    def inward(self, vector: np.ndarray) -> np.ndarray:
        """A vector of the cloud in the network's order."""
        inner = np.zeros(self.size)
        inner[self.places] = vector[self.known]
        return inner

    def outward(self, vector: np.ndarray) -> np.ndarray:
        """A vector of the network in the cloud's order; what is not trained is 0."""
        outer = np.zeros(self.known.size)
        outer[self.known] = vector[self.places]
        return outer

    @property
    def table(self) -> Table:
        return self.agents.table(0)

    @property
    def memory(self) -> np.ndarray:
        return self.agents.memory[0]

    @memory.setter
    def memory(self, values: np.ndarray) -> None:
        self.agents.memory[0] = values

    def metrics(self) -> dict[str, Any]:
        """Of its last turn."""
        return {"train_loss": self.agents.turn_losses[0], "num-examples": len(self.targets)}

    def turn(self, request: AgentRequest, params: np.ndarray) -> Upload:
        """The turn that the cloud asks for, from a model."""
        step, local = request.step(self.local_steps), request.local
        inward: dict[str, Any] = {"velocity": None}
        # Of the buffers, which have no gradient, no step takes note.
        for name in ("correction", "velocity") if local.momentum != 0.0 else ("correction",):
            rows = getattr(local, name)
            inward[name] = None if rows is None else self.inward(rows[0])[None]
        asked = TrainRequest(np.array([0]), self.inward(params), np.array([step]))
        uploads = self.agents.work(asked, request.round_index, replace(local, **inward))
        loss = self.agents.turn_losses[0]
        if not (np.isfinite(uploads.changes).all() and math.isfinite(loss)):
            # Before anything is kept: an average with it would never be a number again.
            raise ValueError(
                f"agent {request.agent} ended its turn of round {request.round_index} with a model "
                f"or a loss that is not finite (loss {loss:g}); try a smaller step_size"
            )
        velocity = self.outward(uploads.velocity[0]) if local.momentum != 0.0 else None
        change, score = self.outward(uploads.changes[0]), float(uploads.scores[0])
        return Upload(change, score, int(uploads.gradients[0]), velocity=velocity)

    def loss_at(self, params: np.ndarray) -> float:
        return float(self.agents.losses(np.zeros(1, np.int64), self.inward(params))[0])

    def score_at(self, params: np.ndarray) -> float:
        return float(self.agents.scores_at(self.inward(params), charge=False)[0])

    def gradient_at(self, params: np.ndarray) -> np.ndarray:
        rows = self.agents.gradients(np.zeros(1, np.int64), self.inward(params))
        return self.outward(rows[0])

    def sampled_loss_at(self, params: np.ndarray, round_index: int, *, count: int = 1) -> float:
        stream = self.agents.stream(Purpose.EXAMPLES, round_index, self.agents.first)
        drawn = (stream.uniforms(count) * len(self.targets)).astype(np.int64)
        data = self.agents.problem.data
        rows = data.features[drawn], data.targets[drawn]
        return float(np.mean(self.agents.network.values(self.inward(params), *rows)))


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
    scores: ScoreRange | None = None,
) -> Handler:
    """A handler for `app.train()` that trains a network by isfed's own loop.

    The reply's metrics are train_loss and num-examples. The numbers are those of `simulate` with
    the same network, data and seed, also under a correction.

    Args:
        load: a function from the context to this agent's features and targets.
        network: the model and its loss; the cloud sends `ArrayRecord(module.state_dict())`.
        local_steps: E_k, unless `train_config` has a key local-steps.
        batch_size: B_k, unless `train_config` has a key batch-size.
        score_noise, privacy, reports_per_day, scores: what leaves the agent, see `agent_turn`.
    """

    def make(request: AgentRequest, message: Message, context: Context) -> _SingleAgent:
        config: Any = message.content.get(TRAIN_CONFIG) or {}
        x, y = (np.asarray(part) for part in load(context))
        steps = int(config.get("local-steps", local_steps))
        batch = int(config.get("batch-size", batch_size))
        problem = Problem(FederatedData(x, y, np.array([0, len(y)])), network, steps, batch)
        model: Any = message.content[MODEL]
        return _SingleAgent(problem, request, model)

    disclosure = Disclosure(score_noise, privacy, reports_per_day, scores)
    return turn_handler(make, disclosure, local_steps=local_steps, batch_size=batch_size)
