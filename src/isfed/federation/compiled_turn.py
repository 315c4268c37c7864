"""One agent's turn, compiled: local steps over drawn examples, and the score it reports.

The fused kernel and the compiled agents call the same functions, so they give the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isfed.base.jit import jit_alloc, jit_call, jit_inline
from isfed.problems.compiled_losses import CompiledLoss, batch_gradient
from isfed.sampling import score_table as table
from isfed.sampling import table_draws, telemetry
from isfed.sampling.policies import (
    BOUND,
    KEEP_MASS,
    Refresh,
    agent_score,
    refresh_touched,
    score_of_norms,
    take_scores,
)

ALL = int(Refresh.ALL)
TOUCHED = int(Refresh.TOUCHED)


class Task(NamedTuple):
    """What is learned, and who does how much of it."""

    features: np.ndarray  # (rows, M)
    targets: np.ndarray  # (rows,)
    squares: np.ndarray  # (rows,) squared lengths of the features, or empty
    offsets: np.ndarray  # (K + 1,)
    local_steps: np.ndarray  # (K,)
    batch_size: np.ndarray  # (K,)
    agent_weight: np.ndarray  # (K,), how much an agent counts in the risk; 1 unless given
    loss: CompiledLoss
    optimum: np.ndarray  # (M,); zero where it is not known
    drift_response: np.ndarray  # (M, M), or empty without drift


class SamplingRule(NamedTuple):
    """A policy and its design, for agents or for examples, as numbers."""

    refresh: int
    floor: float
    score: int
    rate: float
    design: int
    equal: bool  # drawn without a table
    uniform: bool  # all probabilities equal, with or without a table


class StepRule(NamedTuple):
    """How a local step differs from a plain one."""

    prox: float  # weight of the pull towards the model that was sent
    momentum: float
    nesterov: bool
    corrected: bool  # whether a vector is added to every gradient
    full: bool  # all examples in every step, instead of a drawn batch


class Scratch(NamedTuple):
    """Room to work in, one for each thread."""

    draw: tuple  # what the draws need, see `score_table`
    state: np.ndarray  # of the random numbers
    active: np.ndarray  # the agents of the round ...
    agent_prob: np.ndarray
    times: np.ndarray
    scores: np.ndarray
    batch: np.ndarray  # the examples of a step ...
    example_prob: np.ndarray
    weight: np.ndarray
    norms: np.ndarray
    local: np.ndarray  # models and gradients
    gradient: np.ndarray
    total: np.ndarray
    slopes: np.ndarray  # of one example, one for each row of the parameters
    turn: np.ndarray  # telemetry of a turn ...
    row: np.ndarray  # ... and of a round
    ones: np.ndarray  # as many as the largest agent has examples
    all_units: np.ndarray
    velocity: np.ndarray  # of a step with momentum, and ...
    correction: np.ndarray  # ... what is added to every gradient; both empty for plain steps


@jit_inline
def draw(sampler, nodes, at, count, num, state, room, units, prob):
    """Draw `num` of `count` units by the sampler's rule."""
    if sampler.equal:
        table_draws.draw_equal(count, num, sampler.design, state, room, units, prob)
    else:
        table_draws.draw_scored(
            nodes, at, count, sampler.floor, num, sampler.design, state, room, units, prob
        )


@jit_call
def full_gradient(task, params, shift, agent, scratch):
    """The gradient and the norms of all the examples of one agent, at `params`."""
    first = task.offsets[agent]
    count = task.offsets[agent + 1] - first
    out = (scratch.gradient, scratch.norms, scratch.slopes)
    examples = (task.features, task.targets, shift, task.squares)
    batch_gradient(
        task.loss, params, examples, first, scratch.all_units, scratch.ones, count, True, out
    )
    return count


@jit_call
def score_of_agent(task, examples, params, shift, agent, scratch):
    """An agent's score from all its examples, eq. (48); their norms are left in the scratch."""
    count = full_gradient(task, params, shift, agent, scratch)
    square = 0.0
    for j in range(params.size):
        square += scratch.gradient[j] * scratch.gradient[j]
    return task.agent_weight[agent] * score_of_norms(
        scratch.norms, count, square, task.local_steps[agent], task.batch_size[agent],
        examples.floor, examples.uniform,
    )  # fmt: skip


