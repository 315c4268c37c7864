"""The paper's experiments and your own, as TOML."""

from isfed.experiments.config import ConfigError, Experiment, make_experiment, read_experiment
from isfed.experiments.runner import run_experiment
from isfed.experiments.store import StoreError

__all__ = [
    "ConfigError",
    "Experiment",
    "StoreError",
    "make_experiment",
    "read_experiment",
    "run_experiment",
]
