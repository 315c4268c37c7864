"""The exact variance of a round of any composition, or the reason why it is not known.

Every composition that is known estimates sum_k c_k g_k by sum_k c_k n_k / E[n_k] g_k, where n_k is
how often agent k is drawn: Horvitz-Thompson does so for all draws, plain means for some.

With control variates c_k the innovation v_k = g_k - c_k counts instead. E[v_k | past] is what c_k
does not know:

- how far the gradient has moved, H_k (w - w^o), where w is around w^o by the noise of the rounds.
  This is alike for agents that are alike, so that a draw along an order of them removes some of it.
- what n_k turns of noise R_k leave unknown, R_k / n_k.
- an agent that was never heard counts as the mean of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.methods.by_score import ByScore
from isfed.methods.clustered_sampling import MeanOverDraws, OneOfEachGroup, groups_by_size
from isfed.methods.control_variates import ControlVariates
from isfed.methods.estimators import HorvitzThompson, InverseResponse, Mean, MeanOfAll, PlainMean
from isfed.methods.fedavg_schemes import TransformedTwo
from isfed.methods.federated import Federated, composition_of
from isfed.methods.local_steps import LocalSteps
from isfed.methods.uniform_samplers import AllAgents, ByWeight, UniformCohort
from isfed.problems import Problem
from isfed.sampling.designs import (
    Deville,
    HartleyRao,
    Spread,
    WithReplacement,
    inclusion_probabilities,
)
from isfed.sampling.designs.exact_variance import total_variance
from isfed.sampling.designs.spread import order_alike, projection
from isfed.sampling.policies import score_of_norms
from isfed.theory.probabilities import (
    TheoryError,
    gradients_of_agents,
    inclusion_of,
    risk_gradients,
)

# With which draws a plain mean has the weights c_k / E[n_k]; the second only where all c_k are 1/K.
UNBIASED = {
    Mean: (AllAgents,),
    MeanOfAll: (AllAgents,),
    PlainMean: (ByWeight,),
    TransformedTwo: (UniformCohort, AllAgents),
    MeanOverDraws: (OneOfEachGroup,),
}
UNBIASED_IF_UNIFORM = {Mean: (UniformCohort,), PlainMean: (UniformCohort, AllAgents)}
DIRECTIONS = 4  # in which the model is moved to see the curvature ...
REACH = 1e-4  # ... and how far, as a part of its length


@dataclass(frozen=True, eq=False)
class AgentEstimates:
    """What the agents of a composition send, gradients held at one model.

    Args:
        share: (K,) c_k.
        means: (K, M) K c_k times the agents' gradients.
        noise: (K,) the variance that mini-batches give what they send.
        scores: (K,) what the agents report.
        steps: (K,) E_k.
    """

    share: np.ndarray
    means: np.ndarray
    noise: np.ndarray
    scores: np.ndarray
    steps: np.ndarray


def variance_along(design: Any, inclusion: np.ndarray, values: np.ndarray, order: Any) -> float:
    """The variance of an estimated total, all components together, with the units in this order."""
    return float(total_variance(design, inclusion[order], values[order]).sum())


def known_parts(method: Any) -> Federated:
    """The parts of a method; a TheoryError says what of it no formula here covers."""
    parts = composition_of(method)
    if parts is None:
        raise TheoryError("it has a round of its own, not an estimator to look at")
    if type(parts.local) is not LocalSteps:
        raise TheoryError(f"what {type(parts.local).__name__} sends is not a mean of gradients")
    return parts


def turns_of(problem: Problem, parts: Federated, model: np.ndarray) -> AgentEstimates:
    """What the agents of a composition send at a model."""
    count, local, data = problem.num_agents, parts.local, problem.data
    given = problem.local_steps if local.local_steps is None else local.local_steps
    steps = np.broadcast_to(np.asarray(given), count)
    if not local.divide_by_steps and np.ptp(steps) > 0:
        raise TheoryError(
            "its steps are not divided by E_k, and these differ: it estimates another gradient; "
            "use divide_by_steps=True"
        )
    sizes = data.num_examples
    share = sizes / sizes.sum() if parts.client_weights == "size" else np.full(count, 1.0 / count)
    weights = data.agent_weights * count * share
    policy, design = local.examples, local.example_design
    means, noise, scores = np.empty((count, problem.num_params)), np.zeros(count), np.empty(count)
    for k, gradients in enumerate(gradients_of_agents(problem, model)):
        size, batch = len(gradients), int(problem.batch_size[k])
        norms, means[k] = np.linalg.norm(gradients, axis=1), gradients.mean(axis=0)
        if local.full_batch:
            batch = size
        else:
            chances = inclusion_of(norms, batch, policy, design)
            noise[k] = total_variance(design, chances, gradients / size).sum() / steps[k]
        scores[k] = score_of_norms(
            norms, size, float(means[k] @ means[k]), int(steps[k]), batch, policy.floor,
            policy.equal or local.full_batch,
        )  # fmt: skip
    means, noise, scores = weights[:, None] * means, weights**2 * noise, weights * scores
    return AgentEstimates(share, means, noise, scores, steps)


def composition_variance(
    problem: Problem,
    parts: Federated,
    turns: AgentEstimates,
    model: np.ndarray,
    *,
    step_size: float,
    rounds: int | None = None,
) -> float:
    """The variance of one round's estimate of the gradient; a TheoryError where it is not known.

    Args:
        problem: what is learned.
        parts: the composition.
        turns: what its agents send at the model.
        model: (M,) where to look.
        step_size: mu, of which what control variates do not know depends.
        rounds: after how many rounds, for control variates; very many unless given.
    """
    estimator, sampler, count = parts.estimator, parts.sampler, problem.num_agents
    while type(estimator) is InverseResponse:  # without absences it is the estimator inside
        estimator = estimator.inner
    if getattr(sampler, "most_inclusion", 1.0) < 1.0:
        raise TheoryError("its probabilities are capped by most_inclusion; leave that out")
    if type(estimator) is ControlVariates:
        return _variates_variance(problem, parts, estimator, turns, model, step_size, rounds)
    uniform = parts.client_weights == "uniform"  # weights of the data are in the gradients
    samplers = UNBIASED.get(type(estimator), ())
    samplers += UNBIASED_IF_UNIFORM.get(type(estimator), ()) if uniform else ()
    if type(estimator) is not HorvitzThompson and type(sampler) not in samplers:
        raise TheoryError(
            f"{type(estimator).__name__} of agents drawn by {type(sampler).__name__} is not an "
            "unbiased estimate with known weights; use HorvitzThompson()"
        )
    values = turns.means / count
    if type(sampler) is OneOfEachGroup and sampler.by == "size":
        groups = groups_by_size(turns.share, sampler.num_active)
        drawn = groups.sum(axis=0)  # E[n_k]
        each = values / drawn[:, None]
        of_agents = float((groups @ each**2 - (groups @ each) ** 2).sum())
        square = drawn**2 + (groups - groups**2).sum(axis=0)  # E[n_k^2]
        return of_agents + float(turns.noise @ (square / drawn**2)) / count**2
    design, inclusion = _draw_of(parts, turns)
    order = slice(None)
    if isinstance(design, Spread):
        size = turns.means.shape[1]
        points = turns.means @ projection(size, min(design.sketch, size)) / inclusion[:, None]
        order, design = order_alike(points), design.along
    of_agents = variance_along(design, inclusion, values, order)
    # An agent drawn twice works once and counts twice: E[n_k^2] / E[n_k]^2.
    square = 1.0 / inclusion
    if type(design) is WithReplacement:
        square = square + 1.0 - 1.0 / sampler.num_active
    return of_agents + float(turns.noise @ square) / count**2


def _draw_of(parts: Federated, turns: AgentEstimates) -> tuple[Any, np.ndarray]:
    """The design by which agents are drawn, and (K,) how often each is expected to be."""
    sampler, count = parts.sampler, len(turns.scores)
    if type(sampler) is AllAgents:
        return HartleyRao(), np.ones(count)
    if type(sampler) is UniformCohort:
        return HartleyRao(), np.full(count, sampler.num_active / count)
    if type(sampler) is ByWeight:
        return WithReplacement(), sampler.num_active * turns.share
    if type(sampler) is ByScore:
        scores = turns.scores / np.sqrt(sampler.costs or 1.0)
        return sampler.design, inclusion_of(
            scores, sampler.num_active, sampler.policy, sampler.design
        )
    raise TheoryError(f"the probabilities of {type(sampler).__name__} are not known before a run")


def _variates_variance(
    problem: Problem, parts: Federated, estimator: ControlVariates, turns: AgentEstimates,
    model: np.ndarray, step_size: float, rounds: int | None,
) -> float:  # fmt: skip
    """That of control variates, from what they do not know."""
    sampler, design = parts.sampler, getattr(parts.sampler, "design", None)
    if not estimator.correction.adapts:
        raise TheoryError("control variates are known with gain='adaptive' only")
    spread = isinstance(design, Spread)
    if type(design.along if isinstance(design, Spread) else design) is not Deville:
        raise TheoryError("control variates are known with Deville() or Spread() only")
    errors = variate_errors(
        problem, model, turns.means, turns.noise,
        step_size=step_size, num_active=sampler.num_active, rounds=rounds,
    )  # fmt: skip
    inclusion = np.full(problem.num_agents, sampler.num_active / problem.num_agents)
    if not sampler.policy.equal:
        inclusion = errors.inclusion(sampler.num_active, sampler.policy.floor)
    return errors.variance(inclusion, spread=spread)


@dataclass(frozen=True, eq=False)
class VariateErrors:
    """What control variates do not know of the agents' gradients when these are drawn.

    Args:
        noise: (K,) R_k, the variance of a turn by its mini-batches.
        moved: (D, K, M) H_k (w - w^o), for some w.
        unlearned: (K,) the mean square of what too few turns have left unknown.
    """

    noise: np.ndarray
    moved: np.ndarray
    unlearned: np.ndarray

    def inclusion(self, num_active: int, floor: float) -> np.ndarray:
        """(K,) L p_k by sqrt(E|v_k|^2), to which the best probabilities are proportional."""
        moved = (self.moved**2).sum(axis=2).mean(axis=0)
        innovation = np.sqrt(self.noise + moved + self.unlearned)
        return inclusion_probabilities(innovation, num_active, floor=floor)

    def variance(self, inclusion: np.ndarray, *, spread: bool = False) -> float:
        """Of the gradient estimate of a round; a draw along a spread, or in the agents' order."""
        count = inclusion.size
        orders = self._orders(inclusion) if spread else [slice(None)] * len(self.moved)
        moved = [
            variance_along(Deville(), inclusion, part / count, order)
            for part, order in zip(self.moved, orders, strict=True)
        ]
        rest = self.noise / inclusion + self.unlearned * (1.0 / inclusion - 1.0)
        return float(np.mean(moved)) + float(rest.sum()) / count**2

    def _orders(self, inclusion: np.ndarray) -> list[np.ndarray]:
        """The order for every w, made of sketches of noisy innovations at the w before it."""
        rng, onto = np.random.default_rng(1), projection(self.moved.shape[2], Spread().sketch)
        shape = inclusion.size, onto.shape[1]
        unknown = np.sqrt((self.noise + self.unlearned) / onto.shape[1])[:, None]
        return [
            order_alike((part @ onto + unknown * rng.standard_normal(shape)) / inclusion[:, None])
            for part in np.roll(self.moved, 1, axis=0)
        ]


