"""From a problem and an algorithm to the arrays that the kernel works on, and back."""

from __future__ import annotations

import numpy as np

from isfed.algorithms import ISFedAvg
from isfed.base.compiled import compiled
from isfed.base.streams import Purpose, stream_keys
from isfed.problems import Problem
from isfed.problems.gradients import batch_gradient, row_squares
from isfed.sampling import score_table as table
from isfed.sampling.designs import Design
from isfed.sampling.policies import (
    Initial,
    Policy,
    Refresh,
    Score,
    bound,
    initial_score,
    memory_size,
    spread_of_norms,
    take_scores,
)
from isfed.simulate.kernel import Plan, Side, State, Task

STORED_FROM = 16  # features; below, storing one more number a row would not be worth it
MOST_PROBABILITIES = 20_000_000  # numbers of example probabilities kept in a history


def kernel_runs(problem: Problem, algorithm: ISFedAvg) -> bool:
    """Whether the fused kernel knows the loss and the designs."""
    designs = (algorithm.agent_design, algorithm.example_design)
    return hasattr(problem.loss, "compiled") and all(hasattr(d, "code") for d in designs)


def _side(policy: Policy, design: Design) -> Side:
    code = design.code  # type: ignore[union-attr]  (kernel_runs has looked)
    return Side(
        refresh=int(policy.refresh),
        floor=float(policy.floor),
        score=int(policy.score),
        rate=float(policy.rate),
        design=code,
        equal=policy.equal and code in table.EQUAL_WITHOUT_TABLE,
        uniform=policy.equal,
    )


def make_plan(algorithm: ISFedAvg) -> Plan:
    """The algorithm as numbers."""
    agents = _side(algorithm.agents, algorithm.agent_design)
    examples = _side(algorithm.examples, algorithm.example_design)
    bounded = algorithm.agents.learns and algorithm.agents.score != Score.SECOND_MOMENT
    return Plan(
        step_size=float(algorithm.step_size),
        num_active=algorithm.num_active,
        divide_by_steps=algorithm.divide_by_steps,
        drift=float(algorithm.drift),
        agents=agents,
        examples=examples,
        scored=algorithm.examples.learns or bounded,
        watched=not (agents.uniform and examples.uniform),
    )


def _squares(features: np.ndarray) -> np.ndarray:
    """The rows' squared lengths, for the norms of gradients; none where they are quickly made."""
    return row_squares(features) if features.shape[1] >= STORED_FROM else np.empty(0)


def make_task(problem: Problem, *, drift: bool) -> Task:
    """The problem as arrays."""
    return Task(
        features=problem.data.features,
        targets=problem.data.targets,
        squares=_squares(problem.data.features),
        offsets=problem.data.offsets,
        local_steps=problem.local_steps,
        batch_size=problem.batch_size,
        loss=problem.loss.compiled,
        optimum=problem.optimum,
        drift_response=problem.drift_response if drift else np.empty((0, 0)),
    )


def make_keys(seed: int, repetitions: range) -> np.ndarray:
    """The keys of the random streams, (R, 3): agents, examples, drift."""
    purposes = (Purpose.AGENTS, Purpose.EXAMPLES, Purpose.DRIFT)
    columns = [stream_keys(seed, repetitions=repetitions, purpose=p) for p in purposes]
    return np.stack(columns, axis=1)


@compiled
def _fill_tables(nodes, at, counts, score):
    for agent in range(counts.size):
        table.fill_table(nodes, at[agent], counts[agent], score)


@compiled
def _write_optimum(task, shift, floor, uniform, examples, nodes, at, agent_scores):
    """The oracle's scores: of examples into their tables (if wanted), of agents, eq. (44), (48)."""
    num_agents = task.offsets.size - 1
    most = np.max(task.offsets[1:] - task.offsets[:-1])
    gradient, norms = np.empty(task.optimum.size), np.empty(most)
    out = (gradient, norms, np.empty(task.loss.num_rows))
    units, ones = np.arange(most), np.ones(most)
    data = (task.features, task.targets, shift, task.squares)
    for agent in range(num_agents):
        first = task.offsets[agent]
        count = task.offsets[agent + 1] - first
        batch_gradient(task.loss, task.optimum, data, first, units, ones, count, True, out)
        if examples:
            nodes[at[agent] : at[agent] + count] = norms[:count]
            take_scores(nodes, at[agent], count)
        spread = spread_of_norms(norms, count, floor, uniform)
        square = 0.0
        for j in range(gradient.size):
            square += gradient[j] * gradient[j]
        agent_scores[agent] = bound(task.local_steps[agent], task.batch_size[agent], spread, square)


