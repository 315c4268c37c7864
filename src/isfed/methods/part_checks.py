"""What is checked of the parts of a method when it is made, and of what they return at first.

Parts may be the user's own. What they return is looked at in the first round only: in every round
it would take longer than a small round itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isfed.base.argument_checks import shown
from isfed.federation.messages import Cohort, Facts, Work
from isfed.methods.method_protocol import flat_state
from isfed.methods.servers import SERVER

PARTS = {  # the methods that each part must have
    "sampler": ("init", "draw", "learn"),
    "local": ("work", "rules", "at"),
    "estimator": ("init", "ask", "combine", "counts"),
    "server": SERVER,
}
WORDS = {  # what parts may need of each other, and which part may give it
    "inclusion probabilities": "sampler",
    "public probabilities": "sampler",
    "cohorts of fixed size": "sampler",
    "scores": "sampler",
    "steps divided by E_k": "local",
    "weights on the change": "estimator",
    "step sizes": "estimator",
    "equal weights": "client_weights",
}


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raise a TypeError for what is no part."""
    for name, part in parts.items():
        if isinstance(part, type):
            raise TypeError(
                f"{name}={part.__name__} is a class; give an object of it: {part.__name__}(...)"
            )
        lacks = [each for each in PARTS[name] if not callable(getattr(part, each, None))]
        if lacks:
            asked, missing = ", ".join(PARTS[name]), ", ".join(lacks)
            raise TypeError(
                f"{name}={shown(part)} must have the methods {asked}; it has no {missing}"
            )
        needs, gives = getattr(part, "needs", {}), getattr(part, "gives", ())
        if not isinstance(needs, Mapping) or isinstance(gives, str):
            raise TypeError(
                f"{name} {type(part).__name__}: needs is a dict from a word to what to use, "
                "and gives is a set of words"
            )
    if not hasattr(getattr(parts["sampler"], "reports", None), "refresh"):
        raise TypeError(
            f"sampler {type(parts['sampler']).__name__} must say what agents report to it: a "
            "policy such as reports = Uniform(), for nothing, or Memory(), for a score"
        )


def check_state(part: Any, method: str, state: Any) -> None:
    """Raise a TypeError for a state that no checkpoint could keep."""
    named = hasattr(state, "_asdict")
    unnamed = isinstance(state, tuple) and len(state) > 0 and not named
    arrays = flat_state(state).values() if named else () if unnamed else (np.asarray(state),)
    if unnamed or any(array.dtype.kind == "O" for array in arrays):
        raise TypeError(
            f"{type(part).__name__}.{method} gave the state {shown(state)}, expected a NamedTuple "
            "of arrays, or (): checkpoints keep it"
        )


def check_fit(parts: Mapping[str, Any], client_weights: str) -> None:
    """Raise a ValueError if a part needs what no other gives; it names both, and what to use."""
    given = {word for part in parts.values() for word in getattr(part, "gives", ())}
    if client_weights == "uniform":
        given.add("equal weights")
    titles = {name: f"{name} {type(part).__name__}" for name, part in parts.items()}
    titles["client_weights"] = f"client_weights={client_weights!r}"
    for name, part in parts.items():
        for word, remedy in getattr(part, "needs", {}).items():
            if word not in given:
                giver = WORDS.get(word, name)
                lacks = "nothing gives" if giver == name else f"{titles[giver]} does not give"
                raise ValueError(f"{titles[name]} needs {word}, which {lacks}: {remedy}")


def check_drawn(sampler: Any, drawn: Any, facts: Facts) -> None:
    """Raise an error for what is no cohort with a state."""
    name = type(sampler).__name__
    if not (isinstance(drawn, tuple) and len(drawn) == 2 and isinstance(drawn[0], Cohort)):
        raise TypeError(
            f"{name}.draw returned {shown(drawn)}, expected a Cohort and the state after the draw"
        )
    agents, times = drawn[0].agents, drawn[0].times
    vector = isinstance(agents, np.ndarray) and agents.ndim == 1
    if not vector or agents.dtype.kind not in "iu":
        raise TypeError(
            f"{name} drew agents={shown(agents)}, expected an array of their numbers, such as "
            "np.flatnonzero(mask)"
        )
    within = not agents.size or (agents.min() >= 0 and agents.max() < facts.num_agents)
    if not within or np.unique(agents).size < agents.size:
        raise ValueError(
            f"{name} drew agents={shown(agents)}, expected numbers from 0 to "
            f"{facts.num_agents - 1}, each once: `times` says how often"
        )
    if np.shape(times) != agents.shape:
        raise ValueError(f"{name} gave times={shown(times)}, expected one for each agent drawn")
    prob = drawn[0].prob
    if prob is not None and not np.all(prob > 0.0):
        raise ValueError(f"{name} gave prob={shown(prob)}, expected p_k above 0 of those drawn")


def check_asked(estimator: Any, work: Any) -> None:
    """Raise a TypeError for what is no work."""
    if not isinstance(work, Work):
        raise TypeError(f"{type(estimator).__name__}.ask returned {shown(work)}, expected the Work")


def check_combined(estimator: Any, combined: Any, facts: Facts) -> None:
    """Raise a TypeError for what is no step with a state and evidence."""
    wanted = isinstance(combined, tuple) and len(combined) == 3 and hasattr(combined[2], "change")
    if not wanted or np.shape(combined[0]) != (facts.num_trained,):
        raise TypeError(
            f"{type(estimator).__name__}.combine returned {shown(combined)}, expected a step of "
            f"{facts.num_trained} numbers, the state after the round and an Evidence"
        )


def check_moved(server: Any, moved: Any, facts: Facts) -> None:
    """Raise a TypeError for what is no model with a state."""
    pair = isinstance(moved, tuple) and len(moved) == 2
    if not pair or np.shape(moved[0]) != (facts.num_trained,):
        raise TypeError(
            f"{type(server).__name__}.move returned {shown(moved)}, expected a model of "
            f"{facts.num_trained} numbers and the new state"
        )
