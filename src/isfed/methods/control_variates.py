"""Control variates: agents remember their gradients, and only the innovation is estimated.

The estimator is Horvitz-Thompson on the innovations v_k = g_k - c_k, see
`isfed.federation.variate_updates`. With uniform draws and a gain of 1 it is FedVARP; if
c - c_k is also added to the gradients of local steps, it is SCAFFOLD.

The cloud keeps every c_k, here and over a network. So agents may be installed anew, the cloud may
go back to an old checkpoint, and the share of an agent that is left out can leave c.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from isfed.base.argument_checks import shown
from isfed.base.portable_arithmetic import row_squares
from isfed.federation.messages import NOISE_SHARE, Cohort, Facts, Updates, Work
from isfed.federation.variate_updates import (
    DRIFT,
    LIMIT,
    MISSED,
    SQUARE,
    TURNS,
    Correction,
    CorrectionRule,
    Reference,
    absorb,
    corrections_of,
    extra_messages,
    forget_variates,
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
MOST_MISSED = 3  # turns in a row without an answer, after which an agent's share leaves c
FEWEST = 3  # innovations that make a median worth using


def check_correction(value: Any, *, name: str) -> None:
    """Raise an error unless it is a correction or the name of one."""
    if isinstance(value, str):
        Correction(value)  # type: ignore[arg-type]  (it refuses other words)
    elif not isinstance(value, Correction):
        raise TypeError(f"{name}={shown(value)} must be 'difference' or 'drift'")


@dataclass(frozen=True)
class ControlVariates(InverseProbability):
    """The mean c of all control variates, plus a Horvitz-Thompson estimate of the innovations.

    Args:
        correction: how c_k is learned, and whether c - c_k corrects the local steps.
        agents: the policy of the sampler, which defines the scores.
        example_design: how examples are drawn, from which the noise of a turn follows.
        on: where 1 / (K p_k) goes, as in `HorvitzThompson`.
        most_medians: an innovation longer than this many times the median agent's last one moves
            c_k only as far as one of that length. The step itself uses all of it: it is unbiased
            whatever the c_k are.
    """

    correction: Correction
    agents: Policy
    example_design: Design
    on: Literal["step", "change"] = "change"
    most_medians: float = np.inf

    @cached_property
    def needs(self) -> dict[str, str]:
        needs = {
            **InverseProbability.needs,
            "equal weights": "c is the uniform mean of what the agents remember; use "
            "client_weights='uniform', and over a network leave agent_weights out",
            "steps divided by E_k": "c_k is a mean over E_k steps; use divide_by_steps=True",
            "cohorts of fixed size": "use a design of fixed size, e.g. Deville(), and no passes",
        }
        return needs | {"weights on the change": STEERED} if self.rule.kind == DRIFT else needs

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
        if facts.batch_size is not None:
            return work._replace(local=local, extra=extra_messages(self.rule, 1))
        # Over a network only the agents know what their draws of examples leave of a variance.
        scored = self.rule.scored and not self.rule.second_moment
        down = {"models_down": 1} if self.rule.kind == DRIFT else {}
        extra = {**down, "scalars_up": 1} if scored else down
        also = work.also | {NOISE_SHARE} if scored else work.also
        return work._replace(local=local, extra=extra, also=also)

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        """The step from c and the innovations; c and the c_k are updated in place.

        The c_k of an agent that does not answer stays as it is, so that c remains the mean of all
        c_k. Those of agents that are left out, or do not answer any more, leave c.
        """
        cohort, work, place = opened.cohort, opened.work, updates.place
        who, step_size = cohort.agents[place], float(work.step_size)
        inverse = 1.0 / (facts.num_agents * cohort.prob[place])
        reach = step_size * (np.ones(who.size) if self.on == "change" else inverse)
        innovation, scores = trained_changes(updates, facts), updates.score
        take_innovations(self.rule, state, who, reach, innovation)
        if facts.batch_size is None:
            scores, share = _reported(updates)
        else:
            share = noise_share(
                facts.sizes[who], facts.batch_size[who], facts.local_steps[who], self.example_design
            )
        self._limit(state, who, innovation)
        times = cohort.times[place]
        # If the factors make up for absences, c counts in full; else only the share that answered.
        heard = 1.0 if updates.complete else float(times.sum()) / cohort.num
        step = np.zeros(facts.num_trained)
        absorb(
            self.rule, state, step_size, cohort.num, heard, step, who,
            times * updates.factor * inverse, innovation, (scores, share),
        )  # fmt: skip
        if updates.asked is not None:
            self._forget(state, cohort, updates)
        return step, state, Evidence(scores, -innovation, np.ones(who.size))

    def _limit(self, state: Reference, who: np.ndarray, innovation: np.ndarray) -> None:
        """Set how long an innovation counts in what c_k learns, from the last of every agent."""
        if self.most_medians == np.inf:
            return
        squares = np.where(state.book[:, TURNS] > 0.0, state.book[:, SQUARE], 0.0)
        squares[who] = row_squares(innovation)
        known = squares[squares > 0.0]
        limit = self.most_medians**2 * np.median(known) if known.size >= FEWEST else 0.0
        state.pool[LIMIT] = limit

    def _forget(self, state: Reference, cohort: Cohort, updates: Updates) -> None:
        """Take the c_k of those that are left out or silent for long out of c."""
        missed = state.book[:, MISSED]
        missed[cohort.agents[updates.place]] = 0.0
        silent = cohort.agents[updates.silent()]
        missed[silent] += 1.0
        gone = silent[missed[silent] >= MOST_MISSED]
        if updates.excluded is not None:
            gone = np.union1d(gone, cohort.agents[updates.excluded])
        forget_variates(self.rule, state, gone)


def _reported(updates: Updates) -> tuple[np.ndarray, np.ndarray]:
    """Spreads and noise shares as agents report them; 0 for what was refused or makes no sense."""
    spread, share = np.zeros(len(updates.score)), np.zeros(len(updates.score))
    spread[updates.scored] = updates.score[updates.scored]
    if updates.noise_share is not None:
        given = np.nan_to_num(updates.noise_share, nan=0.0, posinf=0.0, neginf=0.0)
        share = np.where((given >= 0.0) & (given <= 1.0), given, 0.0)  # 1 / (E_k B_k) at most
    return spread, share


def _check_size(cohort: Cohort) -> None:
    """Raise a ValueError if a user's design declares a fixed size and draws another number."""
    drawn = int(cohort.times.sum())
    if drawn != cohort.num:
        raise ValueError(
            f"the design drew {drawn} agents where num_active={cohort.num}; control variates need "
            "a design of fixed size, e.g. Deville()"
        )
