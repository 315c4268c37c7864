"""ISFedAvg, Algorithm 1 of the paper, as a record of choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from isfed.algorithms.algorithm import Plan
from isfed.base.checks import check_active, check_whole, is_number
from isfed.base.streams import Purpose
from isfed.federation.agent import Rules
from isfed.federation.agents import PLAIN_LOCAL, Agents, Local, Turns, Uploads
from isfed.federation.arrays import compiled_design, make_sampler, wants_norms
from isfed.federation.cloud import Cloud, Selection
from isfed.sampling.designs import Design, Deville, WithReplacement
from isfed.sampling.policies import Initial, Memory, Policy, Refresh, Table, compiled_policy
from isfed.sampling.telemetry import RoundWatch, uniform_rows


class ISFedAvgState(NamedTuple):
    """What the next round needs of the cloud; what the agents remember is theirs."""

    params: np.ndarray  # (M,) w_i
    agent_nodes: np.ndarray  # the table of the agents' scores
    shift: np.ndarray  # (M,) how far the true model has drifted; empty without drift
    watched: np.ndarray  # telemetry of the last round


@dataclass(frozen=True, kw_only=True)
class ISFedAvg:
    """Federated averaging under importance sampling of agents and of examples.

    The policies for agents and for examples can be combined freely, and so can the designs.

    >>> from isfed import Memory, Uniform
    >>> ISFedAvg(step_size=0.01, num_active=6, agents=Memory(floor=0.05), examples=Uniform()).name
    'ISFedAvg, memory agents, uniform examples'
    """

    step_size: float | Literal["auto"]  # mu; "auto": a stable one, chosen when the run begins
    num_active: int  # L
    agents: Policy = field(default_factory=Memory)
    examples: Policy = field(default_factory=Memory)
    agent_design: Design = field(default_factory=Deville)
    example_design: Design = field(default_factory=Deville)
    divide_by_steps: bool = True  # the 1/E_k of eq. (8)
    drift: float = 0.0  # standard deviation of the true model's random walk, per round
    label: str = ""

    def __post_init__(self) -> None:
        if self.step_size != "auto" and not (is_number(self.step_size) and self.step_size > 0.0):
            raise ValueError(f"step_size={self.step_size!r} must be a positive number or 'auto'")
        check_whole(self.num_active, name="num_active", least=1)
        if not (is_number(self.drift) and self.drift >= 0.0):
            raise ValueError(f"drift={self.drift!r} must be a number >= 0")
        if not isinstance(self.divide_by_steps, bool):
            raise ValueError(f"divide_by_steps={self.divide_by_steps!r} must be true or false")
        for name in ("agents", "examples"):
            if not isinstance(getattr(self, name), Policy):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a policy, e.g. Memory()")
        for name in ("agent_design", "example_design"):
            if not isinstance(getattr(self, name), Design) or isinstance(getattr(self, name), type):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a design, e.g. Deville()")

    @property
    def name(self) -> str:
        """How tables and figures call it."""
        if self.label:
            return self.label
        if self.agents.name == self.examples.name:
            return f"ISFedAvg, {self.agents.name}"
        return f"ISFedAvg, {self.agents.name} agents, {self.examples.name} examples"

    def rules(self, num_agents: int) -> Rules:
        """What the cloud tells every agent."""
        if self.step_size == "auto":
            raise ValueError(
                "step_size='auto' needs the data: give a number, e.g. stable_step_size(problem, "
                "algorithm)"
            )
        return Rules(
            num_agents=num_agents,
            step_size=self.step_size,
            examples=self.examples,
            example_design=self.example_design,
            agents=self.agents,
            divide_by_steps=self.divide_by_steps,
        )

    def plan(self) -> Plan | None:
        """The same as numbers, for the fused kernel; None if it does not know the designs."""
        known = (compiled_design(d) for d in (self.agent_design, self.example_design))
        if not (all(known) and compiled_policy(self.agents) and compiled_policy(self.examples)):
            return None
        agents = make_sampler(self.agents, self.agent_design)
        examples = make_sampler(self.examples, self.example_design)
        return Plan(
            step_size=float(self.step_size),
            num_active=int(self.num_active),
            divide_by_steps=self.divide_by_steps,
            drift=float(self.drift),
            agents=agents,
            examples=examples,
            scored=wants_norms(self.agents, self.examples),
            watched=not (agents.uniform and examples.uniform),
        )

    def start(self, agents: Agents, params: np.ndarray) -> ISFedAvgState:
        """The state before the first round."""
        check_active(self.num_active, agents.num_agents)
        table = Table(agents.num_agents, self.agents, self.agent_design)
        if self.agents.initial == Initial.OPTIMUM:
            table.replace(agents.scores_at(agents.optimum, charge=False))  # eq. (48)
        shift = np.zeros(params.size if self.drift > 0.0 else 0)
        watched = uniform_rows((), self.num_active)
        return ISFedAvgState(params.copy(), table.nodes, shift, watched)

    def round(self, state: ISFedAvgState, agents: Agents, round_index: int) -> ISFedAvgState:
        """One round of Algorithm 1."""
        table = Table.over(state.agent_nodes, agents.num_agents, self.agents, self.agent_design)
        cloud = Cloud.over(state.params, table, self.num_active, agents.key(Purpose.AGENTS))
        state = self.drifted(state, agents, round_index)
        watched = self.step(cloud, agents, round_index, state.shift if state.shift.size else None)
        return state._replace(params=cloud.params, watched=watched)

    def drifted(self, state: ISFedAvgState, agents: Agents, round_index: int) -> ISFedAvgState:
        """The state after the true model has taken its random step of the round."""
        if not state.shift.size:
            return state
        step = agents.stream(Purpose.DRIFT, round_index).normals(state.shift.size)
        return state._replace(shift=state.shift + self.drift * step)

    def step(
        self, cloud: Cloud, agents: Agents, round_index: int, shift: np.ndarray | None = None
    ) -> np.ndarray:
        """The round itself: select, work, average, refresh; returns its telemetry."""
        if self.agents.refresh == Refresh.ALL:
            cloud.table.replace(agents.scores_at(cloud.params, shift))  # eq. (50)
        selection = cloud.select(round_index)
        divisor = agents.local_steps[selection.active] if self.divide_by_steps else 1
        step = self.step_size / (divisor * agents.num_agents * selection.agent_prob)  # eq. (8)
        local = PLAIN_LOCAL if shift is None else Local(shift=shift)
        uploads = agents.work(Turns(selection.active, cloud.params, step), round_index, local)
        watched = self._watch(agents, selection, uploads)
        cloud.aggregate(selection, uploads.changes)  # eq. (9)
        cloud.refresh(selection, uploads.scores)
        return watched

    def _watch(self, agents: Agents, selection: Selection, uploads: Uploads) -> np.ndarray:
        """The telemetry of the round."""
        if self._equal_row is not None:
            return self._equal_row
        watch = RoundWatch(
            agents.num_agents,
            self.num_active,
            self.agents.floor,
            capped=not isinstance(self.agent_design, WithReplacement),
        )
        active = selection.active
        local_steps, batch_size = agents.local_steps[active], agents.batch_size[active]
        steps = 1 if self.divide_by_steps else local_steps
        step = self.step_size * steps / (agents.num_agents * selection.agent_prob)
        watch.agents_of(uploads, local_steps * batch_size, step, selection)
        return watch.end()

    @cached_property
    def _equal_row(self) -> np.ndarray | None:
        """The telemetry where everything is drawn with equal chances; None elsewhere."""
        equal = self.agents.equal and self.examples.equal
        return uniform_rows((), self.num_active) if equal else None

    def model(self, state: ISFedAvgState) -> np.ndarray:
        """w_i."""
        return state.params

    def agent_prob(self, state: ISFedAvgState, num_agents: int) -> np.ndarray:
        """(K,) p_k of the next round, before any cap."""
        return Table.over(
            state.agent_nodes, num_agents, self.agents, self.agent_design
        ).probabilities()
