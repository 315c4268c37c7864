"""ISFedAvg, Algorithm 1 of the paper, as a record of choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.algorithms import corrected, hearing
from isfed.algorithms.algorithm import CorrectedPlan, Plan
from isfed.algorithms.corrected import CorrectedState
from isfed.algorithms.hearing import Hearing
from isfed.algorithms.parts import ClientWeights, check_choice
from isfed.base.arguments import shown
from isfed.base.checks import check_active, check_whole, is_number
from isfed.base.streams import Purpose
from isfed.federation.agent import Rules
from isfed.federation.agents import Agents, Local, Turns, Uploads, trained_part
from isfed.federation.arrays import compiled_design, make_sampler, wants_norms
from isfed.federation.cloud import Cloud, Selection
from isfed.federation.correction import Correction
from isfed.sampling.designs import (
    Design,
    Deville,
    HartleyRao,
    LocalPivotal,
    Spread,
    WithReplacement,
)
from isfed.sampling.policies import (
    Initial,
    Memory,
    Policy,
    Refresh,
    Score,
    ScorePolicy,
    Table,
    Uniform,
    compiled_policy,
)
from isfed.sampling.telemetry import uniform_rows, watch_round

Lost = Literal["drop", "adjusted"]  # what becomes of an upload that does not arrive


class ISFedAvgState(NamedTuple):
    """What the next round needs of the cloud; what the agents remember is theirs."""

    params: np.ndarray  # (M,) w_i
    agent_nodes: np.ndarray  # the table of the agents' scores
    shift: np.ndarray  # (M,) how far the true model has drifted; empty without drift
    watched: np.ndarray  # telemetry of the last round
    responses: np.ndarray  # this and the rest: see `isfed.algorithms.hearing.Hearing`
    sketches: np.ndarray
    sketched: np.ndarray
    order: np.ndarray
    share: np.ndarray

    @property
    def hearing(self) -> Hearing:
        """What is kept for absences and for a spread."""
        return hearing.part_of(self)


@dataclass(frozen=True, kw_only=True)
class ISFedAvg:
    """Federated averaging under importance sampling of agents and of examples.

    The policies for agents and for examples can be combined freely, and so can the designs.

    step_size: mu, the step size; "auto" chooses a stable one when the run begins.
    num_active: L, the number of agents per round.
    agents: the policy that gives agents their probabilities.
    examples: the policy that gives an agent's examples their probabilities.
    agent_design: how agents are drawn with these probabilities.
    example_design: how examples are drawn with theirs.
    divide_by_steps: whether a step is divided by E_k, as in eq. (8).
    drift: standard deviation of the true model's random walk, per round.
    correction: None is the paper's method; "difference" or "drift" let agents remember their
        gradients and estimate only what is new, see `Correction`.
    weighting: where 1/(K p_k) goes: into the agent's "step", as in eq. (8), or on the "change" that
        it sends. "step" unless there is a correction; "drift" needs "change".
    absences: how an upload that is lost (see `Clock`) counts: "drop" counts it as zero, "adjusted"
        divides what arrives by an estimate of how often its agent answers, of at least 1/5.
    costs: what a turn of each agent costs, in any unit; agents are then drawn with
        probabilities proportional to score / sqrt(cost).
    client_weights: c_k of the objective sum_k c_k P_k: "uniform", 1/K as in the paper, or by
        "size", N_k / sum N. The weight of a change is then c_k / p_k instead of 1 / (K p_k).
    full_batch: whether every local step uses all examples instead of B_k drawn ones, which is
        B_k = N_k without replacement; `examples` and `example_design` then say nothing.
    label: the name in tables and figures; made from the choices unless given.

    >>> from isfed import Memory, Uniform
    >>> ISFedAvg(step_size=0.01, num_active=6, agents=Memory(floor=0.05), examples=Uniform()).name
    'ISFedAvg, memory agents, uniform examples'
    """

    step_size: float | Literal["auto"]
    num_active: int
    agents: Policy = field(default_factory=Memory)
    examples: Policy = field(default_factory=Memory)
    agent_design: Design = field(default_factory=Deville)
    example_design: Design = field(default_factory=Deville)
    divide_by_steps: bool = True
    drift: float = 0.0
    correction: Correction | Literal["difference", "drift"] | None = None
    weighting: Literal["step", "change"] | None = None
    absences: Lost = "drop"
    costs: Sequence[float] = ()
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.label, str):
            raise ValueError(f"label={self.label!r} must be a text")
        step: Any = self.step_size  # perhaps an array, which cannot be compared with a word
        if not (step == "auto" if isinstance(step, str) else is_number(step) and step > 0.0):
            raise ValueError(
                f"step_size={shown(self.step_size)} must be a positive number or 'auto'"
            )
        check_whole(self.num_active, name="num_active", least=1)
        if not (is_number(self.drift) and self.drift >= 0.0):
            raise ValueError(f"drift={shown(self.drift)} must be a number >= 0")
        for name in ("divide_by_steps", "full_batch"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={shown(getattr(self, name))} must be true or false")
        for name in ("agents", "examples"):
            if not isinstance(getattr(self, name), Policy):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a policy, e.g. Memory()")
        for name in ("agent_design", "example_design"):
            if not isinstance(getattr(self, name), Design) or isinstance(getattr(self, name), type):
                raise TypeError(f"{name}={getattr(self, name)!r} must be a design, e.g. Deville()")
        if self.full_batch:  # nothing is drawn, so nothing is learned about examples
            object.__setattr__(self, "examples", Uniform())
            object.__setattr__(self, "example_design", HartleyRao())
        self._check_correction()
        self._check_hearing()
        self._check_weights()

    def _check_weights(self) -> None:
        check_choice(self.client_weights, ClientWeights, name="client_weights")
        if self.client_weights == "uniform":
            return
        if self.correction is not None:
            raise ValueError(
                f"client_weights={self.client_weights!r} needs correction=None: the cloud's "
                "reference c is the uniform mean of what the agents remember"
            )
        if self.step_size == "auto":
            raise ValueError(
                f"step_size='auto' needs client_weights='uniform', not "
                f"{self.client_weights!r}; give a number"
            )

    def _check_hearing(self) -> None:
        check_choice(self.absences, Lost, name="absences")
        if isinstance(self.example_design, Spread | LocalPivotal):
            raise ValueError(
                f"example_design={type(self.example_design).__name__}() would need a sketch of "
                "every example, which nobody keeps; use it for agent_design"
            )
        if isinstance(self.agent_design, LocalPivotal) and self.agent_design.points is None:
            raise ValueError(
                "agent_design=LocalPivotal() needs points, a row for each agent; to use sketches "
                "of what the agents send as points: Spread(LocalPivotal())"
            )
        costs = hearing.check_costs(self.costs)
        if costs and self.agents.equal:
            raise ValueError(
                "costs divide the agents' scores, and a uniform policy has none; use "
                "agents=Memory()"
            )
        object.__setattr__(self, "costs", costs)

    def _check_correction(self) -> None:
        word = isinstance(self.weighting, str) and self.weighting in ("step", "change")
        if self.weighting is not None and not word:
            raise ValueError(f"weighting={shown(self.weighting)} must be 'step' or 'change'")
        if self.correction is None:
            return
        if isinstance(self.correction, str):
            object.__setattr__(self, "correction", Correction(self.correction))
        if not isinstance(self.correction, Correction):
            raise TypeError(f"correction={self.correction!r} must be 'difference' or 'drift'")
        corrected.check_choices(self, self.correction)

    @property
    def memory(self) -> Correction | None:
        """The correction as a record."""
        return Correction(self.correction) if isinstance(self.correction, str) else self.correction

    @property
    def corrected(self) -> bool:
        """Whether rounds differ from the paper's: a correction, or weights on the changes."""
        return self.correction is not None or self.on_change

    @property
    def on_change(self) -> bool:
        """Whether 1/(K p_k) multiplies the change instead of the step."""
        return self.weighting == "change" or (
            self.correction is not None and self.weighting is None
        )

    @property
    def name(self) -> str:
        """The name in tables and figures."""
        if self.label:
            return self.label
        name = "ISFedAvg" if self.memory is None else f"ISFedAvg, {self.memory.kind}"
        if self.full_batch:
            return f"{name}, {self.agents.name} agents, full batches"
        if self.agents.name == self.examples.name:
            return f"{name}, {self.agents.name}"
        return f"{name}, {self.agents.name} agents, {self.examples.name} examples"

    def rules(self, num_agents: int) -> Rules:
        """What the cloud sends to every agent."""
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
            agents=self._reports(),
            divide_by_steps=self.divide_by_steps,
        )

    def _reports(self) -> Policy:
        """What agents report: with a correction, the spread at most; the cloud makes the score."""
        if self.correction is None or not self.agents.learns:
            return self.agents
        if self.agents.score == Score.SECOND_MOMENT:
            return Uniform()
        p = self.agents
        return ScorePolicy(p.name, p.initial, p.refresh, p.floor, Score.SPREAD, p.rate)

    def plan(self) -> Plan | CorrectedPlan | None:
        """The same as numbers, for the fused kernel; None if it does not know the designs."""
        designs = all(compiled_design(d) for d in (self.agent_design, self.example_design))
        policies = compiled_policy(self.agents) and compiled_policy(self.examples)
        kernel = self.absences == "drop" and self.client_weights == "uniform" and not self.costs
        if not (kernel and designs and policies):
            return None
        agents = make_sampler(self.agents, self.agent_design)
        examples = make_sampler(self.examples, self.example_design)
        plain = Plan(
            step_size=float(self.step_size),
            num_active=int(self.num_active),
            divide_by_steps=self.divide_by_steps,
            drift=float(self.drift),
            agents=agents,
            examples=examples,
            scored=wants_norms(self.agents, self.examples),
            watched=not (agents.uniform and examples.uniform),
            full=self.full_batch,
        )
        if not self.corrected:
            return plain
        reports = make_sampler(self._reports(), self.agent_design)
        turn = plain._replace(agents=reports, scored=wants_norms(self._reports(), self.examples))
        return CorrectedPlan(*plain, turn, corrected.rule_of(self), self.on_change)

    def start(self, agents: Agents, params: np.ndarray) -> ISFedAvgState | CorrectedState:
        """The state before the first round."""
        check_active(self.num_active, agents.num_agents)
        if self.costs and len(self.costs) != agents.num_agents:
            raise ValueError(
                f"costs has {len(self.costs)} numbers for num_agents={agents.num_agents}; give one "
                "for each agent"
            )
        if isinstance(self.agent_design, LocalPivotal):
            self.agent_design.check(agents.num_agents)
        table = Table(agents.num_agents, self.agents, self.agent_design)
        if self.agents.initial == Initial.OPTIMUM:
            scores = agents.scores_at(agents.optimum, charge=False)  # eq. (48)
            table.replace(self.weighed(agents, scores))
        shift = np.zeros(params.size if self.drift > 0.0 else 0)
        watched = uniform_rows((), self.num_active)
        kept = hearing.start(self, agents)
        state = ISFedAvgState(params.copy(), table.nodes, shift, watched, **kept._asdict())
        return corrected.start(self, state, agents) if self.corrected else state

    def round(
        self, state: ISFedAvgState | CorrectedState, agents: Agents, round_index: int
    ) -> ISFedAvgState | CorrectedState:
        """One round of Algorithm 1."""
        table = Table.over(state.agent_nodes, agents.num_agents, self.agents, self.agent_design)
        cloud = Cloud.over(state.params, table, self.num_active, agents.key(Purpose.AGENTS))
        state = self.drifted(state, agents, round_index)
        shift = state.shift if state.shift.size else None
        kept = state.hearing
        hearing.prepare(self, kept, cloud)
        if isinstance(state, CorrectedState):
            watched = corrected.step(self, cloud, state.reference, agents, round_index, shift, kept)
        else:
            watched = self.step(cloud, agents, round_index, shift, kept)
        return state._replace(params=cloud.params, watched=watched)

    def drifted(
        self, state: ISFedAvgState | CorrectedState, agents: Agents, round_index: int
    ) -> ISFedAvgState | CorrectedState:
        """The state after the true model has taken its random step of the round."""
        if not state.shift.size:
            return state
        step = agents.stream(Purpose.DRIFT, round_index).normals(state.shift.size)
        return state._replace(shift=state.shift + self.drift * step)

    def step(
        self,
        cloud: Cloud,
        agents: Agents,
        round_index: int,
        shift: np.ndarray | None = None,
        kept: Hearing | None = None,
    ) -> np.ndarray:
        """The round itself: select, work, average, refresh; returns its telemetry."""
        kept = kept or hearing.no_hearing()
        if self.agents.refresh == Refresh.ALL:
            scores = agents.scores_at(cloud.params, shift)  # eq. (50)
            cloud.table.replace(self.weighed(agents, scores))
        selection, weight = hearing.heard(kept, agents, cloud.select(round_index), round_index)
        active = selection.active
        divisor = agents.local_steps[active] if self.divide_by_steps else 1
        step = self.step_size / (divisor * agents.num_agents * selection.agent_prob)  # eq. (8)
        step = self.weighed(agents, step, active)
        local = self.plain_local if shift is None else replace(self.plain_local, shift=shift)
        uploads = agents.work(Turns(active, cloud.params, step), round_index, local)
        steps = 1 if self.divide_by_steps else agents.local_steps[active]
        whole = self.step_size * steps / (agents.num_agents * selection.agent_prob)
        watched = self.watch(agents, selection, uploads, whole, kept)
        counted = selection
        if kept.responses.size:
            counted = selection._replace(times=selection.times * weight)
        before = cloud.params
        cloud.aggregate(counted, uploads.changes)  # eq. (9)
        corrected.average_buffers(self, cloud, agents, counted, (before, uploads.changes))
        scores = self.weighed(agents, uploads.scores, active)
        cloud.refresh(selection, scores)
        if kept.order.size:
            gradients = -trained_part(agents, uploads.changes) / whole[:, None]
            hearing.remember(self, kept, cloud, (active, gradients), round_index)
        return watched

    def weighed(self, agents: Agents, values: np.ndarray, which: Any = slice(None)) -> np.ndarray:
        """Values of agents times K c_k: what each of them counts beside one of c_k = 1/K."""
        if self.client_weights == "uniform":
            return values
        return values * (agents.sizes / agents.sizes.mean())[which]

    def watch(
        self,
        agents: Agents,
        selection: Selection,
        uploads: Uploads,
        whole: np.ndarray,
        kept: Hearing,
    ) -> np.ndarray:
        """The telemetry of the round; a change over its `whole` step estimates a gradient."""
        if self._equal_row is not None:
            return self._equal_row
        capped = not isinstance(self.agent_design, WithReplacement)
        floor = hearing.policy_of(self, kept).floor
        side = (agents.num_agents, self.num_active, floor, capped)
        active = selection.active
        drawn = agents.local_steps[active] * agents.batch_size[active]
        uploads = uploads._replace(changes=trained_part(agents, uploads.changes))
        return watch_round(uploads, drawn, whole, selection, side)

    @cached_property
    def plain_local(self) -> Local:
        """How agents step without drift or correction; made once, which saves time in rounds."""
        return Local(full_batch=self.full_batch)

    @cached_property
    def _equal_row(self) -> np.ndarray | None:
        """The telemetry where everything is drawn with equal chances; None elsewhere."""
        equal = self.agents.equal and self.examples.equal
        return uniform_rows((), self.num_active) if equal else None

    def model(self, state: ISFedAvgState | CorrectedState) -> np.ndarray:
        """w_i."""
        return state.params

    def agent_prob(self, state: ISFedAvgState | CorrectedState, num_agents: int) -> np.ndarray:
        """(K,) p_k of the next round, before any cap."""
        table = Table.over(state.agent_nodes, num_agents, self.agents, self.agent_design)
        return hearing.weigh(self, state.hearing, table).probabilities()
