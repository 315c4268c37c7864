"""The fused kernel: Algorithm 1 over many repetitions at once, on all cores.

It is the same algorithm as `isfed.federation.agent` and `isfed.federation.cloud`, built from the
same compiled functions, and gives the same numbers for the same seed, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isfed.base.compiled import called, compiled, inlined
from isfed.base.streams import NO_AGENT, fill_normal, start
from isfed.problems.gradients import CompiledLoss, batch_gradient
from isfed.sampling import score_table as table
from isfed.sampling import telemetry
from isfed.sampling.policies import (
    BOUND,
    KEEP_MASS,
    Refresh,
    agent_score,
    bound,
    refresh_touched,
    spread_of_norms,
    take_scores,
)

ALL = int(Refresh.ALL)
TOUCHED = int(Refresh.TOUCHED)
TOO_FAR = 1e150  # beyond this squared distance a run has diverged


class Task(NamedTuple):
    """What is learned, and who does how much of it."""

    features: np.ndarray  # (rows, M)
    targets: np.ndarray  # (rows,)
    squares: np.ndarray  # (rows,) squared lengths of the features, or empty
    offsets: np.ndarray  # (K + 1,)
    local_steps: np.ndarray  # (K,)
    batch_size: np.ndarray  # (K,)
    loss: CompiledLoss
    optimum: np.ndarray  # (M,)
    drift_response: np.ndarray  # (M, M), or empty without drift


class Side(NamedTuple):
    """One side of the plan, agents or examples: its policy and its design, as numbers."""

    refresh: int
    floor: float
    score: int
    rate: float
    design: int
    equal: bool  # drawn without a table
    uniform: bool  # all probabilities equal, with or without a table


class Plan(NamedTuple):
    """An algorithm as numbers."""

    step_size: float
    num_active: int
    divide_by_steps: bool
    drift: float
    agents: Side
    examples: Side
    scored: bool  # whether anything needs the norms of the examples' gradients
    watched: bool  # whether the weights differ at all, so that there is something to watch


class State(NamedTuple):
    """What the next round needs, for every repetition."""

    params: np.ndarray  # (R, M)
    shift: np.ndarray  # (R, M), how far the true model has drifted; (R, 0) without drift
    agent_nodes: np.ndarray  # (R, table of K); (R, 0) if none is needed
    example_nodes: np.ndarray  # (R, tables of all agents); (R, 0) likewise
    example_at: np.ndarray  # (K,), where the table of an agent begins
    memory: np.ndarray  # (R, K * width), what the agents remember for their score
    counts: np.ndarray  # (R, 2), gradients computed and models sent up so far


class Scratch(NamedTuple):
    """Room to work in, one for each thread."""

    draw: tuple  # what the draws need, see `table.make_scratch`
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


@inlined
def _draw(side, nodes, at, count, num, scratch, units, prob):
    if side.equal:
        table.draw_equal(count, num, side.design, scratch.state, scratch.draw, units, prob)
    else:
        table.draw_scored(
            nodes, at, count, side.floor, num, side.design, scratch.state, scratch.draw, units, prob
        )


@called
def _full_gradient(task, params, shift, agent, scratch):
    """The gradient and the norms of all the examples of one agent, at `params`."""
    first = task.offsets[agent]
    count = task.offsets[agent + 1] - first
    out = (scratch.gradient, scratch.norms, scratch.slopes)
    examples = (task.features, task.targets, shift, task.squares)
    batch_gradient(
        task.loss, params, examples, first, scratch.all_units, scratch.ones, count, True, out
    )
    return count


@called
def _refresh_all_agents(task, plan, params, shift, nodes, scratch):
    """Every agent's score at the current model, eq. (50)."""
    num_agents = task.offsets.size - 1
    for agent in range(num_agents):
        count = _full_gradient(task, params, shift, agent, scratch)
        spread = spread_of_norms(scratch.norms, count, plan.examples.floor, plan.examples.uniform)
        square = 0.0
        for j in range(params.size):
            square += scratch.gradient[j] * scratch.gradient[j]
        nodes[agent] = bound(task.local_steps[agent], task.batch_size[agent], spread, square)
    take_scores(nodes, 0, num_agents)


