"""What is learned: federated data, losses, and the minimiser."""

from isfed.problems.data import FederatedData
from isfed.problems.losses import Huber, LeastSquares, Logistic, Loss, Softmax
from isfed.problems.partition import Partition
from isfed.problems.problem import Problem
from isfed.problems.scaling import Scaling, standardise
from isfed.problems.synthetic import EQUAL, OUTLIERS, PAPER, PRESETS, Regression
from isfed.problems.tables import Columns, FederatedTable, read_table

__all__ = [
    "EQUAL",
    "OUTLIERS",
    "PAPER",
    "PRESETS",
    "Columns",
    "FederatedData",
    "FederatedTable",
    "Huber",
    "LeastSquares",
    "Logistic",
    "Loss",
    "Partition",
    "Problem",
    "Regression",
    "Scaling",
    "Softmax",
    "read_table",
    "standardise",
]
