"""The paper's experiments and your own, as TOML."""

from isfed.studies.comparison import Budget, Comparison
from isfed.studies.comparison_run import compare
from isfed.studies.config_schema import ConfigError
from isfed.studies.executors import Workers
from isfed.studies.experiment import Experiment
from isfed.studies.experiment_config import make_experiment, read_experiment, read_study
from isfed.studies.model_file import load_model
from isfed.studies.name_registry import register
from isfed.studies.results_folder import StoreError
from isfed.studies.results_reader import Results, load_results
from isfed.studies.short_runs import ways_by_short_runs
from isfed.studies.study_engine import run_study as run_experiment

__all__ = [
    "Budget",
    "Comparison",
    "ConfigError",
    "Experiment",
    "Results",
    "StoreError",
    "Workers",
    "compare",
    "load_model",
    "load_results",
    "make_experiment",
    "read_experiment",
    "read_study",
    "register",
    "run_experiment",
    "ways_by_short_runs",
]