@inlined
def _agent_turn(task, plan, params, shift, agent, agent_prob, nodes, at, memory, scratch):
    """E_k local steps from `params`, left in scratch.local; returns the score (Algorithm 1)."""
    num_agents = task.offsets.size - 1
    first = task.offsets[agent]
    count = task.offsets[agent + 1] - first
    local_steps = task.local_steps[agent]
    batch_size = task.batch_size[agent]
    examples = plan.examples
    size = params.size
    local, gradient = scratch.local, scratch.gradient
    batch, weight, norms = scratch.batch, scratch.weight, scratch.norms
    if examples.refresh == ALL:
        _full_gradient(task, params, shift, agent, scratch)
        for i in range(count):
            nodes[at + i] = norms[i]  # eq. (49)
        take_scores(nodes, at, count)
    steps = local_steps if plan.divide_by_steps else 1
    step = plan.step_size / (steps * num_agents * agent_prob)  # eq. (8)
    first_moment = 0.0
    second_moment = 0.0
    telemetry.start_turn(scratch.turn)
    for j in range(size):
        local[j] = params[j]
    for _ in range(local_steps):
        _draw(examples, nodes, at, count, batch_size, scratch, batch, scratch.example_prob)
        for i in range(batch_size):
            weight[i] = 1.0 / (count * scratch.example_prob[i])
        batch_gradient(
            task.loss, local, (task.features, task.targets, shift, task.squares), first, batch,
            weight, batch_size, plan.scored, (gradient, norms, scratch.slopes),
        )  # fmt: skip
        for j in range(size):
            local[j] -= step * gradient[j]
        if plan.scored:
            for i in range(batch_size):
                share = norms[i] * weight[i]
                first_moment += share
                second_moment += share * share
        if plan.watched and not examples.uniform:
            if examples.refresh < KEEP_MASS:  # the table holds them, at w^o or at w_{i-1}
                for i in range(batch_size):
                    norms[i] = nodes[at + batch[i]]
            telemetry.watch_batch(
                scratch.turn, weight, norms, count, batch_size, examples.floor,
                examples.design != table.REPLACEMENT,
            )  # fmt: skip
        if examples.refresh >= KEEP_MASS:
            refresh_touched(
                nodes, at, count, batch, norms, batch_size, examples.refresh, examples.design
            )
    if plan.agents.refresh < KEEP_MASS:
        return 0.0
    drawn = local_steps * batch_size
    first_moment /= drawn
    second_moment /= drawn
    spread = second_moment if examples.uniform else first_moment * first_moment
    stored = -1.0
    if examples.refresh == TOUCHED and plan.agents.score != BOUND:
        root = at + count + table.RECORD * (table.num_nodes(count) - 1)
        mean = nodes[root] / nodes[root + 1] if nodes[root + 1] > 0.0 else 0.0
        stored = mean * mean
    for j in range(size):
        gradient[j] = (params[j] - local[j]) / (step * local_steps)
    width = memory.size // num_agents
    return agent_score(
        plan.agents.score, plan.agents.rate, local_steps, batch_size, spread, stored, gradient,
        memory, agent * width,
    )  # fmt: skip


@inlined
def _drop_repeats(scratch, num):
    """An agent drawn twice works once and counts twice."""
    kept = 0
    for i in range(num):
        place = kept
        for j in range(kept):
            if scratch.active[j] == scratch.active[i]:
                place = j
        if place == kept:
            scratch.active[kept] = scratch.active[i]
            scratch.agent_prob[kept] = scratch.agent_prob[i]
            scratch.times[kept] = 0.0
            kept += 1
        scratch.times[place] += 1.0
    return kept


@inlined
def distance(optimum, response, params, shift):
    """|w_i - w^o|^2, eq. (56), w^o moved along with the drift."""
    total = 0.0
    for j in range(params.size):
        place = optimum[j]
        for m in range(shift.size):
            place += response[j, m] * shift[m]
        total += (params[j] - place) * (params[j] - place)
    return total


@called
def _select(side, nodes, num_agents, num_active, scratch):
    """Draw L of K agents, eq. (4)."""
    _draw(side, nodes, 0, num_agents, num_active, scratch, scratch.active, scratch.agent_prob)


@called
def _refresh_agents(side, nodes, num_agents, distinct, scratch):
    refresh_touched(
        nodes, 0, num_agents, scratch.active, scratch.scores, distinct, side.refresh, side.design
    )


