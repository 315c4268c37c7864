"""What is learned: federated data, losses, and the minimiser."""

from isfed.problems.data import FederatedData
from isfed.problems.losses import LeastSquares, Logistic, Loss
from isfed.problems.problem import Problem
from isfed.problems.synthetic import EQUAL, OUTLIERS, PAPER, PRESETS, Regression

__all__ = [
    "EQUAL",
    "OUTLIERS",
    "PAPER",
    "PRESETS",
    "FederatedData",
    "LeastSquares",
    "Logistic",
    "Loss",
    "Problem",
    "Regression",
]
