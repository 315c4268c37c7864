"""The cloud among agents that may be absent, wrong or hostile, and that may itself be killed.

It adds to `Cloud` what a network needs: weights for absences, checks of what comes up, and a
state of a few arrays from which another process goes on. It still knows nothing of the network.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isfed.base.streams import Purpose, stream_key
from isfed.federation.absences import Absences, Responses
from isfed.federation.agent import SampledMethod, Upload
from isfed.federation.cloud import Cloud, Selection
from isfed.federation.trust import (
    ScoreRange,
    check_most_inclusion,
    default_most_inclusion,
    limit_inclusion,
)
from isfed.sampling.policies import Initial, Refresh


@dataclass(frozen=True, kw_only=True)
class Safety:
    """How the cloud treats absences and scores; `most_inclusion` None means the default cap."""

    absences: Absences = Absences.DROP
    scores: ScoreRange = field(default_factory=ScoreRange)
    most_inclusion: float | None = None
    largest_change: float = 1e12  # a longer one is refused: it could overflow the model


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round."""

    round_index: int
    drawn: int
    answered: int  # with a change that was accepted
    refused_changes: int
    refused_scores: int
    limited_scores: int  # lowered to keep an agent within the cap
    step: float  # length of the cloud's step
    left_out: float  # length of what `adjusted` would have added to a step of `drop`

    def line(self) -> str:
        """For a log."""
        text = f"round {self.round_index + 1}: {self.answered} of {self.drawn} answered"
        text += f", step {self.step:.3g}" if self.answered else ", nobody: the model stays as it is"
        for count, what in (
            (self.refused_changes, "refused models"),
            (self.refused_scores, "refused scores"),
            (self.limited_scores, "scores lowered to the cap"),
        ):
            text += f", {count} {what}" if count else ""
        return text


class Coordinator:
    """A cloud that draws, checks, aggregates and remembers; `round_index` is the next round."""

    def __init__(
        self,
        algorithm: SampledMethod,
        initial: np.ndarray,
        *,
        num_agents: int,
        seed: int = 0,
        safety: Safety | None = None,
    ) -> None:
        check_for_network(algorithm, num_agents)
        self.algorithm = algorithm
        self.num_agents = num_agents
        self.seed = seed
        self.safety = safety or Safety()
        most = self.safety.most_inclusion
        if most is None:
            most = default_most_inclusion(num_agents, algorithm.num_active)
        check_most_inclusion(most, num_agents=num_agents, num_active=algorithm.num_active)
        self.most_inclusion = most
        self.cloud = Cloud(
            initial, num_agents, algorithm.num_active, algorithm.agents, algorithm.agent_design
        )
        self.cloud.key = stream_key(seed, repetition=0, purpose=Purpose.AGENTS)
        self.examples_key = stream_key(seed, repetition=0, purpose=Purpose.EXAMPLES)
        self.responses = Responses(num_agents)
        self.round_index = 0
        self.job = uuid.uuid4().hex  # agents begin anew when it changes
        self.refused = np.zeros(num_agents, np.int64)  # changes and scores, per agent
        self._limited = 0

    @property
    def params(self) -> np.ndarray:
        """The model."""
        return self.cloud.params

    def select(self) -> Selection:
        """The agents of the next round; asked twice, the same."""
        if self.algorithm.agents.learns:
            self._limited += limit_inclusion(
                self.cloud.table, self.algorithm.num_active, self.most_inclusion
            )
        return self.cloud.select(self.round_index)

    def close(self, selection: Selection, uploads: Sequence[Upload | None]) -> RoundReport:
        """End the round with one upload per agent selected, None for an absent one."""
        checked = [self._checked(upload) for upload in uploads]
        answered = np.array([upload is not None for upload in checked], dtype=bool)
        given = np.array([upload is not None for upload in uploads], dtype=bool)
        refused_changes = given & ~answered
        kept = [upload for upload in checked if upload is not None]
        weights = self.responses.inverse_rates(selection.active)[answered]
        here = Selection(*(column[answered] for column in selection))
        adjusted = here._replace(times=here.times * weights)
        before = self.cloud.params
        if kept:
            adjusts = self.safety.absences is Absences.ADJUSTED
            changes = np.array([upload.change for upload in kept])
            self.cloud.aggregate(adjusted if adjusts else here, changes)
        extra = [w * u.change for w, u in zip(adjusted.times - here.times, kept, strict=True)]
        accepted = np.array([self.safety.scores.accepts(u.score) for u in kept], dtype=bool)
        if accepted.any():
            scores = np.array([u.score for u in kept])[accepted]
            self.cloud.refresh(Selection(*(column[accepted] for column in here)), scores)
        self.responses.record(selection.active, answered)
        self.refused[selection.active[refused_changes]] += 1
        self.refused[here.active[~accepted]] += 1
        report = RoundReport(
            round_index=self.round_index,
            drawn=len(uploads),
            answered=len(kept),
            refused_changes=int(refused_changes.sum()),
            refused_scores=int((~accepted).sum()),
            limited_scores=self._limited,
            step=float(np.linalg.norm(self.cloud.params - before)),
            left_out=float(np.linalg.norm(sum(extra))) / self.algorithm.num_active,
        )
        self._limited = 0
        self.round_index += 1
        return report

    def _checked(self, upload: Upload | None) -> Upload | None:
        """The upload if its change can be added to the model."""
        if upload is None or upload.change.shape != self.params.shape:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            length = np.linalg.norm(upload.change)
        return upload if length <= self.safety.largest_change else None  # NaN is refused too

    def fingerprint(self) -> str:
        """What a checkpoint must agree with: all that decides the draws and the steps."""
        parts = (self.algorithm, self.num_agents, self.seed, self.safety, self.params.shape)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs; the draws need no more than the seed and the round."""
        return {
            "fingerprint": np.array(self.fingerprint()),
            "job": np.array(self.job),
            "round_index": np.array(self.round_index),
            "params": self.cloud.params,
            "nodes": self.cloud.table.nodes,
            "refused": self.refused,
            **self.responses.state(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state of the same job."""
        if str(state["fingerprint"]) != self.fingerprint():
            raise ValueError(
                "the checkpoint belongs to another algorithm, seed, number of agents or model; "
                "give the same ones to continue it, or another path to begin anew"
            )
        self.job = str(state["job"])
        self.round_index = int(state["round_index"])
        self.cloud.params = state["params"].copy()
        self.cloud.table.nodes = state["nodes"].copy()
        self.refused = state["refused"].copy()
        self.responses.restore(state)


def check_for_network(algorithm: SampledMethod, num_agents: int) -> None:
    """Raise a ValueError for choices that need what nobody has when agents are apart."""
    if algorithm.num_active > num_agents:
        raise ValueError(f"num_active={algorithm.num_active} exceeds num_agents={num_agents}")
    for what, policy in (("agents", algorithm.agents), ("examples", algorithm.examples)):
        if policy.initial == Initial.OPTIMUM:
            raise ValueError(
                f"{what}={policy.name} needs the optimum, which nobody has; use memory"
            )
    if algorithm.agents.refresh == Refresh.ALL:
        raise ValueError("agents=current asks every agent in every round; use memory or running")
    if algorithm.drift > 0.0:
        raise ValueError(f"drift={algorithm.drift} moves the truth, which only a simulation can")
