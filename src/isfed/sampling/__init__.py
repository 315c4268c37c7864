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

__all__ = [
    "Brewer",
    "Clustered",
    "ConditionalPoisson",
    "Cube",
    "Design",
    "Deville",
    "HartleyRao",
    "LocalPivotal",
    "Poisson",
    "Sampford",
    "Stratified",
    "SumTree",
    "Systematic",
    "Tille",
    "WithReplacement",
    "inclusion_probabilities",
]
