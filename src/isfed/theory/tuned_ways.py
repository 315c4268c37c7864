"""Which way to learn would end lowest within a budget, each at its best step size: no run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from isfed.base.argument_checks import check_active, check_whole
from isfed.base.gram_matrix import TALL, limited_blas
from isfed.methods import FedAvg, ISFedAvg
from isfed.problems import Problem
from isfed.problems.losses import LeastSquares, LinearLoss
from isfed.theory.budget_levels import NoisePath, TunedWay
from isfed.theory.composition_variance import turns_of, variate_errors
from isfed.theory.learned_paths import learned, pass_noise, pass_probabilities
from isfed.theory.probabilities import (
    Choices,
    TheoryError,
    all_choices_at,
    risk_gradients,
)
from isfed.theory.round_curvature import hessian, local_drift
from isfed.theory.round_variance import curvature_variances, gradient_variances
from isfed.theory.stable_step_size import StableSteps
from isfed.theory.strategies import LEAST_GAIN

AVERAGED = ", averaged"
BASE = "FedAvg"  # what the others are compared with
MOST_GROWTH = 32  # parameters: beyond, the noise grows with the step as the mean-square limit says
MOST_PREDICTED = 700  # parameters: beyond, the eigenvectors of the Hessian would take long
CLEAR = 2.0  # standard errors: what is more is no chance
ALIKE_DB = 0.3  # of two ways nearer than that the simpler one is recommended


def ways_to_learn(num_active: int, *, local_steps: int = 1) -> dict[str, ISFedAvg]:
    """The ways that are compared, the simplest first; each of them may also show its average.

    Args:
        num_active: L, agents per round.
        local_steps: the largest E_k; "drift" has something to correct where it is above 1.

    >>> list(ways_to_learn(2))
    ['FedAvg', 'FedAvg, passes', 'importance', 'importance, passes', 'control variates']
    """
    common: dict[str, Any] = {"step_size": 1.0, "num_active": num_active}
    fedavg = FedAvg(**common, divide_by_steps=True)
    ways = {
        "FedAvg": fedavg,
        "FedAvg, passes": replace(fedavg, passes=True),
        "importance": ISFedAvg(**common),
        "importance, passes": ISFedAvg(**common, passes=True),
        "control variates": ISFedAvg(**common, correction="difference"),
    }
    if local_steps > 1:
        ways["control variates, drift"] = ISFedAvg(**common, correction="drift")
    return {name: replace(way, label=name) for name, way in ways.items()}


def noise_paths(problem: Problem, *, num_active: int, rounds: int) -> dict[str, NoisePath]:
    """What is known of every way of `ways_to_learn`, and of FedAvg with 2 L agents and 2 B rows.

    Args:
        problem: what is learned, with one of the built-in losses.
        num_active: L, agents per round.
        rounds: the rounds of a run; memories that agents had few turns to learn are worth less.
    """
    check_active(num_active, problem.num_agents)
    check_whole(rounds, name="rounds", least=1)
    if not isinstance(problem.loss, LinearLoss) or problem.num_params > MOST_PREDICTED:
        raise TheoryError(f"{problem.name} has no Hessian small enough to predict its runs from")
    with limited_blas():
        return _noise_paths(problem, num_active, rounds)


def _noise_paths(problem: Problem, num_active: int, rounds: int) -> dict[str, NoisePath]:
    model, count = problem.optimum, problem.num_agents
    start, steps = np.zeros(problem.num_params), int(problem.local_steps.max())
    ways = ways_to_learn(num_active, local_steps=steps)
    plain, scored, variates = (ways[n] for n in ("FedAvg", "importance", "control variates"))
    methods = [plain, scored]
    if 2 * num_active <= count:
        methods.append(replace(plain, num_active=2 * num_active))
    curvature, basis = linalg.eigh(hessian(problem, model))
    curvature = np.maximum(curvature, 0.0)
    chosen = all_choices_at(problem, methods, model)
    stable = StableSteps(problem, model)
    limits = [stable.limits(*pair)[0] for pair in zip(methods, chosen, strict=True)]

    turns = turns_of(problem, variates.parts(), model)
    errors = variate_errors(
        problem, model, turns.means, turns.noise,
        step_size=0.1 * limits[0], num_active=num_active, rounds=rounds,
    )  # fmt: skip
    known = errors.inclusion(num_active, variates.agents.floor)
    rest = float((errors.unlearned * (1.0 / known - 1.0)).sum()) / count**2
    moved = errors.variance(known) - rest - float((errors.noise / known).sum()) / count**2
    shape = curvature / max(curvature.sum(), 1e-300)

    shrunk = pass_probabilities(chosen[1].agents / num_active, num_active)
    pairs = [
        *zip(methods, chosen, strict=True),
        (variates, Choices(known, chosen[1].examples)),
        (scored, Choices(num_active * shrunk, chosen[1].examples)),
    ]
    late = gradient_variances(problem, pairs, params=model, rotate=basis)
    early = late
    if problem.data.features.size <= TALL:
        others = list(zip(methods, all_choices_at(problem, methods, start), strict=True))
        early = gradient_variances(problem, [*others, *pairs[-2:]], params=start, rotate=basis)
    growth = [None] * (len(pairs))
    small = problem.num_params <= MOST_GROWTH and problem.data.features.size <= TALL
    if isinstance(problem.loss, LeastSquares) and small:
        growth = [
            np.stack([found.agents, found.examples])
            for found in curvature_variances(problem, pairs, rotate=basis)
        ]

    def pair_of(place: int, part: str) -> np.ndarray:
        return np.stack([getattr(early[place], part), getattr(late[place], part)])

    away, drift, by_weights = -model @ basis, 0.0, 0.0
    if steps > 1:
        small = 0.1 * limits[0]
        weights = num_active / (count * chosen[1].agents[:, None])  # of importance sampling
        drift, by_weights = (
            local_drift(problem, model, turns.means, small, weight) / small**2
            for weight in (1.0, weights)
        )

    def path(place: int, limit: float, **more: Any) -> NoisePath:
        more = {"agents": pair_of(place, "agents"), "drift": drift, "growth": growth[place]} | more
        examples = pair_of(place, "examples")
        return NoisePath(curvature, away, examples=examples, limit=limit, **more)

    values = [risk_gradients(problem, at) @ basis / count for at in (start, model)]
    equal = np.full(count, 1.0 / count)
    fades = {
        "fades": num_active / count, "moved": moved / (0.1 * limits[0]) * shape,
        "agents": np.stack([early[0].agents, late[0].agents]),
    }  # fmt: skip
    limit = min(limits[0], limits[1])
    paths = {
        "FedAvg": path(0, limits[0]),
        "FedAvg, passes": path(0, limits[0], **pass_noise(equal, values, num_active)),
        "importance": path(1, limits[1], drift=by_weights),
        "importance, passes": path(
            -1, limits[1], drift=by_weights, **pass_noise(shrunk, values, num_active)
        ),
        "control variates": path(-2, limit, **fades),
    }
    paths["control variates"] = replace(
        paths["control variates"], examples=paths["control variates"].examples + rest * shape
    )
    if growth[1] is not None:
        learners = {
            "importance": pairs[1], "control variates": pairs[-2], "importance, passes": pairs[-1],
        }  # fmt: skip
        paths |= learned(problem, learners, paths, basis, errors, rounds)
    if steps > 1:
        paths["control variates, drift"] = replace(paths["control variates"], drift=0.0)
    if len(methods) == 3:
        paths["FedAvg, 2 L agents"] = path(2, limits[2])
    fedavg = paths["FedAvg"]
    paths["FedAvg, 2 B rows"] = replace(fedavg, examples=0.5 * fedavg.examples)
    return paths


def predict_ways(problem: Problem, *, num_active: int, rounds: int) -> dict[str, TunedWay]:
    """Every way at its best step size within so many rounds, last model and average, by name.

    Args:
        problem: what is learned, with one of the built-in losses.
        num_active: L, agents per round.
        rounds: the rounds of a run.

    >>> from isfed import EQUAL
    >>> found = predict_ways(EQUAL.make(), num_active=6, rounds=400)
    >>> found["importance"].excess < found["FedAvg"].excess
    True
    """
    square = isinstance(problem.loss, LeastSquares)
    how = "computed" if square else "roughly computed"  # with the curvature at w^o everywhere
    costs = {
        "FedAvg, 2 L agents": {"uploads": 2.0, "gradients": 2.0},
        "FedAvg, 2 B rows": {"gradients": 2.0},
    }
    with limited_blas():
        paths = noise_paths(problem, num_active=num_active, rounds=rounds)
        found = {
            name + suffix: path.tuned(
                name + suffix, rounds, averaged=bool(suffix), how=how, **costs.get(name, {})
            )
            for name, path in paths.items()
            for suffix in ("", AVERAGED)
        }
        level = found[BASE].excess
        for name, way in found.items():
            path, averaged = paths[name.removesuffix(AVERAGED)], name.endswith(AVERAGED)
            after = path.reaches(level, way.step_size, rounds, averaged=averaged)
            found[name] = replace(way, reaches=after)
        return found


@dataclass(frozen=True)
class TunedWays:
    """Every way at its best step size within some rounds, by name, and what follows."""

    ways: dict[str, TunedWay]
    rounds: int

    @property
    def advised(self) -> TunedWay:
        """The simplest of the best ways if it is worth a change and no chance, else FedAvg."""
        own = {
            name: w.typical
            for name, w in self.ways.items()
            if w.uploads == w.gradients == 1.0
            and (name == BASE or self.gain(name) > CLEAR * w.stderr_db)
        }
        best = recommended(own)
        return self.ways[best if self.gain(best) >= LEAST_GAIN else BASE]

    def gain(self, name: str) -> float:
        """How far a way would end below FedAvg, in dB, on average over runs."""
        base, own = self.ways[BASE].typical, self.ways[name].typical
        known = 0.0 < base < math.inf and 0.0 < own < math.inf
        return 10.0 * math.log10(base / own) if known else math.nan

    def answer(self) -> str:
        """What to do, in words."""
        way = self.advised
        if way.name == BASE:
            return (
                "It would not help you: no way would clearly end half a dB below FedAvg after "
                f"{self.rounds:,} rounds, each at its best step size. Keep FedAvg."
            )
        gain = self.gain(way.name)
        return (
            f"Use {in_words(way.name)}: after {self.rounds:,} rounds, each at its best step size, "
            f"its loss above the lowest possible would be {gain:.1f} dB below that of FedAvg (1/"
            f"{10 ** (gain / 10):.3g} of it)."
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON, which has no infinity."""
        rows = [vars(way) | {"gain_db": self.gain(name)} for name, way in self.ways.items()]
        return {
            "advised": self.advised.name,
            "run_rounds": self.rounds,
            "tuned": [
                {
                    key: None if isinstance(value, float) and not math.isfinite(value) else value
                    for key, value in row.items()
                }
                for row in rows
            ],
        }


def recommended(excess: dict[str, float]) -> str:
    """The first way, from the simplest on, that is within 0.3 dB of the best."""
    least = min(excess.values()) * 10.0 ** (ALIKE_DB / 10.0)
    return next(name for name, value in excess.items() if value <= least)


def in_words(name: str) -> str:
    """A way in a sentence.

    >>> in_words("importance, passes, averaged")
    'importance sampling in passes and the average of the last half of the rounds'
    """
    plain = name.removesuffix(AVERAGED)
    words = plain.replace(", passes", " in passes").replace("importance", "importance sampling")
    words = words.replace("control variates, drift", "control variates against drift")
    return words + (" and the average of the last half of the rounds" if plain != name else "")
