"""Parts that fit each other run: any sampler with any estimator and server, agents away or not."""

import contextlib
import itertools
import random

import pytest

from isfed import (
    PAPER,
    Add,
    Average,
    ByScore,
    Clock,
    ControlVariates,
    Correction,
    Current,
    Deville,
    DivergenceError,
    FedAdam,
    Federated,
    HorvitzThompson,
    InverseResponse,
    LocalSteps,
    LookAhead,
    Mean,
    Memory,
    Passes,
    Poisson,
    Spread,
    StratifiedPasses,
    Uniform,
    WithReplacement,
    simulate,
)
from isfed.federation.safety import Privacy
from isfed.methods.active_fl import ByValue
from isfed.methods.bandit_samplers import ExponentialWeights, MirrorDescent, RootOfSums
from isfed.methods.clustered_sampling import MeanOverDraws, OneOfEachGroup
from isfed.methods.delta_sampling import ByDiversity
from isfed.methods.divfl import Diverse
from isfed.methods.estimators import Extrapolated, MeanOfAll, PlainMean
from isfed.methods.fedau import MeanGapWeights
from isfed.methods.fedavg_schemes import ESTIMATORS
from isfed.methods.fedcm import DirectedMean
from isfed.methods.fedprox import WithStragglers
from isfed.methods.fedstas import StratifiedCohort
from isfed.methods.fedvarp import RememberedMean
from isfed.methods.kvib import CumulativeNorms
from isfed.methods.local_sgd import MomentumMean
from isfed.methods.mifa import MeanOfLastChanges
from isfed.methods.oort import ByUtility
from isfed.methods.power_of_choice import LargestLosses
from isfed.methods.private import Private, ReleasedScores
from isfed.methods.q_ffl import FairMean
from isfed.methods.robust_means import GeometricMedian, NormClippedMean, TrimmedMean
from isfed.methods.scaffold import SteeredFromModel, SteeredMean
from isfed.methods.uniform_samplers import AllAgents, ByWeight, UniformCohort

LOCAL = LocalSteps(0.01, divide_by_steps=True)
ESTIMATED = [
    HorvitzThompson(), HorvitzThompson("step"), Mean(), MeanOfAll(), PlainMean(),
    Extrapolated(Mean()), InverseResponse(HorvitzThompson(), repays=True), InverseResponse(Mean()),
    TrimmedMean(), GeometricMedian(), NormClippedMean(), MeanGapWeights(), DirectedMean(),
    RememberedMean(), MeanOfLastChanges(), SteeredMean(), SteeredFromModel(), MeanOverDraws(),
    FairMean(1.0, frozenset({"loss"})), MomentumMean(0.9, nesterov=False, buffer="average"),
    MomentumMean(0.9, nesterov=True, buffer="keep"),
    ControlVariates(Correction("difference"), Memory(), Deville()),
    ControlVariates(Correction("drift"), Uniform(), Deville()),
    Private(HorvitzThompson(), Privacy(clip=1.0)), *ESTIMATORS.values(),
]  # fmt: skip
SERVERS = [Add(), FedAdam(), Average(LookAhead(FedAdam()))]


def samplers(num: int, count: int) -> list:
    return [
        ByScore(num), ByScore(num, Uniform()), ByScore(num, Uniform(), Poisson()),
        ByScore(num, Memory(), WithReplacement()), ByScore(num, Uniform(), Spread(every=2)),
        ByScore(num, Current()), ByScore(num, costs=[1.0] * count), Passes(num),
        Passes(num, Memory()), StratifiedPasses(num), AllAgents(), UniformCohort(num),
        ByWeight(num), CumulativeNorms(num, 10), MirrorDescent(num, 10),
        ExponentialWeights(num, 10), RootOfSums(num, 10), RootOfSums(num, 10, as_coded=True),
        ByDiversity(num), Diverse(num, LOCAL), StratifiedCohort(num, min(3, num)), ByValue(num),
        ByUtility(num, LOCAL), OneOfEachGroup(num, "similarity", "condensed"),
        WithStragglers(UniformCohort(num), 0.5, keep=True, local=LOCAL),
        LargestLosses(num, min(2 * num, count), "size"), ReleasedScores(num, every=2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "num", "drop"), [(6, 2, 0.0), (6, 2, 0.5), (6, 6, 0.3), (1, 1, 0.5)]
)
def test_parts_that_are_not_refused_run(count, num, drop):
    """A few hundred of 5 000 compositions, others for each setting: refused when made, or run."""
    every = list(itertools.product(samplers(num, count), ESTIMATED, SERVERS, ("uniform", "size")))
    problem = PAPER.replace(
        num_agents=count, num_examples=12, batch_size=(1, 3), local_steps=(1, 2)
    ).make(seed=1)
    refused = []
    for sampler, estimator, server, weights in random.Random(count + num).sample(every, 150):
        try:
            method = Federated(sampler, LOCAL, estimator, server, client_weights=weights)
        except ValueError as error:
            refused.append(str(error))
            continue
        with contextlib.suppress(DivergenceError):  # robust means of few agents may diverge
            simulate(problem, method, rounds=4, engine="agents", clock=Clock(drop=drop))
    assert 0 < len(refused) < 50
    assert all(" needs " in reason for reason in refused)
