"""Rounds over agents in this process: for every algorithm, loss and design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isfed.base.atomic_files import check_like
from isfed.base.random_streams import Purpose
from isfed.federation.agents import NO_SHIFT
from isfed.federation.virtual_clock import Clock
from isfed.methods.federated import composition_of
from isfed.methods.method_protocol import filled_state, flat_state, objective_of
from isfed.problems import Problem
from isfed.sampling.telemetry import COLUMNS
from isfed.simulate.kernel import TOO_FAR, distance_from
from isfed.simulate.run_driver import Block, Run


class RoundsRun(Run):
    """All repetitions of an algorithm over agents, between chunks of rounds."""

    def __init__(
        self,
        problem: Problem,
        algorithm: Any,
        make_agents: Callable[..., Any],
        *,
        repetitions: int | range,
        seed: int,
        initial: np.ndarray,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(problem, algorithm, repetitions, initial)
        self._parts = composition_of(self.algorithm)
        rules = self.algorithm.rules(problem.num_agents)
        self.objective = objective_of(problem, self.algorithm)
        known = self.objective.has_optimum
        if known and self.objective is not problem:  # the oracle too starts from what is aimed at
            problem = problem.with_optimum(self.objective.optimum)
        self.agents = [
            make_agents(problem, rules, seed=seed, repetition=rep) for rep in self.repetitions
        ]
        if clock is not None:
            for agents in self.agents:
                agents.use_clock(clock)
        self.states = [self.algorithm.start(agents, initial) for agents in self.agents]
        self._optimum = self.objective.optimum if known else np.zeros(problem.num_params)
        self._drift = float(getattr(algorithm, "drift", 0.0))  # of the true model, per round
        self._response = np.empty((0, 0))
        if self._drift > 0.0:
            self._response = self.objective.drift_response if known else self._response
            for agents in self.agents:
                agents.shift = np.zeros(problem.num_params)
        # Where nothing but the model tells how far a run has come, the last good one is kept.
        self._good: dict[int, np.ndarray] = {}
        self._keeps_good = not known

    @property
    def params(self) -> np.ndarray:
        """(R, M) the models as they stand; of one that diverged, the last that was finite."""
        return np.array(
            [self._good.get(rep, self.algorithm.model(s)) for rep, s in enumerate(self.states)]
        )

    @property
    def current(self) -> np.ndarray:
        return np.array(
            [getattr(state, "params", self.algorithm.model(state)) for state in self.states]
        )

    def _distance(self, state: Any, agents: Any) -> float:
        """|w_i - w^o|^2, eq. (56), where w^o is the minimiser of the method's objective."""
        shift = agents.shift if self._response.size else NO_SHIFT
        return distance_from(self._optimum, self._response, self.algorithm.model(state), shift)

    def _round(self, state: Any, agents: Any, round_index: int) -> tuple[Any, Any]:
        """One round, after the true model has taken its random step; the state and telemetry."""
        if self._drift > 0.0:
            move = agents.stream(Purpose.DRIFT, round_index).normals(agents.shift.size)
            agents.shift = agents.shift + self._drift * move
        method = self._parts
        if method is None:
            state = self.algorithm.round(state, agents, round_index)
            return state, getattr(state, "watched", None)
        state, info = method.step(state, agents, round_index)
        return state, method.telemetry(method.facts(agents), info)

    def _advance(self, num_rounds: int) -> tuple[Block, int]:
        msd = np.empty((len(self.agents), num_rounds))
        watched = np.full((*msd.shape, len(COLUMNS)), np.nan, np.float32)
        finite = num_rounds
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is seen below
            for rep, agents in enumerate(self.agents):
                state = self.states[rep]
                for i in range(finite):
                    before = self.algorithm.model(state).copy() if self._keeps_good else None
                    state, row = self._round(state, agents, self.round_index + i)
                    agents.ledger.rounds += 1
                    msd[rep, i] = squared = self._distance(state, agents)
                    if row is not None:
                        watched[rep, i] = row
                    if not squared < TOO_FAR:
                        finite = i
                        if before is not None:
                            self._good[rep] = before
                        self.trouble = getattr(agents, "trouble", "")
                        break
                self.states[rep] = state
        return Block(msd, watched), finite

    def state(self) -> dict[str, np.ndarray]:
        arrays = {}
        for rep, (state, agents) in enumerate(zip(self.states, self.agents, strict=True)):
            for name, values in flat_state(state).items():
                arrays[f"{rep}.cloud.{name}"] = values
            if self._drift > 0.0:
                arrays[f"{rep}.shift"] = agents.shift
            for name, values in agents.state().items():
                arrays[f"{rep}.agents.{name}"] = values
        return arrays

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for rep, agents in enumerate(self.agents):
            fields = {}
            for name, fresh in flat_state(self.states[rep]).items():
                given = state[f"{rep}.cloud.{name}"]
                check_like(name, given, fresh, grows=True)
                fields[name] = given.copy()
            self.states[rep] = filled_state(self.states[rep], fields)
            if self._drift > 0.0:
                check_like("shift", state[f"{rep}.shift"], agents.shift)
                agents.shift = state[f"{rep}.shift"].copy()
            start = f"{rep}.agents."
            own = {k[len(start) :]: v for k, v in state.items() if k.startswith(start)}
            for name, fresh in agents.state().items():
                check_like(name, own[name], fresh, grows=True)
            agents.restore(own)

    def ledgers(self) -> np.ndarray:
        return np.array([agents.ledger.as_array() for agents in self.agents])

    def agent_prob(self, place: int) -> np.ndarray:
        prob = getattr(self.algorithm, "agent_prob", None)
        return np.empty(0) if prob is None else prob(self.states[place], self.problem.num_agents)

    def example_prob(self, place: int) -> np.ndarray:
        return self.agents[place].example_prob(self.algorithm.model(self.states[place]))
