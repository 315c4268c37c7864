"""The messages of a round between the cloud and its agents, in one process or over a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from isfed.federation.compiled_turn import StepRule
from isfed.sampling.telemetry import TURN

EVERY = slice(None)  # the index of all agents of a cohort, if all of them answered
NOTHING_MORE: frozenset[str] = frozenset()
NOISE_SHARE = "noise-share"  # in `Work.also`: what a turn leaves of the variance of one example
NO_MESSAGES: Mapping[str, int] = {}


class TrainRequest(NamedTuple):
    """Who works in a round, from which model, and with which step size.

    Attributes:
        agents: (n,) whole numbers, each agent at most once.
        params: (M,) one model for all, or (n, M) one for each.
        step: (n,) the step size of each turn, weights and divisions included.
    """

    agents: np.ndarray
    params: np.ndarray
    step: np.ndarray


class Uploads(NamedTuple):
    """What the agents return, in the order of the turns.

    Attributes:
        changes: (n, M) each local model minus the model it started from.
        scores: (n,) what the agents report for the cloud's policy; zero if it needs no scores.
        gradients: (n,) the number of example gradients computed.
        watch: (n, 4) telemetry of the turns, see `isfed.sampling.telemetry`.
        velocity: (n, M) momentum at the end of the turn; (n, 0) without momentum.
    """

    changes: np.ndarray
    scores: np.ndarray
    gradients: np.ndarray
    watch: np.ndarray
    velocity: np.ndarray

    @classmethod
    def idle(cls, count: int, size: int) -> Uploads:
        """Of agents that took no step."""
        none, no = np.zeros(count), np.zeros(count, np.int64)
        return cls(np.zeros((count, size)), none, no, np.zeros((count, TURN)), np.empty((count, 0)))


@dataclass(frozen=True, eq=False)
class LocalOptions:
    """Options of local steps; the defaults are plain mini-batch gradient descent.

    Args:
        steps: (n,) local steps of every turn; None for the problem's `local_steps`.
        prox: weight of the pull (x - w) towards the model that was sent.
        momentum: the heavy-ball momentum.
        nesterov: whether the momentum has Nesterov's form.
        full_batch: whether every step uses all examples.
        correction: (n, M) vectors added to every gradient of a turn; for networks, at least the
            trained entries.
        velocity: (n, M) momentum at the start of the turn; zero unless given.
        timed: whether these turns advance the virtual clock by one synchronous round; a method
            with its own schedule sets it to False and calls `elapse`.
        silent: whether the agents continue from their own models, so that nothing is sent at all.
        sent: whether the agents have the model already, so that the cloud need not send it.
        batch: examples per step; None for the problem's `batch_size`.
    """

    steps: np.ndarray | None = None
    prox: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    full_batch: bool = False
    correction: np.ndarray | None = None
    velocity: np.ndarray | None = None
    timed: bool = True
    silent: bool = False
    sent: bool = False
    batch: int | None = None

    @property
    def rule(self) -> StepRule:
        """These options as numbers, for compiled code."""
        corrected = self.correction is not None
        return _step_rule(self.prox, self.momentum, self.nesterov, corrected, self.full_batch)

    @property
    def idle(self) -> bool:
        """Whether agents only answer questions: no step is taken and no change is sent."""
        return self.silent and self.steps is not None and not self.steps.any()

    @cached_property
    def with_model(self) -> LocalOptions:
        """The same for agents that have the model already."""
        return self if self.sent else self.but(sent=True)

    def but(self, **changed: Any) -> LocalOptions:
        """A copy with some fields changed; `dataclasses.replace` takes four times as long."""
        made = object.__new__(LocalOptions)
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("with_model", None)
        made.__dict__.update(changed)
        return made

    def rows(self, places: Any) -> LocalOptions:
        """The options of some of the turns."""
        columns = ("steps", "correction", "velocity")
        cut = {name: getattr(self, name) for name in columns if getattr(self, name) is not None}
        return self.but(**{name: rows[places] for name, rows in cut.items()}) if cut else self


@lru_cache(maxsize=64)
def _step_rule(
    prox: float, momentum: float, nesterov: bool, corrected: bool, full_batch: bool
) -> StepRule:
    return StepRule(float(prox), float(momentum), bool(nesterov), corrected, bool(full_batch))


PLAIN_LOCAL = LocalOptions()


class Facts(NamedTuple):
    """What the cloud knows of its agents before the first round.

    Attributes:
        num_agents: K.
        num_params: M.
        num_trained: M', the number of trained entries, which come first; the others are buffers.
        weight: (K,) K c_k, the weights in the objective times K; None where they are equal.
        sizes: (K,) N_k; like the next two, None where only the agents know it.
        local_steps: (K,) E_k.
        batch_size: (K,) B_k.
    """

    num_agents: int
    num_params: int
    num_trained: int
    weight: np.ndarray | None
    sizes: Any
    local_steps: Any
    batch_size: Any

    def weighed(self, values: Any, agents: Any = EVERY) -> Any:
        """Values of agents times K c_k."""
        return values if self.weight is None else values * self.weight[agents]

    @property
    def mass(self) -> Any:
        """(K,) c_k in some unit: N_k if known, since whole numbers add without rounding."""
        return self.weight if self.sizes is None else self.sizes

    def counted(self, values: Any, agents: Any = EVERY) -> Any:
        """Values of agents times c_k in some unit."""
        return values if self.weight is None else values * self.mass[agents]

    def share(self, agents: Any = EVERY) -> np.ndarray:
        """(n,) c_k of these agents, which sum to 1 over all agents."""
        if self.weight is None:
            count = self.num_agents if agents is EVERY else agents.size
            return np.full(count, 1.0 / self.num_agents)
        return self.mass[agents] / self.mass.sum()


class Cohort(NamedTuple):
    """The agents drawn for a round, each listed once.

    Attributes:
        agents: (n,) their numbers.
        num: L, the intended number of draws.
        times: (n,) how often each was drawn; 1 without replacement.
        prob: (n,) p_k, the inclusion probability divided by L; None if the sampler has none.
        floor: the share of uniform probability in these p_k.
        has_model: whether these agents have the model already, since the sampler asked them
            something about it.
        steps: (n,) how many local steps each has time for; None if there is no such limit.
        chances: (K,) the inclusion probabilities of all agents, where draws are independent and
            the probabilities public, so that privacy can be stated; None otherwise.
        lowered: how many scores were lowered for it, to keep agents within the cap on inclusion.
    """

    agents: np.ndarray
    num: int
    times: np.ndarray
    prob: Any = None
    floor: float = 0.0
    has_model: bool = False
    steps: np.ndarray | None = None
    chances: np.ndarray | None = None
    lowered: int = 0

    def rows(self, places: Any) -> Cohort:
        """Some agents of the cohort."""
        prob = None if self.prob is None else self.prob[places]
        return self._replace(agents=self.agents[places], times=self.times[places], prob=prob)


def weighted_local_step(
    step_size: Any, divisor: Any, num_agents: int, prob: Any, scale: Any
) -> Any:
    """The size of a local step, eq. (8); without p_k, the cloud divides by K p_k itself."""
    step = step_size / (divisor if prob is None else divisor * num_agents * prob)
    return step if scale is None else step * scale


class Work(NamedTuple):
    """The work that each agent of a cohort is to do.

    Attributes:
        step_size: mu, one for all, or (n,) one for each.
        divide: whether every agent divides its step by its number of local steps, as in eq. (8).
        prob: (n,) p_k if every agent divides its step by K p_k; None if the cloud weighs changes.
        scale: (n,) factors of the steps; None for 1.
        local: the options of the local steps.
        also: what else agents return: "loss", "gradient" of their risk at the model they were sent,
            or `NOISE_SHARE`.
        extra: messages of a turn beyond one model down and one change up, by entry of the ledger.
    """

    step_size: Any
    divide: bool = False
    prob: np.ndarray | None = None
    scale: np.ndarray | None = None
    local: LocalOptions = PLAIN_LOCAL
    also: frozenset[str] = NOTHING_MORE
    extra: Mapping[str, int] = NO_MESSAGES

    def steps(self, agents: np.ndarray, facts: Facts) -> np.ndarray:
        """(n,) how many local steps each agent takes."""
        return facts.local_steps[agents] if self.local.steps is None else self.local.steps

    def step(self, agents: np.ndarray, facts: Facts) -> np.ndarray:
        """(n,) the size of a local step of each agent, eq. (8)."""
        divisor = self.steps(agents, facts) if self.divide else 1
        step = weighted_local_step(self.step_size, divisor, facts.num_agents, self.prob, self.scale)
        if isinstance(step, np.ndarray):
            return step
        out = np.empty(agents.size)
        out.fill(step)
        return out

    def reach(self, agents: np.ndarray, facts: Facts) -> Any:
        """Step size times number of local steps, before any weight; one number or (n,).

        None where only the agents know how many steps they take.
        """
        if self.divide:
            return self.step_size
        if self.local.steps is None and facts.local_steps is None:
            return None
        return self.step_size * self.steps(agents, facts)

    def rows(self, places: Any) -> Work:
        """The work of some agents of the cohort; `places` is a slice, a mask or indices."""
        own: dict[str, Any] = {"local": self.local.rows(places)}
        for name in ("step_size", "prob", "scale"):
            values = getattr(self, name)
            own[name] = values[places] if isinstance(values, np.ndarray) else values
        return self._replace(**own)


class Timing(NamedTuple):
    """When the answers of a round came, one entry per agent drawn."""

    seconds: np.ndarray  # NaN if there was no answer or it was not timed
    late: np.ndarray  # whether it came after `enough` others had answered
    patient: bool  # whether the round waited for late answers too

    @classmethod
    def unknown(cls, count: int) -> Timing:
        """For rounds that are not timed and wait for all agents."""
        return cls(np.full(count, np.nan), np.zeros(count, bool), True)


class Updates(NamedTuple):
    """The updates of the agents that answered.

    Attributes:
        place: their indices in the cohort, or `EVERY`.
        change: (m, M) their models minus the one that was sent.
        score: (m,) what they report for the sampler; zero if it needs no scores.
        watch: (m, 4) telemetry of the turns, see `isfed.sampling.telemetry`.
        velocity: (m, M) momentum at the end of the turns; (m, 0) without momentum.
        loss: (m,) the risks at the model that was sent, if requested in `Work.also`.
        gradient: (m, M) the gradients of these risks, likewise.
        factor: 1 or (m,), factors of the changes that adjust for absences.
        complete: whether these factors make up for all absences.
        noise_share: (m,) what each turn leaves of the variance of one example, if requested in
            `Work.also`; NaN if an agent does not tell.
        scored: index of the scores that the sampler may learn from.
        asked: (n,) which agents of the cohort were asked at all; None for all.
        excluded: indices in the cohort of agents that will not be asked again.
        timing: when the answers came, one entry per agent of the cohort; None where
            answers take no time.
        most_factor: (m,) the largest factors, which cap the weights; None for no cap.
        capped: (m,) whose factor was lowered to that; None without a cap.
    """

    place: Any
    change: np.ndarray
    score: np.ndarray
    watch: np.ndarray
    velocity: np.ndarray
    loss: Any = None
    gradient: Any = None
    factor: Any = 1.0
    complete: bool = False
    noise_share: np.ndarray | None = None
    scored: Any = EVERY
    asked: np.ndarray | None = None
    excluded: np.ndarray | None = None
    timing: Timing | None = None
    most_factor: np.ndarray | None = None
    capped: np.ndarray | None = None

    def multiplied(self, by: np.ndarray) -> Updates:
        """The same with larger factors, up to the cap."""
        factor = self.factor * by
        if self.most_factor is None:
            return self._replace(factor=factor)
        above = factor > self.most_factor
        capped = above if self.capped is None else above | self.capped
        return self._replace(factor=np.minimum(factor, self.most_factor), capped=capped)

    def silent(self) -> np.ndarray:
        """Places in the cohort of those that were asked and gave no answer that could be used.

        Nobody's in a round that did not wait for all: a missing one might have answered.
        """
        if self.asked is None or (self.timing is not None and not self.timing.patient):
            return np.empty(0, np.int64)
        silent = self.asked.copy()
        silent[self.place] = False
        return np.flatnonzero(silent)
