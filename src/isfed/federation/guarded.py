"""The border between the cloud and agents that may be absent, slow, wrong or hostile.

What cannot be used is refused, and who sends it again and again is not asked any more. Weights are
not the border's: they belong to the sampler and to the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.federation.agent_records import Standing, trained_length
from isfed.federation.messages import PLAIN_LOCAL, Cohort, Local, Turns, Updates, Uploads, Work
from isfed.federation.response_rates import Responses
from isfed.federation.round_reports import Timing
from isfed.federation.safety import Safety
from isfed.sampling import telemetry

ROWS = ("change", "score", "watch", "velocity", "loss", "gradient", "agreement")


@dataclass
class Tally:
    """What happened at the border in a round."""

    drawn: int = 0
    answered: int = 0
    late: int = 0
    refused_changes: int = 0
    refused_scores: int = 0


class Guarded:
    """Agents of any kind, guarded: what they send is looked at before the cloud uses it.

    Args:
        agents: the agents.
        safety: what is refused, and how late answers count.
    """

    def __init__(self, agents: Any, safety: Safety | None = None) -> None:
        self.agents, self.safety = agents, safety or Safety()
        self.standing = Standing(agents.num_agents)
        self.responses = Responses(agents.num_agents)
        self.tally = Tally()
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
        """The turns of those who may be asked, of which the good ones are kept."""
        there = self.narrow(cohort, work)
        models = sent if sent.ndim == 1 else sent[self.allowed(cohort.agents)]
        return self.judge(cohort, work, self.agents.train(there[0], models, there[1], round_index))

    def allowed(self, agents: np.ndarray) -> np.ndarray:
        """(n,) which of these agents are not left out."""
        return ~self.standing.excluded[agents]

    def narrow(self, cohort: Cohort, work: Work) -> tuple[Cohort, Work]:
        """The cohort and its work without the agents that are left out."""
        asked = self.allowed(cohort.agents)
        return (cohort, work) if asked.all() else (cohort.rows(asked), work.rows(asked))

    def judge(self, cohort: Cohort, work: Work, updates: Updates) -> Updates:
        """What is good of the answers of those who were asked, as an answer of the whole cohort."""
        asked = self.allowed(cohort.agents)
        given = np.flatnonzero(asked)[updates.place]  # places in the cohort
        timing = _of_all(updates.timing, asked)
        good = self._good(cohort, work, updates, given)
        kept = given[good]
        cut = {name: getattr(updates, name) for name in ROWS}
        cut = {name: rows[good] for name, rows in cut.items() if rows is not None}
        scored = np.array([self.safety.scores.accepts(s) for s in cut["score"]], dtype=bool)
        factor = np.broadcast_to(np.asarray(updates.factor, np.float64), given.shape)[good]
        # A late answer is seen in a patient round only: E[1{patient} / patience] = 1, whatever
        # made the agent late.
        late = timing.late[kept]
        found = updates._replace(
            place=kept,
            factor=np.where(late, factor / self.safety.patience, factor),
            scored=scored, asked=asked, timing=timing, **cut,
        )  # fmt: skip
        self.standing.refused[cohort.agents[kept[~scored]]] += 1
        self.responses.record_round(cohort.agents, found)
        new = self.standing.exclude(self.safety.most_refusals)
        seconds = np.full(cohort.agents.size, np.nan)
        seconds[given] = timing.seconds[given]
        self.standing.clock(cohort.agents, seconds)
        self._count(cohort, given, found)
        if not new.size:
            return found
        return found._replace(excluded=np.flatnonzero(np.isin(cohort.agents, new)))

    def _good(self, cohort: Cohort, work: Work, updates: Updates, given: np.ndarray) -> np.ndarray:
        """(m,) whose change can be used."""
        agents, buffers = cohort.agents[given], self._buffers(updates.change.shape[1])
        lengths = np.array([trained_length(row, buffers) for row in updates.change])
        for told in (updates.loss, updates.gradient):
            if told is not None and given.size:
                lengths[~np.isfinite(told).reshape(given.size, -1).all(axis=1)] = np.nan
        good = lengths <= self.safety.largest_change  # NaN is refused too
        # What the change would be without the weight that the agent has put into its step.
        if work.prob is not None:
            lengths = lengths * (self.agents.num_agents * work.prob[given])
        if work.scale is not None:
            scale = work.scale[given]
            lengths = np.divide(lengths, scale, out=lengths.copy(), where=scale > 0.0)
        places = np.flatnonzero(good)
        good[places] = ~self.standing.too_long(
            agents[places], lengths[places], ratio=self.safety.largest_ratio
        )
        self.standing.record(agents, lengths, good)
        return good

    def _buffers(self, size: int) -> np.ndarray:
        """(M,) which entries of a change are not trained."""
        return np.arange(size) >= getattr(self.agents, "num_trained", size)

    def _count(self, cohort: Cohort, given: np.ndarray, found: Updates) -> None:
        """Of a round for its report."""
        self.tally.drawn += cohort.agents.size
        self.tally.answered += found.place.size
        self.tally.late += int(found.timing.late[found.place].sum()) if found.timing else 0
        self.tally.refused_changes += given.size - found.place.size
        self.tally.refused_scores += int((~found.scored).sum())

    def take_tally(self) -> Tally:
        """What happened since this was asked last."""
        tally, self.tally = self.tally, Tally()
        return tally

    def work(self, turns: Turns, round_index: int, local: Local = PLAIN_LOCAL) -> Uploads:
        """Turns for a method with a round of its own; an absence counts as no change."""
        cohort = Cohort(turns.agents, turns.agents.size, np.ones(turns.agents.size))
        found = self.train(cohort, turns.params, Work(turns.step, local=local), round_index)
        count, size = turns.agents.size, self.agents.num_params
        uploads = Uploads(
            np.zeros((count, size)), np.zeros(count), np.zeros(count, np.int64),
            np.zeros((count, telemetry.TURN)), np.zeros((count, found.velocity.shape[1])),
        )  # fmt: skip
        uploads.changes[found.place] = found.change
        uploads.scores[found.place] = np.where(found.scored, found.score, 0.0)
        uploads.velocity[found.place] = found.velocity
        return uploads

    def answers(self, which: np.ndarray, round_index: int) -> np.ndarray:
        """(n,) whether each of these agents can be asked."""
        return self.allowed(which) & self.agents.answers(which, round_index)

    def losses(self, which: np.ndarray, params: np.ndarray, **options: Any) -> np.ndarray:
        """(n,) the risks at a model; NaN where there is no answer, or none that is finite."""
        return self._ask("losses", which, params, **options)

    def gradients(self, which: np.ndarray, params: np.ndarray, **options: Any) -> np.ndarray:
        """(n, M) the gradients of the risks; NaN as for `losses`."""
        return self._ask("gradients", which, params, **options)

    def sampled_losses(
        self, which: np.ndarray, params: np.ndarray, round_index: int, **options: Any
    ) -> np.ndarray:
        """(n,) the losses of single examples; NaN as for `losses`."""
        return self._ask("sampled_losses", which, params, round_index, **options)

    def _ask(self, name: str, which: np.ndarray, params: np.ndarray, *more: Any, **options: Any):
        which = np.asarray(which, np.int64)
        asked = self.allowed(which)
        models = params if params.ndim == 1 else params[asked]
        found = getattr(self.agents, name)(which[asked], models, *more, **options)
        answers = np.full((which.size, *found.shape[1:]), np.nan)
        answers[asked] = found
        answers[~np.isfinite(answers).reshape(which.size, -1).all(axis=1)] = np.nan
        return answers

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs, and the final report."""
        return {**self.standing.state(), **self.responses.state()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state."""
        self.standing.restore(state)
        self.responses.restore(state)


def _of_all(timing: Timing | None, asked: np.ndarray) -> Timing:
    """The timing of those who were asked, with an entry for everybody of the cohort."""
    whole = Timing.unknown(asked.size)
    if timing is None:
        return whole
    whole.seconds[asked], whole.late[asked] = timing.seconds, timing.late
    return whole._replace(patient=timing.patient)
