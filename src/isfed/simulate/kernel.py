"""The fused kernel: Algorithm 1 over many repetitions at once, on all cores.

It is the round of `isfed.methods`, compiled, and gives the same numbers for the same seed, bit
for bit. Control variates are the one optional part: their argument is None where a method has none,
and the compiler then leaves them out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from isfed.base.jit import compiled, jit_call, jit_inline
from isfed.base.random_streams import NO_AGENT, fill_normal, start
from isfed.federation.compiled_turn import (
    ALL,
    SamplingRule,
    StepRule,
    make_turn_scratch,
    score_of_agent,
    take_turn,
)
from isfed.federation.variate_updates import (
    DRIFT,
    CorrectionRule,
    Reference,
    learn,
    step_and_move,
    write_correction,
    write_innovation,
)
from isfed.methods.iterate_average import add_model, write_mean
from isfed.sampling import table_draws, telemetry
from isfed.sampling.policies import KEEP_MASS, refresh_touched, take_scores

TOO_FAR = 1e150  # beyond this squared distance a run has diverged


class Plan(NamedTuple):
    """A method as numbers."""

    step_size: float
    num_active: int
    divide_by_steps: bool
    drift: float
    agents: SamplingRule
    examples: SamplingRule
    scored: bool  # whether anything needs the norms of the examples' gradients
    watched: bool  # whether the weights differ at all, so that there is something to watch
    on_change: bool  # whether 1 / (K p_k) multiplies the change instead of the step
    full: bool  # all examples in every step, instead of a drawn batch


class ControlPlan(NamedTuple):
    """What a method with control variates adds."""

    turn: Plan  # the plan of an agent's turn, which may report less than the cloud's policy needs
    rule: CorrectionRule


class ControlState(NamedTuple):
    """The same for one repetition, with what its agents and cloud remember."""

    plan: ControlPlan
    reference: Reference


class KernelState(NamedTuple):
    """What the next round needs, for every repetition."""

    params: np.ndarray  # (R, M)
    shift: np.ndarray  # (R, M), how far the true model has drifted; (R, 0) without drift
    agent_nodes: np.ndarray  # (R, table of K); (R, 0) if none is needed
    example_nodes: np.ndarray  # (R, tables of all agents); (R, 0) likewise
    example_at: np.ndarray  # (K,), where the table of an agent begins
    memory: np.ndarray  # (R, K * width), what the agents remember for their score
    counts: np.ndarray  # (R, 2), gradients computed and models sent up so far


class RoundParts(NamedTuple):
    """What passes and averages need; arrays without rows where a method has neither."""

    cohorts: np.ndarray  # (R, rounds, L) who has which place in the rounds to come
    prob: np.ndarray  # (R, K) p_k of the pass
    sums: np.ndarray  # (R, blocks, M) sums of models, see `isfed.methods.iterate_average`


@jit_call
def _refresh_all_agents(task, plan, params, shift, nodes, scratch):
    """Every agent's score at the current model, eq. (50)."""
    num_agents = task.offsets.size - 1
    for agent in range(num_agents):
        nodes[agent] = score_of_agent(task, plan.examples, params, shift, agent, scratch)
    take_scores(nodes, 0, num_agents)


@jit_inline
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


@jit_inline
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


# A call copies seven words for every array: these parts get the few that they need.
@jit_call
def _average(sums, done, longest, params, out):
    """Take the model into the average, and write that."""
    add_model(sums, done, longest, params)
    write_mean(sums, done + 1, out)


@jit_call
def _select_scored(side, nodes, num_agents, num_active, state, room, active, prob):
    table_draws.draw_scored(
        nodes, 0, num_agents, side.floor, num_active, side.design, state, room, active, prob
    )


@jit_inline
def _select(side, nodes, num_agents, num_active, state, room, active, prob):
    """Draw L of K agents, eq. (4). With equal chances that is too short to pay for a call."""
    if side.equal:
        table_draws.draw_equal(num_agents, num_active, side.design, state, room, active, prob)
    else:
        _select_scored(side, nodes, num_agents, num_active, state, room, active, prob)


@jit_call
def _refresh_agents(side, nodes, num_agents, distinct, active, scores):
    refresh_touched(nodes, 0, num_agents, active, scores, distinct, side.refresh, side.design)


