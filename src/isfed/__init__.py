"""Federated learning under importance sampling."""

from importlib.metadata import version

from isfed.algorithms import DynamicFedAvg, FedAvg, ISFedAvg
from isfed.base.streams import Stream
from isfed.datasets import Columns, read_table
from isfed.federation.agent import Agent, Rules, Upload
from isfed.federation.cloud import Cloud, Selection
from isfed.problems import (
    EQUAL,
    OUTLIERS,
    PAPER,
    FederatedData,
    Huber,
    LeastSquares,
    Logistic,
    Problem,
    Regression,
    Softmax,
)
from isfed.sampling.designs import (
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
from isfed.simulate import DivergenceError, History, simulate
from isfed.theory import certify, diagnose
from isfed.theory.stability import stable_step_size, step_limits

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
