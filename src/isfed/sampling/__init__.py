"""Whom to hear: designs, policies, the score table, and telemetry of the weights.

The designs and estimators below are of use on their own: importing them loads NumPy, Numba, and no
other part of isfed than `isfed.base`.
"""

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
    Stratified,
    SumTree,
    Systematic,
    Tille,
    WithReplacement,
    inclusion_probabilities,
)
from isfed.sampling.estimation import Estimate, JointWarning, estimate_mean, estimate_total
from isfed.sampling.variance_estimators import VarianceError

__all__ = [
    "Brewer",
    "Clustered",
    "ConditionalPoisson",
    "Cube",
    "Design",
    "Deville",
    "Estimate",
    "HartleyRao",
    "JointWarning",
    "LocalPivotal",
    "Poisson",
    "Sampford",
    "Stratified",
    "SumTree",
    "Systematic",
    "Tille",
    "VarianceError",
    "WithReplacement",
    "estimate_mean",
    "estimate_total",
    "inclusion_probabilities",
]
