"""Where a method comes to rest if nothing is left to chance: its own fixed point.

Everybody is heard and every step uses all examples; the map of one round is then iterated to rest,
with Anderson's acceleration. For least squares that is also where the mean of the random version
goes, because the mean of a mini-batch step is the full step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from isfed.base.portable_arithmetic import weighted_sum
from isfed.federation.agents import Agents, LocalOptions, TrainRequest
from isfed.federation.compiled_agents import CompiledAgents
from isfed.methods import ISFedAvg
from isfed.methods.adaptive_tau import AdaptiveTau
from isfed.methods.agnostic_fl import AgnosticFL
from isfed.methods.fedasync import FedAsync
from isfed.methods.fedavg import WeightedFedAvg
from isfed.methods.fedavg_schemes import FedAvgScheme
from isfed.methods.fedcs import FedCS
from isfed.methods.fedprox import FedProx
from isfed.methods.hybrid_fl import HybridFL
from isfed.methods.local_sgd import LocalGD, StichSGD
from isfed.methods.method_protocol import ModelState, filled_state, flat_state, objective_of
from isfed.methods.mocha import Mocha
from isfed.methods.shared_fields import Everybody, Sampled
from isfed.problems import Problem
from isfed.simulate.run_history import decibels
from isfed.studies.work_cells import CellStore

DEPTH = 12  # of the acceleration
NOTHING = 1e-13
EXACT, LONG = "computed", "long run"
IN_TIME, BY_TAU = "depends on who is in time", "moves with tau"
AT_OPTIMUM = "w^o"
ENOUGH, NEARLY = 1e-9, 1e-5  # a round that moves so much less than the first is at rest
LONG_ROUNDS = 6000


@dataclass(frozen=True, kw_only=True)
class StragglersOnAverage(Sampled):
    """FedProx with everybody, and the mean over who is slow and how few steps it then takes."""

    prox: float = 1.0
    stragglers: float = 0.0

    @classmethod
    def of(cls, method: FedProx, *, num_agents: int) -> StragglersOnAverage:
        """Of a method in which so many of L are slow."""
        given: dict[str, Any] = {f.name: getattr(method, f.name) for f in fields(cls)}
        slow = method.num_active - round((1.0 - method.stragglers) * method.num_active)
        given["num_active"], given["stragglers"] = num_agents, slow / method.num_active
        return cls(**{**given, "full_batch": True})

    def round(self, state: Any, agents: Agents, round_index: int) -> ModelState:
        """The mean of the rounds that there may be."""
        everybody = np.arange(agents.num_agents)
        steps = self.local().steps(everybody, agents.facts())
        most = np.maximum(steps - 1, 1)  # of a slow agent; it takes 1 to so many
        fewer = np.zeros((everybody.size, agents.num_params))
        for count in range(1, int(most.max()) + 1):
            able = everybody[most >= count]
            fewer[able] += self._changes(agents, able, state.params, np.full(able.size, count))
        fewer /= most[:, None]
        whole = self._changes(agents, everybody, state.params, steps)
        changes = (1.0 - self.stragglers) * whole + self.stragglers * fewer
        share = agents.facts(self.client_weights).share(everybody)
        return ModelState(state.params + weighted_sum(share, changes))

    def _changes(self, agents: Agents, which: Any, params: Any, steps: Any) -> np.ndarray:
        local = LocalOptions(steps=steps, prox=float(self.prox), full_batch=True)
        turns = TrainRequest(which, params, np.full(which.size, self.step_size))
        return agents.work(turns, 0, local).changes


def without_chance(algorithm: Any, problem: Problem) -> Any:
    """The same method with everybody and all examples; None if it is not known how."""
    count = problem.num_agents
    step: Any = getattr(algorithm, "step_size", None)
    if isinstance(algorithm, ISFedAvg):
        return WeightedFedAvg(
            step_size=step, num_active=count, full_batch=True,
            client_weights=algorithm.client_weights, divide_by_steps=algorithm.divide_by_steps,
        )  # fmt: skip
    if isinstance(algorithm, FedAsync):
        if algorithm.in_flight is not None:
            return None
        return FedProx(
            prox=algorithm.prox, step_size=step, num_active=count, full_batch=True,
            client_weights=algorithm.client_weights,
        )  # fmt: skip
    if isinstance(algorithm, FedCS | HybridFL):
        return None
    if isinstance(algorithm, FedProx) and algorithm.stragglers > 0.0 and algorithm.keep_stragglers:
        return StragglersOnAverage.of(algorithm, num_agents=count)
    if isinstance(algorithm, FedProx):  # whoever is dropped is dropped as often as anybody
        return replace(algorithm, num_active=count, full_batch=True, stragglers=0.0)
    if isinstance(algorithm, FedAvgScheme) and algorithm.scheme == "I":
        return replace(algorithm, num_active=count, full_batch=True, scheme="II")
    if isinstance(algorithm, AdaptiveTau):
        return None
    if isinstance(algorithm, Sampled):
        return replace(algorithm, num_active=count, full_batch=True)
    if isinstance(algorithm, Everybody):
        return replace(algorithm, full_batch=True)
    return None


def rest(problem: Problem, algorithm: Any, *, most: int = 400) -> np.ndarray | None:
    """The model at which a method without chance stays; None if it has not come to rest."""
    rules = algorithm.rules(problem.num_agents)
    agents = CompiledAgents(problem, rules, seed=0, repetition=0)
    state = algorithm.start(agents, objective_of(problem, algorithm).optimum)  # near: fewer rounds
    # What moves: numbers, not counts.
    moving = {n: v for n, v in flat_state(state).items() if v.dtype == np.float64}

    def flat(of: Any) -> np.ndarray:
        parts = flat_state(of)
        return np.concatenate([np.ravel(parts[name]) for name in moving])

    def back(values: np.ndarray) -> Any:
        arrays, at = flat_state(state), 0
        for name, first in moving.items():
            arrays[name] = values[at : at + first.size].reshape(first.shape)
            at += first.size
        return filled_state(state, arrays)

    def step(values: np.ndarray) -> np.ndarray:
        return flat(algorithm.round(back(values.copy()), agents, 0))

    fixed_point = accelerated(step, flat(state), most=most)
    return None if fixed_point is None else algorithm.model(back(fixed_point))


def accelerated(
    step: Callable[[np.ndarray], np.ndarray], start: np.ndarray, *, most: int
) -> np.ndarray | None:
    """The fixed point of a map by Anderson's acceleration; None if it is not reached."""
    point = start
    points: list[np.ndarray] = []
    moves: list[np.ndarray] = []
    first = None
    for _ in range(most):
        move = step(point) - point
        size = float(np.linalg.norm(move))
        if not np.isfinite(size):
            return None
        first = size if first is None else first
        if size <= ENOUGH * first or size <= NOTHING * (1.0 + np.linalg.norm(point)):
            return point + move
        points, moves = [*points[-DEPTH:], point], [*moves[-DEPTH:], move]
        if len(moves) == 1:
            point = point + move
            continue
        changes = np.diff(np.array(moves), axis=0).T
        share = np.linalg.lstsq(changes, move, rcond=1e-12)[0]
        point = point + move - (np.diff(np.array(points), axis=0).T + changes) @ share
    move = step(point) - point
    return point + move if np.linalg.norm(move) <= NEARLY * (first or 0.0) else None


