"""Federated learning under importance sampling.

`import isfed` loads nothing else: a name is looked up where it lives when it is first used, so
that a script pays for the parts that it uses and no others.
"""

import sys as _sys
import typing as _typing

if _typing.TYPE_CHECKING:  # the public names: type checkers read this table, and so does `_homes`
    from isfed.base.random_streams import Purpose as Purpose
    from isfed.base.random_streams import Stream as Stream
    from isfed.datasets import Columns as Columns
    from isfed.datasets import read_table as read_table
    from isfed.federation.agent import Agent as Agent
    from isfed.federation.agent import AgentConfig as AgentConfig
    from isfed.federation.agent import Upload as Upload
    from isfed.federation.agents import Agents as Agents
    from isfed.federation.agents import LocalOptions as LocalOptions
    from isfed.federation.agents import TrainRequest as TrainRequest
    from isfed.federation.agents import Uploads as Uploads
    from isfed.federation.messages import Cohort as Cohort
    from isfed.federation.messages import Facts as Facts
    from isfed.federation.messages import Updates as Updates
    from isfed.federation.messages import Work as Work
    from isfed.federation.variate_updates import Correction as Correction
    from isfed.federation.virtual_clock import Clock as Clock
    from isfed.methods import DynamicFedAvg as DynamicFedAvg
    from isfed.methods import FedAvg as FedAvg
    from isfed.methods import ISFedAvg as ISFedAvg
    from isfed.methods.active_fl import ActiveFL as ActiveFL
    from isfed.methods.adaptive_tau import AdaptiveTau as AdaptiveTau
    from isfed.methods.agnostic_fl import AgnosticFL as AgnosticFL
    from isfed.methods.bandit_samplers import MABS as MABS
    from isfed.methods.bandit_samplers import OSMD as OSMD
    from isfed.methods.bandit_samplers import VRB as VRB
    from isfed.methods.by_score import ByScore as ByScore
    from isfed.methods.clustered_sampling import ClusteredSampling as ClusteredSampling
    from isfed.methods.control_variates import ControlVariates as ControlVariates
    from isfed.methods.cooperative_sgd import CooperativeSGD as CooperativeSGD
    from isfed.methods.cooperative_sgd import DecentralisedSGD as DecentralisedSGD
    from isfed.methods.cooperative_sgd import ElasticAveraging as ElasticAveraging
    from isfed.methods.cooperative_sgd import FullySynchronousSGD as FullySynchronousSGD
    from isfed.methods.cooperative_sgd import PeriodicAveraging as PeriodicAveraging
    from isfed.methods.delta_sampling import DELTA as DELTA
    from isfed.methods.divfl import DivFL as DivFL
    from isfed.methods.estimators import HorvitzThompson as HorvitzThompson
    from isfed.methods.estimators import InverseResponse as InverseResponse
    from isfed.methods.estimators import Mean as Mean
    from isfed.methods.fedasync import FedAsync as FedAsync
    from isfed.methods.fedau import FedAU as FedAU
    from isfed.methods.fedavg import importance as importance
    from isfed.methods.fedavg_schemes import FedAvgScheme as FedAvgScheme
    from isfed.methods.fedcm import FedCM as FedCM
    from isfed.methods.fedcor import FedCor as FedCor
    from isfed.methods.fedcs import FedCS as FedCS
    from isfed.methods.federated import Estimator as Estimator
    from isfed.methods.federated import Evidence as Evidence
    from isfed.methods.federated import Federated as Federated
    from isfed.methods.federated import Sampler as Sampler
    from isfed.methods.fedprox import FedProx as FedProx
    from isfed.methods.fedstas import FedSTaS as FedSTaS
    from isfed.methods.fedvarp import FedVARP as FedVARP
    from isfed.methods.folb import FOLB as FOLB
    from isfed.methods.hics_fl import HiCSFL as HiCSFL
    from isfed.methods.hierfavg import HierFAVG as HierFAVG
    from isfed.methods.hybrid_fl import HybridFL as HybridFL
    from isfed.methods.kvib import KVib as KVib
    from isfed.methods.local_sgd import KAVG as KAVG
    from isfed.methods.local_sgd import LocalGD as LocalGD
    from isfed.methods.local_sgd import LocalSGD as LocalSGD
    from isfed.methods.local_sgd import MomentumSGD as MomentumSGD
    from isfed.methods.local_sgd import RestartedSGD as RestartedSGD
    from isfed.methods.local_sgd import StichSGD as StichSGD
    from isfed.methods.local_steps import LocalSteps as LocalSteps
    from isfed.methods.look_ahead_passes import LookAheadPasses as LookAheadPasses
    from isfed.methods.method_protocol import Algorithm as Algorithm
    from isfed.methods.method_protocol import Method as Method
    from isfed.methods.method_protocol import ModelState as ModelState
    from isfed.methods.method_wrappers import Scheduled as Scheduled
    from isfed.methods.method_wrappers import Served as Served
    from isfed.methods.mifa import MIFA as MIFA
    from isfed.methods.mocha import Mocha as Mocha
    from isfed.methods.oort import Oort as Oort
    from isfed.methods.optimal_sampling import AOCS as AOCS
    from isfed.methods.optimal_sampling import OCS as OCS
    from isfed.methods.passes_over_agents import Passes as Passes
    from isfed.methods.power_of_choice import PowerOfChoice as PowerOfChoice
    from isfed.methods.q_ffl import QFedAvg as QFedAvg
    from isfed.methods.q_ffl import QFedSGD as QFedSGD
    from isfed.methods.scaffold import SCAFFOLD as SCAFFOLD
    from isfed.methods.servers import Add as Add
    from isfed.methods.servers import Average as Average
    from isfed.methods.servers import FedAdagrad as FedAdagrad
    from isfed.methods.servers import FedAdam as FedAdam
    from isfed.methods.servers import FedYogi as FedYogi
    from isfed.methods.servers import LookAhead as LookAhead
    from isfed.methods.servers import Server as Server
    from isfed.methods.servers import ServerMomentum as ServerMomentum
    from isfed.methods.stratified_passes import StratifiedPasses as StratifiedPasses
    from isfed.problems import EQUAL as EQUAL
    from isfed.problems import OUTLIERS as OUTLIERS
    from isfed.problems import PAPER as PAPER
    from isfed.problems import FederatedData as FederatedData
    from isfed.problems import Huber as Huber
    from isfed.problems import LeastSquares as LeastSquares
    from isfed.problems import Logistic as Logistic
    from isfed.problems import Loss as Loss
    from isfed.problems import NoOptimumError as NoOptimumError
    from isfed.problems import Problem as Problem
    from isfed.problems import Regression as Regression
    from isfed.problems import Softmax as Softmax
    from isfed.problems import Synthetic as Synthetic
    from isfed.sampling.designs import Brewer as Brewer
    from isfed.sampling.designs import Clustered as Clustered
    from isfed.sampling.designs import ConditionalPoisson as ConditionalPoisson
    from isfed.sampling.designs import Cube as Cube
    from isfed.sampling.designs import Design as Design
    from isfed.sampling.designs import Deville as Deville
    from isfed.sampling.designs import HartleyRao as HartleyRao
    from isfed.sampling.designs import LocalPivotal as LocalPivotal
    from isfed.sampling.designs import Poisson as Poisson
    from isfed.sampling.designs import Sampford as Sampford
    from isfed.sampling.designs import Spread as Spread
    from isfed.sampling.designs import Stratified as Stratified
    from isfed.sampling.designs import SumTree as SumTree
    from isfed.sampling.designs import Systematic as Systematic
    from isfed.sampling.designs import Tille as Tille
    from isfed.sampling.designs import WithReplacement as WithReplacement
    from isfed.sampling.designs import inclusion_probabilities as inclusion_probabilities
    from isfed.sampling.estimation import estimate_mean as estimate_mean
    from isfed.sampling.estimation import estimate_total as estimate_total
    from isfed.sampling.policies import Current as Current
    from isfed.sampling.policies import Initial as Initial
    from isfed.sampling.policies import Memory as Memory
    from isfed.sampling.policies import Oracle as Oracle
    from isfed.sampling.policies import Policy as Policy
    from isfed.sampling.policies import Refresh as Refresh
    from isfed.sampling.policies import Running as Running
    from isfed.sampling.policies import Score as Score
    from isfed.sampling.policies import ScorePolicy as ScorePolicy
    from isfed.sampling.policies import Uniform as Uniform
    from isfed.simulate import DivergenceError as DivergenceError
    from isfed.simulate import History as History
    from isfed.simulate import Measure as Measure
    from isfed.simulate import simulate as simulate
    from isfed.studies.results_reader import Results as Results
    from isfed.studies.results_reader import load_results as load_results
    from isfed.studies.sklearn_estimators import FederatedClassifier as FederatedClassifier
    from isfed.studies.sklearn_estimators import FederatedRegressor as FederatedRegressor
    from isfed.theory import certify as certify
    from isfed.theory import diagnose as diagnose
    from isfed.theory.stable_step_size import stable_step_size as stable_step_size
    from isfed.theory.stable_step_size import step_limits as step_limits

    __all__: list[str]
    __version__: str