def make_state(
    problem: Problem, algorithm: ISFedAvg, task: Task, repetitions: int, initial: np.ndarray
) -> State:
    """The state before the first round."""
    plan = make_plan(algorithm)
    counts = problem.data.num_examples
    sizes = np.array([table.table_size(n) for n in np.unique(counts)])
    sizes = sizes[np.searchsorted(np.unique(counts), counts)]
    if plan.examples.equal:
        at, width = np.zeros_like(counts), 0
    elif algorithm.examples.refresh == Refresh.ALL:  # made anew at every turn: one place for all
        at, width = np.zeros_like(counts), int(sizes.max())
    else:
        at, width = np.cumsum(sizes) - sizes, int(sizes.sum())
    # The oracle's tables never change, yet every repetition has its own: a draw sets the certain
    # units aside for a moment, and another thread must not see that.
    example_nodes = np.empty((repetitions, width))
    agent_width = 0 if plan.agents.equal else table.table_size(problem.num_agents)
    agent_nodes = np.empty((repetitions, agent_width))
    keeps_tables = width > 0 and algorithm.examples.refresh != Refresh.ALL
    if keeps_tables:
        _fill_tables(example_nodes[0], at, counts, initial_score(algorithm.examples))
    if agent_width:
        table.fill_table(agent_nodes[0], 0, problem.num_agents, initial_score(algorithm.agents))
    examples_oracle = algorithm.examples.initial == Initial.OPTIMUM
    agents_oracle = algorithm.agents.initial == Initial.OPTIMUM
    if examples_oracle or agents_oracle:
        scores = np.empty(problem.num_agents)
        _write_optimum(
            task, np.empty(0), algorithm.examples.floor, algorithm.examples.equal,
            examples_oracle, example_nodes[0], at, scores,
        )  # fmt: skip
        if agents_oracle:
            agent_nodes[0, : scores.size] = scores
            take_scores(agent_nodes[0], 0, scores.size)
    example_nodes[1:] = example_nodes[0] if keeps_tables else 0.0
    agent_nodes[1:] = agent_nodes[0]
    memory = memory_size(algorithm.agents, problem.num_params) * problem.num_agents
    return State(
        params=np.tile(initial, (repetitions, 1)),
        shift=np.zeros((repetitions, problem.num_params if algorithm.drift > 0.0 else 0)),
        agent_nodes=agent_nodes,
        example_nodes=example_nodes,
        example_at=at,
        memory=np.full((repetitions, memory), -1.0),
        counts=np.zeros((repetitions, 2), np.int64),
    )


@compiled
def _probabilities(nodes, at, counts, floor, out):
    first = 0
    for agent in range(counts.size):
        last = first + counts[agent]
        table.table_probabilities(nodes, at[agent], counts[agent], floor, out[first:last])
        first = last


def agent_probabilities(problem: Problem, algorithm: ISFedAvg, state: State) -> np.ndarray:
    """p_k of every agent at the end, (R, K)."""
    num_agents, repetitions = problem.num_agents, len(state.params)
    out = np.full((repetitions, num_agents), 1.0 / num_agents)
    if state.agent_nodes.size:
        for rep in range(repetitions):
            table.table_probabilities(
                state.agent_nodes[rep], 0, num_agents, algorithm.agents.floor, out[rep]
            )
    return out


def example_probabilities(
    problem: Problem, algorithm: ISFedAvg, task: Task, state: State
) -> np.ndarray:
    """p_n of every example at the end, of as many repetitions as fit in memory, (R', rows)."""
    counts = problem.data.num_examples
    rows = len(problem.data.targets)
    repetitions = min(len(state.params), max(1, MOST_PROBABILITIES // rows))
    out = np.empty((repetitions, rows))
    for rep in range(repetitions):
        if algorithm.examples.equal:
            out[rep] = np.repeat(1.0 / counts, counts)
        elif algorithm.examples.refresh == Refresh.ALL:  # what the next turn would start from
            sizes = np.array([table.table_size(n) for n in counts])
            at = np.cumsum(sizes) - sizes
            nodes = np.empty(sizes.sum())
            here = task._replace(optimum=state.params[rep])
            shift = state.shift[rep]
            _write_optimum(here, shift, 0.0, False, True, nodes, at, np.empty(counts.size))
            _probabilities(nodes, at, counts, algorithm.examples.floor, out[rep])
        else:
            nodes = state.example_nodes[rep]
            _probabilities(nodes, state.example_at, counts, algorithm.examples.floor, out[rep])
    return out
