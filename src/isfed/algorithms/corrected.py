"""The rounds of ISFedAvg with a correction, or with the weights on the changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isfed.algorithms import hearing
from isfed.algorithms.hearing import Hearing
from isfed.algorithms.parts import with_mean_buffers
from isfed.federation.agents import (
    Agents,
    Turns,
    num_trained,
    trained_part,
)
from isfed.federation.cloud import Cloud, Selection
from isfed.federation.correction import (
    DRIFT,
    NONE,
    Correction,
    CorrectionRule,
    Reference,
    absorb,
    corrections_of,
    extra_messages,
    make_reference,
    make_rule,
    noise_share,
    take_news,
)
from isfed.sampling.designs import WithReplacement
from isfed.sampling.policies import Refresh

if TYPE_CHECKING:
    from isfed.algorithms.isfedavg import ISFedAvg, ISFedAvgState


class CorrectedState(NamedTuple):
    """What the next round needs: the cloud's, and the agents' memories of their gradients.

    The fields after `watched` are those of `isfed.algorithms.hearing.Hearing` and of
    `isfed.federation.correction.Reference`.
    """

    params: np.ndarray  # (M,) w_i
    agent_nodes: np.ndarray  # the table of the agents' scores
    shift: np.ndarray  # (M,) how far the true model has drifted; empty without drift
    watched: np.ndarray  # telemetry of the last round
    responses: np.ndarray
    sketches: np.ndarray
    sketched: np.ndarray
    order: np.ndarray
    share: np.ndarray
    centre: np.ndarray
    own: np.ndarray
    news: np.ndarray
    book: np.ndarray
    pool: np.ndarray

    @property
    def hearing(self) -> Hearing:
        """What is kept for absences and for a spread."""
        return hearing.part_of(self)

    @property
    def reference(self) -> Reference:
        """The memories alone."""
        return Reference(self.centre, self.own, self.news, self.book, self.pool)


def check_choices(algorithm: ISFedAvg, correction: Correction) -> None:
    """Raise a ValueError for choices that a correction cannot work with."""
    if correction.kind == "drift" and algorithm.weighting == "step":
        raise ValueError(
            "correction='drift' steers plain local steps: leave weighting out, or use 'change'"
        )
    if not algorithm.divide_by_steps:
        raise ValueError("a correction needs divide_by_steps=True: c_k is a mean over E_k steps")
    replaced = isinstance(algorithm.agent_design, WithReplacement)  # L draws, whoever they are
    if not (replaced or getattr(algorithm.agent_design, "fixed_size", True)):
        raise ValueError(
            f"a correction needs a design of fixed size, and {algorithm.agent_design} draws any "
            "number of agents; use e.g. Deville()"
        )
    replaced = isinstance(algorithm.example_design, WithReplacement)
    fixed = replaced or getattr(algorithm.example_design, "fixed_size", True)
    if correction.kind == "drift" and not fixed:
        raise ValueError(
            f"correction='drift' needs batches of fixed size, and {algorithm.example_design} may "
            "draw none, a step without its correction; use e.g. example_design=Deville()"
        )


def rule_of(algorithm: ISFedAvg) -> CorrectionRule:
    """The correction of an algorithm as numbers."""
    return make_rule(algorithm.memory, algorithm.agents)


def start(algorithm: ISFedAvg, plain: ISFedAvgState, agents: Agents) -> CorrectedState:
    """The state before the first round, from that of the paper's method."""
    reference = make_reference(rule_of(algorithm), agents.num_agents, num_trained(agents))
    return CorrectedState(**plain._asdict(), **reference._asdict())


def _check_size(algorithm: ISFedAvg, drawn: int) -> None:
    """A design of one's own may draw any number although it counts as one of fixed size."""
    if drawn != algorithm.num_active:
        design = type(algorithm.agent_design).__name__
        raise ValueError(
            f"agent_design={design}() drew {drawn} agents where num_active={algorithm.num_active}; "
            "a correction needs a design of fixed size, e.g. Deville()"
        )


def average_buffers(
    algorithm: ISFedAvg,
    cloud: Cloud,
    agents: Agents,
    counted: Selection,
    sent: tuple[np.ndarray, np.ndarray],
) -> None:
    """Set the buffers of the cloud's model, from what was sent down and the changes sent up."""
    if num_trained(agents) < cloud.params.size:
        counts = counted.times / (agents.num_agents * counted.agent_prob)
        counts = algorithm.weighed(agents, counts, counted.active)
        with_mean_buffers(cloud.params, agents, *sent, counts)


def step(
    algorithm: ISFedAvg,
    cloud: Cloud,
    reference: Reference,
    agents: Agents,
    round_index: int,
    shift: np.ndarray | None = None,
    kept: Hearing | None = None,
) -> np.ndarray:
    """The round itself: select, work, step by the news, learn; returns its telemetry.

    An agent that does not answer moves nothing, its own memory neither, so that c stays the mean of
    the c_k.
    """
    rule = rule_of(algorithm)
    kept = kept or hearing.no_hearing()
    if algorithm.agents.refresh == Refresh.ALL:
        scores = agents.scores_at(cloud.params, shift)  # eq. (50)
        cloud.table.replace(algorithm.weighed(agents, scores))
    drawn = cloud.select(round_index)
    if rule.kind != NONE:
        _check_size(algorithm, int(drawn.times.sum()))
    selection, weight = hearing.heard(kept, agents, drawn, round_index)
    active, inverse = selection.active, 1.0 / (agents.num_agents * selection.agent_prob)
    step_size = float(algorithm.step_size)
    inverse = algorithm.weighed(agents, inverse, active)
    reach = step_size * (np.ones(active.size) if algorithm.on_change else inverse)
    local = algorithm.plain_local if shift is None else replace(algorithm.plain_local, shift=shift)
    if rule.kind == DRIFT:
        local = replace(local, correction=corrections_of(rule, reference, active))
    divisor = agents.local_steps[active] if algorithm.divide_by_steps else 1
    uploads = agents.work(Turns(active, cloud.params, reach / divisor), round_index, local)
    agents.cross(**extra_messages(rule, active.size))
    trained = num_trained(agents)
    news, scores = trained_part(agents, uploads.changes), uploads.scores
    take_news(rule, reference, active, reach, news)
    share = noise_share(
        agents.sizes[active], agents.batch_size[active], agents.local_steps[active],
        algorithm.example_design,
    )  # fmt: skip
    before, cloud.params = cloud.params, cloud.params.copy()
    # Buffers have no gradient: nothing of them is corrected or remembered.
    counted = selection._replace(times=selection.times * weight)
    average_buffers(algorithm, cloud, agents, counted, (before, uploads.changes))
    # Adjusted, what arrives stands for all, and so c counts; dropped, an absence counts as zero.
    adjusted = algorithm.absences == "adjusted"
    part = 1.0 if adjusted else float(selection.times.sum()) / algorithm.num_active
    absorb(
        rule, reference, step_size, algorithm.num_active, part, cloud.params[:trained], active,
        selection.times * weight * inverse, news, (scores, share),
    )  # fmt: skip
    whole = np.ones(active.size) * (1 if algorithm.divide_by_steps else agents.local_steps[active])
    whole = whole / algorithm.weighed(agents, np.ones(active.size), active)
    watched = algorithm.watch(agents, selection, uploads._replace(changes=news), whole, kept)
    cloud.refresh(selection, algorithm.weighed(agents, scores, active))
    if kept.order.size:
        hearing.remember(algorithm, kept, cloud, (active, news), round_index)
    return watched
