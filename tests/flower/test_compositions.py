"""Every kind of composition over Flower ends with the model of the run in process.

Bit for bit, but for control variates: there every agent keeps its own c_k, and what the cloud adds
up in process is added up in two places.
"""

# pyright: reportMissingImports=false
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import ConfigRecord
from small_flower import AGENTS, PROBLEM, SEED, initial, make_grid, make_strategy, params_of

from isfed import (
    DELTA,
    FOLB,
    KAVG,
    MABS,
    MIFA,
    OSMD,
    SCAFFOLD,
    VRB,
    ActiveFL,
    AdaptiveTau,
    AgnosticFL,
    Clock,
    ClusteredSampling,
    CooperativeSGD,
    DecentralisedSGD,
    DivFL,
    DynamicFedAvg,
    ElasticAveraging,
    FedAdam,
    FedAsync,
    FedAU,
    FedAvg,
    FedAvgScheme,
    FedCM,
    FedProx,
    FedSTaS,
    FedVARP,
    FullySynchronousSGD,
    HiCSFL,
    HierFAVG,
    ISFedAvg,
    KVib,
    LocalGD,
    LocalSGD,
    LookAhead,
    LookAheadPasses,
    Memory,
    MomentumSGD,
    Passes,
    PeriodicAveraging,
    PowerOfChoice,
    QFedAvg,
    QFedSGD,
    RestartedSGD,
    Scheduled,
    Served,
    Spread,
    StichSGD,
    Uniform,
)
from isfed.base.random_streams import Purpose
from isfed.federation.messages import Cohort
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.safety import Safety
from isfed.methods.by_score import ByScore
from isfed.methods.estimators import HorvitzThompson, InverseResponse, Mean, weighted_step
from isfed.methods.federated import Evidence, Federated, composition_of
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import ModelState
from isfed.report.methods_table import select
from isfed.sampling.designs import Deville

AS_SIMULATED = Safety(
    most_inclusion=1.0, largest_ratio=1e9, most_medians=np.inf
)  # nobody is capped or refused
ABSENT = 1
STEP = 0.01
PLAIN = LocalSteps(STEP)
UNIFORM = ByScore(3, Uniform(), Deville())
SCORED = ByScore(3)


@dataclass(frozen=True)
class HeavyBall:
    """A server with a memory."""

    momentum: float = 0.9

    def init(self, params, rounds_per_pass):
        return ModelState(np.zeros(params.size))

    def send(self, state, params):
        return params

    def move(self, state, params, step):
        velocity = self.momentum * state.params + step
        return params + velocity, ModelState(velocity)

    def show(self, state, params):
        return params


@dataclass(frozen=True)
class WorstOff:
    """The agents with the largest losses among some candidates; who does not answer is last."""

    num_active: int
    sampled: bool = False
    reports: ClassVar[Any] = UNIFORM.policy

    def init(self, facts, agents, params):
        return ()

    def draw(self, state, facts, agents, params, round_index):
        points = agents.stream(Purpose.AGENTS, round_index).uniforms(facts.num_agents)
        candidates = np.sort(np.argsort(points)[:4])
        if self.sampled:
            losses = agents.sampled_losses(candidates, params, round_index)
        else:
            losses = agents.losses(candidates, params)
        worst = np.sort(candidates[np.argsort(-losses, kind="stable")[: self.num_active]])
        return Cohort(worst, self.num_active, np.ones(worst.size), has_model=True), state

    def learn(self, state, cohort, updates, evidence, facts, round_index):
        return state


@dataclass(frozen=True)
class ByGradients(Mean):
    """Changes count by their agents' losses, and by how their gradients agree."""

    def ask(self, state, cohort, facts, work):
        return work._replace(also=frozenset({"loss", "gradient"}))

    def combine(self, state, opened, updates, facts):
        if not len(updates.change):
            return np.zeros(facts.num_trained), state, Evidence(updates.score, updates.change)
        assert updates.gradient is not None
        influence = updates.loss * (updates.gradient * updates.gradient[0]).sum(axis=1)
        step = weighted_step(influence, updates.change, np.abs(influence).sum(), facts.num_trained)
        return step, state, Evidence(updates.score, updates.change)


