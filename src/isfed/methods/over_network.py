"""A method made fit for agents on other machines: what the cloud cannot know or trust there.

The round is the same as everywhere. Control variates move to the agents, the sampler gets its cap,
the estimator gets clipping, noise and the adjustment for absences, as `Safety` asks for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from isfed.base.argument_types import shown
from isfed.base.value_checks import check_active
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Safety
from isfed.federation.score_bounds import check_most_inclusion, default_most_inclusion
from isfed.methods.control_variates import ControlVariates, ControlVariatesApart
from isfed.methods.estimators import InverseResponse, Private
from isfed.methods.federated import Federated, composition_of
from isfed.methods.wrappers import layers
from isfed.sampling.policies import Initial, Refresh

Weighting = Literal["step", "change"]  # who divides by K p_k: the agent its step, the cloud the sum
# Methods that look into the data of the agents, which are not there.
IN_PROCESS_ONLY = {
    "Mocha": "its agents solve a dual problem that the cloud sets up from their data",
    "FedCS": "it selects by the times of turns, which only a simulated clock knows beforehand",
    "HybridFL": "its cloud trains on examples that agents send",
}


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
    on, method = weighting_of(algorithm, weighting), composition_of(algorithm)
    if method is not None and isinstance(_base(method.estimator), ControlVariates):
        _check_variates(on, safety, agent_weights)
    if agent_weights is not None:
        algorithm = _by_weight(algorithm)
        method = composition_of(algorithm)
    if method is None:
        _check_own_round(algorithm, weighting, safety)
        return algorithm
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
    good = weights.shape == (num_agents,) and bool(np.isfinite(weights).all())
    if not good or weights.min() < 0.0 or not weights.sum() > 0.0:
        raise ValueError(
            f"agent_weights must be {num_agents} numbers >= 0, one per agent, and not all 0; got "
            f"shape {weights.shape}"
        )
    return weights / weights.mean()


def check_for_network(algorithm: Any, num_agents: int, *, agent_weights: Any = None) -> None:
    """Raise a ValueError for choices that need what nobody has when agents are apart."""
    method = composition_of(algorithm)
    _check_method(algorithm, method)
    for layer in layers(algorithm):
        if (reason := IN_PROCESS_ONLY.get(type(layer).__name__)) is not None:
            raise ValueError(f"{type(layer).__name__} works in simulations only: {reason}")
    drift = max(float(getattr(layer, "drift", 0.0)) for layer in layers(algorithm))
    if drift > 0.0:
        raise ValueError(
            f"drift={drift} moves the true model, which only a simulation can do; use drift=0"
        )
    if method is None and hasattr(algorithm, "algorithm"):
        names = f"{type(algorithm).__name__} around {type(algorithm.algorithm).__name__}"
        raise ValueError(
            f"{names} works in simulations only: it has a round of its own around that of another "
            "method; give the parts to Federated(...)"
        )
    weights = getattr(method or algorithm, "client_weights", "uniform")
    if weights != "uniform" and agent_weights is None:
        raise ValueError(
            f"client_weights={weights!r} needs the sizes, which a cloud does not know over a "
            "network: Strategy(agent_weights=[...]), one number per agent, e.g. its examples"
        )
    if method is None:
        return
    if hasattr(method.sampler, "num_active"):
        check_active(method.sampler.num_active, num_agents)
    for what, policy in (
        ("agents", getattr(method.sampler, "policy", None)),
        ("examples", getattr(method.local, "examples", None)),
    ):
        if policy is not None and policy.initial == Initial.OPTIMUM:
            raise ValueError(
                f"{what}={policy.name} needs the solution w^o, which is not known in practice; "
                "use memory"
            )
    if method.sampler.reports.refresh == Refresh.ALL:
        raise ValueError("agents=current asks every agent in every round; use memory or running")


def _check_method(algorithm: Any, method: Federated | None) -> None:
    """Raise a TypeError for what is no method at all; an array can be rounded, but cannot start."""
    own = all(callable(getattr(algorithm, name, None)) for name in ("start", "round", "rules"))
    if isinstance(algorithm, type) or not (isinstance(method, Federated) or own):
        raise TypeError(f"algorithm={shown(algorithm)} must be a method, e.g. ISFedAvg(...)")


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
    return {field.name for field in getattr(record, "__dataclass_fields__", {}).values()}


def _base(estimator: Any) -> Any:
    """The estimator inside all others."""
    while hasattr(estimator, "inner"):
        estimator = estimator.inner
    return estimator


def _check_variates(on: Weighting, safety: Safety, agent_weights: Any) -> None:
    if on != "change" or agent_weights is not None:
        raise ValueError(
            "a correction needs weighting='change' and agents that count the same: leave "
            "agent_weights out"
        )
    if safety.privacy is not None:
        raise ValueError(
            "a correction and privacy do not go together: what is clipped would be remembered; "
            "leave correction out"
        )


def _check_own_round(algorithm: Any, weighting: Weighting | None, safety: Safety) -> None:
    """Raise a ValueError for choices that concern parts, of which this method has none."""
    name = type(algorithm).__name__
    if weighting == "step":
        raise ValueError(f"weighting='step': {name} has no weights 1/(K p_k); leave weighting out")
    if safety.privacy is not None or safety.absences is Absences.ADJUSTED:
        what = "absences=Absences.ADJUSTED" if safety.privacy is None else "privacy"
        raise ValueError(
            f"Safety({what}) changes an estimator, and {name} has a round of its own without one; "
            "use a composition, e.g. ISFedAvg"
        )


def _capped(sampler: Any, num_agents: int, safety: Safety) -> Any:
    """The sampler with the largest inclusion probability that `safety` allows."""
    if "most_inclusion" not in _names(sampler):
        return sampler
    most = safety.most_inclusion
    if most is None:
        most = default_most_inclusion(num_agents, sampler.num_active)
    check_most_inclusion(most, num_agents=num_agents, num_active=sampler.num_active)
    return replace(sampler, most_inclusion=min(most, sampler.most_inclusion))


def _estimator(method: Federated, on: Weighting, safety: Safety) -> Any:
    """The estimator with its weights where they belong, inside what `safety` asks for."""
    varies = callable(getattr(method.local, "step_size", None))

    def apart(estimator: Any) -> Any:
        if isinstance(estimator, ControlVariates):
            own = {name: getattr(estimator, name) for name in _names(estimator)}
            return ControlVariatesApart(**{**own, "on": on, "varies": varies})
        if "on" in _names(estimator):
            estimator = replace(estimator, on=on)
        return estimator if safety.privacy is None else Private(estimator, safety.privacy)

    def inside(estimator: Any) -> Any:
        if not hasattr(estimator, "inner"):
            return apart(estimator)
        return replace(estimator, inner=inside(estimator.inner))

    found = inside(method.estimator)
    if safety.absences is Absences.ADJUSTED and not isinstance(found, InverseResponse):
        found = InverseResponse(found, safety.largest_adjustment)
    return found
