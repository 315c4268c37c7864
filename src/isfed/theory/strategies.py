"""Which way to sample suits a problem, and why: size, direction, drift or noise of mini-batches.

Near the optimum, at a small step size mu, the excess risk that remains is to first order

    mu / 4  trace(variance of one round's gradient estimate)  +  1/2 b' H^-1 b

where b is how far the mean turn of several local steps is from the mean gradient (drift). Under
uniform sampling the variance is split into what importance by norm would remove (size), what it
would leave of choosing agents (direction), and the noise of mini-batches. Corrections remove size
and direction up to what changes between two turns of an agent, and `correction="drift"` b as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isfed.base.argument_checks import check_active, check_positive, check_whole, shown
from isfed.methods import ISFedAvg
from isfed.methods.estimators import HorvitzThompson
from isfed.methods.federated import Federated
from isfed.methods.local_steps import LocalSteps
from isfed.methods.servers import Add, Average
from isfed.methods.uniform_samplers import UniformCohort
from isfed.problems import Problem
from isfed.sampling.designs import Deville, HartleyRao, inclusion_probabilities
from isfed.sampling.designs.exact_variance import NoJointError
from isfed.sampling.designs.spread import order_alike, projection
from isfed.sampling.policies import Memory, Uniform
from isfed.theory.composition_variance import (
    composition_variance,
    known_parts,
    turns_of,
    variance_along,
    variate_errors,
)
from isfed.theory.probabilities import (
    TheoryError,
    check_model,
    choices_at,
    gradients_of_agents,
)
from isfed.theory.round_curvature import local_drift
from isfed.theory.stable_step_size import stable_step_size

LEAST_GAIN = 0.5  # dB; what is below is not worth a change
# 0.2 dB, about what ten repetitions can show; learned scores that cannot help cost less than that.
WORTH = 10.0**0.02
ROUNDING = 1e-9  # of a variance: what is nearer is equal
SMALL = 0.25  # of the share of direction: a share of size that is not worth naming
ORDERS = 32  # random orders of the agents whose variances are averaged
SKETCH = 64  # numbers of a gradient by which agents are put in an order
# From the simplest to the one with the most memory; of equally good ones the first is recommended.
NAMES = ("uniform", "importance", "spread", "difference", "drift", "drift, spread")
CAUSES = {
    "size": "some agents have larger gradients than others",
    "direction": "agents pull in different directions",
    "drift": "local steps run towards the agents' own minimisers",
    "noise": "a step looks at a few rows only",
}
STEERED = ("drift", "drift, spread")  # without the drift of local steps
HOW = {
    "uniform": "agents=Uniform()",
    "importance": "agents=Memory()",
    "spread": "agent_design=Spread()",
    "difference": "correction='difference'",
    "drift": "correction='drift'",
    "drift, spread": "correction='drift' and agent_design=Spread()",
}


@dataclass(frozen=True)
class Way:
    """One way to sample agents, and what would remain of the error."""

    name: str
    variance: float  # of one round's gradient estimate
    times_smaller: float  # that of uniform sampling over this
    drift: float  # excess risk by local steps that run towards the agents' own minimisers
    excess: float  # excess risk that remains at the step size, to first order
    unknown: str = ""  # why some of these numbers are nan; empty where all are known


@dataclass(frozen=True)
class Sources:
    """The excess risk of uniform sampling by its causes."""

    size: float
    direction: float
    drift: float
    noise: float

    def shares(self) -> dict[str, float]:
        """The same as parts of one."""
        total = self.size + self.direction + self.drift + self.noise
        return {name: value / total if total > 0.0 else 0.0 for name, value in vars(self).items()}


@dataclass(frozen=True)
class Ways:
    """All ways to sample the agents of a problem, compared at one model and step size.

    Args:
        step_size: mu, for which the numbers are.
        ways: by name, from the simplest to those that remember the most.
        sources: the error of uniform sampling, by its causes.
        methods: other methods and compositions that were to be compared, by name.
        weighted: whether a correction should draw agents by their scores, agents=Memory(): it
            should wherever the variance is then smaller at all, for scores cost one number of a
            turn. The numbers of corrections are for this choice.
    """

    step_size: float
    ways: dict[str, Way]
    sources: Sources
    weighted: bool = True
    methods: dict[str, Way] = field(default_factory=dict)

    @property
    def best(self) -> Way:
        """Uniform sampling if it is within 0.5 dB of the best way, else the simplest within 0.2.

        "drift" sends and remembers no more than "difference", so that it is chosen of the two
        wherever it leaves less: where some agent takes several local steps.
        """
        strategies = self.ways
        least = min(way.excess for way in strategies.values())
        if strategies["uniform"].excess <= least * 10.0 ** (LEAST_GAIN / 10.0):
            return strategies["uniform"]
        simplest = next(way for way in strategies.values() if way.excess <= least * WORTH)
        steered = simplest.name == "difference" and strategies["drift"].excess < simplest.excess
        return strategies["drift"] if steered else simplest

    def recommendation(self) -> str:
        """What to do and why, in one or two sentences."""
        share, best = self.sources.shares(), self.best
        causes = ", ".join(f"{name} {part:.0%}" for name, part in share.items())
        split = f" (causes of the error that remains: {causes})"
        if best.name == "uniform":
            return f"The noise of mini-batches is what remains: keep uniform agents{split}."
        if best.name == "importance":
            noisier = share["noise"] > share["size"]
            what = "noise of their mini-batches" if noisier else "size of their gradients"
            return f"Your agents differ in the {what}: use agents=Memory(){split}."
        if best.name == "spread":
            return f"Your agents come in kinds: draw some of each, agent_design=Spread(){split}."
        if best.name in STEERED and share["drift"] >= max(share["direction"], share["size"]):
            reason = "Local steps run towards the agents' own minimisers"
        elif share["size"] <= SMALL * share["direction"]:
            reason = "Your agents' gradients differ in direction, not in size"
        else:
            reason = "Your agents' gradients differ in size and in direction"
        spread = best.name == "drift, spread"
        policy = "Memory()" if self.weighted or spread else "Uniform()"
        return f"{reason}: use {HOW[best.name]} with agents={policy}{split}."

    def cause(self) -> str:
        """Where the error of FedAvg comes from, in words."""
        ranked = sorted(self.sources.shares().items(), key=lambda pair: -pair[1])
        parts = [f"{CAUSES[name]} ({share:.0%})" for name, share in ranked if share >= 0.05]
        return f"Why FedAvg ends above the lowest loss: {', '.join(parts)}." if parts else ""

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON, which has no infinity and no nan."""
        listed = {"ways": self.ways, "methods": self.methods}
        tables = {
            key: [
                {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row}
                for row in ([p for p in vars(way).items() if p[1] != ""] for way in rows.values())
            ]
            for key, rows in listed.items()
            if rows
        }
        return {
            "step_size": self.step_size,
            "recommendation": self.recommendation(),
            "weighted": self.weighted,
            "sources": vars(self.sources),
            "shares": self.sources.shares(),
            **tables,
        }


