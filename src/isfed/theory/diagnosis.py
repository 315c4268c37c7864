"""Would importance sampling help, and by how much? Answered from the data.

Everything is computed at one model, w^o unless another is given: finding w^o is the one thing that
looks at all data together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_active, check_whole, checked
from isfed.base.gram_matrix import one_thread
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.problems.losses import LinearLoss
from isfed.sampling.policies import Memory, Policy, Uniform
from isfed.theory.msd_prediction import settling_time
from isfed.theory.paper_constants import Constants
from isfed.theory.probabilities import Choices, TheoryError, all_choices_at, check_model
from isfed.theory.round_curvature import hessian
from isfed.theory.round_variance import gradient_variances
from isfed.theory.stable_step_size import SHARE_OF_LIMIT, StableSteps
from isfed.theory.strategies import LEAST_GAIN, Ways, compare_ways
from isfed.theory.tuned_ways import TunedWay, TunedWays, predict_ways

SIDES = {"uniform": (0, 0), "agents": (1, 0), "examples": (0, 1), "both": (1, 1)}
ALIKE = 0.01  # of the noise of uniform sampling: agents that cause less are alike
MOST_LOCAL = 50_000  # agents x parameters up to which the agents' own minimisers are looked for
SINGULAR = 1e-12  # of the largest curvature: below, rounding
TOP = 5  # of the agents and examples that would dominate
ROUNDS = 2000  # of a run, unless said
OFTENER = 1.005  # times uniform: what is drawn no more often, to three digits, is not named


@dataclass(frozen=True)
class Option:
    """One way to sample, and what it would do."""

    sampling: str  # uniform, agents, examples, both: where importance sampling is used
    variance: float  # of the gradient estimate
    agents_share: float  # of the variance
    variance_ratio: float  # that of uniform sampling over this
    gain_db: float  # of the error that remains at a small step size
    step_limit: float | None  # the largest stable step size; None where it is not known
    careful_limit: float | None  # the same with every example at its largest curvature anywhere
    settled_after: float | None  # rounds, at a quarter of the step limit; None where not known
    agents_size: float  # effective number of agents in a draw of L
    examples_size: float  # effective number of examples in a step, on average over the agents


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What importance sampling would do for a problem, at one model.

    Args:
        problem: its name.
        setting: the sizes and choices that the numbers are for.
        at: at which model.
        weighted: whether the gain weighs directions by their curvature, as the msd does.
        options: the four ways to sample, by name: uniform, agents, examples, both.
        choices: the inclusion probabilities of importance sampling on both sides.
        top_agents: (agent, K p_k) of the agents that would be drawn most.
        top_examples: (agent, example, N_k p_n) of the examples that would be drawn most.
        constants: the constants of the theory, or why there are none; empty unless asked for.
        slow: for every option, the features that it waits for until it has settled, with their
            shares.
        remarks: what is special about the problem.
        degenerate: why there is nothing to gain, whatever the numbers say; empty if there may be.
        ways: to sample agents: spreads and corrections as well.
        tuned: what every way would end with at its best step size; None where that is not known.
    """

    problem: str
    setting: dict[str, Any]
    at: str
    weighted: bool
    options: dict[str, Option]
    choices: Choices = field(repr=False)
    top_agents: list[tuple[int, float]] = field(default_factory=list)
    top_examples: list[tuple[int, int, float]] = field(default_factory=list)
    constants: dict[str, float | str] = field(default_factory=dict)
    slow: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    degenerate: str = ""
    ways: Ways | None = None
    tuned: TunedWays | None = None

    def answer(self) -> str:
        """What to do, in words; empty where runs cannot be predicted."""
        if self.degenerate:
            return f"It would not help you: {self.degenerate}"
        return "" if self.tuned is None else self.tuned.answer()

    @property
    def settling_rounds(self) -> float | None:
        """How many rounds the best option takes to settle, at a quarter of its stable step."""
        return self.best.settled_after

    @property
    def best(self) -> Option:
        """The simplest option that is within `LEAST_GAIN` of the best one."""
        most = max(option.gain_db for option in self.options.values())
        return next(o for o in self.options.values() if o.gain_db >= most - LEAST_GAIN)

    @property
    def helps(self) -> bool:
        """Whether any importance sampling is worth it."""
        return self.best.sampling != "uniform" and not self.degenerate

    def recommendation(self) -> str:
        """What to do, in one sentence."""
        uniform, best = self.options["uniform"], self.best
        if self.degenerate:
            return f"It would not help you: {self.degenerate}"
        if not self.helps:
            most = max(option.gain_db for option in self.options.values())
            return (
                "It would not help you: importance sampling would reduce the remaining error by "
                f"{most:.1f} dB at most, so keep sampling uniformly."
            )
        if math.isinf(best.gain_db):
            return f"Sample {best.sampling} by importance: at this model no noise would be left."
        what = "agents and examples" if best.sampling == "both" else best.sampling
        sentence = (
            f"Sample {what} by importance: at the same small step size the "
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
            "best": self.best.sampling if self.helps else "uniform",
            "degenerate": self.degenerate,
            "remarks": self.remarks,
            "settling_rounds": self.settling_rounds,
            "waits_for": [
                {"feature": j, "share": share} for j, share in self.slow.get(self.best.sampling, [])
            ],
            "options": [
                {
                    name: None if isinstance(v, float) and not math.isfinite(v) else v
                    for name, v in vars(option).items()  # JSON has no infinity
                }
                for option in self.options.values()
            ],
            "top_agents": [{"agent": k, "times_uniform": f} for k, f in self.top_agents],
            "top_examples": [
                {"agent": k, "example": n, "times_uniform": f} for k, n, f in self.top_examples
            ],
            "constants": self.constants,
            "ways": None if self.ways is None else self.ways.as_dict(),
            "answer": self.answer(),
            "cause": "" if self.ways is None else self.ways.cause(),
            **({} if self.tuned is None else self.tuned.as_dict()),
        }


