"""Draw n of N units with prescribed inclusion probabilities."""

from isfed.sampling.designs.inclusion import inclusion_probabilities
from isfed.sampling.designs.independent import Poisson, WithReplacement
from isfed.sampling.designs.sampford import Sampford
from isfed.sampling.designs.systematic import Deville, HartleyRao, Systematic
from isfed.sampling.designs.tree import SumTree

ALL_DESIGNS = (Systematic, HartleyRao, Deville, Sampford, Poisson, WithReplacement)
Design = Systematic | HartleyRao | Deville | Sampford | Poisson | WithReplacement

__all__ = [
    "ALL_DESIGNS",
    "Design",
    "Deville",
    "HartleyRao",
    "Poisson",
    "Sampford",
    "SumTree",
    "Systematic",
    "WithReplacement",
    "inclusion_probabilities",
]
