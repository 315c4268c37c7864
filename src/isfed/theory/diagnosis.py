"""Would importance sampling help, and by how much? Answered from the data, without a training run.

Everything is computed at one model, w^o unless another is given: finding w^o is the one thing that
looks at all data together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from isfed.base.argument_types import checked
from isfed.base.gram_matrix import one_thread
from isfed.base.value_checks import check_active
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.sampling.policies import Memory, Policy, Uniform
from isfed.theory.diagnosis_result import ALIKE, LEAST_GAIN, Diagnosis, Option, nothing_to_learn
from isfed.theory.msd_bound import TheoryError
from isfed.theory.paper_constants import Constants
from isfed.theory.probabilities import Choices, all_choices_at, check_model
from isfed.theory.round_curvature import hessian
from isfed.theory.round_variance import gradient_variances
from isfed.theory.settling_time import settling
from isfed.theory.stable_step_size import SHARE_OF_LIMIT, StableSteps
from isfed.theory.strategies import compare_ways

__all__ = ["Diagnosis", "Option", "diagnose", "effective_size"]

SIDES = {"uniform": (0, 0), "agents": (1, 0), "examples": (0, 1), "both": (1, 1)}
MOST_LOCAL = 50_000  # agents x parameters up to which the agents' own minimisers are looked for
SINGULAR = 1e-12  # of the largest curvature: below, rounding
TOP = 5  # of the agents and examples that would dominate
OFTENER = 1.005  # times uniform: what is drawn no more often, to three digits, is not named


def effective_size(inclusion: np.ndarray) -> float:
    """How many units drawn with equal chances would weigh as evenly: N^2 / sum_n 1 / pi_n."""
    seen = inclusion[inclusion > 0.0]
    return float(seen.size**2 / np.sum(1.0 / seen))


@checked
def diagnose(
    problem: Problem,
    *,
    num_active: int,
    importance: Policy | None = None,
    params: np.ndarray | None = None,
    theory: bool = True,
) -> Diagnosis:
    """Predict what importance sampling of agents, of examples and of both would gain.

    problem: what is learned.
    num_active: L, agents per round.
    importance: the policy whose probabilities are used, as it would have learned them at the
        model; `Memory()` unless given.
    params: the model to look at; w^o unless given. No run is made.
    theory: also compute the constants of the paper's lemmas.

    >>> from isfed import EQUAL
    >>> found = diagnose(EQUAL.make(), num_active=6)
    >>> found.helps
    True
    """
    check_active(num_active, problem.num_agents)
    elsewhere = getattr(problem.loss, "diagnosed_by", None)  # a network has no w^o to look at
    if elsewhere is not None:
        raise TypeError(
            f"{type(problem.loss).__name__} is diagnosed by {elsewhere}(problem, num_active=..., "
            "step_size=..., params=...)"
        )
    with one_thread(problem.data.features):
        return _diagnose(problem, num_active, importance or Memory(), params, theory=theory)


def _diagnose(
    problem: Problem,
    num_active: int,
    importance: Policy,
    params: np.ndarray | None,
    *,
    theory: bool,
) -> Diagnosis:
    model = check_model(problem, params)
    sides = (Uniform(), importance)
    plain = ISFedAvg(step_size=1.0, num_active=num_active)
    ways = {
        name: replace(plain, agents=sides[agents], examples=sides[examples])
        for name, (agents, examples) in SIDES.items()
    }
    chosen = dict(zip(ways, all_choices_at(problem, list(ways.values()), model), strict=True))
    curvature, basis = _directions(problem, model)
    pairs = [(ways[name], chosen[name]) for name in ways]
    noises = gradient_variances(problem, pairs, params=model, rotate=basis)
    steps = _steps(problem, model)
    options: dict[str, Option] = {}
    slow: dict[str, list[tuple[int, float]]] = {}
    base: tuple[float, float] | None = None  # of uniform sampling, which comes first
    for name, found in zip(ways, noises, strict=True):
        noise = found.agents + found.examples
        error = float(_weights(curvature, noise.size) @ noise)
        base = base or (found.total, error)
        limit, careful = (None, None) if steps is None else steps(ways[name], chosen[name])
        settled = None
        if limit is not None and curvature is not None and basis is not None:
            start = -model @ basis
            settled = settling(curvature, basis, noise, start, SHARE_OF_LIMIT * limit)
            slow[name] = settled.features(problem.data.num_features)
        options[name] = Option(
            sampling=name,
            variance=found.total,
            agents_share=found.agents_share,
            variance_ratio=_ratio(base[0], found.total),
            gain_db=_decibels(_ratio(base[1], error)),
            step_limit=limit,
            careful_limit=careful,
            settled_after=None if settled is None else settled.rounds,
            agents_size=effective_size(chosen[name].agents),
            examples_size=_examples_size(problem, chosen[name]),
        )
    both = chosen["both"]
    constants: dict[str, float | str] = {}
    if theory:
        constants = Constants(problem, ways["both"], both).report(
            local=problem.num_agents * problem.num_params <= MOST_LOCAL
        )
    return Diagnosis(
        problem=problem.name,
        setting=_setting(problem, num_active, sides[1]),
        at="w^o, the minimiser" if params is None else "the model given",
        weighted=basis is not None,
        options=options,
        choices=both,
        top_agents=_top_agents(problem, both, num_active),
        top_examples=_top_examples(problem, both),
        constants=constants,
        slow=slow,
        remarks=_remarks(problem, num_active, options),
        degenerate=_degenerate(problem, options["uniform"]),
        ways=compare_ways(problem, num_active=num_active, params=model),
    )


def _remarks(problem: Problem, num_active: int, options: dict[str, Option]) -> list[str]:
    """What is special about a problem, so that some of the answer is no surprise."""
    found = []
    if problem.num_agents == 1:
        found.append("There is only one agent: only its examples can be chosen.")
    elif num_active == problem.num_agents:
        found.append("All agents take part in every round: only examples can be chosen.")
    if np.all(problem.batch_size == problem.data.num_examples):
        found.append("Every step uses all examples of its agent: only agents can be chosen.")
    share = 100.0 * options["uniform"].agents_share
    if num_active < problem.num_agents and share < 100.0 * ALIKE:
        part = f"only {share:.2g}%" if share >= 0.01 else "none"
        what = f"{part} of the noise of uniform sampling comes from the choice of agents"
        if options["agents"].gain_db < LEAST_GAIN:
            found.append(f"The agents are alike: {what}.")
        else:
            found.append(
                f"The agents agree on the model ({what}), but the examples of some are noisier "
                "than those of others."
            )
    return found


def _degenerate(problem: Problem, uniform: Option) -> str:
    """Why there is nothing to gain, if there is not."""
    targets = problem.data.targets
    if flat := nothing_to_learn(targets):
        return flat
    if uniform.variance <= 1e-20 * float(np.mean(targets**2)):
        return "the model fits every example, so uniform sampling has no noise to reduce."
    return ""


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0.0 else (1.0 if over == 0.0 else float("inf"))


def _decibels(ratio: float) -> float:
    return 10.0 * math.log10(ratio) if ratio > 0.0 else -math.inf


def _directions(problem: Problem, model: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The eigenvalues and eigenvectors of the Hessian, if it can be had."""
    try:
        curvature, basis = np.linalg.eigh(hessian(problem, model))
    except TheoryError:
        return None, None
    # In a direction without curvature there is no noise either: it never moves.
    return np.where(curvature > SINGULAR * curvature[-1], curvature, 0.0), basis


