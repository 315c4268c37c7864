"""The border between the cloud and agents that may be absent, slow, wrong or hostile.

What cannot be used is refused, and who sends it again and again is not asked any more. Weights are
not the border's: they belong to the sampler and to the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partialmethod
from typing import Any

import numpy as np

from isfed.base.argument_checks import is_number
from isfed.federation.agent_records import NO_STEER, AgentRecords, Judged, trained_lengths
from isfed.federation.messages import (
    EVERY,
    PLAIN_LOCAL,
    Cohort,
    LocalOptions,
    Timing,
    TrainRequest,
    Updates,
    Uploads,
    Work,
)
from isfed.federation.response_rates import Responses
from isfed.federation.safety import Safety
from isfed.sampling import telemetry

COUNTS: tuple[str, ...] = (
    "drawn", "answered", "late", "refused_changes", "refused_scores", "shortened"
)  # fmt: skip
MOST_REASONS = 100  # that wait for a log
LEAST_CAP = 10.0  # of weights: with a large floor, late answers still count as they should
ROWS = ("change", "score", "watch", "velocity", "loss", "gradient", "noise_share", "factor")
NOBODY = np.zeros(0, bool)


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round."""

    round_index: int
    drawn: int
    answered: int  # with a change that was accepted
    late: int  # of them, after the round could have closed
    refused_changes: int
    refused_scores: int
    shortened: int  # changes that were longer than those of the others allow
    limited_scores: int  # lowered to keep an agent within the cap
    clipped: int  # changes shortened for privacy
    capped_weights: int  # changes whose weight was lowered to 1 / floor
    excluded: int  # agents left out so far, in all
    step: float  # length of the cloud's step, without buffers
    left_out: float  # length of what `adjusted` would have added to a step of `drop`
    agents: list[int]  # those drawn ...
    seconds: list[float]  # ... and how long each took to answer; -1: it did not, or unknown
    epsilons: list[float] = field(default_factory=list)  # lost by each agent so far, if stated

    @property
    def epsilon(self) -> float:
        """The largest privacy loss of an agent so far; -1 where none is stated."""
        return max(self.epsilons, default=-1.0)

    def line(self) -> str:
        """For a log."""
        text = f"round {self.round_index + 1}: {self.answered} of {self.drawn} answered"
        moved = f"length of the step {self.step:.3g}"
        text += f", {moved}" if self.answered else ", nobody: the model stays as it is"
        for count, what in (
            (self.late, "of them late"),
            (self.refused_changes, "refused models"),
            (self.refused_scores, "refused scores"),
            (self.shortened, "changes shortened to the limit of length"),
            (self.limited_scores, "scores lowered to the cap"),
            (self.clipped, "changes clipped"),
            (self.capped_weights, "weights lowered to the cap"),
            (self.excluded, "agents left out so far"),
        ):
            text += f", {count} {what}" if count else ""
        text += f", epsilon {self.epsilon:.4g} so far" if self.epsilons else ""
        slowest = max(self.seconds, default=-1.0)
        if slowest >= 0.0:
            agent = self.agents[self.seconds.index(slowest)]
            text += f"; slowest: agent {agent}, {slowest:.1f} s"
        return text