@jit_inline
def take_turn(task, plan, rule, params, shift, agent, num_steps, step, nodes, at, memory, scratch):
    """`num_steps` local steps from `params`, left in scratch.local; returns the score.

    Algorithm 1's inner loop. `plan` has the samplers of agents and examples, and whether the norms
    are wanted (`scored`) and watched; `step` is the step size with its weight, eq. (8).
    """
    num_agents = task.offsets.size - 1
    first = task.offsets[agent]
    count = task.offsets[agent + 1] - first
    batch_size = count if rule.full else task.batch_size[agent]
    examples = plan.examples
    size = params.size
    local, gradient = scratch.local, scratch.gradient
    batch, weight, norms = scratch.batch, scratch.weight, scratch.norms
    if examples.refresh == ALL and not rule.full:
        full_gradient(task, params, shift, agent, scratch)
        for i in range(count):
            nodes[at + i] = norms[i]  # eq. (49)
        take_scores(nodes, at, count)
    first_moment = 0.0
    second_moment = 0.0
    telemetry.start_turn(scratch.turn)
    for j in range(size):
        local[j] = params[j]
    for _ in range(num_steps):
        if rule.full:
            full_gradient(task, local, shift, agent, scratch)
        else:
            draw(
                examples, nodes, at, count, batch_size, scratch.state, scratch.draw, batch,
                scratch.example_prob,
            )  # fmt: skip
            for i in range(batch_size):
                weight[i] = 1.0 / (count * scratch.example_prob[i])
            batch_gradient(
                task.loss, local, (task.features, task.targets, shift, task.squares), first, batch,
                weight, batch_size, plan.scored, (gradient, norms, scratch.slopes),
            )  # fmt: skip
        _step(rule, params, step, scratch)
        if plan.scored:
            for i in range(batch_size):
                share = norms[i] if rule.full else norms[i] * weight[i]
                first_moment += share
                second_moment += share * share
        if rule.full:
            continue
        if plan.watched and not examples.uniform:
            if examples.refresh < KEEP_MASS:  # the table holds them, at w^o or at w_{i-1}
                for i in range(batch_size):
                    norms[i] = nodes[at + batch[i]]
            telemetry.watch_batch(
                scratch.turn, weight, norms, count, batch_size, examples.floor,
                examples.design != table_draws.REPLACEMENT,
            )  # fmt: skip
        if examples.refresh >= KEEP_MASS:
            refresh_touched(
                nodes, at, count, batch, norms, batch_size, examples.refresh, examples.design
            )
    if plan.agents.refresh < KEEP_MASS:
        return 0.0
    drawn = num_steps * batch_size
    first_moment /= drawn
    second_moment /= drawn
    spread = second_moment if examples.uniform else first_moment * first_moment
    stored = -1.0
    if examples.refresh == TOUCHED and plan.agents.score != BOUND:
        root = table.root_of(at, count)
        mean = nodes[root] / nodes[root + 1] if nodes[root + 1] > 0.0 else 0.0
        stored = mean * mean
    for j in range(size):
        gradient[j] = (params[j] - local[j]) / (step * num_steps)
    width = memory.size // num_agents
    return task.agent_weight[agent] * agent_score(
        plan.agents.score, plan.agents.rate, num_steps, task.batch_size[agent], spread, stored,
        gradient, memory, agent * width,
    )  # fmt: skip


@jit_inline
def _step(rule, params, step, scratch):
    """Move scratch.local along the gradient, as the rule says."""
    local, gradient = scratch.local, scratch.gradient
    if rule.prox == 0.0 and rule.momentum == 0.0 and not rule.corrected:
        for j in range(params.size):
            local[j] -= step * gradient[j]
        return
    for j in range(params.size):
        direction = gradient[j] + rule.prox * (local[j] - params[j])
        if rule.corrected:
            direction += scratch.correction[j]
        if rule.momentum != 0.0:
            velocity = rule.momentum * scratch.velocity[j] + direction
            scratch.velocity[j] = velocity
            direction = direction + rule.momentum * velocity if rule.nesterov else velocity
        local[j] -= step * direction


@jit_inline
def _largest(task):
    """The most examples that an agent has, and the largest batch."""
    examples, batch = 0, 0
    for agent in range(task.offsets.size - 1):
        examples = max(examples, task.offsets[agent + 1] - task.offsets[agent])
        batch = max(batch, task.batch_size[agent])
    return examples, batch


@jit_alloc
def make_turn_scratch(task, agents, examples, num_active, full_batches, extra):
    """Room for one repetition at a time, no larger than the samplers need.

    `full_batches` is for steps over all examples, `extra` for momentum and corrections.
    """
    num_agents = task.offsets.size - 1
    most_examples, most_batch = _largest(task)
    size = task.optimum.size
    # The norms of whole agents, for `current` and for full batches:
    whole = agents.refresh == ALL or examples.refresh == ALL or full_batches
    full = most_examples if whole else 0
    # An order of the units, and a shuffled copy of their table, for Hartley-Rao:
    ordered = num_agents if agents.design == table_draws.HARTLEY_RAO else 0
    if examples.design == table_draws.HARTLEY_RAO:
        ordered = max(ordered, most_examples)
    copied = 0 if agents.equal and examples.equal else ordered
    return Scratch(
        (
            np.empty(max(num_active, most_batch)),
            np.empty(table_draws.MOST_BLOCKS),
            np.arange(ordered),
            np.empty(table.table_size(copied) if copied > 0 else 0),
        ),
        np.empty(4, np.uint64),
        np.empty(num_active, np.int64),
        np.empty(num_active),
        np.empty(num_active),
        np.empty(num_active),
        np.empty(most_batch, np.int64),
        np.empty(most_batch),
        np.empty(most_batch),
        np.empty(max(full, most_batch)),
        np.empty(size),
        np.empty(size),
        np.empty(size),
        np.empty(task.loss.num_rows),
        np.empty(telemetry.TURN),
        np.empty(len(telemetry.COLUMNS)),
        np.ones(full),
        np.arange(full),
        np.zeros(size if extra else 0),
        np.zeros(size if extra else 0),
    )