# Rooms that can be reached as `isfed.theory` after `import isfed` alone. `simulate` is a function
# too: the package itself can be called.
_ROOMS = {
    "base", "datasets", "federation", "methods", "problems", "sampling", "simulate", "studies",
    "theory",
}  # fmt: skip


def _homes() -> dict[str, str]:
    """The module of each public name, from the table above."""
    import re

    source = __spec__.loader.get_source(__name__)  # pyright: ignore
    table = re.findall(r"^    from isfed\.(\S+) import (\w+) as", source, re.M)
    return {name: module for module, name in table}


def __getattr__(name: str) -> _typing.Any:
    from importlib import import_module, metadata

    if name in _ROOMS:
        value = import_module(f"isfed.{name}")
    elif name == "__version__":
        value = metadata.version("isfed")
    elif name == "__all__":
        value = [*_homes(), "__version__"]
    elif name[:1] != "_" and name in (homes := _homes()):
        value = getattr(import_module(f"isfed.{homes[name]}"), name)
    else:
        from isfed.old_names import new_public_name

        value = __getattr__(new_public_name(name))
    globals()[name] = value  # the next use finds it without asking here
    return value


def __dir__() -> list[str]:
    return sorted({*_homes(), *_ROOMS, *(name for name in globals() if name[:2] == "__")})


class _OldNames:
    """Finds modules by the names that they had before: see `isfed.old_names`."""

    @staticmethod
    def find_spec(name: str, path: _typing.Any = None, target: _typing.Any = None) -> _typing.Any:
        if not name.startswith("isfed.") or name == "isfed.old_names":
            return None
        from isfed.old_names import spec_of

        return spec_of(name)


_sys.meta_path.insert(0, _OldNames)  # first: an old room would be searched for modules otherwise
