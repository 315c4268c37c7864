"""What is learned: federated data, losses, and the minimiser."""

from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import Huber, LeastSquares, Logistic, Loss, Softmax
from isfed.problems.problem import Problem
from isfed.problems.scaled_risk import NoOptimumError
from isfed.problems.synthetic_problems import EQUAL, OUTLIERS, PAPER, PRESETS, Regression, Synthetic

__all__ = [
    "EQUAL",
    "OUTLIERS",
    "PAPER",
    "PRESETS",
    "FederatedData",
    "Huber",
    "LeastSquares",
    "Logistic",
    "Loss",
    "NoOptimumError",
    "Problem",
    "Regression",
    "Softmax",
    "Synthetic",
]