class Guarded:
    """Agents of any kind, guarded: what they send is looked at before the cloud uses it.

    Args:
        agents: the agents.
        safety: what is refused, and how late answers count.
    """

    def __init__(self, agents: Any, safety: Safety | None = None) -> None:
        self.agents, self.safety = agents, safety or Safety()
        if self.safety.hides:
            # How long a change may be must not depend on what others send: the clip limits it.
            self.safety = replace(self.safety, largest_ratio=np.inf, most_medians=np.inf)
        self.records = AgentRecords(agents.num_agents)
        self.responses = Responses(agents.num_agents)
        self.tally = dict.fromkeys(COUNTS, 0)  # what happened at the border in a round
        self.reasons: list[str] = []  # why something was refused or shortened, for a log
        self.first_step: float | None = None  # mu of round 0: lengths are compared as if it stayed
        # From the system's entropy: agents must not foresee which rounds are patient.
        self.rng = np.random.default_rng()
        self._patient: tuple[int, bool] = (-1, True)

    def __getattr__(self, name: str) -> Any:
        """What is not guarded is as the agents have it."""
        if name == "agents" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.agents, name)

    def waits_for_all(self, round_index: int) -> bool:
        """Whether a round waits for late answers; a coin that agents cannot foresee."""
        if self._patient[0] != round_index:
            patient = self.safety.enough >= 1.0 or self.rng.random() < self.safety.patience
            self._patient = (round_index, patient)
        return self._patient[1]

    def train(self, cohort: Cohort, sent: np.ndarray, work: Work, round_index: int) -> Updates:
        asked, asked_work = self.narrow(cohort, work)
        models = sent if sent.ndim == 1 else sent[self.allowed(cohort.agents)]
        updates = self.agents.train(asked, models, asked_work, round_index)
        return self.judge(cohort, work, updates)

    def allowed(self, agents: np.ndarray) -> np.ndarray:
        """(n,) which of these agents are not left out."""
        return ~self.records.excluded[agents]

    def narrow(self, cohort: Cohort, work: Work) -> tuple[Cohort, Work]:
        """The cohort and its work without the agents that are left out."""
        asked = self.allowed(cohort.agents)
        return (cohort, work) if asked.all() else (cohort.rows(asked), work.rows(asked))

    def judge(self, cohort: Cohort, work: Work, updates: Updates) -> Updates:
        """What is good of the answers of those who were asked, as an answer of the whole cohort."""
        asked, timing = self.allowed(cohort.agents), updates.timing
        everybody = updates.place is EVERY and bool(asked.all())
        given = EVERY if everybody else np.flatnonzero(asked)[updates.place]  # places in the cohort
        who = cohort.agents[given]
        judged, updates = self._judged(work, updates, given, who)
        if timing is not None:  # an entry for everybody, not only for those who were asked
            seen, timing = timing, Timing.unknown(asked.size)._replace(patient=timing.patient)
            timing.seconds[asked], timing.late[asked] = seen.seconds, seen.late
            self.records.clock(who, timing.seconds[given])
        if judged.refused:  # or nothing is copied; and without momentum there are no rows of it
            given, who = np.arange(asked.size)[given][judged.good], who[judged.good]
            rows = {name: getattr(updates, name) for name in ROWS}
            cut = {n: r[judged.good] for n, r in rows.items() if isinstance(r, np.ndarray)}
            updates = updates._replace(**cut)
        scored = self._accepts_scores(who, updates.score)
        accepted = updates._replace(
            place=given, scored=scored, timing=timing, asked=None if given is EVERY else asked,
            most_factor=self._most_factor(cohort, given),
        )  # fmt: skip
        late = NOBODY if timing is None else timing.late[given]
        if late.any():
            # A late answer is seen in a patient round only: E[1{patient} / patience] = 1, whatever
            # made the agent late.
            accepted = accepted.multiplied(np.where(late, 1.0 / self.safety.patience, 1.0))
        self.responses.record_round(cohort.agents, accepted)
        unscored = 0 if scored is EVERY else int((~scored).sum())
        counts = (asked.size, who.size, int(late.sum()), judged.refused, unscored, judged.long)
        self.tally = {n: self.tally[n] + c for n, c in zip(COUNTS, counts, strict=True)}
        del self.reasons[:-MOST_REASONS]
        if not judged.due:
            return accepted
        new = self.records.exclude(self.safety.most_refusals)
        return accepted._replace(excluded=np.flatnonzero(np.isin(cohort.agents, new)))

    def _accepts_scores(self, who: np.ndarray, scores: np.ndarray) -> Any:
        """Which scores the sampler may learn from, as an index; the others are counted."""
        low, high = self.safety.scores.low, self.safety.scores.high
        good = (low <= scores) & (scores <= high)  # NaN is in no range
        if good.all():
            return EVERY
        self.records.refused[who[~good]] += 1
        self.reasons += [
            f"agent {agent}: the score {score:.6g} is refused, for it is not "
            f"between {low:g} and {high:g}; its change counts. If that range is too narrow: "
            "Safety(scores=ScoreRange(...))"
            for agent, score in zip(who[~good], scores[~good], strict=True)
        ]
        return good

    def _most_factor(self, cohort: Cohort, places: Any) -> np.ndarray | None:
        """(m,) what keeps 1 / (K p_k) times all factors below the largest weight.

        That is 1 / floor, the largest 1 / (K p_k). A floor of 0 has none.
        """
        if cohort.prob is None or cohort.floor <= 0.0:
            return None
        largest = max(1.0 / cohort.floor, LEAST_CAP)
        return np.maximum(1.0, largest * self.agents.num_agents * cohort.prob[places])

    def _judged(
        self, work: Work, updates: Updates, given: Any, who: np.ndarray
    ) -> tuple[Judged, Updates]:
        """Which changes can be used, and the updates with those that were too long shortened."""
        safety, trained = self.safety, getattr(self.agents, "num_trained", updates.change.shape[1])
        steer = NO_STEER
        if work.local.correction is not None and work.divide:
            # Judged without what the cloud added to the steps: c grows with what a rogue sends, and
            # with c the lengths of all, which would raise the limit.
            steer = work.step_size * work.local.correction[given, :trained]
        lengths = trained_lengths(updates.change, trained, steer)
        for reported in (updates.loss, updates.gradient):
            if reported is not None and who.size:
                lengths[~np.isfinite(reported).reshape(who.size, -1).all(axis=1)] = np.nan
        compared = self._unweighted(lengths, work, given)
        largest, ratio = float(safety.largest_change), float(safety.largest_ratio)
        bounds = largest, ratio, float(safety.most_medians), safety.most_refusals
        judged = self.records.judge(who, lengths, compared, bounds=bounds)
        if judged.refused:
            bad = ~judged.good
            self.reasons += [
                f"agent {agent}: a change of length {length:.6g} is refused, for it is not finite, "
                f"above largest_change={safety.largest_change:g}, or more than largest_ratio="
                f"{safety.largest_ratio:g} times the median agent's; look at that agent, or raise "
                "the limit in Safety(...)"
                for agent, length in zip(who[bad], compared[bad], strict=True)
            ]
        if not judged.long:
            return judged, updates
        long = np.flatnonzero(judged.good & (compared > judged.limit))
        self.reasons += [
            f"agent {who[place]}: a change of length {compared[place]:.6g} is shortened to "
            f"{judged.limit:.6g}; if honest agents differ that much, raise Safety(most_medians="
            f"{safety.most_medians:g})"
            for place in long
        ]
        rows, added = updates.change.copy(), steer[long] if steer.size else 0.0
        factor = (judged.limit / compared[long])[:, None]
        rows[long, :trained] = (rows[long, :trained] + added) * factor - added
        return judged, updates._replace(change=rows)

    def _unweighted(self, lengths: np.ndarray, work: Work, given: Any) -> np.ndarray:
        """(m,) what lengths would be without weights in the steps, at the first step size."""
        if work.prob is not None:
            lengths = lengths * (self.agents.num_agents * work.prob[given])
        if work.scale is not None:
            scale = work.scale[given]
            lengths = np.divide(lengths, scale, out=lengths.copy(), where=scale > 0.0)
        first, step = self.first_step, work.step_size
        if first is not None and step is not first and is_number(step) and step > 0.0:
            lengths = lengths * (first / step)
        return lengths

    def take_tally(self) -> dict[str, int]:
        """What happened since this was last called."""
        tally, self.tally = self.tally, dict.fromkeys(COUNTS, 0)
        return tally

    def work(
        self, turns: TrainRequest, round_index: int, local: LocalOptions = PLAIN_LOCAL
    ) -> Uploads:
        """Turns for a method with a round of its own; an absence counts as no change."""
        cohort = Cohort(turns.agents, turns.agents.size, np.ones(turns.agents.size))
        updates = self.train(cohort, turns.params, Work(turns.step, local=local), round_index)
        count, size = turns.agents.size, self.agents.num_params
        uploads = Uploads(
            np.zeros((count, size)), np.zeros(count), np.zeros(count, np.int64),
            np.zeros((count, telemetry.TURN)), np.zeros((count, updates.velocity.shape[1])),
        )  # fmt: skip
        uploads.changes[updates.place] = updates.change
        uploads.scores[np.arange(count)[updates.place][updates.scored]] = updates.score[
            updates.scored
        ]
        uploads.velocity[updates.place] = updates.velocity
        return uploads

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents can be asked."""
        return self.allowed(which) & self.agents.answers(which, round_index)

    def _ask(self, name: str, which: np.ndarray, params: np.ndarray, *more: Any, **options: Any):
        """The answers to a question; NaN where there is none, or none that is finite."""
        which = np.asarray(which, np.int64)
        asked = self.allowed(which)
        models = params if params.ndim == 1 else params[asked]
        given = getattr(self.agents, name)(which[asked], models, *more, **options)
        answers = np.full((which.size, *given.shape[1:]), np.nan)
        answers[asked] = given
        answers[~np.isfinite(answers).reshape(which.size, -1).all(axis=1)] = np.nan
        return answers

    losses = partialmethod(_ask, "losses")
    gradients = partialmethod(_ask, "gradients")
    sampled_losses = partialmethod(_ask, "sampled_losses")

    def state(self) -> dict[str, np.ndarray]:
        return {**self.records.state(), **self.responses.state()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.records.restore(state)
        self.responses.restore(state)
