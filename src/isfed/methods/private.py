"""Differential privacy as parts of a method: clipped and noised steps, and scores that are public.

A statement of epsilon needs three things. Agents are drawn independently (`Poisson`), so that a
draw tells nothing about the others. Their inclusion probabilities depend on nothing but what was
released before: they are equal, or made of scores that every agent released with noise
(`ReleasedScores`). And an agent that is drawn more often is clipped more, so that all lose the
same; noise under any other probabilities is refused. Where cohorts have a fixed size, changes are
clipped and noised all the same, no epsilon is stated, and `Private.statement` says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from isfed.base.portable_arithmetic import norm
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts, Updates
from isfed.federation.privacy_loss import NUM_LEVELS, epsilons, fair_noise, level_of, levels
from isfed.federation.safety import Privacy, ScoreRange, check_noise, revealed_score
from isfed.methods.by_score import ByScore, ScoreState, forget
from isfed.methods.estimators import Over, trained_changes
from isfed.methods.federated import Combined, Drawn, Federated, Opened
from isfed.methods.method_protocol import Count, Positive
from isfed.sampling.designs import Poisson
from isfed.sampling.policies import Memory, Policy, Uniform
from isfed.sampling.score_table import rebuild

INSIDE = {  # what the estimator inside must have, and what to say if it has not
    "weights": "privacy clips weighted changes, and {} has no weights that are known before the "
    "work; use HorvitzThompson(), without a correction",
    "linear": "the noise is measured for a plain sum of changes, and {} is none; use "
    "Private(HorvitzThompson(), ...), or Privacy(clip=...) without noise",
}
NOT_PUBLIC = (
    "learned scores tell of the data of agents, also of those that are not drawn, and no epsilon "
    "covers that. Use agents=Uniform(), or ReleasedScores(...), whose scores have noise; or "
    "Privacy(clip=...) without noise, which only limits pushes"
)


class PrivateState(NamedTuple):
    """What the estimator inside keeps, and what every agent has spent."""

    inner: Any
    spent: np.ndarray  # (K, B) rounds in which an agent could be drawn, by level of inclusion


@dataclass(frozen=True)
class Private(Over):
    """An estimator whose changes are clipped before they are weighted, with noise on the step.

    An adjustment for absences goes around it, not into it: `InverseResponse(Private(...))`, so that
    what is clipped has all its weight. With noise nothing goes around it: how the changes of others
    are adjusted would tell who was drawn.

    Args:
        inner: an estimator whose weights are known before the work, such as `HorvitzThompson`.
        privacy: the clip and the noise.
    """

    privacy: Privacy

    @property
    def outermost(self) -> bool:
        return self.privacy.noise > 0.0

    @property
    def needs(self) -> dict[str, str]:
        needs = dict(getattr(self.inner, "needs", {}))
        return needs | {"public probabilities": NOT_PUBLIC} if self.outermost else needs

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weights", "linear") if self.outermost else ("weights",):
            if not getattr(self.inner, name, False):
                raise ValueError(INSIDE[name].format(type(self.inner).__name__))

    def init(self, facts: Facts, params: np.ndarray) -> PrivateState:
        return PrivateState(
            self.inner.init(facts, params), np.zeros((facts.num_agents, NUM_LEVELS), np.int64)
        )

    def ask(self, state, cohort, facts, work):
        return self.inner.ask(state.inner, cohort, facts, work)

    def multiplier(self, level: int, uniform: float) -> float:
        """The noise over what an agent of that level can contribute."""
        return fair_noise(
            float(levels(uniform)[level]),
            uniform=uniform,
            noise=self.privacy.noise,
            rounds=self.privacy.rounds,
            delta=self.privacy.delta,
        )

    def limits(self, cohort: Cohort, facts: Facts) -> np.ndarray:
        """(n,) the largest length of each weighted change.

        Without a statement of epsilon the change itself is at most `clip` long, so that nobody
        gains by being drawn often. With one, the limits make all agents lose the same privacy, and
        those lose less that would push the model too far.
        """
        if cohort.chances is None or self.privacy.noise == 0.0:
            return self.privacy.clip * self.inner.counts(cohort, facts)
        uniform = cohort.num / facts.num_agents
        places = level_of(cohort.chances[cohort.agents], uniform)
        own = np.array([self.multiplier(int(place), uniform) for place in places])
        return self.privacy.clip * self.privacy.noise / own

    def combine(
        self, state: PrivateState, opened: Opened, updates: Updates, facts: Facts
    ) -> Combined:
        """Clipped, combined by the estimator inside, and noised.

        Where epsilon is stated there is noise also if nobody answered, which nobody may learn.
        """
        cohort, privacy = opened.cohort, self.privacy
        change = trained_changes(updates, facts)
        weights = self.weights(cohort, facts)[updates.place] * updates.factor
        limits = self.limits(cohort, facts)[updates.place]
        factor = np.ones(len(change))
        for i, (weight, row, limit) in enumerate(zip(weights, change, limits, strict=True)):
            length = norm(weight * row)
            factor[i] = 1.0 if length <= limit else limit / length
        step, inner, evidence = self.inner.combine(
            state.inner, opened, updates._replace(factor=updates.factor * factor), facts
        )
        if privacy.noise > 0.0 and (factor.size or cohort.chances is not None):
            step = step + privacy.disturbance(step.size, num_active=cohort.num)
            if cohort.chances is not None:
                drawable = np.flatnonzero(cohort.chances > 0.0)
                uniform = cohort.num / facts.num_agents
                state.spent[drawable, level_of(cohort.chances[drawable], uniform)] += 1
        evidence = evidence._replace(clipped=int((factor < 1.0).sum()))
        return step, PrivateState(inner, state.spent), evidence

    def epsilons(
        self, state: PrivateState, num_active: int, *, scores: tuple[float, int] | None = None
    ) -> np.ndarray:
        """(K,) what every agent has lost so far.

        Args:
            state: of this estimator.
            num_active: L.
            scores: the noise multiplier and the number of the scores that each agent released.
        """
        if not state.spent.any():
            raise ValueError(
                "no epsilon can be stated: it needs noise above 0, independent draws "
                "(Poisson()), and equal or released probabilities (Uniform(), ReleasedScores)"
            )
        uniform = num_active / len(state.spent)
        used = np.flatnonzero(state.spent.any(axis=0))
        multipliers = {int(b): self.multiplier(int(b), uniform) for b in used}
        delta = self.privacy.delta
        return epsilons(state.spent, multipliers, uniform=uniform, delta=delta, scores=scores)

    def statement(self, sampler: Any) -> str:
        """What is guaranteed under a sampler, and why there is no epsilon if there is none."""
        clip, noise = self.privacy.clip, self.privacy.noise
        bound = (
            f"privacy: in the mean no agent moves the model by more than {clip:g} / K in a round"
        )
        if noise == 0.0:
            return f"{bound}; without noise this hides nothing"
        bound += f", and every coordinate of a step has noise of {noise:g} times {clip:g} / L"
        if isinstance(getattr(sampler, "design", None), Poisson):
            return (
                f"{bound}. Every round's report has the epsilon of every agent at "
                f"delta={self.privacy.delta:g}, towards those who see the models and not the cloud"
            )
        return (
            f"{bound}. No epsilon is stated: in a cohort of fixed size another agent is drawn in "
            "place of one that is not, which the accounting does not cover; agent_design=Poisson() "
            "draws agents independently. The cloud, which sees every change, is never covered"
        )


def private_part(estimator: Any) -> Private | None:
    """The part of an estimator that clips and adds noise; None if there is none."""
    while estimator is not None and not isinstance(estimator, Private):
        estimator = getattr(estimator, "inner", None)
    return estimator


def spent_by(method: Any, state: Any) -> np.ndarray | None:
    """(K, B) the rounds in which agents could be drawn, by level; None where none are counted."""
    estimator = getattr(method, "estimator", None)
    noisy = isinstance(estimator, Private) and estimator.privacy.noise > 0.0
    return state.estimator.spent if noisy else None


def scores_released(method: Federated, rounds: int) -> int:
    """How many scores every agent has released in so many rounds."""
    released = getattr(method.sampler, "released", None)
    return 0 if released is None else released(rounds)[1]


def stated_epsilons(method: Federated, state: Any, rounds: int, *, again: int = 0) -> np.ndarray:
    """(K,) what every agent has lost after so many rounds; empty where no epsilon is stated.

    `again` is how many scores each released in rounds that were gone back on.
    """
    spent, released = spent_by(method, state), getattr(method.sampler, "released", None)
    if spent is None or not spent.any():
        return np.empty(0)
    scores = None
    if released is not None:
        multiplier, count = released(rounds)
        scores = multiplier, count + again
    return method.estimator.epsilons(state.estimator, method.num_active, scores=scores)


@dataclass(frozen=True)
class ReleasedScores(ByScore):
    """Agents drawn independently, by scores that all of them release with noise now and then.

    Every agent, drawn or not, tells its score at the same rounds, clipped to a range and with
    Laplace noise on its logarithm. So the probabilities are public, and who was drawn stays hidden.

    Args:
        num_active: L, the mean number of agents per round.
        policy: its floor is used; scores are those released last.
        design: `Poisson`.
        every: rounds between two releases.
        noise: scale of the noise on the logarithm of a score.
        scores: the range to which agents clip their scores.
    """

    policy: Policy = field(default_factory=lambda: Memory(floor=0.3))
    design: Any = field(default_factory=Poisson)
    every: Count = 100
    noise: Positive = 1.0
    scores: ScoreRange = field(default_factory=lambda: ScoreRange(0.01, 100.0))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(self.scores, self.noise)

    @property
    def reports(self) -> Policy:
        return Uniform()  # nothing rides in the answers of a round

    @property
    def multiplier(self) -> float:
        """The scale of the noise over what one agent can change."""
        return self.noise / math.log(self.scores.high / self.scores.low)

    def released(self, rounds: int) -> tuple[float, int]:
        """The noise multiplier of a score, and how many an agent released in so many rounds."""
        return self.multiplier, -(-rounds // self.every)

    @property
    def public(self) -> bool:
        return True

    def draw(
        self, state: ScoreState, facts: Facts, agents: Agents, params: np.ndarray, round_index: int
    ) -> Drawn:
        if round_index % self.every == 0:
            scores = self._release(agents, params, round_index)
            table, heard = self.table(state, facts.num_agents), np.isfinite(scores)
            # All are asked, so that an absence here tells nothing of who was drawn.
            forget(table, np.flatnonzero(~heard))
            limited = np.clip(scores, self.scores.low, self.scores.high)
            table.scores[heard] = facts.weighed(limited)[heard]
            rebuild(table.nodes, 0, table.count)
        return super().draw(state, facts, agents, params, round_index)

    def _release(self, agents: Any, params: np.ndarray, round_index: int) -> np.ndarray:
        """(K,) the scores of all agents with noise; NaN for those that give no answer."""
        remote = getattr(agents, "released_scores", None)
        if remote is not None:  # agents elsewhere add the noise themselves
            return remote(params, self.scores, self.noise, round_index)
        rng = np.random.default_rng()  # the system's: noise that others know hides nothing
        return np.array(
            [
                revealed_score(float(score), self.scores, noise=self.noise, rng=rng)
                for score in agents.scores_at(params)
            ]
        )

    def learn(self, state, cohort, updates, evidence, facts, round_index) -> ScoreState:
        return state
