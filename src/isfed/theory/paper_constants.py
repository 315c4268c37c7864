"""The paper's constants, step-size limits and bound on the msd, as numbers.

Equation numbers are those of docs/notation.md. Where the paper's steps slip, the corrected bound is
computed (`rule=Rule.ANY_DESIGN`, the default), and the docstring says what differs:

- Without replacement the cross term of a mini-batch does not vanish (Appendix B claims it does). By
  Jensen, eq. (76), a mini-batch of any design of fixed size has at most the variance of one
  example, so the 1/B_k of eq. (22), (23) and (30) falls, as the 1/L of eq. (20), (21) does.
- A local step is mu / (E_k K p_k), eq. (8), not mu, in Lemmas 4 and 5 and in Appendix F.
- What Lemma 5 calls O(mu) and O(mu^2) is computed as a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from isfed.methods import ISFedAvg
from isfed.problems import Huber, LeastSquares, Logistic, Problem, Softmax
from isfed.sampling.designs import WithReplacement
from isfed.theory.msd_prediction import Bound
from isfed.theory.probabilities import (
    Choices,
    TheoryError,
    choices_at,
    example_gradients,
    gradients_of_agents,
)
from isfed.theory.stable_step_size import with_step_size

CONVEX = (LeastSquares, Huber, Logistic, Softmax)
PARTS = ("sigma_s2_data", "sigma_s2_model")
REPORTED = (
    "nu", "delta", "xi", "beta_sk2", "sigma_sk2", "sigma_qk2", "beta_s2", "sigma_s2", *PARTS,
    "limit_centralised", "limit_local", "limit",
)  # fmt: skip
NEED_LOCAL_OPTIMA = ("xi", "sigma_qk2", "limit")
SINGULAR = 1e-12  # of the largest eigenvalue: below, rounding


class Rule(Enum):
    """Which bound on the variance of a draw the constants use."""

    REPLACEMENT = "with replacement (Lemma 1)"
    PAPER = "without replacement, as the paper states it: 1/B_k kept, 1/L dropped"
    ANY_DESIGN = "without replacement, any design of fixed size: neither 1/B_k nor 1/L"


def _convex_loss(problem: Problem) -> Any:
    """The loss, if it is one that is known to be convex."""
    if type(problem.loss) not in CONVEX:  # not isinstance: of a subclass nothing is known
        raise TheoryError(
            f"whether {type(problem.loss).__name__} is convex is not known, nor its curvature"
        )
    return problem.loss


@dataclass(frozen=True, eq=False)
class Constants:
    """The constants of Lemmas 1 to 5 and Theorem 1 for a problem, an algorithm and probabilities.

    A constant that does not exist raises a `TheoryError` that says why; `report` collects them all.

    Args:
        problem: what is learned.
        algorithm: by what: with `divide_by_steps`, without drift.
        choices: the inclusion probabilities; those at w^o unless given.
        rule: which bound on the variance of a draw is used.

    >>> from isfed import EQUAL, Uniform
    >>> algorithm = ISFedAvg(step_size=1e-5, num_active=6, agents=Uniform(), examples=Uniform())
    >>> constants = Constants(EQUAL.make(), algorithm)
    >>> 0.0 < constants.nu < constants.delta, constants.lambda_() < 1.0
    (True, True)
    """

    problem: Problem
    algorithm: ISFedAvg
    choices: Choices | None = None
    rule: Rule = Rule.ANY_DESIGN

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", self.problem.batched_for(self.algorithm))
        if not self.algorithm.divide_by_steps:
            raise TheoryError(
                "without the 1/E_k of eq. (8) a run does not converge to w^o, so the lemmas and "
                "the theorem do not apply; use divide_by_steps=True"
            )
        if self.problem.data.weights is not None:
            raise TheoryError("the lemmas and the theorem assume agents of equal weight")
        if self.algorithm.drift > 0.0:
            raise TheoryError("the theorem assumes that w^o does not move; use drift=0")

    @cached_property
    def _chosen(self) -> Choices:
        return self.choices or choices_at(self.problem, self.algorithm)

    @cached_property
    def agent_prob(self) -> np.ndarray:
        """p_k, eq. (4)."""
        prob = self._chosen.agent_prob(self.algorithm.num_active)
        never = np.flatnonzero(prob <= 0.0)
        if never.size:
            raise TheoryError(
                f"agent {never[0]} has probability 0 ({never.size} such): the estimate never sees "
                "its gradient and no bound holds; set a floor"
            )
        return prob

    @cached_property
    def nu(self) -> float:
        """Strong convexity of every P_k, eq. (10).

        2 (smallest eigenvalue of R_k + ridge) for least squares; 2 ridge for the losses that grow
        only linearly, whose own curvature vanishes far away.
        """
        loss = _convex_loss(self.problem)
        if not isinstance(loss, LeastSquares):
            if loss.ridge > 0.0:
                return 2.0 * loss.ridge
            raise TheoryError(
                f"{type(loss).__name__} with ridge=0 is not strongly convex: its curvature "
                "vanishes as the model grows; set ridge > 0"
            )
        rows = [self.problem.data.agent(k)[0] for k in range(self.problem.num_agents)]
        spectra = np.array([np.linalg.eigvalsh(x.T @ x / len(x)) + loss.ridge for x in rows])
        worst, largest = int(spectra[:, 0].argmin()), spectra[:, -1].max()
        smallest = float(spectra[worst, 0])
        if not smallest > SINGULAR * largest:
            raise TheoryError(
                f"the risk of agent {worst} is not strongly convex: its features do not "
                f"have full rank and ridge={loss.ridge:g}; set ridge > 0"
            )
        return 2.0 * smallest

    @cached_property
    def delta(self) -> float:
        """Lipschitz constant of the gradient of an example, eq. (12)."""
        _convex_loss(self.problem)
        return self.problem.largest_curvature

    @property
    def xi(self) -> float:
        """The largest distance of a w_k^o to w^o (Assumption 2)."""
        return float(np.max(self._local_distances))

    @property
    def _local_distances(self) -> np.ndarray:
        return np.linalg.norm(self._local_optima - self.problem.optimum, axis=1)

    @cached_property
    def _local_optima(self) -> np.ndarray:
        if isinstance(self.problem.loss, LeastSquares):
            _ = self.nu  # without it a w_k^o is not unique
        elif _convex_loss(self.problem).ridge == 0.0:
            raise TheoryError("without a ridge an agent's own minimiser need not exist")
        return np.array([self.problem.local_optimum(k) for k in range(self.problem.num_agents)])

    @cached_property
    def _batch(self) -> np.ndarray:
        """B_k where the rule lets a mini-batch of B_k count as B_k."""
        if self.rule is Rule.ANY_DESIGN:
            return np.ones(self.problem.num_agents)
        return self.problem.batch_size.astype(float)

    @cached_property
    def _active(self) -> float:
        return float(self.algorithm.num_active) if self.rule is Rule.REPLACEMENT else 1.0

    @cached_property
    def inverse_spread(self) -> np.ndarray:
        """1/N_k^2 sum_n 1/p_n of every agent; 1 for equal probabilities."""
        sizes = self.problem.data.num_examples
        return np.array([self._spread(k, np.ones((size, 1))) for k, size in enumerate(sizes)])

    def _spread(self, agent: int, gradients: np.ndarray) -> float:
        """1/N_k^2 sum_n |gradient_n|^2 / p_n."""
        prob = self._chosen.of_agent(self.problem, agent) / self.problem.batch_size[agent]
        squares = np.einsum("nm,nm->n", gradients, gradients)
        never = np.flatnonzero((prob <= 0.0) & (squares > 0.0))
        if never.size:
            raise TheoryError(
                f"example {never[0]} of agent {agent} has probability 0 but, here or away from "
                "w^o, a gradient that is not zero: no bound holds; set a floor"
            )
        seen = prob > 0.0
        return float(np.sum(squares[seen] / prob[seen]) / prob.size**2)

    @cached_property
    def _at_optimum(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every agent at w^o: the spread, and |grad P_k|^2."""
        spread, square = (np.empty(self.problem.num_agents) for _ in range(2))
        agents = gradients_of_agents(self.problem, self.problem.optimum)
        for agent, gradients in enumerate(agents):
            mean = gradients.mean(axis=0)
            spread[agent], square[agent] = self._spread(agent, gradients), mean @ mean
        return spread, square

    @cached_property
    def beta_sk2(self) -> np.ndarray:
        """beta_{s,k}^2, eq. (22)."""
        drawn = self.problem.local_steps * self._batch
        return 3.0 * self.delta**2 / drawn * (1.0 + self.inverse_spread)

    @cached_property
    def sigma_sk2(self) -> np.ndarray:
        """sigma_{s,k}^2, the data variability, eq. (23)."""
        return 6.0 / (self.problem.local_steps * self._batch) * self._at_optimum[0]

    @cached_property
    def model_sk2(self) -> np.ndarray:
        """(3 + 6 / (E_k B_k)) |grad P_k(w^o)|^2, the model variability in eq. (21)."""
        return (3.0 + 6.0 / (self.problem.local_steps * self._batch)) * self._at_optimum[1]

    @cached_property
    def sigma_qk2(self) -> np.ndarray:
        """sigma_{q,k}^2, eq. (30), at the agents' own minimisers."""
        spread = [
            self._spread(k, example_gradients(self.problem.loss, w, *self.problem.data.agent(k)))
            for k, w in enumerate(self._local_optima)
        ]
        return 3.0 / self._batch * np.array(spread)

    @cached_property
    def beta_s2(self) -> float:
        """beta_s^2, eq. (20)."""
        mean = np.sum((self.beta_sk2 + 3.0 * self.delta**2) / self.agent_prob)
        return float((3.0 * self.delta**2 + mean / self.problem.num_agents**2) / self._active)

    @cached_property
    def sigma_s2_parts(self) -> tuple[float, float]:
        """sigma_s^2 from data variability and from model variability, eq. (21)."""
        scale = 1.0 / (self._active * self.problem.num_agents**2)
        data, model = self.sigma_sk2 / self.agent_prob, self.model_sk2 / self.agent_prob
        return float(scale * np.sum(data)), float(scale * np.sum(model))

    @cached_property
    def sigma_s2(self) -> float:
        """sigma_s^2, eq. (21)."""
        return sum(self.sigma_s2_parts)

    @cached_property
    def limit_centralised(self) -> float:
        """2 nu / (delta^2 + beta_s^2), the step-size limit of Lemma 2."""
        return 2.0 * self.nu / (self.delta**2 + self.beta_s2)

    @cached_property
    def limit_local(self) -> float:
        """The smallest step-size limit of Lemma 4 over the agents, eq. (31).

        As the paper states it with E_k beta_{s,k}^2 / (K p_k)^2; by our rule, with the local step
        mu / (E_k K p_k) of eq. (8), 2 nu E_k K p_k / (delta^2 + E_k beta_{s,k}^2).
        """
        share = self.problem.num_agents * self.agent_prob
        noise = self.problem.local_steps * self.beta_sk2
        if self.rule is Rule.PAPER:
            return float((2.0 * self.nu / (self.delta**2 + noise / share**2)).min())
        limits = 2.0 * self.nu * self.problem.local_steps * share / (self.delta**2 + noise)
        return float(limits.min())

    @cached_property
    def limit(self) -> float:
        """The step-size limit of Theorem 1, eq. (40) and (41): lambda' below 1."""
        low, high = 0.0, min(self.limit_centralised, self.limit_local)
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self._gaps(middle)[0] > 0.0 else (low, middle)
        return low

    def lambda_(self, step_size: float | None = None) -> float:
        """lambda of Lemma 2 at a step size (the algorithm's unless given)."""
        return 1.0 - self._gap(self._step(step_size))

    def _gap(self, step: float) -> float:
        """1 - lambda; on its own, because near 1 a difference would lose every digit."""
        return step * (2.0 * self.nu - step * (self.delta**2 + self.beta_s2))

    def lambda_k(self, step_size: float | None = None) -> np.ndarray:
        """lambda_k of Lemma 4 at a step size (the algorithm's unless given), eq. (33)."""
        step = self._step(step_size)
        noise = self.problem.local_steps * self.beta_sk2
        if self.rule is Rule.PAPER:
            noise = noise / (self.problem.num_agents * self.agent_prob) ** 2
            return 1.0 - 2.0 * self.nu * step + step**2 * (self.delta**2 + noise)
        local = self._local_step(step)
        return 1.0 - 2.0 * self.nu * local + local**2 * (self.delta**2 + noise)

    def _step(self, step_size: float | None) -> float:
        if step_size is not None:
            return float(step_size)
        return float(with_step_size(self.problem, self.algorithm).step_size)

    def _local_step(self, step_size: float) -> np.ndarray:
        """mu / (E_k K p_k), eq. (8)."""
        return step_size / (self.problem.local_steps * self.problem.num_agents * self.agent_prob)

    def incremental(self, step_size: float) -> tuple[float, float, float]:
        """(A, B, C) with E|q_i|^2 <= A E|w_{i-1} - w^o|^2 + B + C: Lemma 5 as numbers.

        B comes from model variability (|w_k^o - w^o|), C from data variability (sigma_{q,k}^2).
        |q_i|^2 <= delta^2 sum_k S_k / (K^2 p_k) mean_e |w_{i-1} - w_{k,e-1}|^2 as in Appendix F,
        S_k = `inverse_spread`; there w_{k,e-1} is e - 1 steps of mu / (E_k K p_k) away, and each
        of these is at most 2 delta^2 S_k |w_k^o - w_{k,f}|^2 + 2 B_k / 3 sigma_{q,k}^2 long.
        """
        steps = self.problem.local_steps
        if int(steps.max()) == 1:
            return 0.0, 0.0, 0.0  # every gradient is taken at w_{i-1}
        for design in (self.algorithm.agent_design, self.algorithm.example_design):
            if not (getattr(design, "fixed_size", True) or isinstance(design, WithReplacement)):
                raise TheoryError(
                    f"{type(design).__name__} draws a random number of units, for which Lemma 5 "
                    "has no bound; use a design of fixed size, or local_steps=1"
                )
        step, contraction = self._local_step(step_size), self.lambda_k(step_size)
        slope = 2.0 * self.delta**2 * self.inverse_spread
        jump = 2.0 / 3.0 * self._batch * self.sigma_qk2
        # |w_k^o - w_{k,f}|^2 <= kept |w_k^o - w_{i-1}|^2 + gained
        kept, gained = np.ones_like(step), np.zeros_like(step)
        sum_kept, sum_gained, from_start, from_noise = (np.zeros_like(step) for _ in range(4))
        for done in range(1, int(steps.max())):
            sum_kept, sum_gained = sum_kept + kept, sum_gained + gained
            reach = np.where(done < steps, step**2 * done, 0.0)  # Jensen over the steps so far
            from_start += reach * slope * sum_kept / steps
            from_noise += reach * (slope * sum_gained + done * jump) / steps
            kept = kept * contraction
            gained = contraction * gained + step**2 * self.sigma_qk2
        weight = self.delta**2 * self.inverse_spread
        weight = weight / (self.problem.num_agents**2 * self.agent_prob)
        start = 2.0 * weight * from_start  # |w_k^o - w|^2 <= 2 |w^o - w|^2 + 2 |w_k^o - w^o|^2
        far = float(start @ self._local_distances**2)
        return float(start.sum()), far, float(weight @ from_noise)

    def contraction(self, step_size: float) -> float:
        """lambda' of Theorem 1, eq. (37), with alpha = sqrt(lambda)."""
        return 1.0 - self._gaps(step_size)[0]

    def _gaps(self, step: float) -> tuple[float, float]:
        """1 - lambda' and 1 - alpha; with alpha = sqrt(lambda), lambda / alpha is alpha.

        1 - alpha is 0 where there is no incremental noise to split off, eq. (17).
        """
        gap = self._gap(step)
        if int(self.problem.local_steps.max()) == 1:
            return gap, 0.0
        rest = gap / (1.0 + math.sqrt(max(1.0 - gap, 0.0)))
        return rest - step**2 * self.incremental(step)[0] / rest, rest

    def bound(self, step_size: float | None = None) -> Bound:
        """Theorem 1 at a step size (the algorithm's unless given)."""
        step = self._step(step_size)
        if not 0.0 < step < self.limit:
            raise TheoryError(
                f"step_size={step:g} is not below the limit of Theorem 1, {self.limit:.3g}: the "
                "theorem says nothing"
            )
        gap, rest = self._gaps(step)
        _, far, noise = self.incremental(step)
        split = step**2 / rest if rest > 0.0 else 0.0
        data, model = self.sigma_s2_parts
        return Bound(
            gap=gap,
            data=step**2 * data / (1.0 - rest) + split * noise,
            model=step**2 * model / (1.0 - rest) + split * far,
        )

    def report(self, *, local: bool = True) -> dict[str, float | str]:
        """Every constant by name, of the agents' ones the largest; as text, why one does not exist.

        Without `local` those that need every agent's own minimiser are not computed.
        """
        constants: dict[str, float | str] = {}
        for name in REPORTED:
            if name in NEED_LOCAL_OPTIMA and not local:
                size = f"{self.problem.num_agents} agents of {self.problem.num_params} parameters"
                constants[name] = f"not computed: it needs the minimiser of every one of {size}"
                continue
            try:
                part = PARTS.index(name) if name in PARTS else None
                value = getattr(self, name) if part is None else self.sigma_s2_parts[part]
                constants[name] = float(np.max(value))
            except ValueError as error:  # a TheoryError, or no w^o
                constants[name] = str(error)
        return constants
