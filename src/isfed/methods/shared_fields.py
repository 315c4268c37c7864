"""What several methods share: their fields, and the turns of all agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_whole
from isfed.federation.agents import Agents, LocalOptions, TrainRequest
from isfed.federation.messages import EVERY
from isfed.methods.estimators import TINY
from isfed.methods.federated import Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import ClientWeights, Count, Method, Positive
from isfed.methods.uniform_samplers import UniformCohort


def answering(agents: Agents, which: np.ndarray, round_index: int) -> np.ndarray | slice:
    """Picks those of the agents that answer in a round: all, but for the clock's drop-outs."""
    return EVERY if agents.clock.drop == 0.0 else agents.answers(which, round_index)


@lru_cache(maxsize=8)  # to make them anew would take as long as the mixing of a ring
def whole_turns(count: int, steps: int | tuple[int, ...], **local: Any) -> LocalOptions:
    """How all agents step in plain turns; nobody writes to it."""
    return LocalOptions(steps=np.full(count, steps, np.int64), **local)


def check_one_number(steps: Any, reason: str) -> None:
    """Raise a ValueError for steps that differ from agent to agent."""
    if np.ndim(steps):
        raise ValueError(f"steps must be one number: {reason}")


@dataclass(frozen=True, kw_only=True)
class Everybody(Method):
    """The fields of a method in which all agents work in every round.

    An agent that does not answer takes no step in that round, and the average is over the others.

    Args:
        step_size: the size of a local step.
        steps: local steps between two averages; one number for all agents, or one for each.
        client_weights: how the average weights the agents, "uniform" or by their "size".
        full_batch: whether every local step uses all examples instead of B_k drawn ones.
    """

    step_size: Positive
    steps: int | Sequence[int] = 1
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False

    def __post_init__(self) -> None:
        if np.size(self.steps) == 0:
            raise ValueError("steps=[] must be one number, or one for each agent")
        for steps in np.atleast_1d(np.asarray(self.steps, object)):
            check_whole(steps, name="steps", least=1)

    def check_steps(self, agents: Agents) -> None:
        """Raise a ValueError unless there is a number of steps for each agent, or one for all."""
        if not isinstance(self.steps, int) and len(self.steps) != agents.num_agents:
            raise ValueError(
                f"steps has {len(self.steps)} numbers for num_agents={agents.num_agents}; "
                "give one for each agent, or one for all"
            )

    def start(self, agents: Agents, params: np.ndarray) -> Any:
        self.check_steps(agents)
        return super().start(agents, params)

    def changes_of_all(
        self,
        agents: Agents,
        params: np.ndarray,
        round_index: int,
        *,
        time: int | None = None,
        steps: int | None = None,
        step_size: Any = None,
        **local: bool,
    ) -> np.ndarray:
        """(K, M) a turn of every agent, from a model for all, (M,), or one for each, (K, M).

        For methods with a round of their own. The draws have the address `time`; the changes of
        those that do not answer in the round are zero.
        """
        count, time = agents.num_agents, round_index if time is None else time
        each: Any = self.steps if steps is None else steps
        if not isinstance(each, int):
            each = tuple(each)
        how = whole_turns(count, each, full_batch=self.full_batch, **local)
        step = np.empty(count)
        step[:] = self.step_size if step_size is None else step_size
        everybody = np.arange(count)
        here = answering(agents, everybody, round_index)
        if isinstance(here, slice):
            return agents.work(TrainRequest(everybody, params, step), time, how).changes
        models = params if params.ndim == 1 else params[here]
        changes = np.zeros((count, agents.num_params))
        turns = TrainRequest(everybody[here], models, step[here])
        changes[here] = agents.work(turns, time, how.rows(here)).changes
        return changes

    def weights(self, agents: Agents, round_index: int) -> np.ndarray:
        """(K,) the weight of every agent in the average of a round; 0 if it does not answer."""
        weights = agents.facts(self.client_weights).share()
        here = answering(agents, np.arange(agents.num_agents), round_index)
        if isinstance(here, slice):
            return weights
        weights = np.where(here, weights, 0.0)
        return weights / max(float(weights.sum()), TINY)  # all zero: the model stays


@dataclass(frozen=True, kw_only=True)
class Sampled(Method):
    """The fields of a method that hears L of K agents in a round.

    Args:
        step_size: the size of a local step.
        num_active: L, the number of agents per round.
        local_steps: the number of local steps per turn; the problem's E_k unless given.
        client_weights: how the average weights the agents, "uniform" or by their "size".
        full_batch: whether every local step uses all examples instead of B_k drawn ones.
    """

    step_size: Positive
    num_active: Count
    local_steps: Count | None = None
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False

    def local(self, **more: Any) -> LocalSteps:
        """How agents step by these fields and by what else a method has of `LocalSteps`."""
        names = ("local_steps", "full_batch", "divide_by_steps", "prox")
        own = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return LocalSteps(self.step_size, **own, **more)

    def made_of(self, estimator: Any, *, sampler: Any = None, local: Any = None) -> Federated:
        """A composition for these fields; a uniform cohort in plain steps unless given."""
        return Federated(
            sampler or UniformCohort(self.num_active),
            local or self.local(),
            estimator,
            client_weights=self.client_weights,
        )
