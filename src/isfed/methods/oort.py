"""Oort: Lai, Zhu, Madhyastha and Chowdhury, "Oort: Efficient Federated Learning via Guided
Participant Selection" (OSDI 2021), arXiv 2010.06081.

Every agent has a utility u_k, examples used times loss, and a duration t_k. In round R, agents
heard before have the score (min(u_k, clip) - u_min) / (u_max - u_min) + sqrt(0.1 ln R / r_k), r_k
the round in which they were last heard. Where t_k exceeds a preferred duration T, it is multiplied
by (T / t_k)^2. A share 1 - epsilon of the cohort is drawn by this score among the best, the rest
among agents never heard. T is a percentile of the durations that a pacer moves. More agents are
asked than are used; the last to finish are dropped. The plain mean is taken.

The paper's u_k has the root of the mean squared loss of examples, from the training pass; here
agents tell their mean loss at the model that was sent, for which a forward pass is charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import log, power
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts
from isfed.methods.estimators import PlainMean
from isfed.methods.federated import Drawn, Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import Composed, Count, NotNegative, Positive
from isfed.methods.power_of_choice import LOSS, first_to_ring
from isfed.methods.shared_fields import Sampled, answering
from isfed.methods.uniform_samplers import Unscored

Version = Literal["oort", "fedscale"]
WINDOW, MOVE = 20, 5.0  # rounds between two looks of the pacer, and by how much it moves


class OortConstants(NamedTuple):
    """In which the two public programs differ."""

    percentile: float  # where T begins
    clip: float  # the quantile at which utilities are cut
    decay: float  # of epsilon in a round
    least: float  # epsilon stays above it
    cut: float  # those within this factor of the best are drawn from
    pool: int  # and at least so many times as are drawn


CONSTANTS = {
    "oort": OortConstants(10.0, 0.98, 0.95, 0.2, 0.7, 0),
    "fedscale": OortConstants(30.0, 0.9, 0.98, 0.3, 0.05, 10),
}


class OortState(NamedTuple):
    """What the cloud knows of every agent, and where the pacer is."""

    utility: np.ndarray  # (K,) u_k; what an agent may offer before it was heard
    duration: np.ndarray  # (K,) t_k
    last: np.ndarray  # (K,) r_k; 0 for never
    exploited: np.ndarray  # (K,) whether it was drawn by its score in the last round
    heard: np.ndarray  # (K,) whether it was used then
    history: np.ndarray  # (2 WINDOW,) the mean utilities of those drawn by score, the newest last
    pace: np.ndarray  # (2,) the percentile of T, and epsilon


@dataclass(frozen=True)
class ByUtility(Unscored):
    """Agents of large utility and short duration.

    The fields are those of `Oort`; `local` says how agents step, and so how long a turn takes.
    """

    num_active: Count
    local: LocalSteps
    version: Version = "oort"
    explore: NotNegative = 0.9
    penalty: NotNegative = 2.0
    overcommit: Positive = 1.1
    also: ClassVar[frozenset[str]] = LOSS

    @property
    def by_time(self) -> bool:
        """Whether durations matter."""
        return self.penalty > 0.0 or self.overcommit > 1.0

    @property
    def reads_problem(self) -> str:
        """Why not over a network, where nobody knows durations beforehand."""
        return (
            "it selects by the times of turns, which only a simulated clock knows beforehand; with "
            "penalty=0 and overcommit=1 it does not" if self.by_time else ""
        )  # fmt: skip

    def offered(self, facts: Facts) -> np.ndarray:
        """(K,) the examples that a turn uses, at most N_k; 1 where sizes are not known."""
        if facts.sizes is None:
            return np.ones(facts.num_agents)
        everybody = np.arange(facts.num_agents)
        return np.minimum(facts.sizes, self.local.examples_of(everybody, facts)).astype(float)

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> OortState:
        super().init(facts, agents, params)
        count, everybody = facts.num_agents, np.arange(facts.num_agents)
        duration = np.ones(count)
        if self.by_time:
            examples = self.local.examples_of(everybody, facts)
            duration = agents.times(everybody, examples, None).total
        return OortState(
            self.offered(facts), duration, np.zeros(count, np.int64), np.zeros(count, bool),
            np.zeros(count, bool), np.zeros(2 * WINDOW),
            np.array([CONSTANTS[self.version].percentile, self.explore]),
        )  # fmt: skip

    def draw(self, state, facts, agents, params, round_index) -> Drawn:
        """Who is asked; those who would be too late work too, but count 0 times."""
        num, count = self.num_active, facts.num_agents
        self._pace(state, round_index + 1)
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(2 * count)
        asked = min(int(num * self.overcommit), count)
        drawn = np.sort(self.select(state, points, asked, round_index + 1))
        times = np.ones(drawn.size)
        if self.by_time:
            spent = agents.times(drawn, self.local.examples_of(drawn, facts), round_index).total
            state.duration[drawn] = spent
            here = np.arange(drawn.size)[answering(agents, drawn, round_index)]
            order = here[np.argsort(spent[here], kind="stable")]
            times[order[num:]] = 0.0
            agents.elapse(float(spent[order[:num]].max(initial=0.0)))
        return Cohort(drawn, num, times), state

    def _pace(self, state: OortState, number: int) -> None:
        """Move the percentile of T: up where utilities stay the same, down where they jump."""
        used = state.exploited & state.heard
        state.history[:-1] = state.history[1:]
        state.history[-1] = state.utility[used].mean() if used.any() else 0.0
        if number >= 2 * WINDOW and number % WINDOW == 0:
            before, now = state.history[:WINDOW].sum(), state.history[WINDOW:].sum()
            if abs(now - before) <= 0.1 * before:
                state.pace[0] = min(100.0, state.pace[0] + MOVE)
            elif abs(now - before) >= 5.0 * before:
                state.pace[0] = max(MOVE, state.pace[0] - MOVE)

    def scores(self, state: OortState, number: int) -> np.ndarray:
        """(K,) the score of agents heard, and the utility of the others, both cut where slow."""
        utility, seen = state.utility, state.last > 0
        ranked = np.sort(utility)
        clip = ranked[min(int(utility.size * CONSTANTS[self.version].clip), utility.size - 1)]
        least = 0.999 * ranked[0]
        scores = (np.minimum(utility, clip) - least) / max(ranked[-1] - least, 1e-4)
        scores += np.sqrt(0.1 * log(number) / np.maximum(state.last, 1))
        scores = np.where(seen, scores, utility)
        if state.pace[0] < 100.0 and self.penalty > 0.0:
            place = min(int(utility.size * state.pace[0] / 100.0), utility.size - 1)
            preferred = np.sort(state.duration)[place]
            ratio = preferred / np.maximum(state.duration, 1e-4)
            scores = np.where(ratio < 1.0, scores * power(ratio, self.penalty), scores)
        return np.maximum(scores, 1e-12)

    def select(self, state: OortState, points: np.ndarray, num: int, number: int) -> np.ndarray:
        """`num` agents: by score among the best, by utility among those never heard."""
        own, scores, seen = CONSTANTS[self.version], self.scores(state, number), state.last > 0
        count = scores.size
        everybody = np.arange(count)
        state.pace[1] = max(own.decay * state.pace[1], own.least) if not seen.all() else 0.0
        epsilon = state.pace[1]
        share = num - int(num * epsilon) if own.pool else int(num * (1.0 - epsilon))
        known = everybody[seen][np.argsort(-scores[seen], kind="stable")]
        share = min(share, known.size)
        best = known[:0]
        if share:
            cut = own.cut * scores[known[min(share, known.size - 1)]]
            pool = known[: max(int((scores[known] >= cut).sum()), own.pool * share)]
            best = pool[first_to_ring(points[pool], scores[pool], share)]
        state.exploited[:] = np.isin(everybody, best)
        new = everybody[~seen]
        wanted = min(num - best.size, new.size)
        window = new[np.argsort(-scores[new], kind="stable")][: 5 * wanted]
        chosen = window[first_to_ring(points[window], scores[window], wanted)]
        chosen = np.concatenate([best, chosen])
        rest = np.setdiff1d(everybody, chosen)
        fill = rest[np.argsort(points[count + rest], kind="stable")][: num - chosen.size]
        return np.concatenate([chosen, fill])

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> Any:
        """Utilities of those used; who was too late is given their mean."""
        who, used = cohort.agents[updates.place], cohort.times[updates.place] > 0.0
        utility = self.offered(facts)[who] * np.nan_to_num(updates.loss, nan=0.0, posinf=1e100)
        if used.any():
            state.utility[who] = np.where(used, utility, utility[used].mean())
            state.last[who] = round_index + 1
        state.heard[:] = np.isin(np.arange(facts.num_agents), who[used])
        return state


@dataclass(frozen=True, kw_only=True)
class Oort(Composed, Sampled):
    """Oort: prefers agents with large losses and short turns, and explores those never heard.

    Args:
        num_active: L, how many changes are used in a round.
        version: the constants of "oort", the authors' program, or of "fedscale".
        explore: epsilon at the start, the share drawn among agents never heard.
        penalty: how strongly slow agents are avoided; 0 for not at all.
        overcommit: how many agents are asked, in units of L; 1.1 in "oort" and 1.3 in "fedscale".
    """

    version: Version = "oort"
    explore: NotNegative = 0.9
    penalty: NotNegative = 2.0
    overcommit: Positive | None = None

    def parts(self) -> Federated:
        asked = self.overcommit or {"oort": 1.1, "fedscale": 1.3}[self.version]
        timed = self.penalty > 0.0 or asked > 1.0
        local = self.local(timed=not timed)
        sampler = ByUtility(self.num_active, local, self.version, self.explore, self.penalty, asked)
        return self.made_of(PlainMean(), sampler=sampler, local=local)
