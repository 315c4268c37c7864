"""What several methods share: whom to hear, how long to work, and how much each one counts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from isfed.algorithms.algorithm import ClientWeights, Method, ModelState
from isfed.base.arguments import shown
from isfed.base.arithmetic import weighted_sum
from isfed.base.checks import check_active, check_whole, is_number
from isfed.base.compiled import compiled
from isfed.base.streams import Purpose
from isfed.federation.agents import Agents, Local, Turns, Uploads, num_trained
from isfed.federation.cloud import mean_buffers
from isfed.sampling.designs import HartleyRao
from isfed.sampling.policies import Table, Uniform

UNIFORM, HARTLEY_RAO, NO_NODES = Uniform(), HartleyRao(), np.empty(0)
ALL = slice(None)
TINY = 1e-300


def check_number(value: Any, *, name: str, least: float = 0.0, above: bool = False) -> None:
    """A finite number that is not too small; with `above` it must be larger than `least`."""
    if not (is_number(value) and (value > least or (value == least and not above))):
        raise ValueError(f"{name}={value!r} must be a number {'>' if above else '>='} {least:g}")


def check_choice(value: Any, choices: Any, *, name: str) -> None:
    """One of the words of a Literal."""
    if not isinstance(value, str) or value not in get_args(choices):  # an array has no truth
        raise ValueError(
            f"{name}={shown(value)} must be one of {', '.join(map(repr, get_args(choices)))}"
        )


def agent_weights(agents: Agents, how: ClientWeights) -> np.ndarray:
    """(K,) c_k of the objective sum_k c_k P_k: 1/K, or the agent's share of the examples."""
    if how == "uniform":
        return equal_numbers(1.0 / agents.num_agents, agents.num_agents)
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
    return count_draws(prob, agents.stream(Purpose.AGENTS, round_index).uniforms(num))


def sum_of_rows(rows: np.ndarray) -> np.ndarray:
    """(M,) rows.sum(axis=0) in the same order, in a tenth of the time if rows are short."""
    # NumPy adds a single column in pairs, and single precision in single precision.
    if rows.shape[1] == 1 or rows.dtype != np.float64:
        return rows.sum(axis=0)
    out = np.empty(rows.shape[1])
    _sum_rows(rows, out)
    return out


@compiled
def _sum_rows(rows, out):
    for j in range(out.size):
        out[j] = rows[0, j]
    for i in range(1, rows.shape[0]):
        for j in range(out.size):
            out[j] += rows[i, j]


@compiled
def count_draws(mass, points):
    """The units in which points of [0, 1) fall, in order, and how often each was hit."""
    total, last = 0.0, 0
    for unit in range(mass.size):
        total += mass[unit]
        last = unit if mass[unit] > 0.0 else last
    places = np.sort(points) * total
    units, times = np.empty(points.size, np.int64), np.zeros(points.size, np.int64)
    found, unit, end = 0, 0, mass[0]
    for place in places:
        # A point beyond the last end, by rounding, belongs to the last unit that can be drawn.
        while unit < last and place >= end:
            unit += 1
            end += mass[unit]
        if found == 0 or units[found - 1] != unit:
            units[found] = unit
            found += 1
        times[found - 1] += 1
    return units[:found], times[:found]


def answering(agents: Agents, which: np.ndarray, round_index: int) -> np.ndarray | slice:
    """Picks those of the agents that answer in a round: all, but for the clock's drop-outs."""
    return ALL if agents.clock.drop == 0.0 else agents.answers(which, round_index)


def equal_numbers(value: float, count: int) -> np.ndarray:
    """np.full(count, value) of floats, in a third of the time."""
    out = np.empty(count)
    out.fill(value)
    return out


@functools.lru_cache(maxsize=8)  # to make them anew would take as long as the mixing of a ring
def whole_turns(
    count: int, steps: int | tuple[int, ...], full_batch: bool, silent: bool
) -> tuple[np.ndarray, Local]:
    """The numbers of all agents and how they step in plain turns; nobody writes to either."""
    return np.arange(count), Local(
        steps=np.full(count, steps, np.int64), full_batch=full_batch, silent=silent
    )