@jit_call
def _control_steps(task, plan, params, shift, agent, step, tables, memory, scratch):
    """The local steps of a turn; steered by scratch.correction where the rule says so."""
    nodes, at = tables
    rule = StepRule(0.0, 0.0, False, plan.rule.kind == DRIFT, plan.turn.full)
    return take_turn(
        task, plan.turn, rule, params, shift, agent, task.local_steps[agent], step, nodes,
        at[agent], memory, scratch,
    )  # fmt: skip


@jit_call
def _control_turn(task, control, params, shift, agent, prob, tables, memory, scratch):
    """A turn whose innovation is left in scratch.local; returns what the agent reports."""
    plan, turn = control.plan, control.plan.turn
    weight = 1.0 if turn.on_change else 1.0 / ((task.offsets.size - 1) * prob)
    reach = turn.step_size * weight
    step = turn.step_size / (task.local_steps[agent] if turn.divide_by_steps else 1) * weight
    if plan.rule.kind == DRIFT:
        write_correction(plan.rule, control.reference, agent, scratch.correction)
    report = _control_steps(task, plan, params, shift, agent, step, tables, memory, scratch)
    for j in range(params.size):
        scratch.local[j] -= params[j]
    write_innovation(plan.rule, control.reference, agent, reach, scratch.local)
    return report


@jit_call
def _control_learn(task, plan, control, agent, weight, report, scratch):
    """What cloud and agent learn from the innovation in scratch.local; returns the score."""
    batch, count = task.batch_size[agent], task.offsets[agent + 1] - task.offsets[agent]
    left = 1.0 if plan.examples.design == table_draws.REPLACEMENT else 1.0 - batch / count
    share = left / (task.local_steps[agent] * batch)
    return learn(
        control.plan.rule, control.reference, agent, scratch.local, weight, report, share,
        scratch.velocity,
    )  # fmt: skip


@jit_inline
def _turn(task, plan, control, params, shift, agent, prob, tables, memory, scratch):
    """One agent's turn; returns what it reports. Inlined, for the plain one is the hot loop."""
    if control is not None:
        return _control_turn(task, control, params, shift, agent, prob, tables, memory, scratch)
    nodes, at = tables
    num_steps = task.local_steps[agent]
    divisor = num_steps if plan.divide_by_steps else 1
    if plan.on_change:
        step = plan.step_size / divisor
    else:
        step = plan.step_size / (divisor * (task.offsets.size - 1) * prob)  # eq. (8)
        step *= task.agent_weight[agent]
    rule = StepRule(0.0, 0.0, False, False, plan.full)  # compiled code drops what is off
    return take_turn(
        task, plan, rule, params, shift, agent, num_steps, step, nodes, at[agent], memory, scratch
    )


@jit_inline
def _add(task, plan, control, params, agent, prob, times, report, scratch):
    """Add a turn to the sum of the round; returns its score and the square of its estimate."""
    num_agents, total = task.offsets.size - 1, scratch.total
    whole = 1.0 if plan.divide_by_steps else float(task.local_steps[agent])
    square = 0.0
    if control is not None:
        weight = times * (1.0 / (num_agents * prob))
        for j in range(params.size):
            total[j] += weight * scratch.local[j]
            square += scratch.local[j] * scratch.local[j]
        score = _control_learn(task, plan, control, agent, weight, report, scratch)
        return score, square / (whole * whole)
    weight, reach = times, plan.step_size * whole
    if plan.on_change:
        weight = times / (num_agents * prob)
    else:
        reach = reach / (num_agents * prob)
    for j in range(params.size):
        moved = scratch.local[j] - params[j]
        total[j] += weight * moved
        square += moved * moved
    return report, square / (reach * reach)


@jit_inline
def _move(plan, control, params, scratch):
    """The cloud's step, eq. (9)."""
    if control is not None:
        step_and_move(
            control.plan.rule, control.reference, plan.step_size, plan.num_active, 1.0, params,
            scratch.total, scratch.velocity,
        )  # fmt: skip
    else:
        for j in range(params.size):
            # Divided by L, never by the sum of the weights: that would bias the mean.
            params[j] += scratch.total[j] / plan.num_active