def compare_ways(
    problem: Problem,
    *,
    num_active: int,
    step_size: float | None = None,
    rounds: int | None = None,
    params: np.ndarray | None = None,
    methods: Sequence[Any] = (),
) -> Ways:
    """What uniform sampling, importance, a spread and the two corrections would leave of the error.

    Other methods and compositions stand beside them, with numbers where the theory knows them.

    Args:
        problem: what is learned.
        num_active: L, the number of agents per round.
        step_size: mu; a stable one unless given.
        rounds: after how many rounds; memories that agents had few turns to learn are worth less.
            Very many unless given.
        params: the model at which to look, (M,); w^o unless given.
        methods: further methods or compositions, each with its own L. Steps that are not divided by
            E_k count as if mu were E_k times smaller.

    >>> from isfed import EQUAL, Uniform
    >>> compare_ways(EQUAL.make(), num_active=6).best.name
    'drift'
    >>> mine = ISFedAvg(step_size="auto", num_active=9, examples=Uniform())
    >>> table = compare_ways(EQUAL.make(), num_active=6, methods=[mine])
    >>> table.methods[mine.name].times_smaller > table.ways["importance"].times_smaller > 1.0
    True
    """
    check_active(num_active, problem.num_agents)
    for method in methods:
        if not hasattr(method, "round") or isinstance(method, type):
            raise TypeError(f"methods has {shown(method)}; give methods, e.g. FedAvg(...)")
    if rounds is not None:
        check_whole(rounds, name="rounds", least=1)
    if step_size is not None:
        step_size = check_positive(step_size, name="step_size")
    model = check_model(problem, params)
    plain = ISFedAvg(
        step_size=1.0, num_active=num_active, agents=Uniform(), examples=Uniform(),
        agent_design=HartleyRao(),
    )  # fmt: skip
    mu = stable_step_size(problem, plain) if step_size is None else step_size
    means, noise = _turns(problem, model)
    weighted = ISFedAvg(step_size=1.0, num_active=num_active, agents=Memory(), examples=Uniform())
    inclusion = {
        "uniform": np.full(problem.num_agents, num_active / problem.num_agents),
        "importance": choices_at(problem, weighted, model).agents,
    }
    inclusion["spread"] = inclusion["uniform"]
    variance = {
        name: _agents_variance(name, inclusion[name], means) + _noise(inclusion[name], noise)
        for name in ("uniform", "importance", "spread")
    }
    errors = variate_errors(
        problem, model, means, noise, step_size=mu, num_active=num_active, rounds=rounds
    )
    either = errors.inclusion(num_active, weighted.agents.floor), inclusion["uniform"]
    scored, equal = map(errors.variance, either)
    variance["difference"] = variance["drift"] = min(scored, equal)
    # Under a spread the cloud chooses between probabilities by score and equal ones by itself.
    variance["drift, spread"] = min(errors.variance(known, spread=True) for known in either)
    drift = local_drift(problem, model, means, mu)
    uniform = variance["uniform"]
    strategies = {
        name: _way(name, variance[name], uniform, 0.0 if name in STEERED else drift, mu)
        for name in NAMES
    }
    agents = uniform - _noise(inclusion["uniform"], noise)
    lengths = np.linalg.norm(means, axis=1)
    by_length = inclusion_probabilities(lengths, num_active, floor=1e-6)
    # In random order, as under uniform sampling: what an order spreads is not a matter of size.
    direction = min(_in_random_order(by_length, means / len(means)), agents)
    sources = Sources(
        size=0.25 * mu * (agents - direction),
        direction=0.25 * mu * direction,
        drift=drift,
        noise=0.25 * mu * _noise(inclusion["uniform"], noise),
    )
    others: dict[str, Way] = {}
    for method in methods:
        name, again = method.name, 2  # of one name, the later ones get a number
        while name in others:
            name, again = f"{method.name} ({again})", again + 1
        others[name] = _way_of(name, problem, method, model, (mu, rounds, num_active, drift))
    return Ways(mu, strategies, sources, scored < equal * (1.0 - ROUNDING), others)


