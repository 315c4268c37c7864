"""Optimal client sampling: Chen, Horvath and Richtarik (TMLR 2022), arXiv 2010.13723.

n agents are available: all get the model, all work, and each tells a_k = c_k |change_k|. Then each
sends its change with probability pi_k, independently of the others. OCS has pi proportional to a,
capped at 1, with sum m. AOCS finds it by sums alone, which secure aggregation can make:

    pi <- min(1, m a / sum a); then, up to j times: C = (m - n + I) / (sum of the pi below 1), I
    their number; pi <- min(1, C pi) on those; stop once C <= 1

Weights are c_k / pi_k with the pi_k that were used: unbiased for every j.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from isfed.base.argument_checks import check_whole
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import EVERY, Cohort
from isfed.methods.change_norms import capped_inclusion, lengths_of
from isfed.methods.estimators import HorvitzThompson, trained_changes
from isfed.methods.federated import Federated, Info, State
from isfed.methods.method_protocol import Composed, Count, CountOrZero
from isfed.methods.shared_fields import Sampled
from isfed.methods.uniform_samplers import AllAgents, UniformCohort

KEPT = {"models_up": -1, "scalars_up": 1}  # a turn after which the change stays, and a norm is told


def approximate_inclusion(scores: np.ndarray, num: int, loops: int) -> tuple[np.ndarray, int]:
    """(n,) pi of AOCS after at most so many loops, and how many were made.

    >>> approximate_inclusion(np.array([1.0, 1.0, 2.0, 8.0]), 2, 4)[0].tolist()
    [0.25, 0.25, 0.5, 1.0]
    """
    total, count = float(scores.sum()), scores.size
    if not total > 0.0 or num >= count:
        return np.full(count, min(1.0, num / max(count, 1))), 0
    chances = np.minimum(1.0, num * (scores / total))
    for loop in range(loops):
        open_ = chances < 1.0
        rest = float(chances[open_].sum())
        factor = (num - count + int(open_.sum())) / rest if rest > 0.0 else 1.0
        chances = np.where(open_, np.minimum(1.0, factor * chances), chances)
        if factor <= 1.0:
            return chances, loop + 1
    return chances, loops


@dataclass(frozen=True)
class UploadsByNorm(Federated):
    """The round in which the cohort works and only some of it, by length of change, upload.

    Args:
        uploads: m, how many changes are sent, on average.
        loops: j of AOCS; None for the exact probabilities of OCS.
    """

    uploads: int = field(default=1)
    loops: int | None = None
    own_round: ClassVar[bool] = True
    reads_problem: ClassVar[str] = (
        "its agents keep their changes until the cloud has drawn; on Flower they send them at once"
    )

    def step(self, state: State, agents: Agents, round_index: int) -> tuple[State, Info]:
        """One round: all of the cohort work, coins say whose change is sent."""
        opened, facts = self.open(state, agents, round_index), self.facts(agents)
        work = opened.work._replace(extra={**opened.work.extra, **KEPT})
        updates = agents.train(opened.cohort, opened.sent, work, round_index)
        asked = np.arange(opened.cohort.agents.size)[updates.place]
        who = opened.cohort.agents[asked]
        chances = self._chances(lengths_of(trained_changes(updates, facts)), who, facts, agents)
        points = agents.stream(Purpose.DOMAINS, round_index).uniforms(facts.num_agents)
        sent = np.flatnonzero(points[who] < chances)
        agents.charge_messages(models_up=sent.size)
        self._elapse(agents, facts, who, sent, round_index)
        # A share of n / K is available at all: both chances make the weight.
        prob = chances[sent] * (opened.cohort.num / facts.num_agents) / self.uploads
        cohort = Cohort(who[sent], self.uploads, np.ones(sent.size), prob)
        opened = opened._replace(cohort=cohort, work=opened.work.rows(asked[sent]))
        names = ("change", "score", "watch", "velocity", "loss", "gradient")
        rows = {name: getattr(updates, name) for name in names}
        kept = {n: row[sent] for n, row in rows.items() if row is not None and len(row)}
        updates = updates._replace(place=EVERY, **kept)
        return self.close(state, facts, opened, updates, round_index)

    def _chances(
        self, lengths: np.ndarray, who: np.ndarray, facts: Any, agents: Agents
    ) -> np.ndarray:
        """(n,) pi of those that worked; AOCS sends two sums up and a factor down per loop."""
        scores = facts.weighed(lengths, who)
        if self.loops is None:
            return capped_inclusion(scores, self.uploads)
        chances, made = approximate_inclusion(scores, self.uploads, self.loops)
        agents.charge_messages(scalars_up=2 * made * who.size, scalars_down=made * who.size)
        return chances

    def _elapse(self, agents: Agents, facts: Any, who: Any, sent: Any, round_index: int) -> None:
        """The slowest turn and its norm, and then the slowest upload."""
        if who.size and getattr(agents, "timed", False):
            times = agents.times(who, self.local.examples_of(who, facts), round_index)
            trained = float((times.download + times.compute).max()) + agents.clock.latency
            agents.elapse(trained + float(times.upload[sent].max(initial=0.0)))


@dataclass(frozen=True, kw_only=True)
class OCS(Composed, Sampled):
    """Optimal client sampling: all available agents work, and long changes are sent more often.

    Args:
        num_active: m, how many changes are sent in a round, on average.
        available: n, how many agents get the model and work; all unless given.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    available: Count | None = None
    divide_by_steps: bool = False
    reads_problem: ClassVar[str] = UploadsByNorm.reads_problem

    def __post_init__(self) -> None:
        if self.available is not None:
            check_whole(self.available, name="available", least=self.num_active)

    def parts(self) -> Federated:
        sampler = AllAgents() if self.available is None else UniformCohort(self.available)
        return UploadsByNorm(
            sampler, self.local(timed=False), HorvitzThompson(),
            client_weights=self.client_weights, uploads=self.num_active,
            loops=getattr(self, "loops", None),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AOCS(OCS):
    """Optimal client sampling by sums alone, so that no agent shows its length to the cloud.

    Args:
        loops: j, how often the probabilities are corrected at most.
    """

    loops: CountOrZero = 4
