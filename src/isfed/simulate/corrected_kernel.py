"""The fused kernel with a correction, or with the weights on the changes.

A loop of its own, so that the paper's is compiled without it; what both do they share.
"""

from __future__ import annotations

from isfed.base.compiled import called, compiled
from isfed.base.streams import NO_AGENT, fill_normal, start
from isfed.federation.correction import (
    DRIFT,
    NONE,
    Reference,
    learn,
    step_and_move,
    write_correction,
    write_news,
)
from isfed.federation.turn import ALL, StepRule, make_scratch, take_turn
from isfed.sampling import score_table as table
from isfed.sampling import telemetry
from isfed.sampling.policies import KEEP_MASS
from isfed.simulate.kernel import (
    TOO_FAR,
    distance,
    drop_repeats,
    refresh_agents,
    refresh_all_agents,
    select,
)


@called
def _steps(task, plan, params, shift, agent, step, tables, memory, scratch):
    """The local steps of a turn; steered by scratch.correction with "drift"."""
    nodes, at = tables
    rule = StepRule(0.0, 0.0, False, plan.rule.kind == DRIFT, plan.full)
    return take_turn(
        task, plan.turn, rule, params, shift, agent, task.local_steps[agent], step, nodes,
        at[agent], memory, scratch,
    )  # fmt: skip


@called
def _turn(task, plan, params, shift, agent, prob, tables, memory, reference, scratch):
    """A turn whose news is left in scratch.local; returns what the agent reports."""
    size, num_steps = params.size, task.local_steps[agent]
    weight = 1.0 / ((task.offsets.size - 1) * prob)
    reach = plan.step_size * (1.0 if plan.on_change else weight)
    step = reach / (num_steps if plan.divide_by_steps else 1)
    if plan.rule.kind == DRIFT:
        write_correction(plan.rule, reference, agent, scratch.correction)
    report = _steps(task, plan, params, shift, agent, step, tables, memory, scratch)
    for j in range(size):
        scratch.local[j] -= params[j]
    write_news(plan.rule, reference, agent, reach, scratch.local)
    return report


@called
def _watch(task, plan, agent, prob, times, scratch, squares):
    """Add a turn to the telemetry of its round."""
    num_agents, num_steps = task.offsets.size - 1, task.local_steps[agent]
    whole = 1.0 if plan.divide_by_steps else float(num_steps)
    square = 0.0
    for j in range(scratch.local.size):
        square += scratch.local[j] * scratch.local[j]
    capped = plan.agents.design != table.REPLACEMENT
    return telemetry.watch_agent(
        scratch.row, scratch.turn, num_steps * task.batch_size[agent], square / (whole * whole),
        (num_agents, prob, times, plan.num_active, plan.agents.floor, capped), squares,
    )  # fmt: skip


@called
def _learn(task, plan, agent, weight, reference, report, scratch):
    """What cloud and agent learn from the news in scratch.local; returns the score."""
    if plan.rule.kind == NONE:
        return report
    batch, count = task.batch_size[agent], task.offsets[agent + 1] - task.offsets[agent]
    left = 1.0 if plan.examples.design == table.REPLACEMENT else 1.0 - batch / count
    share = left / (task.local_steps[agent] * batch)
    return learn(
        plan.rule, reference, agent, scratch.local, weight, report, share, scratch.velocity
    )


@called
def _rounds(
    task, plan, first_round, keys, params, shift, tables, memory, counts, reference, scratch, out
):
    """The rounds of one repetition; returns how many ran before it diverged."""
    msd, watched = out
    agent_nodes, example_nodes, example_at = tables
    agents_key, examples_key, drift_key = keys
    num_agents, size = task.offsets.size - 1, params.size
    total, move = scratch.total, scratch.velocity
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
        select(plan.agents, agent_nodes, num_agents, plan.num_active, scratch)
        distinct = drop_repeats(scratch, plan.num_active) if repeats else plan.num_active
        for j in range(size):
            total[j] = 0.0
            move[j] = 0.0
        telemetry.start_round(scratch.row)
        squares = 0.0
        for turn in range(distinct):
            agent, prob = scratch.active[turn], scratch.agent_prob[turn]
            start(scratch.state, examples_key, round_index, agent)
            report = _turn(
                task, plan, params, shift, agent, prob, (example_nodes, example_at), memory,
                reference, scratch,
            )  # fmt: skip
            counts[0] += task.local_steps[agent] * task.batch_size[agent]
            if plan.examples.refresh == ALL:
                counts[0] += task.offsets[agent + 1] - task.offsets[agent]
            times = scratch.times[turn] if repeats else 1.0
            weight = times * (1.0 / (num_agents * prob))
            for j in range(size):
                total[j] += weight * scratch.local[j]
            scratch.scores[turn] = _learn(task, plan, agent, weight, reference, report, scratch)
            if plan.watched:
                squares = _watch(task, plan, agent, prob, times, scratch, squares)
        counts[1] += distinct
        step_and_move(
            plan.rule, reference, plan.step_size, plan.num_active, 1.0, params, total, move
        )
        if plan.agents.refresh >= KEEP_MASS:
            refresh_agents(plan.agents, agent_nodes, num_agents, distinct, scratch)
        if plan.watched:
            telemetry.end_round(scratch.row, plan.num_active, distinct, squares, watched[i])
        msd[i] = distance(task.optimum, task.drift_response, params, shift)
        if not msd[i] < TOO_FAR:
            return i
    return msd.size


@compiled
def run_corrected(task, plan, state, references, keys, first_round, msd, watched, done, begin, end):
    """As `run_rounds` of the paper's kernel; `references` has one row for every repetition."""
    scratch = make_scratch(task, plan.agents, plan.examples, plan.num_active, plan.full, True)
    for rep in range(begin, end):
        tables = (state.agent_nodes[rep], state.example_nodes[rep], state.example_at)
        reference = Reference(
            references.centre[rep], references.own[rep], references.news[rep],
            references.book[rep], references.pool[rep],
        )  # fmt: skip
        done[rep] = _rounds(
            task, plan, first_round, (keys[rep, 0], keys[rep, 1], keys[rep, 2]),
            state.params[rep], state.shift[rep], tables, state.memory[rep], state.counts[rep],
            reference, scratch, (msd[rep], watched[rep]),
        )  # fmt: skip
