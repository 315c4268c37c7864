"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh (ICML 2020), arXiv 1910.06378.

Every agent keeps a control variate v_k and the cloud their mean v, all zero at first:

    agent:  x <- x - mu (g(x) + v - v_k), E_k times;  v_k+ = v_k - v + (w - x) / (mu E_k)
    cloud:  w <- w + mean over S of (x - w),  v <- v + 1/K sum over S of (v_k+ - v_k)

(The paper writes c; here c_k is the weight of an agent.) By size both means are weighted, and v is
sum_k c_k v_k, so that nothing moves at the minimiser of sum_k c_k P_k.

Option II of the paper with a global step of 1. `ISFedAvg(correction="drift")` has it as a special
case and sends one vector up instead of two; this file is the method as published.

A public baseline (adap/flower, niid_bench) has v_k begin at the values of the model that an agent
gets first: `as_coded=True`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isfed.base.jit import compiled
from isfed.federation.messages import Cohort, Facts, Updates, Work
from isfed.methods.estimators import Mean
from isfed.methods.federated import Combined, Federated, Opened
from isfed.methods.method_protocol import Composed
from isfed.methods.shared_fields import Sampled


class Controls(NamedTuple):
    """The control variates."""

    control: np.ndarray  # (M',) v = sum_k c_k v_k
    controls: np.ndarray  # (K, M') v_k


@dataclass(frozen=True)
class SteeredMean(Mean):
    """The mean of changes whose steps were corrected by v - v_k; two vectors travel each way."""

    reads_steps: ClassVar[bool] = True  # a control variate is a change over mu E_k

    def init(self, facts: Facts, params: np.ndarray) -> Controls:
        return Controls(np.zeros(params.size), np.zeros((facts.num_agents, params.size)))

    def ask(self, state: Controls, cohort: Cohort, facts: Facts, work: Work) -> Work:
        """Steps with v - v_k; v goes down and v_k+ - v_k comes up."""
        steered = work.local.but(correction=state.control - state.controls[cohort.agents])
        return work._replace(local=steered, extra={"models_down": 1, "models_up": 1})

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        agents, place = opened.cohort.agents, updates.place
        reach = opened.work.reach(agents, facts)  # mu E_k
        if isinstance(reach, np.ndarray):
            reach = reach[place, None]
        step, _, evidence = super().combine(state, opened, updates, facts)
        who, control = agents[place], state.control.copy()
        _move(*state, control, who, facts.share(who), evidence.change / reach)
        return step, Controls(control, state.controls), evidence


class CodedControls(NamedTuple):
    """The control variates, and who has one of its own."""

    control: np.ndarray  # (M',) v
    controls: np.ndarray  # (K, M') v_k; of an agent never heard, the model that is sent next
    heard: np.ndarray  # (K,) whether an agent was heard


@dataclass(frozen=True)
class SteeredFromModel(SteeredMean):
    """As `SteeredMean`, but v_k begins at the values of the model that agent k gets first.

    That is the cloud's model, so another server than the plain one does not fit.
    """

    def init(self, facts: Facts, params: np.ndarray) -> Any:
        controls = np.tile(params, (facts.num_agents, 1))
        return CodedControls(np.zeros(params.size), controls, np.zeros(facts.num_agents, bool))

    def combine(self, state: Any, opened: Opened, updates: Updates, facts: Facts) -> Combined:
        plain = Controls(state.control, state.controls)
        step, moved, evidence = super().combine(plain, opened, updates, facts)
        state.heard[opened.cohort.agents[updates.place]] = True
        moved.controls[~state.heard] = opened.sent[: facts.num_trained] + step
        return step, CodedControls(moved.control, moved.controls, state.heard), evidence


@compiled
def _move(before, controls, control, who, share, mean_change):
    """v_k+ = v_k - v + (w - x) / (mu E_k), and v; those not heard keep their v_k."""
    moved = np.zeros(control.size)
    for i in range(who.size):
        for j in range(control.size):
            move = -before[j] - mean_change[i, j]
            controls[who[i], j] += move
            moved[j] += share[i] * move
    for j in range(control.size):
        control[j] += moved[j]


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(Composed, Sampled):
    """SCAFFOLD: local steps are corrected by control variates; two vectors travel each way.

    Args:
        as_coded: control variates begin at the model's values, as in a public baseline.
        divide_by_steps: local steps of step_size / E_k, as in ISFedAvg, instead of step_size.
    """

    as_coded: bool = False
    divide_by_steps: bool = False

    def parts(self) -> Federated:
        return self.made_of(SteeredFromModel() if self.as_coded else SteeredMean())
