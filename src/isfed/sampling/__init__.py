"""Fixed-size unequal-probability sampling: designs, estimators, policies and score tables.

The designs and estimators are of use on their own: importing them loads NumPy, Numba, and no other
part of isfed than `isfed.base`; small draws compile nothing.
"""

from isfed.sampling import designs
from isfed.sampling.designs import *  # noqa: F403
from isfed.sampling.estimation import (
    Estimate,
    JointWarning,
    VarianceError,
    estimate_mean,
    estimate_total,
)

__all__ = ["Estimate", "JointWarning", "VarianceError", "estimate_mean", "estimate_total"]
__all__ += designs.__all__