def _way(name: str, variance: float, uniform: float, drift: float, mu: float) -> Way:
    times_smaller = uniform / variance if variance > 0.0 else math.inf
    return Way(name, variance, times_smaller, drift, 0.25 * mu * variance + drift)


def _way_of(name: str, problem: Problem, method: Any, model: np.ndarray, at: tuple) -> Way:
    """What any method would leave of the error, as far as it is known."""
    mu, rounds, num_active, drift = at
    nan, unknown = math.nan, ""
    try:
        parts = known_parts(method)
        turns = turns_of(problem, parts, model)
        plain = Federated(
            UniformCohort(num_active),
            LocalSteps(1.0, divide_by_steps=True, example_design=HartleyRao()),
            HorvitzThompson(),
            client_weights=parts.client_weights,
        )
        variance, uniform = (
            composition_variance(problem, p, t, model, step_size=mu, rounds=rounds)
            for p, t in ((parts, turns), (plain, turns_of(problem, plain, model)))
        )
    except (TheoryError, NoJointError) as error:
        return Way(name, nan, nan, nan, nan, str(error))
    local = parts.local
    correction = getattr(parts.estimator, "correction", None)
    if turns.steps.max() == 1 or (correction is not None and correction.kind == "drift"):
        drift = 0.0
    elif local.prox or parts.client_weights != "uniform" or local.local_steps is not None:
        drift = nan
        unknown = "the drift is known for the problem's own E_k and equal weights, without prox"
    server = parts.server.server if type(parts.server) is Average else parts.server
    if type(server) is not Add:
        unknown = f"what {type(server).__name__} leaves of the error is not known"
    way = _way(name, variance, uniform, drift, mu)
    return replace(way, excess=nan, unknown=unknown) if unknown else way


def _turns(problem: Problem, model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(K, M) the agents' weighted gradients, and (K,) the variance that mini-batches give them."""
    means, noise = np.empty((problem.num_agents, problem.num_params)), np.empty(problem.num_agents)
    for agent, gradients in enumerate(gradients_of_agents(problem, model)):
        count, batch = len(gradients), int(problem.batch_size[agent])
        means[agent] = gradients.mean(axis=0)
        # Of a mean of `batch` of `count`, each set as likely as any other.
        square = float(np.sum((gradients - means[agent]) ** 2)) / max(count - 1, 1)
        noise[agent] = square * (1.0 / batch - 1.0 / count) / int(problem.local_steps[agent])
    weights = problem.data.agent_weights
    return weights[:, None] * means, weights**2 * noise


def _noise(inclusion: np.ndarray, noise: np.ndarray) -> float:
    return float(np.sum(noise / inclusion)) / inclusion.size**2


def _agents_variance(name: str, inclusion: np.ndarray, means: np.ndarray) -> float:
    """That only some agents are heard, whose gradients are exact."""
    values, design = means / len(means), HartleyRao() if name == "uniform" else Deville()
    if name == "spread":
        order = order_alike(means @ projection(means.shape[1], min(SKETCH, means.shape[1])))
        return variance_along(design, inclusion, values, order)
    try:
        return variance_along(design, inclusion, values, slice(None))
    except NoJointError:
        return _in_random_order(inclusion, values)


def _in_random_order(inclusion: np.ndarray, values: np.ndarray) -> float:
    """The mean over some random orders, the same whatever numbers the agents have."""
    rng = np.random.default_rng(0)
    first = np.argsort(values @ rng.standard_normal(values.shape[1]))
    orders = [rng.permutation(first) for _ in range(ORDERS)]
    return float(np.mean([variance_along(Deville(), inclusion, values, o) for o in orders]))
