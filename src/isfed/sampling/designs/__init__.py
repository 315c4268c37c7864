"""Draw n of N units with prescribed inclusion probabilities."""

from isfed.sampling.designs.brewer_tille import Brewer, Tille
from isfed.sampling.designs.cube import Cube
from isfed.sampling.designs.design_protocol import Design
from isfed.sampling.designs.inclusion import inclusion_probabilities
from isfed.sampling.designs.independent import Poisson, WithReplacement
from isfed.sampling.designs.local_pivotal import LocalPivotal
from isfed.sampling.designs.rejective import ConditionalPoisson, Sampford
from isfed.sampling.designs.sharded_tree import ShardedTree
from isfed.sampling.designs.spread import Spread
from isfed.sampling.designs.stratified import Clustered, Stratified
from isfed.sampling.designs.sum_tree import SumTree
from isfed.sampling.designs.systematic import Deville, HartleyRao, Systematic

ALL_DESIGNS = (Systematic, HartleyRao, Deville, Sampford, Poisson, WithReplacement)
SPREAD_DESIGNS = (Spread, LocalPivotal)  # those that know more of the units than their number

__all__ = [
    "ALL_DESIGNS",
    "SPREAD_DESIGNS",
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
    "ShardedTree",
    "Spread",
    "Stratified",
    "SumTree",
    "Systematic",
    "Tille",
    "WithReplacement",
    "inclusion_probabilities",
]
