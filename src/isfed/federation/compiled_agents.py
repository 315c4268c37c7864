"""Agents with a compiled loss in this process: the turns of a whole selection in one call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isfed.base.atomic_files import restore_array
from isfed.base.jit import TypedOnce, compiled
from isfed.base.random_streams import Purpose, start
from isfed.federation.agent import AgentConfig
from isfed.federation.agents import (
    NO_SHIFT,
    PLAIN_LOCAL,
    AddressedAgents,
    LocalOptions,
    TrainRequest,
    Uploads,
)
from isfed.federation.compiled_turn import (
    ALL,
    SamplingRule,
    Task,
    full_gradient,
    make_turn_scratch,
    take_turn,
)
from isfed.federation.problem_arrays import (
    check_batches,
    example_tables,
    make_sampling_rule,
    make_task,
    probabilities_of_examples,
    wants_norms,
    write_scores,
)
from isfed.problems import Problem
from isfed.sampling import telemetry
from isfed.sampling.designs import Deville
from isfed.sampling.policies import memory_size

EXAMPLES = Purpose.EXAMPLES
NOBODY = np.empty((0, 0))
NO_STEPS = np.empty(0, np.int64)


class TurnPlan(NamedTuple):
    """What a turn needs to know of the algorithm, as numbers."""

    agents: SamplingRule
    examples: SamplingRule
    scored: bool
    watched: bool


@compiled
def _work(task, plan, rule, key, round_index, tables, turns, starts, extra, out):
    """One turn of every agent named; see `CompiledAgents.work`."""
    nodes, at, memory, shift = tables
    agents, step, num_steps = turns
    correction, velocity = extra
    changes, scores, gradients, watch = out
    whole = plan.examples.refresh == ALL and not rule.full
    total = 0
    mixed = rule.corrected or rule.momentum != 0.0
    scratch = make_turn_scratch(task, plan.examples, plan.examples, 1, rule.full, mixed)
    for i in range(agents.size):
        agent = agents[i]
        params = starts[i if starts.shape[0] > 1 else 0]
        for j in range(params.size if rule.corrected else 0):
            scratch.correction[j] = correction[i, j]
        for j in range(params.size if rule.momentum != 0.0 else 0):
            scratch.velocity[j] = velocity[i, j]
        steps = num_steps[i] if num_steps.size > 0 else task.local_steps[agent]
        start(scratch.state, key, round_index, agent)
        scores[i] = take_turn(
            task, plan, rule, params, shift, agent, steps, step[i], nodes, at[agent], memory,
            scratch,
        )  # fmt: skip
        for j in range(params.size):
            changes[i, j] = scratch.local[j] - params[j]
        for j in range(telemetry.TURN):
            watch[i, j] = scratch.turn[j]
        for j in range(params.size if rule.momentum != 0.0 else 0):
            velocity[i, j] = scratch.velocity[j]
        count = task.offsets[agent + 1] - task.offsets[agent]
        gradients[i] = steps * (count if rule.full else task.batch_size[agent])
        gradients[i] += count if whole else 0
        total += gradients[i]
    return total


@compiled
def _gradients(task, sampler, which, starts, out):
    scratch = make_turn_scratch(task, sampler, sampler, 1, True, False)
    for i in range(which.size):
        full_gradient(task, starts[i if starts.shape[0] > 1 else 0], NO_SHIFT, which[i], scratch)
        for j in range(scratch.gradient.size):
            out[i, j] = scratch.gradient[j]


class CompiledAgents(AddressedAgents):
    """All agents of one repetition, for losses and designs that compiled code knows."""

    def __init__(self, problem: Problem, rules: AgentConfig, *, seed: int, repetition: int) -> None:
        super().__init__(problem, seed=seed, repetition=repetition)
        check_batches(problem, rules.example_design)
        self.policy = rules.examples
        self.task = make_task(problem)
        # What agents are drawn by is the cloud's affair; only what they report matters here.
        agents = make_sampling_rule(rules.agents, Deville())
        self.plan = TurnPlan(
            agents=agents,
            examples=make_sampling_rule(rules.examples, rules.example_design),
            scored=wants_norms(rules.agents, rules.examples),
            watched=not (rules.agents.equal and rules.examples.equal),
        )
        self._batched: Task | None = None
        self._work, self._gradients = TypedOnce(_work), TypedOnce(_gradients)
        self.scores_wanted = rules.agents.learns
        self.nodes, self.at = example_tables(
            self.task, rules.examples, self.plan.examples, lambda: problem.optimum
        )
        width = memory_size(rules.agents, problem.num_params)
        self.memory = np.full(width * problem.num_agents, -1.0)

    def work(
        self, turns: TrainRequest, round_index: int, local: LocalOptions = PLAIN_LOCAL
    ) -> Uploads:
        count, size = turns.agents.size, self.num_params
        changes, scores = np.empty((count, size)), np.empty(count)
        gradients, watch = np.empty(count, np.int64), np.empty((count, telemetry.TURN))
        velocity = NOBODY
        if local.momentum != 0.0:
            given = local.velocity
            velocity = np.zeros((count, size)) if given is None else np.array(given, np.float64)
        task = self.task
        if local.batch is not None:  # batches of that size for everybody; the last task is kept
            task = self._batched
            if task is None or task.batch_size[0] != local.batch:
                sizes = np.full(self.num_agents, local.batch)
                task = self._batched = self.task._replace(batch_size=sizes)
        agents, models, step = turns
        models, steps = models.reshape(-1, size), NO_STEPS if local.steps is None else local.steps
        correction = NOBODY if local.correction is None else local.correction
        total = self._work(
            (agents, step, steps, models, correction),
            task, self.plan, local.rule, self.keys[EXAMPLES], round_index,
            (self.nodes, self.at, self.memory, self.shift), (agents, step, steps), models,
            (correction, velocity), (changes, scores, gradients, watch),
        )  # fmt: skip
        self.charge_turns(count, total, scored=self.scores_wanted, local=local)
        self.advance_clock(turns.agents, gradients, round_index, local)
        return Uploads(changes, scores, gradients, watch, velocity)

    def _gradients_at(self, which: np.ndarray, params: np.ndarray) -> np.ndarray:
        out = np.empty((which.size, self.num_params))
        models = np.ascontiguousarray(params, np.float64).reshape(-1, self.num_params)
        self._gradients((which, models), self.task, self.plan.examples, which, models, out)
        return out

    def _scores_at(self, params: np.ndarray) -> np.ndarray:
        scores = np.empty(self.num_agents)
        write_scores(
            self.task, self.plan.examples, params, self.shift, False,
            self.nodes, self.at, scores,
        )  # fmt: skip
        return scores

    def example_prob(self, params: np.ndarray) -> np.ndarray:
        return probabilities_of_examples(
            self.task, self.policy, self.plan.examples, self.nodes, self.at, params,
            self.shift,
        )  # fmt: skip

    def state(self) -> dict[str, np.ndarray]:
        return {
            "example_nodes": self.nodes,
            "memory": self.memory,
            "ledger": self.ledger.as_array(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        restore_array(self.nodes, "example_nodes", state)
        restore_array(self.memory, "memory", state)
        self.ledger = type(self.ledger).from_array(state["ledger"])
