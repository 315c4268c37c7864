"""Federated learning under importance sampling."""

from importlib.metadata import version

from isfed.agent import Agent, Rules, Upload
from isfed.algorithms import DynamicFedAvg, FedAvg, ISFedAvg
from isfed.cloud import Cloud, Selection
from isfed.designs import (
    Deville,
    HartleyRao,
    Poisson,
    Sampford,
    SumTree,
    Systematic,
    WithReplacement,
    inclusion_probabilities,
)
from isfed.policies import Current, Memory, Oracle, Policy, Running, Score, Uniform
from isfed.problems import (
    EQUAL,
    OUTLIERS,
    PAPER,
    Columns,
    FederatedData,
    Huber,
    LeastSquares,
    Logistic,
    Problem,
    Regression,
    Softmax,
    read_table,
)
from isfed.simulate import DivergenceError, History, simulate
from isfed.stability import stable_step_size, step_limits
from isfed.streams import Stream
from isfed.theory import certify, diagnose

__version__ = version("isfed")

__all__ = [
    "EQUAL",
    "OUTLIERS",
    "PAPER",
    "Agent",
    "Cloud",
    "Columns",
    "Current",
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
    "Logistic",
    "Memory",
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
    "Uniform",
    "Upload",
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