Rest = tuple[float | None, str]


Remember = Callable[[str, Callable[[], Rest]], Rest]  # what is known under a key, or is computed


def remembering(store: CellStore, title: str) -> Remember:
    """Where methods rest on a problem, by what they are without chance; a resume finds it again."""

    def get(key: str, compute: Callable[[], Rest]) -> Rest:
        name = f"{title}: rest of {key}"
        note = store.note(name)
        if note is not None:
            level = float(note["level"])
            return None if np.isnan(level) else level, str(note["how"])
        level, how = compute()
        known = np.array(np.nan if level is None else level)
        store.keep_note(name, level=known, how=np.array(how))
        return level, how

    return get


def resting_distances(
    problem: Problem,
    methods: Mapping[str, Any],
    tell: Callable[[], None] | None = None,
    kept: Remember = lambda key, compute: compute(),
) -> dict[str, Rest]:
    """10 log10 |rest - w^o|^2 of every method, and how it was found; None where it is not known."""
    result: dict[str, Rest] = {}
    computed: dict[str, Rest] = {}  # several methods may be the same without chance

    def known(algorithm: Any, how: Callable[[Problem, Any], Rest]) -> Rest:
        key = repr(algorithm)
        if key not in computed:
            computed[key] = kept(key, partial(how, problem, algorithm))
        return computed[key]

    for name, algorithm in methods.items():
        if isinstance(algorithm, StichSGD):
            result[name] = (None, AT_OPTIMUM)
        elif isinstance(algorithm, AgnosticFL | Mocha):
            if isinstance(algorithm, AgnosticFL):
                algorithm = replace(algorithm, stochastic=False)
            result[name] = known(algorithm, _after_long)
        else:
            certain = without_chance(algorithm, problem)
            if certain is None:
                why = BY_TAU if isinstance(algorithm, AdaptiveTau) else IN_TIME
                result[name] = (None, why)
            else:
                result[name] = known(certain, _computed)
        if tell is not None:
            tell()
    return result


def _computed(problem: Problem, certain: Any) -> Rest:
    if isinstance(certain, LocalGD) and certain.steps == 1:
        return None, AT_OPTIMUM
    model = rest(problem, certain)
    if model is None:
        return None, "has not come to rest"
    return _distance(objective_of(problem, certain), model)


def _after_long(problem: Problem, algorithm: Any) -> Rest:
    """A long run of the version without chance; agnostic learning and MOCHA have slow parts."""
    agents = CompiledAgents(problem, algorithm.rules(problem.num_agents), seed=0, repetition=0)
    aim = objective_of(problem, algorithm)
    state = algorithm.start(agents, aim.optimum)
    rounds = min(LONG_ROUNDS, int(6e7 / len(problem.data.targets)))
    for round_index in range(rounds):
        state = algorithm.round(state, agents, round_index)
    level, how = _distance(aim, algorithm.model(state))
    return level, LONG if how == EXACT else how


def _distance(problem: Problem, model: np.ndarray) -> Rest:
    square = float(((model - problem.optimum) ** 2).sum())
    if square < 1e-16:
        return None, AT_OPTIMUM
    return float(decibels(square)), EXACT
