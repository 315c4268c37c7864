"""The round, written once: a method is a sampler, local steps, an estimator and a server.

    sampler     draws the agents of a round, and learns from their reports
    local       says how the agents step
    estimator   combines the changes that agents return into one step
    server      applies the step to the model, and says which model is sent and which is shown

Each part owns its state, and the tuple of these states is the checkpoint. Only `open` may ask the
agents questions and only `train` makes them work. `close` talks to nobody: it computes the next
state from what was returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from isfed.base.argument_checks import check_fields
from isfed.federation.agent import AgentConfig
from isfed.federation.agents import Agents
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.methods.method_protocol import ClientWeights
from isfed.methods.part_checks import (
    PARTS,
    check_asked,
    check_combined,
    check_drawn,
    check_fit,
    check_moved,
    check_parts,
    check_state,
)
from isfed.methods.servers import Add
from isfed.sampling.policies import Policy
from isfed.sampling.telemetry import uniform_rows, watch_round


class Evidence(NamedTuple):
    """What the cloud learned in a round about each agent that answered.

    Attributes:
        score: (m,) how large its gradients are, for the sampler.
        change: (m, M) its model minus the one it was sent; -change / reach estimates its gradient.
        reach: (m,) the step size times the number of local steps; None if that is not known.
        clipped: how many changes were shortened for privacy.
        capped: how many weights an adjustment for absences would have made too large.
    """

    score: np.ndarray
    change: np.ndarray
    reach: np.ndarray | None = None
    clipped: int = 0
    capped: int = 0


equal_row = lru_cache(maxsize=8)(uniform_rows)  # the telemetry where all probabilities are equal
Drawn = tuple[Cohort, Any]  # a cohort, and the sampler's state after the draw
Combined = tuple[np.ndarray, Any, Evidence]  # the step, the estimator's new state, the evidence


class Opened(NamedTuple):
    """A round whose agents are drawn and have not worked yet."""

    cohort: Cohort
    sent: np.ndarray  # (M,) the model that the agents start from
    work: Work
    sampler: Any  # the sampler's state after the draw
    round_index: int = 0


class Info(NamedTuple):
    """Details of a round for telemetry and logs; no later round needs them."""

    cohort: Cohort
    updates: Updates
    evidence: Evidence


class State(NamedTuple):
    """All that the next round needs: the model, and the state of each part."""

    params: np.ndarray
    sampler: Any
    estimator: Any
    server: Any


class Sampler(Protocol):
    """The part that draws the agents of a round.

    Its attribute `reports` is a policy, which says what score agents report to it. It may also have
    `needs` and `gives`; `also`, what else rides in the replies (see `Work.also`); and `capped`,
    False if an agent may be drawn several times.
    """

    def init(self, facts: Facts, agents: Agents, params: np.ndarray) -> Any:
        """The state before the first round."""
        ...

    def draw(
        self, state: Any, facts: Facts, agents: Agents, params: np.ndarray, round_index: int
    ) -> Drawn:
        """The agents of a round; no other part may ask agents anything but to work."""
        ...

    def learn(
        self, state: Any, cohort: Cohort, updates: Updates, evidence: Evidence, facts: Facts,
        round_index: int,
    ) -> Any:  # fmt: skip
        """The state after a round."""
        ...


class Estimator(Protocol):
    """The part that combines the changes of a round into one step of the model."""

    def init(self, facts: Facts, params: np.ndarray) -> Any:
        """The state before the first round; empty for an estimator without memory."""
        return ()

    def ask(self, state: Any, cohort: Cohort, facts: Facts, work: Work) -> Work:
        """The work of each agent, with what this estimator adds to it; by default nothing."""
        return work

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        """(M',) the step of the trained part of the model, the new state, and the evidence."""
        ...

    def counts(self, cohort: Cohort, facts: Facts) -> np.ndarray:
        """(n,) the weights of the agents in a mean of buffers, in any unit."""
        ...


@dataclass(frozen=True)
class Federated:
    """A federated method as four parts; a part that needs what no other gives is refused.

    Args:
        sampler: draws the agents of a round.
        local: says how agents step.
        estimator: combines the changes that they return into one step.
        server: applies this step to the model.
        client_weights: c_k of the objective sum_k c_k P_k, "uniform" or by "size".
    """

    sampler: Any
    local: Any
    estimator: Any
    server: Any = field(default_factory=Add)
    client_weights: ClientWeights = "uniform"
    own_round: ClassVar[bool] = False  # True if a round is not just open, train and close

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in PARTS}
        check_parts(parts)
        check_fields(self)
        check_fit(parts, self.client_weights)

    @property
    def federated(self) -> Federated:
        return self

    @property
    def name(self) -> str:
        """The names of the parts' classes, without that of the plain server."""
        parts = (self.sampler, self.estimator, self.server)
        return ", ".join(type(part).__name__ for part in parts if not isinstance(part, Add))

    @cached_property
    def _promises_chances(self) -> bool:
        return "inclusion probabilities" in getattr(self.sampler, "gives", ())

    @cached_property
    def _also(self) -> frozenset[str]:
        """What the sampler wants to ride in the replies, see `Work.also`."""
        return getattr(self.sampler, "also", frozenset())

    @property
    def num_active(self) -> int:
        return self.sampler.num_active

    @property
    def step_size(self) -> Any:
        """mu; if it changes, that of the first round."""
        return self.local.at(0)

    def facts(self, agents: Agents) -> Facts:
        """What the cloud knows of its agents; it asks remote ones for E_k if a part needs it."""
        facts = agents.facts(self.client_weights)
        if facts.local_steps is None and getattr(self.estimator, "reads_steps", False):
            return facts._replace(local_steps=agents.local_steps)
        return facts

    @cached_property
    def reports(self) -> Policy:
        """What agents report: what the sampler wants, as the estimator refines it."""
        wanted = self.sampler.reports
        refine = getattr(self.estimator, "reports", None)
        return wanted if refine is None else refine(wanted)

    def rules(self, num_agents: int) -> AgentConfig:
        return self.local.rules(num_agents, self.reports)

    def start(self, agents: Agents, params: np.ndarray) -> State:
        facts = agents.facts(self.client_weights)  # agents cannot be asked before the first round
        trained = params[: facts.num_trained]
        num_active = getattr(self.sampler, "num_active", facts.num_agents)
        states = (
            self.sampler.init(facts, agents, params),
            self.estimator.init(facts, trained),
            self.server.init(trained, facts.num_agents / num_active),
        )
        for part, state in zip((self.sampler, self.estimator, self.server), states, strict=True):
            check_state(part, "init", state)
        return State(params.copy(), *states)

    def open(self, state: State, agents: Agents, round_index: int) -> Opened:
        """Draw a cohort and decide its work; may ask agents something and wait for answers."""
        facts = self.facts(agents)
        sent = self.server.send(state.server, state.params)
        pair = self.sampler.draw(state.sampler, facts, agents, sent, round_index)  # eq. (4)
        if round_index == 0:
            check_drawn(self.sampler, pair, facts)
        cohort, sampler = pair
        drawn, prob = cohort.agents.size, cohort.prob
        if prob is None:
            if self._promises_chances:
                raise ValueError(f"{type(self.sampler).__name__} gives inclusion probabilities, "
                                 "but its Cohort has no prob")  # fmt: skip
        elif prob.size != drawn:
            raise ValueError(
                f"{type(self.sampler).__name__} drew {drawn} agents, but prob has {prob.size} "
                "entries: give one for each agent drawn, inclusion / num_active"
            )
        work = self.local.work(cohort, facts, round_index)
        work = self.estimator.ask(state.estimator, cohort, facts, work)  # eq. (8)
        if round_index == 0:
            check_asked(self.estimator, work)
        if self._also:
            work = work._replace(also=work.also | self._also)
        return Opened(cohort, sent, work, sampler, round_index)

    def close(
        self, state: State, facts: Facts, opened: Opened, updates: Updates, round_index: int
    ) -> tuple[State, Info]:
        """The state after a round, from the updates of the agents."""
        cohort, trained = opened.cohort, facts.num_trained
        combined = self.estimator.combine(state.estimator, opened, updates, facts)  # eq. (9)
        if round_index == 0:
            check_combined(self.estimator, combined, facts)
        step, estimator, evidence = combined
        sampler = self.sampler.learn(
            opened.sampler, cohort, updates, evidence, facts, round_index
        )  # eqs. (52), (53)
        moved = self.server.move(state.server, state.params[:trained], step)
        if round_index == 0:
            check_moved(self.server, moved, facts)
            check_state(self.sampler, "learn", sampler)
            check_state(self.estimator, "combine", estimator)
        params, server = moved
        if trained < facts.num_params:
            params = np.concatenate([params, self._buffers(opened, updates, facts)])
        return State(params, sampler, estimator, server), Info(cohort, updates, evidence)

    def _buffers(self, opened: Opened, updates: Updates, facts: Facts) -> np.ndarray:
        """The mean of the returned buffers: entries without gradient, such as running variances."""
        cohort, before = opened.cohort, opened.sent[facts.num_trained :]
        counts = self.estimator.counts(cohort, facts) * np.ones(cohort.agents.size)
        counts = counts[updates.place] * updates.factor
        if not counts.sum() > 0.0:
            return before  # nobody answered
        # Weights 1/(K p_k) need not sum to L, and unnormalised they can make a variance negative.
        shares = counts / counts.sum()
        changes = updates.change[:, facts.num_trained :]
        return before + sum(share * row for share, row in zip(shares, changes, strict=True))

    def step(self, state: State, agents: Agents, round_index: int) -> tuple[State, Info]:
        """One round: open, let the agents work, close."""
        opened = self.open(state, agents, round_index)
        updates = agents.train(opened.cohort, opened.sent, opened.work, round_index)
        return self.close(state, self.facts(agents), opened, updates, round_index)

    def round(self, state: State, agents: Agents, round_index: int) -> State:
        return self.step(state, agents, round_index)[0]

    def model(self, state: State) -> np.ndarray:
        return self.server.show(state.server, state.params)

    def agent_prob(self, state: State, num_agents: int) -> np.ndarray:
        """(K,) p_k of the next round before any cap; empty if the sampler has none."""
        probabilities = getattr(self.sampler, "probabilities", None)
        return np.empty(0) if probabilities is None else probabilities(state.sampler, num_agents)

    def telemetry(self, facts: Facts, info: Info) -> np.ndarray | None:
        """Telemetry of the sampling; None where weights do not follow from probabilities."""
        cohort, updates, evidence = info
        if cohort.prob is None or evidence.reach is None:
            return None
        policy = getattr(self.sampler, "policy", None)
        even = (cohort.prob == 1.0 / facts.num_agents).all() if policy is None else policy.equal
        if even and self.local.examples.equal:
            return equal_row((), cohort.num)
        who = cohort.agents[updates.place]
        return watch_round(
            updates.watch, evidence.change, facts.local_steps[who] * facts.batch_size[who],
            evidence.reach, (cohort.prob[updates.place], cohort.times[updates.place]),
            (facts.num_agents, cohort.num, cohort.floor, getattr(self.sampler, "capped", True)),
        )  # fmt: skip


def composition_of(method: Any) -> Federated | None:
    """The parts of a method; None if it has its own round, even if it derives from parts."""
    composition = getattr(method, "federated", None)
    if composition is None or composition.own_round:
        return None
    for kind in type(method).__mro__:  # a subclass may override `round`
        if written := vars(kind).keys() & {"parts", "federated", "round"}:
            return None if written == {"round"} else composition
    return composition