@jit_call
def _rounds(
    task,
    plan,
    control,
    first_round,
    keys,
    params,
    shift,
    tables,
    memory,
    counts,
    scratch,
    parts,
    out,
):
    """Algorithm 1, one repetition; returns how many rounds ran before it diverged."""
    msd, watched = out
    cohorts, pass_prob, sums = parts
    agent_nodes, example_nodes, example_at = tables
    agents_key, examples_key, drift_key = keys
    num_agents, size = task.offsets.size - 1, params.size
    num_active = plan.num_active
    planned = cohorts.shape[0] > 0
    repeats = planned or plan.agents.design == table_draws.REPLACEMENT
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
        if planned:
            for j in range(num_active):
                scratch.active[j] = cohorts[i, j]
                scratch.agent_prob[j] = pass_prob[cohorts[i, j]]
        else:
            start(scratch.state, agents_key, round_index, NO_AGENT)
            _select(
                plan.agents, agent_nodes, num_agents, num_active, scratch.state, scratch.draw,
                scratch.active, scratch.agent_prob,
            )  # fmt: skip
        distinct = _drop_repeats(scratch, num_active) if repeats else num_active
        for j in range(size):
            scratch.total[j] = 0.0
        for j in range(scratch.velocity.size):  # how far the control variates move
            scratch.velocity[j] = 0.0
        telemetry.start_round(scratch.row)
        squares = 0.0
        for turn in range(distinct):
            agent, prob = scratch.active[turn], scratch.agent_prob[turn]
            start(scratch.state, examples_key, round_index, agent)
            report = _turn(
                task, plan, control, params, shift, agent, prob, (example_nodes, example_at),
                memory, scratch,
            )  # fmt: skip
            drawn = task.local_steps[agent] * task.batch_size[agent]
            counts[0] += drawn
            if plan.examples.refresh == ALL:
                counts[0] += task.offsets[agent + 1] - task.offsets[agent]
            times = scratch.times[turn] if repeats else 1.0
            scratch.scores[turn], square = _add(
                task, plan, control, params, agent, prob, times, report, scratch
            )
            if plan.watched:
                squares = telemetry.watch_agent(
                    scratch.row, scratch.turn, drawn, square,
                    (num_agents, prob, times, num_active, plan.agents.floor, not repeats), squares,
                )  # fmt: skip
        counts[1] += distinct
        _move(plan, control, params, scratch)
        if plan.agents.refresh >= KEEP_MASS:
            _refresh_agents(
                plan.agents, agent_nodes, num_agents, distinct, scratch.active, scratch.scores
            )
        if plan.watched:
            telemetry.end_round(scratch.row, num_active, distinct, squares, watched[i])
        shown = params
        if sums.shape[0] > 0:
            shown = scratch.local
            _average(sums, round_index, num_agents / num_active, params, shown)
        msd[i] = distance(task.optimum, task.drift_response, shown, shift)
        if not msd[i] < TOO_FAR:
            return i
    return msd.size


@compiled
def run_rounds(
    task, plan, control, state, references, parts, keys, first_round, msd, watched, done, begin, end
):
    """Run msd.shape[1] rounds of the repetitions begin..end-1; done[rep] is how many ran.

    `control` and `references` are None without control variates. `watched` is for the telemetry,
    (R, rounds, columns); left as it is if all weights are equal. Called from several threads at
    once, each with repetitions of its own.
    """
    extra = control is not None
    scratch = make_turn_scratch(task, plan.agents, plan.examples, plan.num_active, plan.full, extra)
    for rep in range(begin, end):
        tables = (state.agent_nodes[rep], state.example_nodes[rep], state.example_at)
        if references is None:
            own = None
        else:  # here, not in a part: a part that returns arrays crashes
            own = ControlState(
                control,
                Reference(
                    references.centre[rep], references.own[rep], references.news[rep],
                    references.book[rep], references.pool[rep],
                ),
            )  # fmt: skip
        done[rep] = _rounds(
            task, plan, own, first_round, (keys[rep, 0], keys[rep, 1], keys[rep, 2]),
            state.params[rep], state.shift[rep], tables, state.memory[rep], state.counts[rep],
            scratch, (parts.cohorts[rep], parts.prob[rep], parts.sums[rep]),
            (msd[rep], watched[rep]),
        )  # fmt: skip
