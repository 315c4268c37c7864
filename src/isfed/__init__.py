"""Federated learning under importance sampling.

`import isfed` loads nothing else: a name is looked up where it lives when it is first used, so
that a script pays for the parts that it uses and no others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isfed.algorithms import DynamicFedAvg, FedAvg, ISFedAvg
    from isfed.algorithms.algorithm import Algorithm, Method, ModelState
    from isfed.base.streams import Stream
    from isfed.datasets import Columns, read_table
    from isfed.federation.agent import Agent, Rules, Upload
    from isfed.federation.agents import Agents, Local, Turns, Uploads
    from isfed.federation.cloud import Cloud, Selection
    from isfed.problems import (
        EQUAL,
        OUTLIERS,
        PAPER,
        FederatedData,
        Huber,
        LeastSquares,
        Logistic,
        Loss,
        NoOptimumError,
        Problem,
        Regression,
        Softmax,
    )
    from isfed.sampling.designs import (
        Design,
        Deville,
        HartleyRao,
        Poisson,
        Sampford,
        SumTree,
        Systematic,
        WithReplacement,
        inclusion_probabilities,
    )
    from isfed.sampling.policies import Current, Memory, Oracle, Policy, Running, Score, Uniform
    from isfed.simulate import DivergenceError, History, Measure, simulate
    from isfed.theory import certify, diagnose
    from isfed.theory.stability import stable_step_size, step_limits

    __version__: str

# Where the public names live; a test holds this table, the imports above and __all__ together.
_NAMES = {
    "algorithms.algorithm": ("Algorithm", "Method", "ModelState"),
    "federation.agents": ("Agents", "Local", "Turns", "Uploads"),
    "algorithms": ("DynamicFedAvg", "FedAvg", "ISFedAvg"),
    "base.streams": ("Stream",),
    "datasets": ("Columns", "read_table"),
    "federation.agent": ("Agent", "Rules", "Upload"),
    "federation.cloud": ("Cloud", "Selection"),
    "problems": (
        "EQUAL", "OUTLIERS", "PAPER", "FederatedData", "Huber", "LeastSquares", "Logistic", "Loss",
        "NoOptimumError", "Problem", "Regression", "Softmax",
    ),
    "sampling.designs": (
        "Design", "Deville", "HartleyRao", "Poisson", "Sampford", "SumTree", "Systematic",
        "WithReplacement", "inclusion_probabilities",
    ),
    "sampling.policies": ("Current", "Memory", "Oracle", "Policy", "Running", "Score", "Uniform"),
    "simulate": ("DivergenceError", "History", "Measure"),
    "theory": ("certify", "diagnose"),
    "theory.stability": ("stable_step_size", "step_limits"),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
# Rooms that can be reached as `isfed.theory` after `import isfed` alone. `simulate` is a function
# too: the package itself can be called.
_ROOMS = (
    "algorithms", "base", "datasets", "federation", "problems", "sampling", "simulate", "theory",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"isfed.{_HOMES[name]}"), name)
    elif name in _ROOMS:
        value = importlib.import_module(f"isfed.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("isfed")
    else:
        raise AttributeError(f"module 'isfed' has no attribute {name!r}")
    globals()[name] = value  # the next use finds it without asking here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


__all__ = [
    "EQUAL",
    "OUTLIERS",
    "PAPER",
    "Agent",
    "Agents",
    "Algorithm",
    "Cloud",
    "Columns",
    "Current",
    "Design",
    "Deville",
    "DivergenceError",
    "DynamicFedAvg",
    "FedAvg",
    "FederatedData",
    "HartleyRao",
    "History",
    "Huber",
    "ISFedAvg",
    "LeastSquares",
    "Local",
    "Logistic",
    "Loss",
    "Measure",
    "Memory",
    "Method",
    "ModelState",
    "NoOptimumError",
    "Oracle",
    "Poisson",
    "Policy",
    "Problem",
    "Regression",
    "Rules",
    "Running",
    "Sampford",
    "Score",
    "Selection",
    "Softmax",
    "Stream",
    "SumTree",
    "Systematic",
    "Turns",
    "Uniform",
    "Upload",
    "Uploads",
    "WithReplacement",
    "__version__",
    "certify",
    "diagnose",
    "inclusion_probabilities",
    "read_table",
    "simulate",
    "stable_step_size",
    "step_limits",
]