def variate_errors(
    problem: Problem, model: np.ndarray, means: np.ndarray, noise: np.ndarray, *,
    step_size: float, num_active: int, rounds: int | None,
) -> VariateErrors:  # fmt: skip
    """What control variates will not know at a model, after some rounds (None: after very many).

    Args:
        means: (K, M) the agents' gradients there.
        noise: (K,) the variance that mini-batches give a turn.
    """
    count, chance = problem.num_agents, num_active / problem.num_agents
    level = float(noise.sum()) / (count * num_active)  # of a round, with equal probabilities
    unlearned = np.zeros(count)
    if rounds is not None:
        unheard = (1.0 - chance) ** rounds
        deviation = ((means - means.mean(axis=0)) ** 2).sum(axis=1)
        unlearned = (1.0 - unheard) * noise / max(rounds * chance, 1.0) + unheard * deviation
    return VariateErrors(noise, _moved(problem, model, means, step_size, level), unlearned)


def _moved(
    problem: Problem, model: np.ndarray, means: np.ndarray, step_size: float, level: float
) -> np.ndarray:
    """(D, K, M) H_k d for d around w^o as far as noise keeps a model from it.

    The excess risk 1/2 d' H d is mu / 4 level in the mean, and d is taken to be as long in every
    direction, as it is where the noise has the covariance of the curvature.
    """
    directions = np.random.default_rng(0).standard_normal((DIRECTIONS, model.size))
    reach = REACH * (1.0 + float(np.linalg.norm(model))) / math.sqrt(model.size)
    bent = [(risk_gradients(problem, model + reach * d) - means) / reach for d in directions]
    curvature = np.mean([abs(d @ b.mean(axis=0)) for d, b in zip(directions, bent, strict=True)])
    if not (level > 0.0 and curvature > 0.0):
        return np.zeros((1, *means.shape))
    return math.sqrt(0.5 * step_size * level / float(curvature)) * np.array(bent)
