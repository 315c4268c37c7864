"""From a problem and policies to the arrays that compiled code works on."""

from __future__ import annotations

from typing import Any

import numpy as np

from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import row_squares
from isfed.federation.compiled_turn import SamplingRule, Task, make_turn_scratch, score_of_agent
from isfed.problems import Problem
from isfed.problems.compiled_losses import risks
from isfed.sampling import score_table as table
from isfed.sampling import table_draws
from isfed.sampling.designs import Design
from isfed.sampling.designs.design_protocol import compiled_code
from isfed.sampling.policies import (
    Initial,
    Policy,
    Refresh,
    Score,
    initial_score,
    take_scores,
)

STORED_FROM = 16  # features; below, storing one more number a row would not be worth it


def compiled_design(design: Design) -> bool:
    """Whether compiled code knows a design."""
    return compiled_code(type(design)) is not None


def check_batch(batch_size: int, num_examples: int, design: Design, *, agent: int) -> None:
    """Refuse B_k > N_k unless a unit may repeat: compiled code would draw beyond the table."""
    if batch_size > num_examples and not getattr(design, "repeats", False):
        raise ValueError(
            f"batch_size={batch_size} of agent {agent} exceeds its num_examples={num_examples}, "
            f"and {type(design).__name__} draws without replacement; use a smaller batch_size, "
            "example_design=WithReplacement() or full_batch=True"
        )


def check_batches(problem: Problem, design: Design) -> None:
    """`check_batch` of all agents."""
    sizes = problem.data.num_examples
    for agent in np.flatnonzero(problem.batch_size > sizes)[:1].tolist():
        check_batch(int(problem.batch_size[agent]), int(sizes[agent]), design, agent=agent)


def make_sampling_rule(policy: Policy, design: Design) -> SamplingRule:
    """A policy and a design that compiled code knows, as numbers."""
    code = design.code  # type: ignore[union-attr]  (compiled_design has looked)
    return SamplingRule(
        refresh=int(policy.refresh),
        floor=float(policy.floor),
        score=int(policy.score),
        rate=float(policy.rate),
        design=code,
        equal=policy.equal and code in table_draws.EQUAL_WITHOUT_TABLE,
        uniform=policy.equal,
    )


def wants_norms(agents: Policy, examples: Policy) -> bool:
    """Whether any score is made of the norms of the examples' gradients."""
    return examples.learns or (agents.learns and agents.score != Score.SECOND_MOMENT)


def make_task(problem: Problem, *, drift: bool = False, optimum: np.ndarray | None = None) -> Task:
    """The problem as arrays; without `optimum` the distance is measured from zero."""
    features = problem.data.features
    return Task(
        features=features,
        targets=problem.data.targets,
        squares=row_squares(features) if features.shape[1] >= STORED_FROM else np.empty(0),
        offsets=problem.data.offsets,
        local_steps=problem.local_steps,
        batch_size=problem.batch_size,
        agent_weight=problem.data.agent_weights,
        loss=problem.loss.compiled,
        optimum=np.zeros(problem.num_params) if optimum is None else optimum,
        drift_response=problem.drift_response if drift else np.empty((0, 0)),
    )


@compiled
def _fill_tables(nodes, at, counts, score):
    for agent in range(counts.size):
        table.fill_table(nodes, at[agent], counts[agent], score)


@compiled
def write_scores(task, sampler, params, shift, examples, nodes, at, agent_scores):
    """The scores at a model: of examples into their tables (if wanted), of agents, eq. (44), (48).

    At w^o they are the oracle's.
    """
    scratch = make_turn_scratch(task, sampler, sampler, 1, True, False)
    for agent in range(task.offsets.size - 1):
        agent_scores[agent] = score_of_agent(task, sampler, params, shift, agent, scratch)
        if examples:
            count = task.offsets[agent + 1] - task.offsets[agent]
            for i in range(count):
                nodes[at[agent] + i] = scratch.norms[i]
            take_scores(nodes, at[agent], count)


