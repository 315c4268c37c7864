"""Would importance sampling help, and by how much? Answered from the data, without a training run.

Everything is computed at one model, w^o unless another is given: finding w^o is the one thing that
looks at all data together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isfed.algorithms import ISFedAvg
from isfed.base.checks import check_active
from isfed.problems import Problem
from isfed.sampling.policies import Memory, Policy, Uniform
from isfed.theory.bound import TheoryError
from isfed.theory.choices import Choices, check_model, choices_at
from isfed.theory.constants import Constants
from isfed.theory.prediction import hessian
from isfed.theory.stability import step_limits
from isfed.theory.variance import gradient_variance

SIDES = {"uniform": (0, 0), "agents": (1, 0), "examples": (0, 1), "both": (1, 1)}
LEAST_GAIN = 0.5  # dB; what is below is not worth a change
MOST_LOCAL = 50_000  # agents x parameters up to which the agents' own minimisers are looked for
TOP = 5  # of the agents and examples that would dominate


@dataclass(frozen=True)
class Option:
    """One way to sample, and what it would do."""

    sampling: str  # uniform, agents, examples, both: where importance sampling is used
    variance: float  # of the gradient estimate
    agents_share: float  # of the variance
    variance_ratio: float  # that of uniform sampling over this
    gain_db: float  # of the error that remains at a small step size
    step_limit: float | None  # the largest stable step size; None where it is not known
    agents_size: float  # effective number of agents in a draw of L
    examples_size: float  # effective number of examples in a step, on average over the agents


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What importance sampling would do for a problem, at one model."""

    problem: str
    setting: dict[str, Any]
    at: str  # which model
    weighted: bool  # whether the gain weighs directions by their curvature, as the msd does
    options: dict[str, Option]
    choices: Choices = field(repr=False)  # of importance sampling on both sides
    top_agents: list[tuple[int, float]] = field(default_factory=list)  # (agent, K p_k)
    top_examples: list[tuple[int, int, float]] = field(default_factory=list)  # ..., N_k p_n
    constants: dict[str, float | str] = field(default_factory=dict)
    slowest: float | None = None  # the smallest curvature of the risk, where it is known

    @property
    def settling_rounds(self) -> float | None:
        """How many rounds the slowest direction takes at a quarter of the largest stable step."""
        limit = self.best.step_limit
        if limit is None or self.slowest is None:
            return None
        return 1.0 / (0.25 * limit * self.slowest)

    @property
    def best(self) -> Option:
        """The simplest option that is within `LEAST_GAIN` of the best one."""
        most = max(option.gain_db for option in self.options.values())
        return next(o for o in self.options.values() if o.gain_db >= most - LEAST_GAIN)

    @property
    def helps(self) -> bool:
        """Whether any importance sampling is worth it."""
        return self.best.sampling != "uniform"

    def recommendation(self) -> str:
        """What to do, in one sentence."""
        uniform, best = self.options["uniform"], self.best
        if not self.helps:
            most = max(option.gain_db for option in self.options.values())
            return (
                f"It would not help you: importance sampling would change the remaining error by "
                f"{most:.1f} dB at most, so keep sampling uniformly."
            )
        if math.isinf(best.gain_db):
            return f"Sample {best.sampling} by importance: at this model no noise would be left."
        what = {"agents": "agents", "examples": "examples", "both": "agents and examples"}
        sentence = (
            f"Sample {what[best.sampling]} by importance: at the same small step size the "
            f"remaining error falls by {best.gain_db:.1f} dB (to 1/{10 ** (best.gain_db / 10):.3g})"
        )
        if uniform.step_limit and best.step_limit and best.step_limit < 0.5 * uniform.step_limit:
            ratio = uniform.step_limit / best.step_limit
            sentence += f", but the largest stable step size is {ratio:.2g} times smaller"
        return sentence + "."

    def as_dict(self) -> dict[str, Any]:
        """All of it but the probabilities, for JSON."""
        return {
            "problem": self.problem,
            "setting": self.setting,
            "at": self.at,
            "weighted_by_curvature": self.weighted,
            "recommendation": self.recommendation(),
            "settling_rounds": self.settling_rounds,
            "options": [
                {name: _json(value) for name, value in vars(option).items()}
                for option in self.options.values()
            ],
            "top_agents": [{"agent": k, "times_uniform": f} for k, f in self.top_agents],
            "top_examples": [
                {"agent": k, "example": n, "times_uniform": f} for k, n, f in self.top_examples
            ],
            "constants": self.constants,
        }


