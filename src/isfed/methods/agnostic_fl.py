"""Agnostic federated learning: Mohri, Sivek and Suresh (ICML 2019), arXiv 1902.00146.

min over w, max over lambda in the simplex, of sum_k lambda_k P_k(w): the model for the worst
mixture of the agents. Both step at the same time from the same w, lambda upwards by the risks; the
model is the mean of all w.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.base.portable_arithmetic import weighted_sum
from isfed.base.random_streams import Purpose
from isfed.federation.agents import Agents, LocalOptions, TrainRequest
from isfed.methods.estimators import TINY
from isfed.methods.method_protocol import ClientWeights, Method, NotNegative, Positive
from isfed.methods.shared_fields import answering
from isfed.methods.uniform_samplers import count_draws

Gradient = Literal["weighted", "per-domain"]
Steps = tuple[np.ndarray, np.ndarray]  # of the model, downwards, and of the mixture, upwards


@functools.cache
def one_example(count: int) -> LocalOptions:
    """How so many agents take one step on one example each."""
    return LocalOptions(steps=np.ones(count, np.int64), batch=1)


class AgnosticState(NamedTuple):
    """The model, the mixture, the mean of all models, and how many it is of."""

    params: np.ndarray
    mixture: np.ndarray  # (K,) lambda
    mean: np.ndarray
    count: np.ndarray


@compiled
def onto_simplex(point):
    """The nearest point whose entries are not negative and sum to one.

    >>> onto_simplex(np.array([2.0, 0.0, 0.5]))
    array([1., 0., 0.])
    """
    falling = np.sort(point)[::-1]
    total, excess = 0.0, 0.0
    for i in range(falling.size):
        total += falling[i]
        if falling[i] <= (total - 1.0) / (i + 1):
            break
        excess = (total - 1.0) / (i + 1)
    return np.maximum(point - excess, 0.0)


@dataclass(frozen=True, kw_only=True)
class AgnosticFL(Method):
    """Agnostic federated learning: minimises the risk of the worst mixture of the agents.

    Args:
        step_size: the step size of the model.
        mixture_step: the step size of the mixture lambda; 0 keeps the weights of `client_weights`.
        stochastic: gradients of single examples, and the loss of one example of one agent drawn
            uniformly; otherwise all agents send gradients and risks from all their data.
        gradient: whose example it is, if stochastic: that of one agent drawn by lambda
            ("weighted"), or one of every agent, weighted by lambda ("per-domain").
        client_weights: the mixture at the start.
    """

    step_size: Positive
    mixture_step: NotNegative = 0.01
    stochastic: bool = False
    gradient: Gradient = "weighted"
    client_weights: ClientWeights = "uniform"

    def start(self, agents: Agents, params: np.ndarray) -> AgnosticState:
        mixture = agents.facts(self.client_weights).share()
        return AgnosticState(params.copy(), mixture, params.copy(), np.zeros(1))

    def round(self, state: AgnosticState, agents: Agents, round_index: int) -> AgnosticState:
        one = self._sampled if self.stochastic else self._exact
        down, up = one(state, agents, round_index)
        params = state.params - self.step_size * down
        mixture = state.mixture
        if self.mixture_step > 0.0:
            mixture = onto_simplex(mixture + self.mixture_step * up)
        count = state.count + 1.0
        return AgnosticState(params, mixture, state.mean + (params - state.mean) / count, count)

    def _exact(self, state: AgnosticState, agents: Agents, round_index: int) -> Steps:
        """sum_k lambda_k grad P_k(w), and all P_k(w)."""
        everybody = np.arange(agents.num_agents)
        here = everybody[answering(agents, everybody, round_index)]
        losses = np.zeros(agents.num_agents)
        if not here.size:
            return np.zeros(agents.num_params), losses
        gradients = agents.gradients(here, state.params)
        if self.mixture_step > 0.0:
            heard = agents.losses(here, state.params, sent=True)
            losses[:] = heard.mean()  # of whoever does not answer
            losses[here] = heard
        mixture = state.mixture[here]
        if here.size < everybody.size:
            mixture = mixture / max(float(mixture.sum()), TINY)
        return weighted_sum(mixture, gradients), losses

    def _sampled(self, state: AgnosticState, agents: Agents, round_index: int) -> Steps:
        """Unbiased estimates of both: one example of an agent or of each, and one loss."""
        points = agents.stream(Purpose.DOMAINS, round_index).uniforms(2)
        workers, share = np.arange(agents.num_agents), state.mixture
        if self.gradient == "weighted":
            workers, _ = count_draws(state.mixture, points[:1])
            share = np.ones(1)
        here = answering(agents, workers, round_index)
        workers, share = workers[here], share[here]
        gradient = np.zeros(agents.num_params)
        if workers.size:
            turns = TrainRequest(workers, state.params, np.ones(workers.size))
            local = one_example(workers.size)
            gradient = -weighted_sum(share, agents.work(turns, round_index, local).changes)
        asked = (points[1:] * agents.num_agents).astype(np.int64)
        asked = asked[answering(agents, asked, round_index)]
        losses = np.zeros(agents.num_agents)
        if self.mixture_step > 0.0 and asked.size:
            sent = self.gradient == "per-domain"
            heard = agents.sampled_losses(asked, state.params, round_index, sent=sent)
            losses[asked] = agents.num_agents * heard
        return gradient, losses

    def model(self, state: Any) -> np.ndarray:
        return state.mean
