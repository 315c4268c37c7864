"""A method made fit for agents on other machines: what the cloud cannot know or trust there.

The round is the same as everywhere. The sampler gets its cap, the estimator gets clipping, noise
and the adjustment for absences, as `Safety` asks for them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from isfed.base.argument_checks import check_active, shown
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Safety, check_most_inclusion
from isfed.methods.control_variates import ControlVariates
from isfed.methods.estimators import InverseResponse
from isfed.methods.federated import Federated, composition_of
from isfed.methods.method_wrappers import layers
from isfed.methods.private import Private
from isfed.sampling.policies import Initial, Refresh

Weighting = Literal["step", "change"]  # who divides by K p_k: the agent its step, the cloud the sum


def why_not(algorithm: Any) -> str:
    """Why agents on other machines cannot run a method; empty where they can.

    A method or a sampler that looks into the problem says so in `reads_problem`.
    """
    method = composition_of(algorithm)
    for part in (*layers(algorithm), getattr(method, "sampler", None)):
        if reason := getattr(part, "reads_problem", ""):
            name = type(part if method is None or method is algorithm else algorithm).__name__
            return f"{name} works in simulations only: {reason}"
    drift = max(float(getattr(layer, "drift", 0.0)) for layer in layers(algorithm))
    if drift > 0.0:
        return f"drift={drift} moves the true model, which only a simulation can do; use drift=0"
    if method is None and hasattr(algorithm, "algorithm"):
        names = f"{type(algorithm).__name__} around {type(algorithm.algorithm).__name__}"
        return (
            f"{names} works in simulations only: it has a round of its own around that of another "
            "method; give the parts to Federated(...)"
        )
    for what, policy in (
        ("agents", getattr(getattr(method, "sampler", None), "policy", None)),
        ("examples", getattr(getattr(method, "local", None), "examples", None)),
    ):
        if policy is not None and policy.initial == Initial.OPTIMUM:
            return (
                f"{what}={policy.name} needs the solution w^o, which is not known in practice; "
                "use memory"
            )
    if method is not None and method.sampler.reports.refresh == Refresh.ALL:
        return "agents=current asks every agent in every round; use memory or running"
    return ""


def network_support(algorithm: Any) -> str:
    """Whether a method runs on Flower, in the words of `isfed methods`."""
    if reason := why_not(algorithm):
        return f"no, it reads the problem: {reason.partition(': ')[2] or reason}"
    own_round = composition_of(algorithm) is None
    return "yes, by Strategy.start: it has a round of its own" if own_round else "yes"


def over_network(
    algorithm: Any,
    *,
    num_agents: int,
    safety: Safety | None = None,
    weighting: Weighting | None = None,
    agent_weights: Any = None,
) -> Any:
    """The method as a network runs it: a `Federated`, or as it is if it has its own round.

    Args:
        algorithm: a `Federated`, or a method that is one (`ISFedAvg`), or one with its own round.
        num_agents: K.
        safety: what is asked of sampler and estimator.
        weighting: where 1/(K p_k) goes; as the method says unless given, else on the "change".
        agent_weights: what every agent counts in the objective.
    """
    safety = safety or Safety()
    check_for_network(algorithm, num_agents, agent_weights=agent_weights)
    on = weighting_of(algorithm, weighting)
    own_steps = isinstance(algorithm.step_size, str) if "step_size" in _names(algorithm) else False
    if own_steps:  # "auto": the cloud has no data, so agents know the size of their steps
        algorithm = replace(algorithm, step_size=1.0)
    if agent_weights is not None:
        algorithm = _by_weight(algorithm)
    method = composition_of(algorithm)
    if method is None:
        _check_own_round(algorithm, weighting, safety)
        return algorithm
    if own_steps:
        method = replace(method, local=replace(method.local, step_size=math.nan))
    return replace(
        method,
        sampler=_capped(method.sampler, num_agents, safety),
        estimator=_estimator(method, on, safety),
    )


def weighting_of(algorithm: Any, given: Weighting | None) -> Weighting:
    """Where 1/(K p_k) goes: as given, else as the method says, else on the change."""
    if given is not None and given not in get_args(Weighting):
        raise ValueError(f"weighting={given!r} must be 'step' or 'change'")
    method = composition_of(algorithm)
    if isinstance(algorithm, Federated):
        own = getattr(_base(algorithm.estimator), "on", None)
    else:
        said = (getattr(layer, "weighting", None) for layer in layers(algorithm))
        own = next((word for word in said if word is not None), None)
    if given is not None and own is not None and given != own:
        raise ValueError(
            f"Strategy(weighting={given!r}) contradicts the method, which says {own!r}: say it once"
        )
    if given == "step" and method is not None and not hasattr(_base(method.estimator), "on"):
        raise ValueError(
            f"weighting='step' divides steps by K p_k, and {type(_base(method.estimator)).__name__}"
            " has no such weights: leave weighting out"
        )
    return given or own or "change"


def check_weights(given: Any, num_agents: int) -> np.ndarray | None:
    """(K,) weights of the agents in the objective with mean 1; None where all are equal."""
    if given is None:
        return None
    weights = np.asarray(given, dtype=np.float64)
    finite = weights.shape == (num_agents,) and bool(np.isfinite(weights).all())
    if not (finite and (weights >= 0.0).all() and (weights > 0.0).any()):
        raise ValueError(
            f"agent_weights must be {num_agents} numbers >= 0, one per agent, and not all 0; got "
            f"shape {weights.shape}"
        )
    return weights / weights.mean()


def check_for_network(algorithm: Any, num_agents: int, *, agent_weights: Any = None) -> None:
    """Raise an error for what is no method, or for choices that cannot be made over a network."""
    method = composition_of(algorithm)
    # An array can be rounded, but cannot start.
    own = all(callable(getattr(algorithm, name, None)) for name in ("start", "round", "rules"))
    if isinstance(algorithm, type) or not (isinstance(method, Federated) or own):
        raise TypeError(f"algorithm={shown(algorithm)} must be a method, e.g. ISFedAvg(...)")
    if reason := why_not(algorithm):
        raise ValueError(reason)
    weights = getattr(method or algorithm, "client_weights", "uniform")
    if weights != "uniform" and agent_weights is None:
        raise ValueError(
            f"client_weights={weights!r} needs the sizes, which a cloud does not know over a "
            "network: Strategy(agent_weights=[...]), one number per agent, e.g. its examples"
        )
    if hasattr(getattr(method, "sampler", None), "num_active"):
        check_active(method.sampler.num_active, num_agents)  # type: ignore[union-attr]


def _by_weight(algorithm: Any) -> Any:
    """The method for agents that count by their weights; each knows itself what that means."""
    names = _names(algorithm)
    if "client_weights" in names:
        return replace(algorithm, client_weights="size")
    if "algorithm" in names:
        return replace(algorithm, algorithm=_by_weight(algorithm.algorithm))
    raise ValueError(
        f"{type(algorithm).__name__} has no weights of agents: leave agent_weights out"
    )


def _names(record: Any) -> set[str]:
    """The fields of a record; none of an object of another kind."""
    return set(getattr(record, "__dataclass_fields__", ()))


def _base(estimator: Any) -> Any:
    """The estimator inside all others."""
    while hasattr(estimator, "inner"):
        estimator = estimator.inner
    return estimator


def _check_own_round(algorithm: Any, weighting: Weighting | None, safety: Safety) -> None:
    """Raise a ValueError for choices that concern parts, of which this method has none."""
    asked = {
        "weighting='step'": weighting == "step",
        "Safety(privacy)": safety.privacy is not None,
        "Safety(absences=Absences.ADJUSTED)": safety.absences is Absences.ADJUSTED,
    }
    for what, chosen in asked.items():
        if chosen:
            raise ValueError(
                f"{what} changes an estimator, and {type(algorithm).__name__} has no weights of "
                "one, for its round is its own; leave it out, or use a composition, e.g. ISFedAvg"
            )


def _capped(sampler: Any, num_agents: int, safety: Safety) -> Any:
    """The sampler with the cap that `safety` asks for, which forgets scores of absent agents."""
    if "most_inclusion" not in _names(sampler):
        return sampler
    most, share = safety.most_inclusion, sampler.num_active / num_agents
    if most is None:  # half, or three times the uniform probability where that is more, below 1
        most = min(max(0.5, 3.0 * share), 0.9 if share < 0.9 else 0.5 * (1.0 + share))
    check_most_inclusion(most, num_agents=num_agents, num_active=sampler.num_active)
    most = min(most, sampler.most_inclusion)
    return replace(sampler, most_inclusion=most, forget_absent=True)


def _estimator(method: Federated, on: Weighting, safety: Safety) -> Any:
    """The estimator with its weights where they belong, inside what `safety` asks for."""

    patience = 1.0 if safety.enough >= 1.0 else safety.patience

    def remote(estimator: Any) -> Any:
        if isinstance(estimator, InverseResponse):
            estimator = replace(estimator, repays=True, patience=patience)
        if hasattr(estimator, "inner"):
            return replace(estimator, inner=remote(estimator.inner))
        if "on" in _names(estimator):
            estimator = replace(estimator, on=on)
        if isinstance(estimator, ControlVariates):
            estimator = replace(estimator, most_medians=safety.most_medians)
        return estimator if safety.privacy is None else Private(estimator, safety.privacy)

    estimator = remote(method.estimator)
    if safety.absences is Absences.ADJUSTED and not isinstance(estimator, InverseResponse):
        most = safety.largest_adjustment
        estimator = InverseResponse(estimator, most, repays=True, patience=patience)
    return estimator