def _weights(curvature: np.ndarray | None, size: int) -> np.ndarray:
    """1 / curvature, the msd's weights of the noise; equal ones if the curvature is not known."""
    if curvature is None:
        return np.ones(size)
    return np.divide(1.0, curvature, out=np.zeros(size), where=curvature > 0.0)


def _steps(problem: Problem, model: np.ndarray) -> Any:
    """From an algorithm and its probabilities to its stable step sizes; None if not known."""
    try:
        stable = StableSteps(problem, model)
    except ValueError:
        return None

    def steps(algorithm: ISFedAvg, choices: Choices) -> tuple[float | None, float | None]:
        try:
            return stable.limits(algorithm, choices)
        except ValueError:
            return None, None

    return steps


def _examples_size(problem: Problem, chosen: Choices) -> float:
    agents = range(problem.num_agents)
    return float(np.mean([effective_size(chosen.of_agent(problem, k)) for k in agents]))


def _setting(problem: Problem, num_active: int, policy: Policy) -> dict[str, Any]:
    def span(values: np.ndarray) -> Any:
        low, high = int(values.min()), int(values.max())
        return low if low == high else [low, high]

    return {
        "num_agents": problem.num_agents,
        "rows": len(problem.data.targets),
        "num_params": problem.num_params,
        "loss": type(problem.loss).__name__,
        "num_active": num_active,
        "batch_size": span(problem.batch_size),
        "local_steps": span(problem.local_steps),
        "policy": policy.name,
        "floor": policy.floor,
    }


def _top_agents(problem: Problem, chosen: Choices, num_active: int) -> list[tuple[int, float]]:
    times = problem.num_agents * chosen.agent_prob(num_active)
    order = np.argsort(-times, kind="stable")[:TOP]
    return [(int(k), float(times[k])) for k in order if times[k] > OFTENER]


def _top_examples(problem: Problem, chosen: Choices) -> list[tuple[int, int, float]]:
    sizes, offsets = problem.data.num_examples, problem.data.offsets
    times = chosen.examples * np.repeat(sizes / problem.batch_size, sizes)
    order = np.argsort(-times, kind="stable")[:TOP]
    agents = np.searchsorted(offsets, order, side="right") - 1
    return [
        (int(k), int(row - offsets[k]), float(times[row]))
        for k, row in zip(agents, order, strict=True)
        if times[row] > OFTENER
    ]
