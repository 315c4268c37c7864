"""Federated learning under importance sampling.

`import isfed` loads nothing else: a name is looked up where it lives when it is first used, so
that a script pays for the parts that it uses and no others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isfed.algorithms import DynamicFedAvg, FedAvg, ISFedAvg
    from isfed.algorithms.adaptive_tau import AdaptiveTau
    from isfed.algorithms.agnostic import AgnosticFL
    from isfed.algorithms.algorithm import Algorithm, Method, ModelState
    from isfed.algorithms.around import Scheduled, Served
    from isfed.algorithms.by_score import ByScore
    from isfed.algorithms.clustered import ClusteredSampling
    from isfed.algorithms.control_variates import ControlVariates
    from isfed.algorithms.cooperative import (
        CooperativeSGD,
        DecentralisedSGD,
        ElasticAveraging,
        FullySynchronousSGD,
        PeriodicAveraging,
    )
    from isfed.algorithms.estimators import HorvitzThompson, InverseResponse, Mean
    from isfed.algorithms.fedasync import FedAsync
    from isfed.algorithms.fedavg_schemes import FedAvgScheme
    from isfed.algorithms.fedcs import FedCS
    from isfed.algorithms.federated import Add, Estimator, Evidence, Federated, Sampler, Server
    from isfed.algorithms.fedprox import FedProx
    from isfed.algorithms.fedvarp import FedVARP
    from isfed.algorithms.folb import FOLB
    from isfed.algorithms.hierfavg import HierFAVG
    from isfed.algorithms.hybrid_fl import HybridFL
    from isfed.algorithms.importance import importance
    from isfed.algorithms.local_gd import LocalGD
    from isfed.algorithms.local_sgd import KAVG, LocalSGD, StichSGD
    from isfed.algorithms.local_steps import LocalSteps
    from isfed.algorithms.mocha import Mocha
    from isfed.algorithms.momentum import MomentumSGD
    from isfed.algorithms.passes import Passes
    from isfed.algorithms.power_of_choice import PowerOfChoice
    from isfed.algorithms.qffl import QFedAvg, QFedSGD
    from isfed.algorithms.restarted import RestartedSGD
    from isfed.algorithms.scaffold import SCAFFOLD
    from isfed.algorithms.server import Average, LookAhead
    from isfed.algorithms.server_optimizers import FedAdagrad, FedAdam, FedYogi, ServerMomentum
    from isfed.base.streams import Stream
    from isfed.datasets import Columns, read_table
    from isfed.experiments.estimators import FederatedClassifier, FederatedRegressor
    from isfed.experiments.results import Results, load_results
    from isfed.federation.agent import Agent, Rules, Upload
    from isfed.federation.agents import Agents, Local, Turns, Uploads
    from isfed.federation.clock import Clock
    from isfed.federation.cloud import Cloud, Selection
    from isfed.federation.correction import Correction
    from isfed.federation.messages import Cohort, Facts, Updates, Work
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
        Synthetic,
    )
    from isfed.sampling.designs import (
        Brewer,
        Clustered,
        ConditionalPoisson,
        Cube,
        Design,
        Deville,
        HartleyRao,
        LocalPivotal,
        Poisson,
        Sampford,
        Spread,
        Stratified,
        SumTree,
        Systematic,
        Tille,
        WithReplacement,
        inclusion_probabilities,
    )
    from isfed.sampling.estimation import estimate_mean, estimate_total
    from isfed.sampling.policies import Current, Memory, Oracle, Policy, Running, Score, Uniform
    from isfed.simulate import DivergenceError, History, Measure, simulate
    from isfed.theory import certify, diagnose
    from isfed.theory.stability import stable_step_size, step_limits

    __version__: str

# Where the public names live; a test holds this table, the imports above and __all__ together.
_NAMES = {
    "algorithms.by_score": ("ByScore",),
    "algorithms.control_variates": ("ControlVariates",),
    "algorithms.estimators": ("HorvitzThompson", "InverseResponse", "Mean",),
    "algorithms.federated": ("Add", "Estimator", "Evidence", "Federated", "Sampler", "Server",),
    "algorithms.local_steps": ("LocalSteps",),
    "algorithms.passes": ("Passes",),
    "federation.messages": ("Cohort", "Facts", "Updates", "Work",),
    "algorithms.algorithm": ("Algorithm", "Method", "ModelState"),
    "federation.agents": ("Agents", "Local", "Turns", "Uploads"),
    "algorithms": ("DynamicFedAvg", "FedAvg", "ISFedAvg"),
    "algorithms.adaptive_tau": ("AdaptiveTau",),
    "algorithms.agnostic": ("AgnosticFL",),
    "algorithms.clustered": ("ClusteredSampling",),
    "algorithms.around": ("Scheduled", "Served"),
    "algorithms.cooperative": (
        "CooperativeSGD", "DecentralisedSGD", "ElasticAveraging", "FullySynchronousSGD",
        "PeriodicAveraging",
    ),
    "algorithms.fedasync": ("FedAsync",),
    "algorithms.fedavg_schemes": ("FedAvgScheme",),
    "algorithms.fedcs": ("FedCS",),
    "algorithms.fedprox": ("FedProx",),
    "algorithms.fedvarp": ("FedVARP",),
    "algorithms.folb": ("FOLB",),
    "algorithms.hierfavg": ("HierFAVG",),
    "algorithms.hybrid_fl": ("HybridFL",),
    "algorithms.importance": ("importance",),
    "algorithms.local_gd": ("LocalGD",),
    "algorithms.local_sgd": (
        "KAVG", "LocalSGD", "StichSGD",
    ),
    "algorithms.mocha": ("Mocha",),
    "algorithms.momentum": ("MomentumSGD",),
    "algorithms.power_of_choice": ("PowerOfChoice",),
    "algorithms.qffl": (
        "QFedAvg", "QFedSGD",
    ),
    "algorithms.restarted": ("RestartedSGD",),
    "algorithms.scaffold": ("SCAFFOLD",),
    "algorithms.server": ("Average", "LookAhead"),
    "algorithms.server_optimizers": ("FedAdagrad", "FedAdam", "FedYogi", "ServerMomentum"),
    "base.streams": ("Stream",),
    "datasets": ("Columns", "read_table"),
    "experiments.estimators": ("FederatedClassifier", "FederatedRegressor"),
    "experiments.results": ("Results", "load_results"),
    "federation.agent": ("Agent", "Rules", "Upload"),
    "federation.clock": ("Clock",),
    "federation.cloud": ("Cloud", "Selection"),
    "federation.correction": ("Correction",),
    "problems": (
        "EQUAL", "OUTLIERS", "PAPER", "FederatedData", "Huber", "LeastSquares", "Logistic", "Loss",
        "NoOptimumError", "Problem", "Regression", "Softmax", "Synthetic",
    ),
    "sampling.designs": (
        "Brewer", "Clustered", "ConditionalPoisson", "Cube", "Design", "Deville", "HartleyRao",
        "LocalPivotal", "Poisson", "Sampford", "Spread", "Stratified", "SumTree", "Systematic",
        "Tille", "WithReplacement", "inclusion_probabilities",
    ),
    "sampling.estimation": ("estimate_mean", "estimate_total"),
    "sampling.policies": ("Current", "Memory", "Oracle", "Policy", "Running", "Score", "Uniform"),
    "simulate": ("DivergenceError", "History", "Measure"),
    "theory": ("certify", "diagnose"),
    "theory.stability": ("stable_step_size", "step_limits"),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
# Rooms that can be reached as `isfed.theory` after `import isfed` alone. `simulate` is a function
# too: the package itself can be called.
_ROOMS = (
    "algorithms", "base", "datasets", "experiments", "federation", "problems", "sampling",
    "simulate", "theory",
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
    "FOLB",
    "KAVG",
    "OUTLIERS",
    "PAPER",
    "SCAFFOLD",
    "AdaptiveTau",
    "Add",
    "Agent",
    "Agents",
    "AgnosticFL",
    "Algorithm",
    "Average",
    "Brewer",
    "ByScore",
    "Clock",
    "Cloud",
    "Clustered",
    "ClusteredSampling",
    "Cohort",
    "Columns",
    "ConditionalPoisson",
    "ControlVariates",
    "CooperativeSGD",
    "Correction",
    "Cube",
    "Current",
    "DecentralisedSGD",
    "Design",
    "Deville",
    "DivergenceError",
    "DynamicFedAvg",
    "ElasticAveraging",
    "Estimator",
    "Evidence",
    "Facts",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgScheme",
    "FedCS",
    "FedProx",
    "FedVARP",
    "FedYogi",
    "Federated",
    "FederatedClassifier",
    "FederatedData",
    "FederatedRegressor",
    "FullySynchronousSGD",
    "HartleyRao",
    "HierFAVG",
    "History",
    "HorvitzThompson",
    "Huber",
    "HybridFL",
    "ISFedAvg",
    "InverseResponse",
    "LeastSquares",
    "Local",
    "LocalGD",
    "LocalPivotal",
    "LocalSGD",
    "LocalSteps",
    "Logistic",
    "LookAhead",
    "Loss",
    "Mean",
    "Measure",
    "Memory",
    "Method",
    "Mocha",
    "ModelState",
    "MomentumSGD",
    "NoOptimumError",
    "Oracle",
    "Passes",
    "PeriodicAveraging",
    "Poisson",
    "Policy",
    "PowerOfChoice",
    "Problem",
    "QFedAvg",
    "QFedSGD",
    "Regression",
    "RestartedSGD",
    "Results",
    "Rules",
    "Running",
    "Sampford",
    "Sampler",
    "Scheduled",
    "Score",
    "Selection",
    "Served",
    "Server",
    "ServerMomentum",
    "Softmax",
    "Spread",
    "StichSGD",
    "Stratified",
    "Stream",
    "SumTree",
    "Synthetic",
    "Systematic",
    "Tille",
    "Turns",
    "Uniform",
    "Updates",
    "Upload",
    "Uploads",
    "WithReplacement",
    "Work",
    "__version__",
    "certify",
    "diagnose",
    "estimate_mean",
    "estimate_total",
    "importance",
    "inclusion_probabilities",
    "load_results",
    "read_table",
    "simulate",
    "stable_step_size",
    "step_limits",
]
