"""Control variates: agents remember their gradients, and only the innovation is estimated.

The estimator is Horvitz-Thompson on the innovations v_k = g_k - c_k, see
`isfed.federation.variate_updates`. With uniform draws and a gain of 1 it is FedVARP; if
c - c_k is also added to the gradients of local steps, it is SCAFFOLD.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.federation.remote_variates import (
    NEVER,
    VariateMessage,
    absorb_reports,
    reported_innovation,
)
from isfed.federation.variate_updates import (
    DRIFT,
    GAIN,
    Correction,
    CorrectionRule,
    Reference,
    absorb,
    corrections_of,
    extra_messages,
    make_reference,
    make_rule,
    noise_share,
    take_innovations,
)
from isfed.methods.estimators import InverseProbability, trained_changes
from isfed.methods.federated import Combined, Evidence, Opened
from isfed.sampling.designs import Design
from isfed.sampling.policies import Policy, Score, ScorePolicy, Uniform

STEERED = (
    "control variates remember plain local steps; leave weighting out, or use weighting='change'"
)


@dataclass(frozen=True)
class ControlVariates(InverseProbability):
    """The mean c of all control variates, plus a Horvitz-Thompson estimate of the innovations.

    Args:
        correction: how c_k is learned, and whether c - c_k corrects the local steps.
        agents: the policy of the sampler, which defines the scores.
        example_design: how examples are drawn, from which the noise of a turn follows.
        on: where 1 / (K p_k) goes, as in `HorvitzThompson`.
    """

    correction: Correction
    agents: Policy
    example_design: Design
    on: Literal["step", "change"] = "change"

    @cached_property
    def needs(self) -> dict[str, str]:
        needs = {
            **InverseProbability.needs,
            "equal weights": "c is the uniform mean of what the agents remember; use "
            "client_weights='uniform', and over a network leave agent_weights out",
            "steps divided by E_k": "c_k is a mean over E_k steps; use divide_by_steps=True",
            "cohorts of fixed size": "use a design of fixed size, e.g. Deville()",
        }
        if self.rule.kind == DRIFT:
            needs["batches of fixed size"] = (
                "a batch of no examples would be a step without its correction; use e.g. "
                "example_design=Deville()"
            )
            needs["weights on the change"] = STEERED
        return needs

    @cached_property
    def rule(self) -> CorrectionRule:
        """The correction as numbers."""
        return make_rule(self.correction, self.agents)

    def reports(self, wanted: Policy) -> Policy:
        """At most the spread of an agent's examples: the cloud computes the score from it."""
        if not wanted.learns:
            return wanted
        if wanted.score == Score.SECOND_MOMENT:
            return Uniform()
        return ScorePolicy(
            wanted.name, wanted.initial, wanted.refresh, wanted.floor, Score.SPREAD, wanted.rate
        )

    def init(self, facts: Facts, params: np.ndarray) -> Reference:
        return make_reference(self.rule, facts.num_agents, params.size)

    def ask(self, state: Reference, cohort: Cohort, facts: Facts, work: Work) -> Work:
        """The work with c - c_k added to every gradient under "drift"; c is sent along."""
        _check_size(cohort)
        if self.on == "step":
            work = work._replace(scale=1.0 / (facts.num_agents * cohort.prob))
        local = work.local
        if self.rule.kind == DRIFT:
            local = local.but(correction=corrections_of(self.rule, state, cohort.agents))
        return work._replace(local=local, extra=extra_messages(self.rule, 1))

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        """The step from c and the innovations; c and the c_k are updated in place.

        The c_k of an agent that does not answer stays as it is, so that c remains the mean of all
        c_k.
        """
        cohort, work, place = opened.cohort, opened.work, updates.place
        who, step_size = cohort.agents[place], float(work.step_size)
        inverse = 1.0 / (facts.num_agents * cohort.prob[place])
        reach = step_size * (np.ones(who.size) if self.on == "change" else inverse)
        innovation, scores = trained_changes(updates, facts), updates.score
        take_innovations(self.rule, state, who, reach, innovation)
        share = noise_share(
            facts.sizes[who], facts.batch_size[who], facts.local_steps[who], self.example_design
        )
        times = cohort.times[place]
        # If the factors make up for absences, c counts in full; else only the share that answered.
        heard = 1.0 if updates.complete else float(times.sum()) / cohort.num
        step = np.zeros(facts.num_trained)
        absorb(
            self.rule, state, step_size, cohort.num, heard, step, who,
            times * updates.factor * inverse, innovation, (scores, share),
        )  # fmt: skip
        return step, state, Evidence(scores, -innovation, np.ones(who.size))


def _check_size(cohort: Cohort) -> None:
    """Raise a ValueError if a user's design declares a fixed size and draws another number."""
    drawn = int(cohort.times.sum())
    if drawn != cohort.num:
        raise ValueError(
            f"the design drew {drawn} agents where num_active={cohort.num}; control variates need "
            "a design of fixed size, e.g. Deville()"
        )


class MeanState(NamedTuple):
    """The cloud's state where every c_k stays with its agent."""

    centre: np.ndarray  # (M',) c
    book: np.ndarray  # (K, BOOK) statistics of every agent
    pool: np.ndarray  # (POOL,) and of all agents together
    accepted: np.ndarray  # (K,) the round of the last turn that was accepted; -1 for none


@dataclass(frozen=True)
class ControlVariatesApart(ControlVariates):
    """Control variates over a network: every c_k stays on its agent's own machine.

    Args:
        varies: whether the step size changes from round to round.
    """

    varies: bool = False

    @cached_property
    def needs(self) -> dict[str, str]:
        return super().needs | {"weights on the change": STEERED}

    def init(self, facts: Facts, params: np.ndarray) -> Any:
        whole = make_reference(self.rule, facts.num_agents, 0)
        never = np.full(facts.num_agents, NEVER)
        return MeanState(np.zeros(params.size), whole.book, whole.pool, never)

    def ask(self, state: Any, cohort: Cohort, facts: Facts, work: Work) -> Work:
        """The work, with a message: c, and round and gain of the agent's last accepted turn."""
        _check_size(cohort)
        who = cohort.agents
        last = state.accepted[who], state.book[who, GAIN]
        control = VariateMessage(self.rule, state.centre, *last, self.varies)
        return work._replace(control=control, extra=extra_messages(self.rule, 1))

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        cohort, place, step_size = opened.cohort, updates.place, float(opened.work.step_size)
        who, times = cohort.agents[place], cohort.times[place] * updates.factor
        innovation = reported_innovation(
            self.rule, trained_changes(updates, facts), step_size, state.centre
        )
        scores = np.nan_to_num(updates.score, posinf=0.0)
        agreements = np.zeros(who.size)
        if updates.agreement is not None:
            agreements = np.nan_to_num(updates.agreement)
        heard = 1.0 if updates.complete else float(times.sum()) / cohort.num
        step, nobody = np.zeros(facts.num_trained), np.zeros((0, facts.num_trained))
        absorb_reports(
            self.rule, Reference(state.centre, nobody, nobody, state.book, state.pool), step_size,
            cohort.num, heard, step, who, times * (1.0 / (facts.num_agents * cohort.prob[place])),
            np.ascontiguousarray(innovation), (scores, agreements),
        )  # fmt: skip
        state.accepted[who] = opened.round_index
        return step, state, Evidence(scores, -innovation, np.ones(who.size))
