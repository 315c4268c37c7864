"""What the cloud and its agents tell each other in a round, wherever the agents are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from isfed.federation.compiled_turn import StepRule

EVERY = slice(None)  # the places of a cohort in which everybody answered
NOTHING_MORE: frozenset[str] = frozenset()
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
    """What comes back, in the order of the turns.

    Attributes:
        changes: (n, M) local model minus the one it was sent.
        scores: (n,) what the agents report for the cloud's policy; zero if it asks for nothing.
        gradients: (n,) example gradients computed.
        watch: (n, 4) telemetry of the turns, see `isfed.sampling.telemetry`.
        velocity: (n, M) momentum at the end of the turn; (n, 0) without momentum.
    """

    changes: np.ndarray
    scores: np.ndarray
    gradients: np.ndarray
    watch: np.ndarray
    velocity: np.ndarray


@dataclass(frozen=True, eq=False)
class LocalOptions:
    """How an agent steps; everything off is a plain step of mini-batch gradient descent.

    Args:
        steps: (n,) local steps of every turn; None for the problem's `local_steps`.
        prox: weight of the pull (x - w) towards the model that was sent.
        momentum: the heavy-ball momentum.
        nesterov: whether the momentum has Nesterov's form.
        full_batch: all examples in every step.
        correction: (n, M) vectors added to every gradient of a turn; for networks, at least the
            trained entries.
        velocity: (n, M) momentum at the start of the turn; zero unless given.
        timed: whether these turns make one synchronous round of the virtual clock; a method with a
            schedule of its own says no and calls `elapse`.
        silent: whether the agents go on from where they are, so that nothing is sent down or up.
        sent: whether the agents have the model already, so that nothing is sent down.
        batch: examples of every drawn step; None for the problem's `batch_size`.
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

    @cached_property
    def rule(self) -> StepRule:
        """The same as numbers, for compiled code."""
        corrected = self.correction is not None
        return StepRule(
            float(self.prox), float(self.momentum), self.nesterov, corrected, self.full_batch
        )

    def but(self, **changed: Any) -> LocalOptions:
        """The same with some fields changed; `dataclasses.replace` takes four times as long."""
        made = object.__new__(LocalOptions)
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("rule", None)  # is made anew
        made.__dict__.update(changed)
        return made

    def rows(self, places: Any) -> LocalOptions:
        """The same for some of the turns."""
        columns = ("steps", "correction", "velocity")
        cut = {name: getattr(self, name) for name in columns if getattr(self, name) is not None}
        return self.but(**{name: rows[places] for name, rows in cut.items()}) if cut else self


PLAIN_LOCAL = LocalOptions()


class Facts(NamedTuple):
    """What the cloud knows of its agents before the first round.

    Attributes:
        num_agents: K.
        num_params: M.
        num_trained: how many of the first entries of the model are trained; the rest are buffers.
        weight: (K,) K c_k, what an agent counts in the objective; None where all count the same.
        sizes: (K,) N_k. This and what follows is None where only the agents know it.
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
        """(K,) c_k in some unit: N_k where they are known, which add without rounding."""
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
        num: L, the draws that were asked for.
        times: (n,) how often each was drawn; 1 without replacement.
        prob: (n,) p_k, the inclusion probability divided by L; None where a sampler has none.
        floor: the uniform share of the probabilities that were used.
        has_model: whether the sampler asked these agents something, so that they have the model.
        steps: (n,) how many local steps each has time for; None where all take what they are asked
            for.
        chances: (K,) the inclusion probabilities of all agents, where draws are independent and
            the probabilities public, so that privacy can be stated; None otherwise.
    """

    agents: np.ndarray
    num: int
    times: np.ndarray
    prob: Any = None
    floor: float = 0.0
    has_model: bool = False
    steps: np.ndarray | None = None
    chances: np.ndarray | None = None

    def rows(self, places: Any) -> Cohort:
        """Some agents of the cohort."""
        prob = None if self.prob is None else self.prob[places]
        return self._replace(agents=self.agents[places], times=self.times[places], prob=prob)


