"""Federated learning under importance sampling.

`import isfed` loads nothing else: a name is looked up where it lives when it is first used, so
that a script pays for the parts that it uses and no others.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isfed.base.random_streams import Stream
    from isfed.datasets import Columns, read_table
    from isfed.federation.agent import Agent, Rules, Upload
    from isfed.federation.agents import Agents, Local, Turns, Uploads
    from isfed.federation.cloud import Cloud, Selection
    from isfed.federation.messages import Cohort, Facts, Updates, Work
    from isfed.federation.variate_updates import Correction
    from isfed.federation.virtual_clock import Clock
    from isfed.methods import DynamicFedAvg, FedAvg, ISFedAvg
    from isfed.methods.adaptive_tau import AdaptiveTau
    from isfed.methods.agnostic_fl import AgnosticFL
    from isfed.methods.by_score import ByScore
    from isfed.methods.clustered_sampling import ClusteredSampling
    from isfed.methods.control_variates import ControlVariates
    from isfed.methods.cooperative_sgd import (
        CooperativeSGD,
        DecentralisedSGD,
        ElasticAveraging,
        FullySynchronousSGD,
        PeriodicAveraging,
    )
    from isfed.methods.estimators import HorvitzThompson, InverseResponse, Mean
    from isfed.methods.fedasync import FedAsync
    from isfed.methods.fedavg_schemes import FedAvgScheme
    from isfed.methods.fedcs import FedCS
    from isfed.methods.federated import Add, Estimator, Evidence, Federated, Sampler, Server
    from isfed.methods.fedprox import FedProx
    from isfed.methods.fedvarp import FedVARP
    from isfed.methods.folb import FOLB
    from isfed.methods.hierfavg import HierFAVG
    from isfed.methods.hybrid_fl import HybridFL
    from isfed.methods.importance_defaults import importance
    from isfed.methods.local_gd import LocalGD
    from isfed.methods.local_sgd import KAVG, LocalSGD, StichSGD
    from isfed.methods.local_steps import LocalSteps
    from isfed.methods.method_protocol import Algorithm, Method, ModelState
    from isfed.methods.mocha import Mocha
    from isfed.methods.momentum_sgd import MomentumSGD
    from isfed.methods.passes import Passes
    from isfed.methods.power_of_choice import PowerOfChoice
    from isfed.methods.q_ffl import QFedAvg, QFedSGD
    from isfed.methods.restarted_sgd import RestartedSGD
    from isfed.methods.scaffold import SCAFFOLD
    from isfed.methods.server_optimizers import FedAdagrad, FedAdam, FedYogi, ServerMomentum
    from isfed.methods.server_wrappers import Average, LookAhead
    from isfed.methods.wrappers import Scheduled, Served
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
    from isfed.studies.results_reader import Results, load_results
    from isfed.studies.sklearn_estimators import FederatedClassifier, FederatedRegressor
    from isfed.theory import certify, diagnose
    from isfed.theory.stable_step_size import stable_step_size, step_limits

    __version__: str

# Where the public names live; a test holds this table, the imports above and __all__ together.
_NAMES = {
    "methods.by_score": ("ByScore",),
    "methods.control_variates": ("ControlVariates",),
    "methods.estimators": ("HorvitzThompson", "InverseResponse", "Mean",),
    "methods.federated": ("Add", "Estimator", "Evidence", "Federated", "Sampler", "Server",),
    "methods.local_steps": ("LocalSteps",),
    "methods.passes": ("Passes",),
    "federation.messages": ("Cohort", "Facts", "Updates", "Work",),
    "methods.method_protocol": ("Algorithm", "Method", "ModelState"),
    "federation.agents": ("Agents", "Local", "Turns", "Uploads"),
    "methods": ("DynamicFedAvg", "FedAvg", "ISFedAvg"),
    "methods.adaptive_tau": ("AdaptiveTau",),
    "methods.agnostic_fl": ("AgnosticFL",),
    "methods.clustered_sampling": ("ClusteredSampling",),
    "methods.wrappers": ("Scheduled", "Served"),
    "methods.cooperative_sgd": (
        "CooperativeSGD", "DecentralisedSGD", "ElasticAveraging", "FullySynchronousSGD",
        "PeriodicAveraging",
    ),
    "methods.fedasync": ("FedAsync",),
    "methods.fedavg_schemes": ("FedAvgScheme",),
    "methods.fedcs": ("FedCS",),
    "methods.fedprox": ("FedProx",),
    "methods.fedvarp": ("FedVARP",),
    "methods.folb": ("FOLB",),
    "methods.hierfavg": ("HierFAVG",),
    "methods.hybrid_fl": ("HybridFL",),
    "methods.importance_defaults": ("importance",),
    "methods.local_gd": ("LocalGD",),
    "methods.local_sgd": (
        "KAVG", "LocalSGD", "StichSGD",
    ),
    "methods.mocha": ("Mocha",),
    "methods.momentum_sgd": ("MomentumSGD",),
    "methods.power_of_choice": ("PowerOfChoice",),
    "methods.q_ffl": (
        "QFedAvg", "QFedSGD",
    ),
    "methods.restarted_sgd": ("RestartedSGD",),
    "methods.scaffold": ("SCAFFOLD",),
    "methods.server_wrappers": ("Average", "LookAhead"),
    "methods.server_optimizers": ("FedAdagrad", "FedAdam", "FedYogi", "ServerMomentum"),
    "base.random_streams": ("Stream",),
    "datasets": ("Columns", "read_table"),
    "studies.sklearn_estimators": ("FederatedClassifier", "FederatedRegressor"),
    "studies.results_reader": ("Results", "load_results"),
    "federation.agent": ("Agent", "Rules", "Upload"),
    "federation.virtual_clock": ("Clock",),
    "federation.cloud": ("Cloud", "Selection"),
    "federation.variate_updates": ("Correction",),
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
    "theory.stable_step_size": ("stable_step_size", "step_limits"),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
# Rooms that can be reached as `isfed.theory` after `import isfed` alone. `simulate` is a function
# too: the package itself can be called.
_ROOMS = (
    "methods", "base", "datasets", "studies", "federation", "problems", "sampling",
    "simulate", "theory",
)  # fmt: skip


class _OldNames:
    """Finds modules by the names that they had before: see `isfed.old_names`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("isfed.") or name == "isfed.old_names":
            return None
        from isfed.old_names import spec_of

        return spec_of(name)


sys.meta_path.insert(0, _OldNames)  # first: an old room would be searched for modules otherwise


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
