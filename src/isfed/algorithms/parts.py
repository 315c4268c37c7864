"""What several methods share: whom to hear, how long to work, and how much each one counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from isfed.algorithms.algorithm import Method, ModelState
from isfed.base.checks import check_active, check_whole, is_number
from isfed.base.streams import Purpose
from isfed.federation.agents import Agents, Local, Turns, Uploads
from isfed.sampling.designs import HartleyRao
from isfed.sampling.policies import Table, Uniform

ClientWeights = Literal["uniform", "size"]
UNIFORM, HARTLEY_RAO, NO_NODES = Uniform(), HartleyRao(), np.empty(0)


def check_number(value: Any, *, name: str, least: float = 0.0, above: bool = False) -> None:
    """A finite number that is not too small; with `above` it must be larger than `least`."""
    if not (is_number(value) and (value > least or (value == least and not above))):
        raise ValueError(f"{name}={value!r} must be a number {'>' if above else '>='} {least:g}")


def check_choice(value: Any, choices: Any, *, name: str) -> None:
    """One of the words of a Literal."""
    if value not in get_args(choices):
        raise ValueError(
            f"{name}={value!r} must be one of {', '.join(map(repr, get_args(choices)))}"
        )


def agent_weights(agents: Agents, how: ClientWeights) -> np.ndarray:
    """(K,) c_k of the objective sum_k c_k P_k: 1/K, or the agent's share of the examples."""
    if how == "uniform":
        return np.full(agents.num_agents, 1.0 / agents.num_agents)
    return agents.sizes / agents.sizes.sum()


def draw_uniformly(
    agents: Agents, num: int, round_index: int, *, purpose: Purpose = Purpose.AGENTS
) -> np.ndarray:
    """`num` of all agents, without replacement: the draw that `FedAvg` makes."""
    table = Table.over(NO_NODES, agents.num_agents, UNIFORM, HARTLEY_RAO)
    return table.draw(num, agents.stream(purpose, round_index))[0]


def draw_with_replacement(
    agents: Agents, prob: np.ndarray, num: int, round_index: int
) -> tuple[np.ndarray, np.ndarray]:
    """`num` independent draws by probabilities, as the agents drawn and how often each was."""
    points = agents.stream(Purpose.AGENTS, round_index).uniforms(num)
    ends = np.cumsum(prob)
    # A point beyond the last end, by rounding, belongs to the last agent that can be drawn.
    last = int(np.flatnonzero(prob)[-1])
    drawn = np.minimum(np.searchsorted(ends, points * ends[-1], side="right"), last)
    return np.unique(drawn, return_counts=True)


def normalised(weights: np.ndarray) -> np.ndarray:
    """The same weights with sum one."""
    return weights / weights.sum()


@dataclass(frozen=True, kw_only=True)
class Everybody(Method):
    """A method in which all agents work in every round, and the cloud averages their models.

    step_size: of a local step.
    steps: local steps between two averages; one number for all agents, or one for each.
    client_weights: what the average weighs an agent by, "uniform" or its "size".
    full_batch: all examples in every local step instead of B_k drawn ones.
    """

    step_size: float
    steps: int | Sequence[int] = 1
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False

    def __post_init__(self) -> None:
        check_number(self.step_size, name="step_size", above=True)
        for steps in np.atleast_1d(np.asarray(self.steps, object)):
            check_whole(steps, name="steps", least=1)
        check_choice(self.client_weights, ClientWeights, name="client_weights")

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The model alone."""
        if np.ndim(self.steps) and len(self.steps) != agents.num_agents:  # type: ignore[arg-type]
            raise ValueError(
                f"steps has {len(self.steps)} numbers for num_agents={agents.num_agents}; "  # type: ignore[arg-type]
                "give one for each agent, or one for all"
            )
        return ModelState(params.copy())

    def work(
        self,
        agents: Agents,
        params: np.ndarray,
        round_index: int,
        *,
        steps: Any = None,
        **local: Any,
    ) -> Uploads:
        """One turn of every agent, from a model for all, (M,), or one for each, (K, M)."""
        count = agents.num_agents
        steps = np.full(count, self.steps if steps is None else steps, np.int64)
        turns = Turns(np.arange(count), params, np.full(count, float(self.step_size)))
        return agents.work(
            turns, round_index, Local(steps=steps, full_batch=self.full_batch, **local)
        )

    def weights(self, agents: Agents) -> np.ndarray:
        """(K,) the weight of every agent in the average."""
        return agent_weights(agents, self.client_weights)

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """All agents step, then all models are averaged."""
        uploads = self.work(agents, state.params, round_index)
        return ModelState(state.params + self.weights(agents) @ uploads.changes)


@dataclass(frozen=True, kw_only=True)
class Sampled(Method):
    """A method that hears L of K agents in a round.

    step_size: of a local step.
    num_active: L.
    local_steps: of every turn; the problem's E_k unless given.
    client_weights: what the average weighs an agent by, "uniform" or its "size".
    full_batch: all examples in every local step instead of B_k drawn ones.
    """

    step_size: float
    num_active: int
    local_steps: int | None = None
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False

    def __post_init__(self) -> None:
        check_number(self.step_size, name="step_size", above=True)
        check_whole(self.num_active, name="num_active", least=1)
        if self.local_steps is not None:
            check_whole(self.local_steps, name="local_steps", least=1)
        check_choice(self.client_weights, ClientWeights, name="client_weights")

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        """The model alone."""
        check_active(self.num_active, agents.num_agents)
        return ModelState(params.copy())

    def select(self, agents: Agents, round_index: int) -> np.ndarray:
        """L agents, uniformly without replacement, but for those that do not answer."""
        active = draw_uniformly(agents, self.num_active, round_index)
        if agents.clock.drop == 0.0:
            return active
        return active[agents.answers(active, round_index)]

    def steps_of(self, agents: Agents, active: np.ndarray) -> np.ndarray:
        """(n,) how many local steps each of these agents is asked for."""
        if self.local_steps is None:
            return agents.local_steps[active]
        return np.full(active.size, self.local_steps)

    def examples_of(self, agents: Agents, active: np.ndarray) -> np.ndarray:
        """(n,) how many example gradients a turn of each of these agents takes."""
        per_step = agents.sizes[active] if self.full_batch else agents.batch_size[active]
        return self.steps_of(agents, active) * per_step

    def work(
        self,
        agents: Agents,
        active: np.ndarray,
        params: np.ndarray,
        round_index: int,
        *,
        steps: np.ndarray | None = None,
        step: np.ndarray | None = None,
        **local: Any,
    ) -> Uploads:
        """One turn of every agent that was selected."""
        steps = self.steps_of(agents, active) if steps is None else steps
        step = np.full(active.size, float(self.step_size)) if step is None else step
        how = Local(steps=steps, full_batch=self.full_batch, **local)
        return agents.work(Turns(active, params, step), round_index, how)

    def mean(self, agents: Agents, active: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """(M,) the mean change of these agents, weighted by `client_weights` among them."""
        if not active.size:
            return np.zeros(agents.num_params)  # nobody answered: the model stays
        if self.client_weights == "uniform":
            return changes.sum(axis=0) / active.size
        return normalised(agents.sizes[active]) @ changes