def _table_places(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where every agent's table begins if they lie one after the other, and their sizes."""
    distinct, which = np.unique(counts, return_inverse=True)
    sizes = np.array([table.table_size(n) for n in distinct])[which]
    return np.cumsum(sizes) - sizes, sizes


def example_tables(
    task: Task, policy: Policy, sampler: SamplingRule, optimum: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The tables of all agents' examples before the first round, and where each begins.

    `optimum` is called for w^o if the policy starts from it.
    """
    counts = np.diff(task.offsets)
    if sampler.equal:
        return np.empty(0), np.zeros_like(counts)
    at, sizes = _table_places(counts)
    if policy.refresh == Refresh.ALL:  # made anew at every turn: one place for all
        return np.zeros(int(sizes.max())), np.zeros_like(counts)
    nodes = np.empty(int(sizes.sum()))
    _fill_tables(nodes, at, counts, initial_score(policy))
    if policy.initial == Initial.OPTIMUM:
        write_scores(task, sampler, optimum(), np.empty(0), True, nodes, at, np.empty(counts.size))
    return nodes, at


@compiled
def _probabilities(nodes, at, counts, floor, out):
    first = 0
    for agent in range(counts.size):
        last = first + counts[agent]
        table.table_probabilities(nodes, at[agent], counts[agent], floor, out[first:last])
        first = last


def probabilities_of_examples(
    task: Task, policy: Policy, sampler: SamplingRule, nodes: np.ndarray, at: np.ndarray,
    params: np.ndarray, shift: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """p_n of every example, agent by agent, (rows,)."""
    counts = np.diff(task.offsets)
    if policy.equal:
        return np.repeat(1.0 / counts, counts)
    out = np.empty(task.targets.size)
    if policy.refresh == Refresh.ALL:  # what the next turn would start from
        at, sizes = _table_places(counts)
        nodes = np.empty(int(sizes.sum()))
        write_scores(task, sampler, params, shift, True, nodes, at, np.empty(counts.size))
    _probabilities(nodes, at, counts, policy.floor, out)
    return out


def agent_risks(problem: Problem, which: np.ndarray, params: np.ndarray) -> np.ndarray:
    """(n,) the risks of these agents at one model, (M,), or at one for each, (n, M)."""
    out = np.empty(which.size)
    loss, data = problem.loss, problem.data
    compiled_loss = getattr(loss, "compiled", None)
    if compiled_loss is not None:
        models = np.ascontiguousarray(params, np.float64).reshape(-1, problem.num_params)
        risks(compiled_loss, data.features, data.targets, data.offsets, which, models, out)
        return out
    values = getattr(loss, "values", None)
    if values is None:
        raise ValueError(
            f"{type(loss).__name__} has no values(params, x, y), which this method needs to "
            "compare the agents' risks; add it to the loss"
        )
    models = np.broadcast_to(params, (which.size, problem.num_params))
    for i, agent in enumerate(which):
        out[i] = values(models[i], *data.agent(agent)).mean()
    return out


def drawn_rows(points: np.ndarray, count: int) -> np.ndarray:
    """(n,) rows of so many, drawn uniformly by points of [0, 1)."""
    return (points * count).astype(np.int64)


def batch_means(losses: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n,) the means of successive groups of so many losses."""
    ends = np.cumsum(counts)
    groups = zip((ends - counts).tolist(), ends.tolist(), strict=True)
    return np.array([sum(losses[begin:end].tolist()) / (end - begin) for begin, end in groups])


def row_losses(problem: Problem, rows: np.ndarray, params: np.ndarray) -> np.ndarray:
    """(n,) the losses of single examples at a model."""
    out = np.empty(rows.size)
    loss, data = problem.loss, problem.data
    if not hasattr(loss, "compiled"):
        for i, row in enumerate(rows):
            out[i] = loss.values(params, data.features[row : row + 1], data.targets[row : row + 1])[
                0
            ]
        return out
    borders = rows.repeat(2)  # as if each example were the only one of an agent
    borders[1::2] += 1
    places = np.arange(0, borders.size, 2)
    risks(loss.compiled, data.features, data.targets, borders, places, params[None], out)
    return out
