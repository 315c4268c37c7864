"""The cloud among agents that may be absent, wrong or hostile, and that may itself be killed.

It adds to `Cloud` what a network needs: weights for absences, checks of what comes up, and a
state of a few arrays from which another process goes on. It still knows nothing of the network.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from isfed.base import files
from isfed.base.arithmetic import norm
from isfed.base.checks import check_active
from isfed.base.streams import Purpose, stream_key
from isfed.federation.absences import Absences, Responses
from isfed.federation.agent import Agent, SampledMethod, Upload, local_step
from isfed.federation.apart import MeanMemory, Terms
from isfed.federation.cloud import Cloud, Selection, mean_buffers
from isfed.federation.correction import make_rule
from isfed.federation.reports import RoundReport, Timing
from isfed.federation.safety import Safety
from isfed.federation.standing import Standing, trained_length
from isfed.federation.trust import (
    check_most_inclusion,
    default_most_inclusion,
    limit_inclusion,
)
from isfed.sampling.designs import Spread
from isfed.sampling.policies import Initial, Refresh

Weighting = Literal["step", "change"]  # who divides by K p_k: the agent its step, the cloud the sum


class Coordinator:
    """A cloud that draws, checks, aggregates and remembers; `round_index` is the next round.

    With weighting="step" the agents divide their steps by K p_k, eq. (8); with "change" they take
    plain steps and the cloud divides the returned change by K p_k, so that an agent has no say in
    its weight.
    """

    def __init__(
        self,
        algorithm: SampledMethod,
        initial: np.ndarray,
        *,
        num_agents: int,
        seed: int = 0,
        safety: Safety | None = None,
        weighting: Weighting = "step",
        agent_weights: np.ndarray | None = None,
        buffers: np.ndarray | None = None,
    ) -> None:
        """`agent_weights` is (K,) with mean 1: what an agent counts in the objective.

        `buffers`, (M,), says which numbers of the model are not trained, such as running variances.
        """
        check_for_network(algorithm, num_agents)
        if weighting not in get_args(Weighting):
            raise ValueError(f"weighting={weighting!r} must be 'step' or 'change'")
        self.algorithm = algorithm
        self.num_agents = num_agents
        self.seed = seed
        self.weighting = weighting
        self.agent_weights = check_weights(agent_weights, num_agents, weighting)
        self.safety = safety or Safety()
        most = self.safety.most_inclusion
        if most is None:
            most = default_most_inclusion(num_agents, algorithm.num_active)
        check_most_inclusion(most, num_agents=num_agents, num_active=algorithm.num_active)
        self.most_inclusion = most
        self.buffers = np.zeros(initial.size, bool) if buffers is None else buffers
        if self.buffers.any() and self.safety.privacy is not None:
            raise ValueError(
                "privacy adds noise to the whole model, and a running variance could become "
                "negative: use a module without buffers, e.g. with group norm instead of batch norm"
            )
        self.memory = self._mean_memory(initial)
        self.cloud = Cloud(
            initial, num_agents, algorithm.num_active, algorithm.agents, algorithm.agent_design
        )
        self.cloud.key = stream_key(seed, repetition=0, purpose=Purpose.AGENTS)
        self.examples_key = stream_key(seed, repetition=0, purpose=Purpose.EXAMPLES)
        self.responses = Responses(num_agents)
        self.standing = Standing(num_agents)
        self.round_index = 0
        self.job = uuid.uuid4().hex  # agents begin anew when it changes
        self._limited = 0
        # From the system's entropy: whoever knows the seed must not know the noise, nor which
        # rounds are patient.
        self.rng = np.random.default_rng()
        self._patient: tuple[int, bool] = (-1, True)

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

    def told_prob(self, selection: Selection) -> list[float | None]:
        """The p_k by which every agent divides its step; None where the cloud will divide."""
        if self.weighting == "step":
            return selection.agent_prob.tolist()
        return [None] * len(selection.active)

    def waits_for_all(self) -> bool:
        """Whether the next round waits for late answers; a coin that agents cannot foresee."""
        if self._patient[0] != self.round_index:
            patient = self.safety.enough >= 1.0 or self.rng.random() < self.safety.patience
            self._patient = (self.round_index, patient)
        return self._patient[1]

    def close(
        self,
        selection: Selection,
        uploads: Sequence[Upload | None],
        timing: Timing | None = None,
    ) -> RoundReport:
        """End the round with one upload per agent selected, None for an absent one."""
        timing = timing or Timing.unknown(len(uploads))
        asked = ~self.standing.excluded[selection.active]
        given = np.array([upload is not None for upload in uploads], dtype=bool) & asked
        answered = given & self._accepted(selection, uploads, given)
        kept = [upload for upload, good in zip(uploads, answered, strict=True) if upload and good]
        here = Selection(*(column[answered] for column in selection))
        plain, adjusted = self._weights(here, timing.late[answered])
        before = self.cloud.params
        weights = adjusted if self.safety.absences is Absences.ADJUSTED else plain
        clipped, scores = self._step(here, weights, kept)
        if kept and self.buffers.any():
            self._average_buffers(before, here, weights, kept)
        trained = ~self.buffers
        extra = [w * u.change[trained] for w, u in zip(adjusted - plain, kept, strict=True)]
        scored = np.array([self.safety.scores.accepts(u.score) for u in kept], dtype=bool)
        if self.agent_weights is not None:  # who counts more is worth hearing more often
            scores = scores * self.agent_weights[here.active]
        if scored.any():
            self.cloud.refresh(Selection(*(column[scored] for column in here)), scores[scored])
        if timing.patient:  # otherwise a missing one might have answered
            self.responses.record(selection.active[asked], answered[asked])
        self.standing.refused[here.active[~scored]] += 1
        self._exclude()
        seconds = np.where(given, timing.seconds, np.nan)
        self.standing.clock(selection.active, seconds)
        report = RoundReport(
            round_index=self.round_index,
            drawn=len(uploads),
            answered=len(kept),
            late=int((timing.late & answered).sum()),
            refused_changes=int((given & ~answered).sum()),
            refused_scores=int((~scored).sum()),
            limited_scores=self._limited,
            clipped=clipped,
            excluded=int(self.standing.excluded.sum()),
            step=norm((self.cloud.params - before)[trained]),
            left_out=norm(sum(extra)) / self.algorithm.num_active,
            agents=selection.active.tolist(),
            seconds=np.nan_to_num(seconds, nan=-1.0).tolist(),
        )
        self._limited = 0
        self.round_index += 1
        return report

    def _accepted(
        self, selection: Selection, uploads: Sequence[Upload | None], given: np.ndarray
    ) -> np.ndarray:
        """Whose change can be added to the model."""
        lengths = np.array([self._length(upload) for upload in uploads])
        good = given & (lengths <= self.safety.largest_change)  # NaN is refused too
        if self.weighting == "step":  # what the change would be without the agent's weight
            lengths = lengths * (self.num_agents * selection.agent_prob)
        places = np.flatnonzero(good)
        good[places] = ~self.standing.too_long(
            selection.active[places], lengths[places], ratio=self.safety.largest_ratio
        )
        self.standing.record(selection.active[given], lengths[given], good[given])
        return good

    def _length(self, upload: Upload | None) -> float:
        """Of a change; NaN for one of another shape, or that is not finite."""
        if upload is None or upload.change.shape != self.params.shape:
            return np.nan
        return trained_length(upload.change, self.buffers)

    def _weights(self, here: Selection, late: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What every change is multiplied by: without and with an adjustment for absences."""
        plain = here.times
        if self.weighting == "change":
            plain = plain / (self.num_agents * here.agent_prob)  # eq. (8), in the cloud's hands
        if self.agent_weights is not None:
            plain = plain * self.agent_weights[here.active]
        # A late answer is seen in a patient round only: E[1{patient} / patience] = 1, whatever
        # made the agent late.
        plain = np.where(late, plain / self.safety.patience, plain)
        most = self.safety.largest_adjustment
        return plain, plain * self.responses.adjustments(here.active, most=most)

    def _mean_memory(self, initial: np.ndarray) -> MeanMemory | None:
        """For a correction; None without."""
        correction = getattr(self.algorithm, "memory", None)
        if correction is None:
            return None
        if self.weighting != "change" or self.agent_weights is not None:
            raise ValueError(
                "a correction needs weighting='change' and agents that count the same: leave "
                "agent_weights out"
            )
        if self.safety.privacy is not None:
            raise ValueError(
                "a correction and privacy do not go together: what is clipped would be remembered; "
                "leave correction out"
            )
        rule = make_rule(correction, self.algorithm.agents)
        memory = MeanMemory(rule, self.num_agents, initial.size)
        memory.buffers = self.buffers
        return memory

    def terms(self, agent: int) -> Terms | None:
        """What to tell an agent about the correction; None without."""
        return None if self.memory is None else self.memory.terms(agent)

    def _step(
        self, here: Selection, weights: np.ndarray, kept: Sequence[Upload]
    ) -> tuple[int, np.ndarray]:
        """Move the model; how many changes were clipped, and the scores of the agents heard."""
        scores = np.array([u.score for u in kept])
        if self.memory is not None:
            heard = 1.0  # adjusted, what arrives stands for all: c counts also if nobody answered
            if self.safety.absences is Absences.DROP:
                drawn = weights * (self.num_agents * here.agent_prob)
                heard = float(drawn.sum()) / self.algorithm.num_active
            self.cloud.params, scores = self.memory.absorb(
                self.params, float(self.algorithm.step_size), self.algorithm.num_active,
                self.round_index, here.active, weights, kept, heard,
            )  # fmt: skip
            return 0, scores
        if not kept:
            return 0, scores
        privacy, clipped = self.safety.privacy, 0
        if privacy is not None:
            factors = [privacy.factor(w * u.change) for w, u in zip(weights, kept, strict=True)]
            weights = weights * np.array(factors)
            clipped = sum(factor < 1.0 for factor in factors)
        changes = np.array([upload.change for upload in kept])
        self.cloud.aggregate(here._replace(times=weights), changes)
        if privacy is not None and privacy.noise > 0.0:
            size, active = self.params.size, self.algorithm.num_active
            noise = privacy.disturbance(size, num_active=active, rng=self.rng)
            self.cloud.params = self.cloud.params + noise
        return clipped, scores

    def _average_buffers(
        self, before: np.ndarray, here: Selection, weights: np.ndarray, kept: Sequence[Upload]
    ) -> None:
        """Set the buffers of the model, whatever the step has made of them."""
        counts = weights
        if self.weighting == "step":
            counts = weights / (self.num_agents * here.agent_prob)
        sent = np.array([upload.change[self.buffers] for upload in kept])
        params = self.params.copy()
        params[self.buffers] = mean_buffers(before[self.buffers], sent, counts)
        self.cloud.params = params

    def _exclude(self) -> None:
        """Leave out who was refused too often; a score of 0 keeps it from taking others' turns."""
        new = self.standing.exclude(self.safety.most_refusals)
        if new.size and self.algorithm.agents.learns:
            self.cloud.table.refresh(new, np.zeros(new.size))

    def fingerprint(self) -> str:
        """What a checkpoint must agree with: all that decides the draws and the steps."""
        parts = (
            self.algorithm, self.num_agents, self.seed, self.safety, self.weighting,
            self.params.shape,
        )  # fmt: skip
        if self.agent_weights is not None:
            parts = (*parts, self.agent_weights.tolist())
        if self.buffers.any():
            parts = (*parts, np.flatnonzero(self.buffers).tolist())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def state(self) -> dict[str, np.ndarray]:
        """What the next round needs; the draws need no more than the seed and the round."""
        return {
            "fingerprint": np.array(self.fingerprint()),
            "job": np.array(self.job),
            "round_index": np.array(self.round_index),
            "params": self.cloud.params,
            "nodes": self.cloud.table.nodes,
            **self.standing.state(),
            **self.responses.state(),
            **({} if self.memory is None else self.memory.state()),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a state of the same job."""
        if str(state.get("fingerprint")) != self.fingerprint():
            raise ValueError(
                "the checkpoint belongs to another algorithm, seed, number of agents or model; "
                "give the same ones to continue it, or another path to begin anew"
            )
        files.check_form(state, self.state(), what="the checkpoint")
        self.job = str(state["job"])
        self.round_index = int(state["round_index"])
        self.cloud.params = state["params"].copy()
        self.cloud.table.nodes = state["nodes"].copy()
        self.standing.restore(state)
        self.responses.restore(state)
        if self.memory is not None:
            self.memory.restore(state)


def check_weights(given: Any, num_agents: int, weighting: Weighting) -> np.ndarray | None:
    """(K,) weights of the agents in the objective with mean 1; None where all are equal."""
    if given is None:
        return None
    weights = np.asarray(given, dtype=np.float64)
    good = weights.shape == (num_agents,) and bool(np.isfinite(weights).all())
    if not good or weights.min() < 0.0 or not weights.sum() > 0.0:
        raise ValueError(
            f"agent_weights must be {num_agents} numbers >= 0, one per agent, and not all 0; got "
            f"shape {weights.shape}"
        )
    if weighting == "step":
        raise ValueError(
            "agent_weights are in the cloud's hands: use weighting='change', which is the default "
            "of flower.Strategy"
        )
    return weights / weights.mean()


def take_turn(
    agent: Agent, params: np.ndarray, told_prob: float | None, round_index: int
) -> Upload:
    """A turn with the step that the cloud asks for: divided by K p_k, or plain."""
    step = local_step(agent.rules, agent.local_steps, told_prob)
    return agent.take_turn(params, step, round_index)


def check_not_around(algorithm: Any) -> None:
    """Raise a ValueError for a method around another one: the rounds here are not the method's."""
    inside = algorithm
    while hasattr(inside, "algorithm"):
        inside = inside.algorithm
    if inside is not algorithm:
        name = type(inside).__name__
        raise ValueError(
            f"{type(algorithm).__name__} around {name} works in simulations only: over a network "
            "the step size is the same in every round, and the cloud adds the round's update as it "
            f"is; give {name}(). A training function of your own (own_turn) can choose its step "
            "size from config['server-round']"
        )


def check_for_network(algorithm: SampledMethod, num_agents: int) -> None:
    """Raise a ValueError for choices that need what nobody has when agents are apart."""
    check_not_around(algorithm)
    check_active(algorithm.num_active, num_agents)
    for what, policy in (("agents", algorithm.agents), ("examples", algorithm.examples)):
        if policy.initial == Initial.OPTIMUM:
            raise ValueError(
                f"{what}={policy.name} needs the solution w^o, which is not known in practice; "
                "use memory"
            )
    if algorithm.agents.refresh == Refresh.ALL:
        raise ValueError("agents=current asks every agent in every round; use memory or running")
    if isinstance(algorithm.agent_design, Spread):
        raise ValueError("agent_design=Spread() works in simulations only; use e.g. Deville()")
    for option in ("costs", "average"):
        if getattr(algorithm, option, False):
            raise ValueError(f"{option}= works in simulations only; leave it out")
    if getattr(algorithm, "absences", "drop") != "drop":
        raise ValueError(
            "absences='adjusted' is for a simulation; here: Safety(absences=Absences.ADJUSTED)"
        )
    weights = getattr(algorithm, "client_weights", "uniform")
    if weights != "uniform":
        raise ValueError(
            f"client_weights={weights!r} is for simulations, where the cloud knows the sizes; over "
            "a network: Strategy(agent_weights=[...]), one number per agent, e.g. its examples"
        )
    if getattr(algorithm, "full_batch", False):
        raise ValueError("full_batch=True is for simulations; here: batch_size=N_k and Deville()")
    if algorithm.drift > 0.0:
        raise ValueError(
            f"drift={algorithm.drift} moves the true model, which only a simulation can do; "
            "use drift=0"
        )
