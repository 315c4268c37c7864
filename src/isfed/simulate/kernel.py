"""The fused kernel: Algorithm 1 over many repetitions at once, on all cores.

It is the same algorithm as `isfed.federation.agent` and `isfed.federation.cloud`, built from the
same compiled functions, and gives the same numbers for the same seed, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isfed.base.compiled import called, compiled, inlined
from isfed.base.streams import NO_AGENT, fill_normal, start
from isfed.federation.turn import (
    ALL,
    StepRule,
    draw,
    make_scratch,
    score_of_agent,
    take_turn,
)
from isfed.sampling import score_table as table
from isfed.sampling import telemetry
from isfed.sampling.policies import KEEP_MASS, refresh_touched, take_scores

TOO_FAR = 1e150  # beyond this squared distance a run has diverged


class State(NamedTuple):
    """What the next round needs, for every repetition."""

    params: np.ndarray  # (R, M)
    shift: np.ndarray  # (R, M), how far the true model has drifted; (R, 0) without drift
    agent_nodes: np.ndarray  # (R, table of K); (R, 0) if none is needed
    example_nodes: np.ndarray  # (R, tables of all agents); (R, 0) likewise
    example_at: np.ndarray  # (K,), where the table of an agent begins
    memory: np.ndarray  # (R, K * width), what the agents remember for their score
    counts: np.ndarray  # (R, 2), gradients computed and models sent up so far


@called
def refresh_all_agents(task, plan, params, shift, nodes, scratch):
    """Every agent's score at the current model, eq. (50)."""
    num_agents = task.offsets.size - 1
    for agent in range(num_agents):
        nodes[agent] = score_of_agent(task, plan.examples, params, shift, agent, scratch)
    take_scores(nodes, 0, num_agents)


@inlined
def drop_repeats(scratch, num):
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


@compiled
def distance_from(optimum, response, params, shift):
    """`distance`, for Python."""
    return distance(optimum, response, params, shift)


@called
def select(side, nodes, num_agents, num_active, scratch):
    """Draw L of K agents, eq. (4)."""
    draw(side, nodes, 0, num_agents, num_active, scratch, scratch.active, scratch.agent_prob)


@called
def refresh_agents(side, nodes, num_agents, distinct, scratch):
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
    rule = StepRule(0.0, 0.0, False, False, plan.full)  # constants: compiled code drops what is off
    repeats = plan.agents.design == table.REPLACEMENT
    for i in range(msd.size):
        round_index = first_round + i
        if plan.drift > 0.0:
            start(scratch.state, drift_key, round_index, NO_AGENT)
            fill_normal(scratch.state, scratch.gradient, size)
            for j in range(size):
                shift[j] += plan.drift * scratch.gradient[j]
        if plan.agents.refresh == ALL:
            refresh_all_agents(task, plan, params, shift, agent_nodes, scratch)
            counts[0] += task.targets.size
        start(scratch.state, agents_key, round_index, NO_AGENT)
        select(plan.agents, agent_nodes, num_agents, num_active, scratch)
        distinct = drop_repeats(scratch, num_active) if repeats else num_active
        for j in range(size):
            total[j] = 0.0
        telemetry.start_round(scratch.row)
        squares = 0.0
        for turn in range(distinct):
            agent = scratch.active[turn]
            start(scratch.state, examples_key, round_index, agent)
            num_steps = task.local_steps[agent]
            divisor = num_steps if plan.divide_by_steps else 1
            step = plan.step_size / (divisor * num_agents * scratch.agent_prob[turn])  # eq. (8)
            step *= task.agent_weight[agent]
            scratch.scores[turn] = take_turn(
                task, plan, rule, params, shift, agent, num_steps, step, example_nodes,
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
            refresh_agents(plan.agents, agent_nodes, num_agents, distinct, scratch)
        if plan.watched:
            telemetry.end_round(scratch.row, num_active, distinct, squares, watched[i])
        msd[i] = distance(task.optimum, task.drift_response, params, shift)
        if not msd[i] < TOO_FAR:
            return i
    return msd.size


@compiled
def run_rounds(task, plan, state, keys, first_round, msd, watched, done, begin, end):
    """Run msd.shape[1] rounds of the repetitions begin..end-1; done[rep] is how many ran.

    `watched` is for the telemetry, (R, rounds, columns); left as it is if all weights are equal.
    Called from several threads at once, each with repetitions of its own.
    """
    scratch = make_scratch(task, plan.agents, plan.examples, plan.num_active, plan.full, False)
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