def effective_size(inclusion: np.ndarray) -> float:
    """How many units drawn with equal chances would weigh as evenly: N^2 / sum_n 1 / pi_n."""
    seen = inclusion[inclusion > 0.0]
    return float(seen.size**2 / np.sum(1.0 / seen))


def diagnose(
    problem: Problem,
    *,
    num_active: int,
    importance: Policy | None = None,
    params: np.ndarray | None = None,
) -> Diagnosis:
    """What importance sampling of agents, of examples and of both would do for a problem.

    `importance` is the policy whose probabilities are used, `Memory()` unless given, as it would
    have learned them at the model `params` (w^o unless given). No run is made.

    >>> from isfed import EQUAL
    >>> found = diagnose(EQUAL.make(), num_active=6)
    >>> found.helps
    True
    """
    check_active(num_active, problem.num_agents)
    model = check_model(problem, params)
    sides = (Uniform(), importance or Memory())
    turn, weights = _directions(problem, model)
    plain = ISFedAvg(step_size=1.0, num_active=num_active)
    options: dict[str, Option] = {}
    base: tuple[float, float] | None = None  # of uniform sampling, which comes first
    chosen = None
    for name, (agents, examples) in SIDES.items():
        algorithm = replace(plain, agents=sides[agents], examples=sides[examples])
        chosen = choices_at(problem, algorithm, model)
        found = gradient_variance(problem, algorithm, params=model, choices=chosen, rotate=turn)
        error = float(weights @ (found.agents + found.examples))
        base = base or (found.total, error)
        options[name] = Option(
            sampling=name,
            variance=found.total,
            agents_share=found.agents_share,
            variance_ratio=_ratio(base[0], found.total),
            gain_db=_decibels(_ratio(base[1], error)),
            step_limit=_limit(problem, algorithm, chosen),
            agents_size=effective_size(chosen.agents),
            examples_size=_examples_size(problem, chosen),
        )
    assert chosen is not None
    both = replace(plain, agents=sides[1], examples=sides[1])
    return Diagnosis(
        problem=problem.name,
        setting=_setting(problem, num_active, sides[1]),
        at="w^o, the minimiser" if params is None else "the model given",
        weighted=turn is not None,
        slowest=None if turn is None else float(1.0 / weights.max()),
        options=options,
        choices=chosen,
        top_agents=_top_agents(problem, chosen, num_active),
        top_examples=_top_examples(problem, chosen),
        constants=Constants(problem, both, chosen).report(
            local=problem.num_agents * problem.num_params <= MOST_LOCAL
        ),
    )


def _json(value: Any) -> Any:
    """JSON has no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0.0 else (1.0 if over == 0.0 else float("inf"))


def _decibels(ratio: float) -> float:
    return 10.0 * math.log10(ratio) if ratio > 0.0 else -math.inf


def _directions(problem: Problem, model: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """The eigenbasis of the Hessian and 1 / its eigenvalues: the msd's weights, if they exist."""
    try:
        curvature, basis = np.linalg.eigh(hessian(problem, model))
    except TheoryError:
        return None, np.ones(problem.num_params)
    if not curvature[0] > 1e-12 * curvature[-1]:
        return None, np.ones(problem.num_params)  # a direction that never settles
    return basis, 1.0 / curvature


def _limit(problem: Problem, algorithm: ISFedAvg, chosen: Choices) -> float | None:
    try:
        return step_limits(problem, algorithm, chosen).mean_square
    except ValueError:
        return None


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
    return [(int(k), float(times[k])) for k in order if times[k] > 1.0]


def _top_examples(problem: Problem, chosen: Choices) -> list[tuple[int, int, float]]:
    sizes, offsets = problem.data.num_examples, problem.data.offsets
    times = chosen.examples * np.repeat(sizes / problem.batch_size, sizes)
    order = np.argsort(-times, kind="stable")[:TOP]
    agents = np.searchsorted(offsets, order, side="right") - 1
    return [
        (int(k), int(row - offsets[k]), float(times[row]))
        for k, row in zip(agents, order, strict=True)
    ]