@dataclass(frozen=True)
class Steered(Mean):
    """Steps steered by what the cloud keeps of every agent, with a momentum that travels."""

    def init(self, facts, params):
        return ModelState(np.zeros((facts.num_agents, params.size)))

    def ask(self, state, cohort, facts, work):
        kept = state.params
        local = replace(
            work.local, correction=0.1 * (kept.mean(axis=0) - kept[cohort.agents]), momentum=0.5,
            velocity=kept[cohort.agents], nesterov=True,
        )  # fmt: skip
        return work._replace(local=local)

    def combine(self, state, opened, updates, facts):
        state.params[opened.cohort.agents[updates.place]] = updates.velocity
        return super().combine(state, opened, updates, facts)


def halved(round_index):
    return STEP * 0.5 ** (round_index // 3)


def ours(**choices):
    return ISFedAvg(**{"step_size": STEP, "num_active": 3, **choices})


EXACT = {
    "uniform, mean": Federated(UNIFORM, PLAIN, Mean()),
    "by score, mean": Federated(SCORED, PLAIN, Mean()),
    "importance on the step": ours(weighting="step"),
    "importance on the change": ours(weighting="change"),
    "spread": ours(weighting="change", agent_design=Spread(every=3)),
    "spread on the step": ours(weighting="step", agent_design=Spread(every=2)),
    "costs": ours(weighting="change", costs=[1.0, 2.0, 4.0, 1.0, 3.0]),
    "costs and spread": ours(
        weighting="step", costs=[1.0, 2.0, 4.0, 1.0, 3.0], agent_design=Spread()
    ),
    "a server with memory": Federated(SCORED, PLAIN, HorvitzThompson(), HeavyBall()),
    "a schedule": Federated(SCORED, LocalSteps(halved, divide_by_steps=True), HorvitzThompson()),
    "a schedule on the step": Federated(SCORED, LocalSteps(halved), HorvitzThompson("step")),
    "prox, a number of steps": Federated(UNIFORM, LocalSteps(STEP, 4, prox=0.7), Mean()),
    "full batches": ours(weighting="step", full_batch=True),
    "adjusted for absences": ours(weighting="change", absences="adjusted"),
    "adjusted, plain steps": Federated(SCORED, PLAIN, InverseResponse(HorvitzThompson())),
    "adjusted mean": Federated(SCORED, PLAIN, InverseResponse(Mean())),
    "FedAdam, looking ahead": Served(ours(weighting="change"), LookAhead(FedAdam())),
    "averaged": ours(weighting="step", average=True),
    "averaged over a pass": ours(weighting="change", average="pass"),
    "passes": ours(weighting="step", agents=Uniform(), passes=True),
    "passes on the step, averaged": ours(weighting="step", passes=True, average=True),
    "passes with costs": ours(weighting="change", passes=True, costs=[1.0, 2.0, 4.0, 1.0, 3.0]),
    "a schedule around a method": Scheduled(ours(weighting="change"), halved),
    "both, and costs": Served(
        Scheduled(ours(weighting="change", costs=[1.0, 2.0, 4.0, 1.0, 3.0]), halved), FedAdam()
    ),
    "the default for networks": LookAheadPasses(step_size=STEP, num_active=3),
    "the default without single changes": LookAheadPasses(
        step_size=STEP, num_active=3, single_changes=False
    ),
    "passes by score": Federated(Passes(3, Memory()), PLAIN, HorvitzThompson()),
    "asks for losses": Federated(WorstOff(2), PLAIN, Mean()),
    "asks for single losses": Federated(WorstOff(2, sampled=True), PLAIN, Mean()),
    "losses and gradients ride along": Federated(UNIFORM, PLAIN, ByGradients()),
    "steered by the cloud": Federated(UNIFORM, PLAIN, Steered()),
}
CORRECTED: dict[str, Any] = {
    "difference": ours(correction="difference"),
    "drift": ours(correction="drift"),
    "drift, uniform": ours(correction="drift", agents=Uniform(), examples=Uniform()),
    "drift, adjusted": ours(correction="drift", absences="adjusted"),
    "drift with costs": ours(correction="drift", costs=[1.0, 2.0, 4.0, 1.0, 3.0]),
    # Two of five: where an inclusion is capped at 1, rounding decides which uniforms a draw uses.
    "difference, spread": ours(correction="difference", agent_design=Spread(), num_active=2),
}
CORRECTED["drift with a schedule"] = replace(
    CORRECTED["drift"].federated,
    local=replace(CORRECTED["drift"].federated.local, step_size=halved),
    server=HeavyBall(),
)
METHODS = {**EXACT, **CORRECTED}


class Here(ObjectAgents):
    """The agents in this process, of which one may never answer."""

    absent = -1

    def answers(self, which, round_index):
        return which != self.absent

    def train(self, cohort, sent, work, round_index):
        """As over a network, where it is known who was asked and did not answer."""
        updates = super().train(cohort, sent, work, round_index)
        return updates._replace(asked=np.ones(cohort.agents.size, bool))

    def losses(self, which, params, **options):
        return np.where(which == self.absent, np.nan, super().losses(which, params, **options))

    def sampled_losses(self, which, params, round_index, **options):
        found = super().sampled_losses(which, params, round_index, **options)
        return np.where(which == self.absent, np.nan, found)


def repaying(estimator):
    """The estimator with adjustments as over a network: for turns that an agent missed itself."""
    if isinstance(estimator, InverseResponse):
        estimator = replace(estimator, repays=True)
    if hasattr(estimator, "inner"):
        return replace(estimator, inner=repaying(estimator.inner))
    return estimator


def in_process(algorithm, rounds, absent=-1, weights=None):
    """The model and the ledger of the same rounds in one process."""
    method = composition_of(algorithm)
    assert method is not None
    method = replace(method, estimator=repaying(method.estimator))
    agents = Here(PROBLEM, method.rules(AGENTS), seed=SEED, repetition=0)
    agents.absent, agents.clock = absent, Clock(drop=0.5 if absent >= 0 else 0.0)
    if weights is not None:
        agents._facts["size"] = agents.facts()._replace(weight=weights / weights.mean())
        method = replace(method, client_weights="size")
    state = method.start(agents, np.zeros(PROBLEM.num_params))
    for i in range(rounds):
        state, _ = method.step(state, agents, i)
    return method.model(state), agents.ledger


def test_sizes_that_are_not_known_are_asked_for(tmp_path):
    method: Any = PowerOfChoice(step_size=STEP, num_active=2)
    strategy = make_strategy(method, weighting=None)
    with pytest.raises(ValueError, match=r"are not known over a network: Strategy\(agent_weights="):
        strategy.start(make_grid(tmp_path), initial(), num_rounds=1)


def over_flower(algorithm, rounds, tmp_path, absent=-1, **options):
    grid = make_grid(tmp_path, lambda agent, reply: None if agent == absent else reply)
    options = {"weighting": None, "safety": AS_SIMULATED, **options}
    if absent >= 0:
        options["time_limit"] = 0.02
    strategy = make_strategy(algorithm, **options)
    return params_of(strategy.start(grid, initial(), num_rounds=rounds)), strategy


@pytest.mark.parametrize("absent", [-1, ABSENT], ids=["all there", "one absent"])
@pytest.mark.parametrize("name", METHODS)
def test_ends_with_the_model_of_the_run_in_process(tmp_path, name, absent):
    algorithm = METHODS[name]
    found, strategy = over_flower(algorithm, 10, tmp_path, absent)
    expected, ledger = in_process(algorithm, 10, absent)
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_array_equal(found, expected)
    assert strategy.job is not None
    if name.startswith("asks"):
        return  # in process the candidates that are absent are charged for their answer
    charged = strategy.job.agents.ledger
    if name in CORRECTED:  # in process as if agents kept c_k themselves, which takes more messages
        assert charged.models_up == ledger.models_up
        assert charged.models_down == ledger.models_down // (1 if "drift" in name else 2)
        return
    for entry in ("models_down", "models_up", "scalars_down"):
        assert getattr(charged, entry) == getattr(ledger, entry), entry
    assert charged.scalars_up == ledger.scalars_up - 3 * AGENTS  # nobody told N_k, E_k, B_k


@pytest.mark.parametrize(
    "name",
    ["a server with memory", "asks for losses", "drift", "spread", "the default for networks"],
)
def test_flowers_own_loop_gives_the_same(tmp_path, name):
    strategy = make_strategy(METHODS[name], weighting=None, safety=AS_SIMULATED)
    grid, arrays = make_grid(tmp_path), initial()
    for number in range(1, 7):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert arrays is not None
    expected, _ = in_process(METHODS[name], 6)
    np.testing.assert_allclose(arrays["params"].numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("on", ["step", "change"])
def test_weights_of_the_objective_are_those_of_the_run_in_process(tmp_path, on):
    weights = np.array([1.0, 5.0, 2.0, 3.0, 1.0])
    algorithm = ours(weighting=on, client_weights="size")
    found, _ = over_flower(algorithm, 8, tmp_path, agent_weights=weights.tolist())
    expected, _ = in_process(algorithm, 8, weights=weights)
    np.testing.assert_array_equal(found, expected)


class Killed(BaseException):
    """The cloud's process ends."""


@pytest.mark.parametrize(
    "name", ["a server with memory", "losses and gradients ride along", "drift", "spread",
             "steered by the cloud", "asks for losses", "drift with a schedule",
             "the default for networks"],
)  # fmt: skip
def test_a_killed_cloud_goes_on_from_its_checkpoint(tmp_path, name):
    algorithm, count = METHODS[name], [0]

    def kill(_, reply):
        count[0] += 1
        if count[0] == 11:
            raise Killed
        return reply

    options = {"weighting": None, "safety": AS_SIMULATED, "checkpoint": tmp_path / "cloud.npz"}
    with pytest.raises(Killed):
        make_strategy(algorithm, **options).start(
            make_grid(tmp_path, kill), initial(), num_rounds=8
        )
    found = make_strategy(algorithm, **options).start(make_grid(tmp_path), initial(), num_rounds=8)
    expected, _ = in_process(algorithm, 8)
    np.testing.assert_allclose(params_of(found), expected, rtol=1e-10)
    if name not in CORRECTED:
        np.testing.assert_array_equal(params_of(found), expected)


SOME = {"step_size": STEP, "num_active": 3}
PUBLISHED = [
    FedAvg(**SOME), DynamicFedAvg(**SOME), FedProx(**SOME), FedProx(sampling="weighted", **SOME),
    *(FedAvgScheme(scheme=s, **SOME) for s in ("I", "II", "transformed-II", "original")),
    QFedAvg(**SOME), QFedSGD(**SOME), PowerOfChoice(candidates=4, **SOME),
    PowerOfChoice(candidates=4, candidates_by="uniform", **SOME),
    *(FOLB(variant=v, **SOME) for v in ("one-set", "two-sets", "near-optimal")),
    SCAFFOLD(**SOME), FedVARP(**SOME),
    *(ClusteredSampling(by=by, **SOME) for by in ("size", "similarity")),
    StichSGD(strong=1.0, shift=80.0, steps=2), PeriodicAveraging(steps=2, step_size=STEP),
    DecentralisedSGD(step_size=STEP), ElasticAveraging(step_size=STEP),
    RestartedSGD(steps=2, step_size=STEP), AdaptiveTau(budget=1e9, step_size=STEP),
    MomentumSGD(momentum=0.5, step_size=STEP), HierFAVG(edges=2, edge_rounds=2, step_size=STEP),
    AgnosticFL(step_size=STEP), AgnosticFL(stochastic=True, step_size=STEP),
    FedAsync(step_size=STEP), KVib(regulariser=1e-6, **SOME),
    DELTA(**SOME), DELTA(as_coded=True, **SOME), MIFA(**SOME), FedAU(**SOME), ActiveFL(**SOME),
    FedAU(known_prob=True, **SOME), FedCM(**SOME), SCAFFOLD(as_coded=True, **SOME),
    VRB(as_coded=True, local_steps=2, horizon=5, **SOME),
    DivFL(local_steps=2, **SOME), FedSTaS(strata=2, **SOME),
    PowerOfChoice(candidates=4, candidates_by="uniform", variant="cpow-d", **SOME),
    PowerOfChoice(candidates=4, candidates_by="uniform", variant="rpow-d", **SOME),
    *(method(local_steps=2, horizon=5, **SOME) for method in (OSMD, MABS, VRB)),
    LocalGD(step_size=STEP), LocalSGD(steps=2, step_size=STEP), KAVG(steps=2, step_size=STEP),
    CooperativeSGD(step_size=STEP), FullySynchronousSGD(step_size=STEP),
    HiCSFL(horizon=5, clusters=2, output_layer=(1, 1), **SOME),
]  # fmt: skip


def name_of(method):
    options = (getattr(method, name, "") for name in ("variant", "sampling", "by", "candidates_by"))
    coded = [name for name in ("as_coded", "known_prob") if getattr(method, name, False)]
    return " ".join([method.name, *filter(None, options), *coded])


@pytest.mark.parametrize("absent", [-1, ABSENT], ids=["all there", "one offline"])
@pytest.mark.parametrize("method", PUBLISHED, ids=name_of)
def test_published_methods_end_with_the_model_of_the_run_in_process(tmp_path, method, absent):
    grid, weights = make_grid(tmp_path), None
    if absent >= 0:
        grid.offline.add(1000 + absent)
    if getattr(method, "candidates_by", "") == "size":
        weights = PROBLEM.data.num_examples.tolist()  # all the same here
    strategy = make_strategy(method, weighting=None, safety=AS_SIMULATED, agent_weights=weights)
    found = params_of(strategy.start(grid, initial(), num_rounds=5))
    agents = Here(PROBLEM, method.rules(AGENTS), seed=SEED, repetition=0)
    agents.absent, agents.clock = absent, Clock(drop=0.5 if absent >= 0 else 0.0)
    state = method.start(agents, np.zeros(PROBLEM.num_params))
    for i in range(5):
        state = method.round(state, agents, i)
    np.testing.assert_array_equal(found, method.model(state))


def test_every_method_that_is_said_to_run_over_a_network_is_run_here():
    ours = {"ISFedAvg", "FedAvg", "DynamicFedAvg", "importance"}  # all are ISFedAvg
    said = {entry.name for entry in select([], network=True)} - {"LookAheadPasses"} - ours
    assert said == {type(method).__name__ for method in PUBLISHED} - ours


def test_a_method_with_its_own_round_is_for_our_loop_only(tmp_path):
    method: Any = HierFAVG(edges=2, edge_rounds=2, step_size=STEP)
    strategy = make_strategy(method, weighting=None)
    with pytest.raises(ValueError, match=r"HierFAVG has a round of its own.*Strategy\.start"):
        strategy.configure_train(1, initial(), ConfigRecord(), make_grid(tmp_path))


def test_the_cap_on_inclusion_holds_with_costs_too():
    """The draw is capped after the costs; the scores stay as they are."""
    sampler = ByScore(2, Memory(floor=0.0), costs=[1.0, 1.0, 100.0, 1.0, 1.0], most_inclusion=0.5)
    table = sampler.table(sampler.init(FACTS, None, np.zeros(2)), 5)  # type: ignore[arg-type]
    table.replace(np.array([100.0, 1.0, 1.0, 1.0, 1.0]))
    limited, above = sampler._limited(table)
    assert above == 1
    assert limited.inclusion(2).max() <= 0.5 + 1e-12
    assert table.scores[0] == 100.0


FACTS = Here(PROBLEM, ours().rules(AGENTS), seed=0, repetition=0).facts()