class Work(NamedTuple):
    """What is asked of each agent of a cohort.

    Attributes:
        step_size: mu, one for all, or (n,) one for each.
        divide: whether every agent divides its step by its number of local steps, as in eq. (8).
        prob: (n,) p_k where every agent divides its step by K p_k too; None where the cloud weighs.
        scale: (n,) what every step is multiplied by; None for 1.
        local: how the agents step.
        also: what else they send: "loss" and "gradient" of their risk at the model they were sent.
        extra: messages of a turn beyond one model down and one change up, by entry of the ledger.
        control: what agents with control variates of their own are told, see
            `isfed.federation.remote_variates`.
    """

    step_size: Any
    divide: bool = False
    prob: np.ndarray | None = None
    scale: np.ndarray | None = None
    local: LocalOptions = PLAIN_LOCAL
    also: frozenset[str] = NOTHING_MORE
    extra: Mapping[str, int] = NO_MESSAGES
    control: Any = None

    def steps(self, agents: np.ndarray, facts: Facts) -> np.ndarray:
        """(n,) how many local steps each agent takes."""
        return facts.local_steps[agents] if self.local.steps is None else self.local.steps

    def step(self, agents: np.ndarray, facts: Facts) -> np.ndarray:
        """(n,) the size of a local step of each agent, eq. (8)."""
        divisor: Any = self.steps(agents, facts) if self.divide else 1
        if self.prob is not None:
            divisor = divisor * facts.num_agents * self.prob
        step = self.step_size / divisor
        if self.scale is not None:
            step = step * self.scale
        if isinstance(step, np.ndarray):
            return step
        out = np.empty(agents.size)
        out.fill(step)
        return out

    def reach(self, agents: np.ndarray, facts: Facts) -> Any:
        """The size of all local steps together before any weight, one for all or (n,).

        None where only the agents know how many steps they take.
        """
        if self.divide:
            return self.step_size
        if self.local.steps is None and facts.local_steps is None:
            return None
        return self.step_size * self.steps(agents, facts)

    def rows(self, places: Any) -> Work:
        """What is asked of some agents of the cohort; `places` is a slice, a mask or places."""
        own: dict[str, Any] = {"local": self.local.rows(places)}
        for name in ("step_size", "prob", "scale"):
            values = getattr(self, name)
            own[name] = values[places] if isinstance(values, np.ndarray) else values
        if self.control is not None:
            own["control"] = self.control.rows(places)
        return self._replace(**own)


class Timing(NamedTuple):
    """When the answers of a round came, one entry per agent drawn."""

    seconds: np.ndarray  # NaN: no answer, or nobody measured
    late: np.ndarray  # after `enough` others had answered
    patient: bool  # the round waited for the late ones too

    @classmethod
    def unknown(cls, count: int) -> Timing:
        """Nobody looked at a clock, and everybody was waited for."""
        return cls(np.full(count, np.nan), np.zeros(count, bool), True)


class Updates(NamedTuple):
    """What came back, of those that answered.

    Attributes:
        place: where they stand in the cohort: places, or `EVERY`.
        change: (m, M) their models minus the one that was sent.
        score: (m,) what they report for the sampler; zero if it asks for nothing.
        watch: (m, 4) telemetry of the turns, see `isfed.sampling.telemetry`.
        velocity: (m, M) momentum at the end of the turns; (m, 0) without momentum.
        loss: (m,) the risks at the model that was sent, if they were asked for.
        gradient: (m, M) the gradients of these risks, likewise.
        factor: what absences make a change weigh, 1 or (m,).
        complete: whether these factors make up for all absences.
        agreement: (m,) with control variates at the agents, the inner products of what was new in
            this turn and in the last one that was accepted.
        scored: which of these scores can be believed.
        asked: (n,) who of the cohort was asked at all; None for everybody.
        excluded: places in the cohort of agents that nobody will ask again.
        timing: when the answers came, one entry per agent of the cohort; None where everybody that
            is there answers at once.
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
    agreement: np.ndarray | None = None
    scored: Any = EVERY
    asked: np.ndarray | None = None
    excluded: np.ndarray | None = None
    timing: Timing | None = None

    def silent(self) -> np.ndarray:
        """Places in the cohort of those that were asked and gave no answer that could be used.

        Nobody's in a round that did not wait for all: a missing one might have answered.
        """
        if self.asked is None or (self.timing is not None and not self.timing.patient):
            return np.empty(0, np.int64)
        silent = self.asked.copy()
        silent[self.place] = False
        return np.flatnonzero(silent)