def nothing_to_learn(targets: np.ndarray) -> str:
    """Why there is nothing to gain from targets that are all alike; empty if they differ."""
    if targets.min() < targets.max():
        return ""
    return f"the target is always {targets[0]:g}, so there is nothing to learn."


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
    rounds: int = ROUNDS,
    predict: Callable[..., dict[str, TunedWay]] = predict_ways,
) -> Diagnosis:
    """Predict what importance sampling of agents, of examples and of both would gain.

    Args:
        problem: what is learned.
        num_active: L, agents per round.
        importance: the policy whose probabilities are used, as it would have learned them at the
            model; `Memory()` unless given.
        params: the model to look at; w^o unless given. No run is made.
        theory: also compute the constants of the paper's lemmas.
        rounds: of a run; every way is predicted at the step size that is best for so many.
        predict: how. `isfed.studies.ways_by_short_runs` is nearer to what runs find where the loss
            bends or scores are learned, and is what the command line uses.

    Examples:
        >>> from isfed import EQUAL
        >>> diagnose(EQUAL.make(), num_active=6).helps
        True
    """
    check_active(num_active, problem.num_agents)
    elsewhere = getattr(problem.loss, "diagnosed_by", None)  # a network has no w^o to look at
    if elsewhere is not None:
        raise TypeError(
            f"{type(problem.loss).__name__} is diagnosed by {elsewhere}(problem, num_active=..., "
            "step_size=..., params=...)"
        )
    check_whole(rounds, name="rounds", least=1)
    with one_thread(problem.data.features):
        found = _diagnose(problem, num_active, importance or Memory(), params, theory=theory)
        tuned = None
        if params is None and not found.degenerate:
            with suppress(TheoryError, ValueError, np.linalg.LinAlgError):
                ways = predict(problem, num_active=num_active, rounds=rounds)
                tuned = TunedWays(ways, rounds)
    return replace(found, tuned=tuned)


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
    methods = {
        name: replace(plain, agents=sides[agents], examples=sides[examples])
        for name, (agents, examples) in SIDES.items()
    }
    choices = all_choices_at(problem, list(methods.values()), model)
    pairs = list(zip(methods.values(), choices, strict=True))
    curvature = basis = None
    weights = np.ones(problem.num_params)  # of the noise, where the curvature is not known
    with suppress(TheoryError):
        curvature, basis = np.linalg.eigh(hessian(problem, model))
        # In a direction without curvature there is no noise either: it never moves.
        curvature = np.where(curvature > SINGULAR * curvature[-1], curvature, 0.0)
        # The msd weighs the noise by 1 / curvature.
        weights = np.divide(1.0, curvature, out=np.zeros_like(weights), where=curvature > 0.0)
    variances = gradient_variances(problem, pairs, params=model, rotate=basis)
    stable = StableSteps(problem, model) if isinstance(problem.loss, LinearLoss) else None
    options: dict[str, Option] = {}
    slow: dict[str, list[tuple[int, float]]] = {}
    base: tuple[float, float] | None = None  # of uniform sampling, which comes first
    for name, (method, chosen), variance in zip(methods, pairs, variances, strict=True):
        noise = variance.agents + variance.examples
        error = float(weights @ noise)
        base = base or (variance.total, error)
        limit = careful = settled = None
        with suppress(ValueError):  # the risk has no curvature
            if stable is not None:
                limit, careful = stable.limits(method, chosen)
        if limit is not None and curvature is not None and basis is not None:
            start = -model @ basis
            settled = settling_time(curvature, basis, noise, start, SHARE_OF_LIMIT * limit)
            slow[name] = settled.features(problem.data.num_features)
        ratio = _ratio(base[1], error)
        sizes = [effective_size(chosen.of_agent(problem, k)) for k in range(problem.num_agents)]
        options[name] = Option(
            sampling=name,
            variance=variance.total,
            agents_share=variance.agents_share,
            variance_ratio=_ratio(base[0], variance.total),
            gain_db=10.0 * math.log10(ratio) if ratio > 0.0 else -math.inf,
            step_limit=limit,
            careful_limit=careful,
            settled_after=None if settled is None else settled.rounds,
            agents_size=effective_size(chosen.agents),
            examples_size=float(np.mean(sizes)),
        )
    both = choices[-1]
    constants: dict[str, float | str] = {}
    if theory:
        constants = Constants(problem, methods["both"], both).report(
            local=problem.num_agents * problem.num_params <= MOST_LOCAL
        )
    return Diagnosis(
        problem=problem.name,
        setting=_setting(problem, num_active, importance),
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
    remarks = []
    if problem.num_agents == 1:
        remarks.append("There is only one agent: only its examples can be chosen.")
    elif num_active == problem.num_agents:
        remarks.append("All agents take part in every round: only examples can be chosen.")
    if np.all(problem.batch_size == problem.data.num_examples):
        remarks.append("Every step uses all examples of its agent: only agents can be chosen.")
    share = 100.0 * options["uniform"].agents_share
    if num_active < problem.num_agents and share < 100.0 * ALIKE:
        part = f"only {share:.2g}%" if share >= 0.01 else "none"
        what = f"{part} of the noise of uniform sampling comes from the choice of agents"
        remarks.append(
            f"The agents are alike: {what}."
            if options["agents"].gain_db < LEAST_GAIN
            else f"The agents agree on the model ({what}), but the examples of some are noisier "
            "than those of others."
        )
    return remarks


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
