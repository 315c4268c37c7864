"""Agents as objects in this process, one after the other: for any loss and any design."""

from __future__ import annotations

import numpy as np

from isfed.base.random_streams import Purpose
from isfed.federation.agent import Agent, AgentConfig
from isfed.federation.agents import (
    PLAIN_LOCAL,
    AddressedAgents,
    LocalOptions,
    TrainRequest,
    Uploads,
)
from isfed.problems import Problem
from isfed.sampling import telemetry
from isfed.sampling.policies import Initial, Refresh


class ObjectAgents(AddressedAgents):
    """All agents of one repetition, each an `Agent` of its own."""

    def __init__(self, problem: Problem, rules: AgentConfig, *, seed: int, repetition: int) -> None:
        super().__init__(problem, seed=seed, repetition=repetition)
        self.rules = rules
        self.agents = [
            Agent(
                k,
                problem.data.agent(k),
                problem.loss,
                (int(problem.local_steps[k]), int(problem.batch_size[k])),
                rules,
            )
            for k in range(problem.num_agents)
        ]
        for agent in self.agents:
            agent.key = self.keys[Purpose.EXAMPLES]
            if rules.examples.initial == Initial.OPTIMUM:
                agent.table.replace(agent.norms_at(problem.optimum)[0])  # eq. (44)

    def work(
        self, turns: TrainRequest, round_index: int, local: LocalOptions = PLAIN_LOCAL
    ) -> Uploads:
        count, size = turns.agents.size, self.num_params
        models = np.broadcast_to(turns.params, (count, size))
        changes, scores = np.empty((count, size)), np.empty(count)
        gradients, watch = np.empty(count, np.int64), np.empty((count, telemetry.TURN))
        velocity = np.zeros((count, size if local.momentum != 0.0 else 0))
        if local.velocity is not None:
            velocity[...] = local.velocity
        for i, k in enumerate(turns.agents):
            agent = self.agents[k]
            steps = agent.local_steps if local.steps is None else int(local.steps[i])
            upload = agent.take_turn(
                models[i], float(turns.step[i]), round_index, local=local, steps=steps,
                shift=self.shift,
                correction=None if local.correction is None else local.correction[i],
                velocity=velocity[i],
            )  # fmt: skip
            changes[i], scores[i], gradients[i] = upload.change, upload.score, upload.gradients
            watch[i] = agent.watch.turn
        self.charge_turns(count, int(gradients.sum()), scored=self.rules.agents.learns, local=local)
        self.advance_clock(turns.agents, gradients, round_index, local)
        return Uploads(changes, scores, gradients, watch, velocity)

    def _gradients_at(self, which: np.ndarray, params: np.ndarray) -> np.ndarray:
        models = np.broadcast_to(params, (which.size, self.num_params))
        rows = [self.agents[k].gradient_at(model) for k, model in zip(which, models, strict=True)]
        return np.array(rows).reshape(models.shape)

    def _scores_at(self, params: np.ndarray) -> np.ndarray:
        return np.array([agent.score_at(params, shift=self.shift) for agent in self.agents])

    def example_prob(self, params: np.ndarray) -> np.ndarray:
        if self.rules.examples.refresh == Refresh.ALL:  # between turns they hold the last turn's
            for agent in self.agents:
                agent.table.replace(agent.norms_at(params, shift=self.shift)[0])
        return np.concatenate([agent.table.probabilities() for agent in self.agents])

    def state(self) -> dict[str, np.ndarray]:
        return {
            "example_nodes": np.concatenate([agent.table.nodes for agent in self.agents]),
            "memory": np.concatenate([agent.memory for agent in self.agents]),
            "ledger": self.ledger.as_array(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        nodes, memory = state["example_nodes"], state["memory"]
        at = place = 0
        for agent in self.agents:
            agent.table.nodes[:] = nodes[at : at + agent.table.nodes.size]
            agent.memory[:] = memory[place : place + agent.memory.size]
            at += agent.table.nodes.size
            place += agent.memory.size
        if at != nodes.size or place != memory.size:
            raise ValueError("its tables have other sizes")
        self.ledger = type(self.ledger).from_array(state["ledger"])
