"""FedAsync: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019), arXiv 1903.03934.

One agent at a time comes back with a model x that it trained from an old version w_(t - age) of the
cloud's model, and the cloud mixes it in: w <- (1 - a) w + a x with a = mixing * s(age). A round is
one such update, or the loss of one: versions count updates, so a lost model makes none. Which
versions are old is decided in one of two ways: by an event queue over the virtual clock with
several agents at work at once, or, as the paper simulates it, by a uniform draw of the age. Both
start the agent from the real old version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents, LocalOptions, TrainRequest
from isfed.methods.method_protocol import (
    ClientWeights,
    Count,
    CountOrZero,
    Method,
    NotNegative,
    Positive,
    ZeroToOne,
)
from isfed.methods.shared_fields import answering
from isfed.methods.uniform_samplers import count_draws, draw_uniformly, draw_with_replacement

Staleness = Literal["constant", "polynomial", "hinge"]
NEVER = 2**31  # the address of the first choice of agents, beyond every round


class AsyncState(NamedTuple):
    """The model; and either its last versions or the agents at work."""

    params: np.ndarray
    history: np.ndarray  # (kept, M) versions, the newest first; empty with an event queue
    version: np.ndarray  # () how many updates were mixed in
    agents: np.ndarray  # (n,) who is at work ...
    models: np.ndarray  # (n, M) ... from which model ...
    since: np.ndarray  # (n,) ... of which version ...
    steps: np.ndarray  # (n,) ... with how many local steps ...
    finish: np.ndarray  # (n,) ... and when it will be done, in virtual seconds
    now: np.ndarray  # () the virtual time of the last update


@dataclass(frozen=True, kw_only=True)
class FedAsync(Method):
    """FedAsync: the cloud mixes in one agent's model at a time, with less weight if it is old.

    Args:
        step_size: the size of a local step (gamma in the paper).
        mixing: alpha, the weight of a fresh model.
        prox: weight of the pull towards the model that was sent (rho).
        staleness: how the weight falls with the age: "constant", "polynomial" (age + 1)^-power, or
            "hinge" 1 / (power (age - delay) + 1) for ages beyond `delay`.
        power: the exponent or slope of the last two.
        delay: the age up to which "hinge" keeps the full weight.
        in_flight: agents at work at once, on the virtual clock; None draws the age instead.
        max_age: the largest age drawn, if ages are drawn.
        history: versions kept, if ages are drawn; max_age + 1 unless given.
        local_steps: a range from which a turn's steps are drawn; the problem's E_k unless given.
        full_batch: whether every local step uses all examples of the agent.
        client_weights: how agents are chosen, with equal chances ("uniform") or by their "size".
    """

    step_size: Positive
    mixing: ZeroToOne = 0.6
    prox: NotNegative = 0.005
    staleness: Staleness = "polynomial"
    power: NotNegative = 0.5
    delay: CountOrZero = 4
    in_flight: Count | None = None
    max_age: CountOrZero = 4
    history: int | None = None
    local_steps: tuple[int, int] | None = None
    full_batch: bool = False
    client_weights: ClientWeights = "uniform"

    def __post_init__(self) -> None:
        kept = self.max_age + 1 if self.history is None else self.history
        if kept <= self.max_age:
            raise ValueError(
                f"max_age={self.max_age} is beyond the history={kept} versions kept; keep at least "
                f"{self.max_age + 1}"
            )
        if self.local_steps is not None:
            low, high = self.local_steps
            if not 1 <= low <= high:
                raise ValueError(f"local_steps={self.local_steps} must be a range from 1 upwards")

    def weight(self, age: int) -> float:
        """alpha s(age)."""
        if self.staleness == "constant":
            return self.mixing
        if self.staleness == "polynomial":
            return self.mixing * (age + 1.0) ** -self.power
        late = max(0, age - self.delay)
        return self.mixing / (self.power * late + 1.0)

    def start(self, agents: Agents, params: np.ndarray) -> AsyncState:
        count = self.in_flight or 0
        if count > agents.num_agents:
            raise ValueError(f"in_flight={count} exceeds num_agents={agents.num_agents}")
        at_work = steps = np.empty(0, np.int64)
        finish = np.empty(0)
        if count:
            at_work = self._first(agents, count)
            steps = self._steps(agents, at_work, 0)
            finish = self._seconds(agents, at_work, NEVER, steps)
        kept = 0 if count else (self.history or self.max_age + 1)
        return AsyncState(
            params.copy(),
            np.repeat(params[None], kept, axis=0),
            np.array(0),
            at_work,
            np.repeat(params[None], count, axis=0),
            np.zeros(count, np.int64),
            steps,
            finish,
            np.array(0.0),
        )

    def _chances(self, agents: Agents) -> np.ndarray:
        """(K,) c_k of all agents, in some unit."""
        uniform = self.client_weights == "uniform"
        return np.ones(agents.num_agents) if uniform else agents.sizes / 1.0

    def _first(self, agents: Agents, count: int) -> np.ndarray:
        """(n,) who begins: each one drawn among those that are idle, as every later one is."""
        if self.client_weights == "uniform":
            return draw_uniformly(agents, count, NEVER)
        chances, drawn = self._chances(agents), np.empty(count, np.int64)
        for i, point in enumerate(agents.stream(Purpose.AGENTS, NEVER).uniforms(count)):
            drawn[i] = count_draws(chances, np.array([point]))[0][0]
            chances[drawn[i]] = 0.0
        return drawn

    def round(self, state: AsyncState, agents: Agents, round_index: int) -> AsyncState:
        if self.in_flight is None:
            return self._drawn(state, agents, round_index)
        return self._queued(state, agents, round_index)

    def _drawn(self, state: AsyncState, agents: Agents, round_index: int) -> AsyncState:
        """A random agent, and a random age of the version that it had."""
        version = int(state.version)
        if self.client_weights == "uniform":
            agent = draw_uniformly(agents, 1, round_index)
        else:
            agent = draw_with_replacement(agents, self._chances(agents), 1, round_index)[0]
        point = agents.stream(Purpose.STALENESS, round_index).uniforms(1)[0]
        age = min(int(point * (self.max_age + 1)), version)  # there is nothing before w_0
        steps = self._steps(agents, agent, round_index)
        if not self._arrives(agents, agent, round_index):
            return state  # nothing was mixed in, so there is no new version
        params = self._mixed(
            state.params, state.history[age], agent, age, agents, round_index, steps
        )
        history = np.concatenate([params[None], state.history[:-1]])
        return state._replace(params=params, history=history, version=np.array(version + 1))

    def _queued(self, state: AsyncState, agents: Agents, round_index: int) -> AsyncState:
        """The agent that finishes first; another one that is idle then starts."""
        slot = int(np.argmin(state.finish))
        turn = slice(slot, slot + 1)
        now, version, agent = float(state.finish[slot]), int(state.version), state.agents[turn]
        age, params = version - int(state.since[slot]), state.params
        if self._arrives(agents, agent, round_index):
            params = self._mixed(
                params, state.models[slot], agent, age, agents, round_index, state.steps[turn],
                timed=False,
            )  # fmt: skip
            version += 1  # versions count what was mixed in; a lost model leaves the old one
        at_work, models, steps = state.agents.copy(), state.models.copy(), state.steps.copy()
        since, finish = state.since.copy(), state.finish.copy()
        chances = self._chances(agents)
        idle = chances[agent]
        chances[at_work] = 0.0
        chances[agent] = idle  # it has just come back
        at_work[turn] = draw_with_replacement(agents, chances, 1, round_index)[0]
        models[slot], since[slot] = params, version
        steps[turn] = self._steps(agents, at_work[turn], round_index + 1)
        finish[turn] = now + self._seconds(agents, at_work[turn], round_index, steps[turn])
        agents.elapse(now - float(state.now))
        return AsyncState(
            params, state.history, np.array(version), at_work, models, since, steps, finish,
            np.array(now),
        )  # fmt: skip

    def _arrives(self, agents: Agents, agent: np.ndarray, round_index: int) -> bool:
        """Whether the model of the one agent comes back; drop-outs lose it."""
        return agent[answering(agents, agent, round_index)].size > 0

    def _mixed(
        self, params, sent, agent, age, agents, round_index, steps, *, timed=True
    ) -> np.ndarray:
        """(1 - a) w + a x after the turn of one agent."""
        how = {"prox": float(self.prox), "full_batch": self.full_batch, "timed": timed}
        turn = TrainRequest(agent, sent, np.array([float(self.step_size)]))
        model = sent + agents.work(turn, round_index, LocalOptions(steps, **how)).changes[0]
        weight = self.weight(age)
        return (1.0 - weight) * params + weight * model

    def _steps(self, agents: Agents, which: np.ndarray, time: int) -> np.ndarray:
        """(n,) how many local steps the turns of these agents that begin at a time have."""
        if self.local_steps is None:
            return agents.local_steps[which]
        low, high = self.local_steps
        points = [agents.stream(Purpose.STRAGGLERS, time, k).uniforms(1)[0] for k in which.tolist()]
        return low + (np.array(points) * (high - low + 1)).astype(np.int64)

    def _seconds(
        self, agents: Agents, which: np.ndarray, round_index: int, steps: np.ndarray
    ) -> np.ndarray:
        """(n,) how long the next turns of these agents last."""
        per_step = agents.sizes[which] if self.full_batch else agents.batch_size[which]
        return agents.times(which, steps * per_step, round_index).total