@called
def _rounds(task, plan, first_round, keys, params, shift, tables, memory, counts, scratch, out):
    """Algorithm 1, one repetition; returns how many rounds ran before it diverged."""
    msd, watched = out
    agent_nodes, example_nodes, example_at = tables
    agents_key, examples_key, drift_key = keys
    num_agents = task.offsets.size - 1
    num_active = plan.num_active
    size = params.size
    total = scratch.total
    repeats = plan.agents.design == table.REPLACEMENT
    for i in range(msd.size):
        round_index = first_round + i
        if plan.drift > 0.0:
            start(scratch.state, drift_key, round_index, NO_AGENT)
            fill_normal(scratch.state, scratch.gradient, size)
            for j in range(size):
                shift[j] += plan.drift * scratch.gradient[j]
        if plan.agents.refresh == ALL:
            _refresh_all_agents(task, plan, params, shift, agent_nodes, scratch)
            counts[0] += task.targets.size
        start(scratch.state, agents_key, round_index, NO_AGENT)
        _select(plan.agents, agent_nodes, num_agents, num_active, scratch)
        distinct = _drop_repeats(scratch, num_active) if repeats else num_active
        for j in range(size):
            total[j] = 0.0
        telemetry.start_round(scratch.row)
        squares = 0.0
        for turn in range(distinct):
            agent = scratch.active[turn]
            start(scratch.state, examples_key, round_index, agent)
            scratch.scores[turn] = _agent_turn(
                task, plan, params, shift, agent, scratch.agent_prob[turn], example_nodes,
                example_at[agent], memory, scratch,
            )  # fmt: skip
            counts[0] += task.local_steps[agent] * task.batch_size[agent]
            if plan.examples.refresh == ALL:
                counts[0] += task.offsets[agent + 1] - task.offsets[agent]
            times = scratch.times[turn] if repeats else 1.0
            change = 0.0
            for j in range(size):
                moved = scratch.local[j] - params[j]
                total[j] += times * moved
                change += moved * moved
            if plan.watched:
                prob = scratch.agent_prob[turn]
                drawn = task.local_steps[agent] * task.batch_size[agent]
                steps = 1 if plan.divide_by_steps else task.local_steps[agent]
                step = plan.step_size * steps / (num_agents * prob)
                squares = telemetry.watch_agent(
                    scratch.row, scratch.turn, drawn, change / (step * step),
                    (num_agents, prob, times, num_active, plan.agents.floor, not repeats), squares,
                )  # fmt: skip
        counts[1] += distinct
        for j in range(size):
            # Divided by L, never by the sum of the weights: that would bias the mean.
            params[j] += total[j] / num_active  # eq. (9)
        if plan.agents.refresh >= KEEP_MASS:
            _refresh_agents(plan.agents, agent_nodes, num_agents, distinct, scratch)
        if plan.watched:
            telemetry.end_round(scratch.row, num_active, distinct, squares, watched[i])
        msd[i] = distance(task.optimum, task.drift_response, params, shift)
        if not msd[i] < TOO_FAR:
            return i
    return msd.size


@inlined
def _most_examples(task):
    most = 0
    for agent in range(task.offsets.size - 1):
        most = max(most, task.offsets[agent + 1] - task.offsets[agent])
    return most


@compiled
def _make_scratch(task, plan):
    """Room for one repetition at a time, no larger than the plan needs."""
    num_agents = task.offsets.size - 1
    most_examples = _most_examples(task)
    most_batch = max(task.batch_size)
    num_active = plan.num_active
    size = task.optimum.size
    # The norms of whole agents, for `current`:
    full = most_examples if plan.agents.refresh == ALL or plan.examples.refresh == ALL else 0
    # An order of the units, and a shuffled copy of their table, for Hartley-Rao:
    ordered = num_agents if plan.agents.design == table.HARTLEY_RAO else 0
    if plan.examples.design == table.HARTLEY_RAO:
        ordered = max(ordered, most_examples)
    copied = 0 if plan.agents.equal and plan.examples.equal else ordered
    return Scratch(
        (
            np.empty(max(num_active, most_batch)),
            np.empty(table.MOST_BLOCKS),
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
    )


@compiled
def run_rounds(task, plan, state, keys, first_round, msd, watched, done, begin, end):
    """Run msd.shape[1] rounds of the repetitions begin..end-1; done[rep] is how many ran.

    `watched` is for the telemetry, (R, rounds, columns); left as it is if all weights are equal.
    Called from several threads at once, each with repetitions of its own.
    """
    scratch = _make_scratch(task, plan)
    for rep in range(begin, end):
        tables = (
            state.agent_nodes[rep],
            state.example_nodes[rep],
            state.example_at,
        )
        done[rep] = _rounds(
            task, plan, first_round, (keys[rep, 0], keys[rep, 1], keys[rep, 2]),
            state.params[rep], state.shift[rep], tables, state.memory[rep], state.counts[rep],
            scratch, (msd[rep], watched[rep]),
        )  # fmt: skip