def with_mean_buffers(
    params: np.ndarray,
    agents: Agents,
    before: np.ndarray,
    changes: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:
    """(M,) the new model, whose buffers become a mean of what the agents sent.

    For methods whose own weights need not sum to 1 or may be negative: a running variance could
    become negative.

    params: (M,) the new model; its buffers are replaced.
    before: (M,) the model that the agents were sent.
    changes: (n, M) what they made of it.
    weights: (n,) what every agent counts in the mean, in any unit.
    """
    trained = num_trained(agents)
    if trained < params.size:
        params[trained:] = mean_buffers(before[trained:], changes[:, trained:], weights)
    return params


def normalised(weights: np.ndarray) -> np.ndarray:
    """The same weights with sum one."""
    return weights / weights.sum()


@dataclass(frozen=True, kw_only=True)
class Everybody(Method):
    """A method in which all agents work in every round, and the cloud averages their models.

    An agent that does not answer takes no step in that round, and the average is over the others.

    step_size: the size of a local step.
    steps: local steps between two averages; one number for all agents, or one for each.
    client_weights: how the average weights the agents, "uniform" or by their "size".
    full_batch: whether every local step uses all examples instead of B_k drawn ones.
    """

    step_size: float
    steps: int | Sequence[int] = 1
    client_weights: ClientWeights = "uniform"
    full_batch: bool = False

    def __post_init__(self) -> None:
        check_number(self.step_size, name="step_size", above=True)
        if np.size(self.steps) == 0:
            raise ValueError("steps=[] must be one number, or one for each agent")
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
        time: int | None = None,
        steps: Any = None,
        step_size: float | np.ndarray | None = None,
        silent: bool = False,
        **local: Any,
    ) -> Uploads:
        """One turn of every agent, from a model for all, (M,), or one for each, (K, M).

        The step size may be one for each, (K,). The draws have the address `time`; the changes of
        those that do not answer are zero.
        """
        count = agents.num_agents
        steps = self.steps if steps is None else steps
        step_size = self.step_size if step_size is None else step_size
        if not isinstance(step_size, np.ndarray):
            step_size = equal_numbers(step_size, count)
        time = round_index if time is None else time
        if not local and isinstance(steps, int | tuple) and agents.clock.drop == 0.0:
            everybody, how = whole_turns(count, steps, self.full_batch, silent)
            return agents.work(Turns(everybody, params, step_size), time, how)
        everybody, steps = np.arange(count), np.full(count, steps, np.int64)
        local["full_batch"], local["silent"] = self.full_batch, silent
        here = answering(agents, everybody, round_index)
        if isinstance(here, slice):
            turns = Turns(everybody, params, step_size)
            return agents.work(turns, time, Local(steps=steps, **local))
        velocity = local.get("velocity")
        if velocity is not None:
            local["velocity"] = velocity[here]
        models = params if params.ndim == 1 else params[here]
        some = agents.work(
            Turns(everybody[here], models, step_size[here]), time, Local(steps=steps[here], **local)
        )
        changes = np.zeros((everybody.size, agents.num_params))
        changes[here] = some.changes
        if velocity is not None and some.velocity.size:
            velocity = velocity.copy()
            velocity[here] = some.velocity
        return some._replace(
            changes=changes, velocity=some.velocity if velocity is None else velocity
        )

    def weights(self, agents: Agents, round_index: int) -> np.ndarray:
        """(K,) the weight of every agent in the average of a round; 0 if it does not answer."""
        weights = agent_weights(agents, self.client_weights)
        here = answering(agents, np.arange(agents.num_agents), round_index)
        if isinstance(here, slice):
            return weights
        weights = np.where(here, weights, 0.0)
        return weights / max(float(weights.sum()), TINY)  # all zero: the model stays

    def round(self, state: Any, agents: Agents, round_index: int) -> Any:
        """All agents step, then all models are averaged."""
        uploads = self.work(agents, state.params, round_index)
        return ModelState(
            state.params + weighted_sum(self.weights(agents, round_index), uploads.changes)
        )


@dataclass(frozen=True, kw_only=True)
class Sampled(Method):
    """A method that hears L of K agents in a round.

    step_size: the size of a local step.
    num_active: L, the number of agents per round.
    local_steps: the number of local steps per turn; the problem's E_k unless given.
    client_weights: how the average weights the agents, "uniform" or by their "size".
    full_batch: whether every local step uses all examples instead of B_k drawn ones.
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
        return active[answering(agents, active, round_index)]

    def steps_of(self, agents: Agents, active: np.ndarray) -> np.ndarray:
        """(n,) how many local steps each of these agents is asked for."""
        if self.local_steps is None:
            return agents.local_steps[active]
        steps = np.empty(active.size, np.int64)
        steps.fill(self.local_steps)
        return steps

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
        step = equal_numbers(self.step_size, active.size) if step is None else step
        how = Local(steps=steps, full_batch=self.full_batch, **local)
        return agents.work(Turns(active, params, step), round_index, how)

    def mean(self, agents: Agents, active: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """(M,) the mean change of these agents, weighted by `client_weights` among them."""
        if not active.size:
            return np.zeros(agents.num_params)  # nobody answered: the model stays
        if self.client_weights == "uniform":
            return sum_of_rows(changes) / active.size
        return weighted_sum(normalised(agents.sizes[active]), changes)
