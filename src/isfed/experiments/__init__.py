"""The paper's experiments and your own, as TOML."""

from isfed.experiments.comparison import Budget, Comparison, compare
from isfed.experiments.config import (
    ConfigError,
    Experiment,
    make_experiment,
    paper_regression,
    read_experiment,
)
from isfed.experiments.runner import run_experiment
from isfed.experiments.store import StoreError

__all__ = [
    "Budget",
    "Comparison",
    "ConfigError",
    "Experiment",
    "StoreError",
    "compare",
    "make_experiment",
    "paper_regression",
    "read_experiment",
    "run_experiment",
]
