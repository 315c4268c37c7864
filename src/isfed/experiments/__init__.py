"""The paper's experiments and your own, as TOML."""

from isfed.experiments.comparison import Budget, Comparison
from isfed.experiments.config import (
    Experiment,
    make_experiment,
    paper_regression,
    read_experiment,
)
from isfed.experiments.contest import compare
from isfed.experiments.folder import StoreError
from isfed.experiments.keys import ConfigError
from isfed.experiments.registry import register
from isfed.experiments.results import Results, load_results
from isfed.experiments.runner import run_experiment
from isfed.experiments.workers import Workers

__all__ = [
    "Budget",
    "Comparison",
    "ConfigError",
    "Experiment",
    "Results",
    "StoreError",
    "Workers",
    "compare",
    "load_results",
    "make_experiment",
    "paper_regression",
    "read_experiment",
    "register",
    "run_experiment",
]
